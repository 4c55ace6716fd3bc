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

#include "libfleet/base/error.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"

struct world {
    char folder[64], go[80], script[80];
    uv_loop_t loop;
    struct kube_config config;
    struct kube_io *io;
    int answers, turns;
    enum kube_error kinds[4]; /* of the answers */
    char words[512];
};

/* `body` is a shell script; $GO is a file that the test makes. There is no server at the server's
 * address. */
static void start(struct world *w, const char *body)
{
    char text[1024];
    FILE *file;
    struct fleet_error err;

    *w = (struct world){.folder = "/tmp/fleetjob-plug-in-XXXXXX"};
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
        "current-context: c\nclusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {exec: "
        "{apiVersion: client.authentication.k8s.io/v1, command: %s, interactiveMode: Never}}}]\n",
        w->script);
    if (kube_config_decode(text, strlen(text), w->folder, NULL, &w->config, &err) < 0)
        fail_msg("%s", err.text);
    uv_loop_init(&w->loop);
    assert_int_equal(kube_http_new(&w->loop, &w->config, NULL, &w->io, &err), 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_plug_in__the_loop_turns_while_it_runs),
        cmocka_unit_test(test_kube_plug_in__requests_that_wait_for_it_time_out_and_are_cancelled),
        cmocka_unit_test(test_kube_plug_in__its_failure_ends_those_that_wait),
        cmocka_unit_test(test_kube_plug_in__an_expired_credential_is_no_endless_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
