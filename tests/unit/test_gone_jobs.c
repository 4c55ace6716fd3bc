/* SPDX-License-Identifier: Apache-2.0 */

/* A UID is gone if the API server has no job of that name with it; nothing else makes it so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/gone_jobs.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"

#define JOBS(space) "/apis/fleetjob.dev/v1alpha1/namespaces/" space "/fleetjobs"
#define JOB                                                                                   \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":" \
    "\"gpt\"},\"spec\":{}}"

struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct gone_jobs *jobs;
};

static void start(struct world *w, const char *const *namespaces, size_t count)
{
    w->server = fake_apiserver_new();
    w->io = fake_io_new(w->server, 1);
    w->jobs = gone_jobs_new(fake_io_kube(w->io), namespaces, count);
}

static void stop(struct world *w)
{
    gone_jobs_free(w->jobs);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
}

static bool ask(struct world *w, const char *uid, const char *name)
{
    (void)gone_jobs_ask(w->jobs, uid, name);
    fake_io_run(w->io, 1000);
    return gone_jobs_ask(w->jobs, uid, name);
}

static size_t lists(const struct world *w)
{
    return fake_apiserver_requests(w->server, "fleetjobs?");
}

static void test_gone_jobs__a_job_that_is_there_is_not_gone(void **state)
{
    static const char *const namespaces[] = {"other", "team"};
    struct world w;
    const char *uid = "";

    (void)state;
    start(&w, namespaces, 2);
    assert_int_equal(fake_apiserver_do(w.server, "POST", JOBS("team"), JOB), 201);
    (void)fleet_json_opt_string(fake_apiserver_get(w.server, JOBS("team") "/gpt"), "metadata.uid",
                                &uid, NULL);
    assert_false(ask(&w, uid, "gpt"));
    assert_int_equal(lists(&w), 2);
    fake_io_run(w.io, 10000);
    assert_false(ask(&w, uid, "gpt")); /* not asked for again so soon */
    assert_int_equal(lists(&w), 2);
    assert_true(ask(&w, "of-its-predecessor", "gpt"));
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", JOBS("team") "/gpt", NULL), 200);
    fake_io_run(w.io, GONE_JOBS_AGAIN_MS);
    assert_true(ask(&w, uid, "gpt"));
    stop(&w);
}

static void test_gone_jobs__a_uid_that_is_gone_stays_gone(void **state)
{
    struct world w;

    (void)state;
    start(&w, NULL, 0);
    assert_true(ask(&w, "gone", "gpt"));
    assert_int_equal(lists(&w), 1);
    fake_io_run(w.io, 100000);
    assert_true(gone_jobs_ask(w.jobs, "gone", "gpt"));
    assert_int_equal(lists(&w), 1);
    stop(&w);
}

static void test_gone_jobs__without_an_answer_nothing_is_gone(void **state)
{
    struct world w;

    (void)state;
    start(&w, NULL, 0);
    fake_io_weather(w.io)->unreachable = true;
    assert_false(ask(&w, "uid", "gpt"));
    fake_io_weather(w.io)->unreachable = false;
    assert_false(ask(&w, "uid", "No Name"));
    assert_false(ask(&w, "another", ""));
    assert_false(ask(&w, "another", "a,b=c"));
    fake_io_run(w.io, 100000);
    assert_true(ask(&w, "uid", "gpt"));
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gone_jobs__a_job_that_is_there_is_not_gone),
        cmocka_unit_test(test_gone_jobs__a_uid_that_is_gone_stays_gone),
        cmocka_unit_test(test_gone_jobs__without_an_answer_nothing_is_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
