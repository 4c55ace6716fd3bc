/* SPDX-License-Identifier: Apache-2.0 */

/* A credential plug-in that takes its time: the loop turns meanwhile, and what needs the credential
 * waits. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "controller/machinery/leader_election.h"
#include "libfleet/base/error.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_http.h"

struct world {
    char folder[64], go[80], script[80];
    uv_loop_t loop;
    struct kube_config config;
    struct kube_io *io;
    int answers, turns, renewals;
    enum kube_error kinds[4]; /* of the answers */
    char words[512];
};

static void on_answered(void *user, const char *verb, int status)
{
    struct world *w = user;

    w->renewals += strcmp(verb, "PUT") == 0 && status == 200;
}

/* `body` is a shell script; $GO is a file that the test makes. */
static void start_at(struct world *w, int port, const char *body)
{
    struct kube_http_options options = {.answered = on_answered, .user = w};
    char text[1024];
    FILE *file;
    struct fleet_error err;

    assert_non_null(mkdtemp(w->folder));
    snprintf(w->go, sizeof(w->go), "%s/go", w->folder);
    snprintf(w->script, sizeof(w->script), "%s/plug-in", w->folder);
    file = fopen(w->script, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\nGO=%s\n%s\n", w->go, body);
    fclose(file);
    assert_int_equal(chmod(w->script, 0700), 0);
    snprintf(
        text, sizeof(text),
        "current-context: c\nclusters: [{name: k, cluster: {server: 'http://127.0.0.1:%d'}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {exec: "
        "{apiVersion: client.authentication.k8s.io/v1, command: %s, interactiveMode: Never}}}]\n",
        port, w->script);
    if (kube_config_decode(text, strlen(text), w->folder, NULL, &w->config, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(kube_http_new(&w->loop, &w->config, &options, &w->io, &err), 0);
}

/* There is no server at the server's address. */
static void start(struct world *w, const char *body)
{
    *w = (struct world){.folder = "/tmp/fleetjob-plug-in-XXXXXX"};
    uv_loop_init(&w->loop);
    start_at(w, 1, body);
}

static void stop(struct world *w)
{
    kube_http_free(w->io);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    kube_config_release(&w->config);
    unlink(w->go);
    unlink(w->script);
    rmdir(w->folder);
}

static void on_done(void *user, const struct kube_response *response)
{
    struct world *w = user;

    w->kinds[w->answers++] = kube_error_kind(response->err);
    snprintf(w->words, sizeof(w->words), "%s", response->err ? response->err->text : "");
}

static struct kube_call *ask(struct world *w, double timeout_ms, bool is_urgent)
{
    struct kube_request request = {.method = "GET",
                                   .path = "/version",
                                   .timeout_ms = timeout_ms,
                                   .urgent = is_urgent,
                                   .on_done = on_done,
                                   .user = w};

    return kube_send(w->io, &request);
}

static void on_turn(void *user)
{
    struct world *w = user;

    w->turns++;
    (void)kube_after(w->io, 1, on_turn, w);
}

#define run_until(world, condition)              \
    do {                                         \
        while (!(condition))                     \
            uv_run(&(world)->loop, UV_RUN_ONCE); \
    } while (0)

#define TOKEN                                                                                \
    "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\"," \
    "\"status\":{\"token\":\"secret\"}}'"

static void test_kube_plug_in__the_loop_turns_while_it_runs(void **state)
{
    struct world w;

    (void)state;
    start(&w, "while [ ! -e $GO ]; do sleep 0.05; done\n" TOKEN);
    on_turn(&w);
    ask(&w, 0, false);
    ask(&w, 0, true);
    run_until(&w, w.turns >= 50);
    assert_int_equal(w.answers, 0);
    assert_null(w.config.token.text);
    fclose(fopen(w.go, "w"));
    run_until(&w, w.answers == 2); /* there is no server, but they were sent */
    assert_string_equal(w.config.token.text, "secret");
    assert_null(strstr(w.words, "plug-in"));
    stop(&w);
}

static void test_kube_plug_in__requests_that_wait_for_it_time_out_and_are_cancelled(void **state)
{
    struct kube_call *call;
    struct world w;

    (void)state;
    start(&w, "while [ ! -e $GO ]; do sleep 0.05; done\n" TOKEN);
    ask(&w, 20, false);
    call = ask(&w, 0, false);
    run_until(&w, w.answers == 1);
    assert_int_equal(w.kinds[0], KUBE_ERROR_TIMED_OUT);
    kube_cancel(w.io, &call);
    stop(&w); /* which ends the plug-in, too */
}

static void test_kube_plug_in__its_failure_ends_those_that_wait(void **state)
{
    struct world w;

    (void)state;
    start(&w, "exit 3");
    ask(&w, 0, false);
    ask(&w, 0, true);
    run_until(&w, w.answers == 2);
    if (!strstr(w.words, "failed with exit code 3"))
        fail_msg("%s", w.words);
    assert_int_equal(w.kinds[0], KUBE_ERROR_CREDENTIAL);
    stop(&w);
}

/* One that has expired is tried all the same, and asked for once a request. */
static void test_kube_plug_in__an_expired_credential_is_no_endless_loop(void **state)
{
    struct world w;

    (void)state;
    start(&w, "echo '{\"status\":{\"token\":\"old\",\"expirationTimestamp\":"
              "\"2001-01-01T00:00:00Z\"}}'");
    ask(&w, 0, false);
    run_until(&w, w.answers == 1);
    assert_string_equal(w.config.token.text, "old");
    stop(&w);
}

/* ---- the lease ------------------------------------------------------------------------------- */

static int64_t clock_wall_ms; /* of the clock that says when a credential expires */

static int64_t read_clock(struct kube_io *io)
{
    (void)io;
    return clock_wall_ms;
}

/* It hangs when its credential is about to expire: the lease is renewed with the old one. */
static void test_kube_plug_in__the_lease_is_renewed_while_it_hangs(void **state)
{
    struct world w = {.folder = "/tmp/fleetjob-plug-in-XXXXXX"};
    struct leader_election_options options = {.namespace_ = "system",
                                              .name = "fleetjob",
                                              .identity = "one",
                                              .lease_duration_ms = 3600e3,
                                              .renew_deadline_ms = 3000e3,
                                              .retry_ms = 1};
    struct fake_apiserver *server = fake_apiserver_new();
    struct fake_apiserver_http *front;
    struct leader_election *election;
    struct kube_io_ops ops;
    int port, before;

    (void)state;
    uv_loop_init(&w.loop);
    front = fake_apiserver_http_new(&w.loop, server, &port);
    start_at(&w, port,
             "if [ -e $GO ]; then rm $GO; while :; do sleep 0.05; done; fi\ntouch $GO\n"
             "echo '{\"status\":{\"token\":\"old\",\"expirationTimestamp\":"
             "\"2026-01-01T01:00:00Z\"}}'");
    ops = *w.io->ops;
    ops.wall_ms = read_clock;
    w.io->ops = &ops;
    clock_wall_ms = INT64_C(1767225600000); /* 2026-01-01T00:00:00Z */
    election = leader_election_new(w.io, &options);
    run_until(&w, leader_election_is_leader(election) && w.renewals > 2);
    assert_int_equal(access(w.go, F_OK), 0);
    clock_wall_ms += 3600 * 1000 - 30 * 1000; /* within a minute of the end */
    run_until(&w, access(w.go, F_OK) != 0);   /* it runs again, and hangs */
    before = w.renewals;
    run_until(&w, w.renewals >= before + 50);
    assert_true(leader_election_is_leader(election));
    assert_string_equal(w.config.token.text, "old");
    leader_election_free(election);
    fake_apiserver_http_free(front);
    stop(&w);
    fake_apiserver_free(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_plug_in__the_loop_turns_while_it_runs),
        cmocka_unit_test(test_kube_plug_in__requests_that_wait_for_it_time_out_and_are_cancelled),
        cmocka_unit_test(test_kube_plug_in__its_failure_ends_those_that_wait),
        cmocka_unit_test(test_kube_plug_in__an_expired_credential_is_no_endless_loop),
        cmocka_unit_test(test_kube_plug_in__the_lease_is_renewed_while_it_hangs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
