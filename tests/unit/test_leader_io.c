/* SPDX-License-Identifier: Apache-2.0 */

/* A replica that does not lead any more changes nothing, even with requests on their way
 * (only the leader acts). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/leader_io.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/rest.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"

#define PODS "/api/v1/namespaces/team/pods"

struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct leader_io *led;
    bool leads;
    int ends;
    bool has_failed;
    enum kube_error last_kind;
};

static bool may_write(void *user)
{
    return ((struct world *)user)->leads;
}

static int start(void **state)
{
    static struct world world;

    world = (struct world){.server = fake_apiserver_new(), .leads = true};
    world.io = fake_io_new(world.server, 1);
    world.led = leader_io_new(fake_io_kube(world.io), may_write, &world);
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    struct world *w = *state;

    leader_io_free(w->led);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
    return 0;
}

static void on_done(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct world *w = user;

    (void)object;
    w->ends++;
    w->has_failed = err != NULL;
    w->last_kind = kube_error_kind(err);
}

static struct kube_rest_call *create_pod(struct world *w, const char *name)
{
    cJSON *pod = cJSON_CreateObject();
    struct kube_rest_request request = {
        .verb = KUBE_CREATE, .resource = &kube_pods, .namespace_ = "team", .body = pod};
    struct kube_rest_call *call;

    cJSON_AddStringToObject(cJSON_AddObjectToObject(pod, "metadata"), "name", name);
    call = kube_rest_start(leader_io_kube(w->led), &request, on_done, w);
    cJSON_Delete(pod);
    return call;
}

static void test_leader_io__passes_everything_of_a_leader(void **state)
{
    struct world *w = *state;

    (void)create_pod(w, "a");
    fake_io_run(w->io, 100);
    assert_int_equal(w->ends, 1);
    assert_false(w->has_failed);
    assert_int_equal(fake_apiserver_count(w->server, PODS), 1);
}

static void test_leader_io__refuses_writes_of_anybody_else(void **state)
{
    struct world *w = *state;

    w->leads = false;
    (void)create_pod(w, "a");
    assert_int_equal(w->ends, 0); /* not from within the call */
    fake_io_run(w->io, 100);
    assert_int_equal(w->ends, 1);
    assert_int_equal(w->last_kind, KUBE_ERROR_NOT_LEADER);
    assert_int_equal(fake_apiserver_requests(w->server, "POST"), 0);
}

static void test_leader_io__lets_anybody_read(void **state)
{
    struct world *w = *state;
    struct kube_rest_request request = {
        .verb = KUBE_LIST, .resource = &kube_pods, .namespace_ = "team"};

    w->leads = false;
    (void)kube_rest_start(leader_io_kube(w->led), &request, on_done, w);
    fake_io_run(w->io, 100);
    assert_int_equal(w->ends, 1);
    assert_false(w->has_failed);
}

/* The server asks the leader to send a write again later; by then it does not lead. */
static void test_leader_io__does_not_repeat_what_was_sent_as_leader(void **state)
{
    struct world *w = *state;
    struct fake_failure busy = {.method = "POST", .count = 1, .status = 429, .retry_after_s = 5};

    fake_apiserver_fail(w->server, &busy);
    (void)create_pod(w, "a");
    fake_io_run(w->io, 1000);
    assert_int_equal(w->ends, 0);
    w->leads = false;
    fake_io_run(w->io, 10000);
    assert_int_equal(w->ends, 1);
    assert_int_equal(w->last_kind, KUBE_ERROR_NOT_LEADER);
    assert_int_equal(fake_apiserver_count(w->server, PODS), 0);
    assert_int_equal(fake_apiserver_requests(w->server, "POST"), 1);
}

static void test_leader_io__forgets_a_refusal_that_is_cancelled(void **state)
{
    struct world *w = *state;
    struct kube_rest_call *call;

    w->leads = false;
    call = create_pod(w, "a");
    kube_rest_cancel(&call);
    fake_io_run(w->io, 100);
    assert_int_equal(w->ends, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(test_leader_io__passes_everything_of_a_leader),
        TEST(test_leader_io__refuses_writes_of_anybody_else),
        TEST(test_leader_io__lets_anybody_read),
        TEST(test_leader_io__does_not_repeat_what_was_sent_as_leader),
        TEST(test_leader_io__forgets_a_refusal_that_is_cancelled),
    };

    return cmocka_run_group_tests_name("leader_io", tests, NULL, NULL);
}
