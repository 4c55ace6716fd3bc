/* SPDX-License-Identifier: Apache-2.0 */

/*
 * rest on http on a socket, against the fake API server on the same loop: verbs, refusals, repeated
 * requests, the cap, deadlines, cancelling anywhere, watches cut anywhere, connections lost.
 */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/http.h"
#include "libfleet/kube/rest.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_http.h"
#include "tests/integration/kube_http_fixture.h"

static void on_done(void *user, const struct kube_response *response)
{
    struct world *w = user;

    w->has_failed = response->err != NULL;
    w->done_kind = kube_error_kind(response->err);
    w->done_count++;
}

static cJSON *pod(const char *name)
{
    cJSON *root = cJSON_CreateObject();

    cJSON_AddStringToObject(root, "apiVersion", "v1");
    cJSON_AddStringToObject(root, "kind", "Pod");
    cJSON_AddStringToObject(cJSON_AddObjectToObject(root, "metadata"), "name", name);
    return root;
}

static void test_kube_rest__does_every_verb(void **state)
{
    struct world *w = *state;
    FLEET_AUTO_JSON cJSON *body = pod("a");
    FLEET_AUTO_JSON cJSON *patch = cJSON_Parse("{\"metadata\":{\"labels\":{\"x\":\"1\"}}}");
    FLEET_AUTO_JSON cJSON *ready = cJSON_Parse("{\"status\":{\"phase\":\"Running\"}}");
    struct kube_rest_request r = {.verb = KUBE_CREATE,
                                  .resource = &kube_pods,
                                  .namespace_ = "default",
                                  .body = body,
                                  .field_manager = "fleetjob"};
    struct answer a = do_request(w, &r);

    assert_false(a.failed);
    free(a.text);
    r.verb = KUBE_MERGE_PATCH;
    r.name = "a";
    r.body = patch;
    a = do_request(w, &r);
    assert_non_null(strstr(a.text, "\"x\":\"1\""));
    free(a.text);
    r.subresource = "status";
    r.body = ready;
    a = do_request(w, &r);
    assert_non_null(strstr(a.text, "\"phase\":\"Running\""));
    free(a.text);
    r = (struct kube_rest_request){
        .verb = KUBE_LIST, .resource = &kube_pods, .label_selector = "x=1"};
    a = do_request(w, &r);
    assert_non_null(strstr(a.text, "\"name\":\"a\""));
    free(a.text);
    r = (struct kube_rest_request){.verb = KUBE_DELETE,
                                   .resource = &kube_pods,
                                   .namespace_ = "default",
                                   .name = "a",
                                   .uid = "someone else"};
    a = do_request(w, &r);
    assert_true(a.failed && kube_is_conflict(&a.err));
    r.uid = NULL;
    a = do_request(w, &r);
    assert_false(a.failed);
    free(a.text);
    r.verb = KUBE_GET;
    a = do_request(w, &r);
    assert_true(a.failed && kube_is_not_found(&a.err));
    assert_string_equal(a.err.text, "GET " PODS "/a: 404 NotFound: not found");
    assert_int_equal(fake_apiserver_http_accepted(w->front), 1); /* one connection for all of it */
}

static void test_kube_rest__apply_creates_and_updates(void **state)
{
    struct world *w = *state;
    FLEET_AUTO_JSON cJSON *body = pod("a");
    struct kube_rest_request r = {.verb = KUBE_APPLY,
                                  .resource = &kube_pods,
                                  .namespace_ = "default",
                                  .name = "a",
                                  .body = body,
                                  .field_manager = "fleetjob",
                                  .force = true};
    struct answer a;

    for (int i = 0; i < 2; i++) {
        a = do_request(w, &r);
        assert_false(a.failed);
        free(a.text);
    }
    assert_int_equal(
        fake_apiserver_requests(w->server, "PATCH " PODS "/a?fieldManager=fleetjob&force=true"), 2);
}

static void test_kube_rest__pages_carry_their_token(void **state)
{
    struct world *w = *state;
    char token[256] = "";
    int pages = 0, items = 0;

    for (int i = 0; i < 7; i++) {
        char text[64];
        snprintf(text, sizeof(text), "{\"metadata\":{\"name\":\"p%d\"}}", i);
        assert_int_equal(fake_apiserver_do(w->server, "POST", PODS, text), 201);
    }
    do {
        struct kube_rest_request r = {
            .verb = KUBE_LIST, .resource = &kube_pods, .limit = 3, .continue_token = token};
        struct answer a = do_request(w, &r);
        FLEET_AUTO_JSON cJSON *list = cJSON_Parse(a.text);
        const char *next = "";
        assert_false(a.failed);
        items += cJSON_GetArraySize(fleet_json_at(list, "items"));
        (void)fleet_json_opt_string(list, "metadata.continue", &next, NULL);
        snprintf(token, sizeof(token), "%s", next);
        free(a.text);
        pages++;
    } while (*token && pages < 10);
    assert_int_equal(pages, 3);
    assert_int_equal(items, 7);
}

static void test_kube_rest__a_busy_server_is_asked_again(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.verb = KUBE_LIST, .resource = &kube_pods};
    double began = fleet_monotonic_ms(), took;
    struct answer a;

    fake_apiserver_fail(w->server,
                        &(struct fake_failure){.count = 1, .status = 429, .retry_after_s = 1});
    a = do_request(w, &r);
    took = fleet_monotonic_ms() - began;
    assert_false(a.failed);
    free(a.text);
    if (took < 999)
        fail_msg("expected to wait the 1 s asked for, took %.0f ms", took);

    fake_apiserver_fail(w->server,
                        &(struct fake_failure){.count = 9, .status = 429, .retry_after_s = 20});
    r.timeout_ms = 15000; /* no time to wait that long: the caller learns of it at once */
    a = do_request(w, &r);
    assert_true(a.failed && kube_is_too_many_requests(&a.err));
}

static void test_kube_rest__tells_no_answer_from_a_refusal(void **state)
{
    struct world *w = *state;
    FLEET_AUTO_JSON cJSON *body = pod("a");
    struct kube_rest_request r = {.verb = KUBE_LIST, .resource = &kube_pods};
    struct answer a;

    fake_apiserver_fail(w->server, &(struct fake_failure){.count = 1, .status = 500});
    a = do_request(w, &r);
    assert_true(a.failed && kube_is_retryable(&a.err) && !kube_is_unreachable(&a.err));
    fake_apiserver_fail(w->server, &(struct fake_failure){.count = 9, .status = 0});
    a = do_request(w, &r); /* which is sent again, by rest and by curl, and drops again */
    assert_true(a.failed && kube_is_unreachable(&a.err));
    free(w->config.server);
    w->config.server = strdup("http://127.0.0.1:1");
    a = do_request(w, &r);
    assert_true(a.failed && kube_is_unreachable(&a.err));
    assert_non_null(strstr(a.err.text, "127.0.0.1"));
    r.verb = KUBE_CREATE;
    r.namespace_ = "default";
    r.body = body;
    a = do_request(w, &r);
    assert_true(a.failed && kube_is_unreachable(&a.err) && kube_was_not_sent(&a.err));
}

/* The server has closed a connection that was kept for later, just as a request went out on it. */
static void test_kube_rest__a_write_without_an_answer_is_not_repeated(void **state)
{
    struct world *w = *state;
    FLEET_AUTO_JSON cJSON *body = pod("a");
    struct kube_rest_request r = {
        .verb = KUBE_LIST, .resource = &kube_pods, .namespace_ = "default", .body = body};
    struct answer a = do_request(w, &r); /* there is a connection now */

    free(a.text);
    fake_apiserver_fail(w->server,
                        &(struct fake_failure){.method = "POST", .count = 1, .status = 0});
    r.verb = KUBE_CREATE;
    a = do_request(w, &r);
    assert_true(a.failed && kube_is_unreachable(&a.err));
    assert_false(kube_was_not_sent(&a.err));
    assert_non_null(strstr(a.err.text, "the connection broke before the answer came"));
    assert_int_equal(fake_apiserver_requests(w->server, "POST"), 1);
    a = do_request(w, &r);
    assert_false(a.failed);
    free(a.text);
}

static bool is_set(void *user)
{
    return *(const bool *)user;
}

/* A request that waits for a place goes out later than it was sent: may_leave() is asked again
 * then. */
static void test_kube_http__asks_again_when_it_leaves(void **state)
{
    struct world *w = *state;
    FLEET_AUTO_JSON cJSON *body = pod("a");
    FLEET_AUTO_FREE char *text = fleet_json_print(body);
    struct kube_rest_request list = {.verb = KUBE_LIST, .resource = &kube_pods};
    bool may = true;
    struct kube_request create = {.method = "POST",
                                  .path = PODS,
                                  .content_type = "application/json",
                                  .body = text,
                                  .body_size = strlen(text),
                                  .may_leave = is_set,
                                  .may_leave_user = &may,
                                  .on_done = on_done,
                                  .user = w};
    struct answer lists[4] = {0};

    for (size_t i = 0; i < 4; i++) /* as many as may be in flight */
        (void)kube_rest_start(w->io, &list, on_answer, &lists[i]);
    (void)kube_send(w->io, &create);
    may = false;
    loop_turn_until(&w->loop, &w->done_count, 1);
    assert_int_equal(w->done_kind, KUBE_ERROR_NOT_LEADER);
    create.urgent = true; /* waits for no place, only for a free connection */
    may = true;
    (void)kube_send(w->io, &create);
    may = false;
    loop_turn_until(&w->loop, &w->done_count, 2);
    assert_int_equal(w->done_kind, KUBE_ERROR_NOT_LEADER);
    assert_int_equal(fake_apiserver_requests(w->server, "POST"), 0);
    may = true;
    (void)kube_send(w->io, &create);
    loop_turn_until(&w->loop, &w->done_count, 3);
    assert_false(w->has_failed);
    for (size_t i = 0; i < 4; i++) {
        loop_turn_until(&w->loop, &lists[i].count, 1);
        free(lists[i].text);
    }
}

static void test_kube_http__caps_what_is_in_flight_and_lets_the_urgent_pass(void **state)
{
    struct world *w = *state;
    struct answer answers[50] = {0}, urgent = {0};
    struct kube_rest_request r = {.verb = KUBE_LIST, .resource = &kube_pods};
    int in_flight, waiting;

    for (size_t i = 0; i < 50; i++)
        (void)kube_rest_start(w->io, &r, on_answer, &answers[i]);
    kube_http_load(w->io, &in_flight, &waiting);
    assert_int_equal(in_flight, 4);
    assert_int_equal(waiting, 46);
    r.urgent = true;
    (void)kube_rest_start(w->io, &r, on_answer, &urgent);
    loop_turn_until(&w->loop, &urgent.count, 1);
    assert_int_equal(answers[49].count, 0); /* it did not wait behind them */
    for (size_t i = 0; i < 50; i++)
        loop_turn_until(&w->loop, &answers[i].count, 1);
    assert_true(fake_apiserver_http_accepted(w->front) <= 5);
    kube_http_load(w->io, &in_flight, &waiting);
    assert_int_equal(in_flight + waiting, 0);
    for (size_t i = 0; i < 50; i++)
        free(answers[i].text);
    free(urgent.text);
}

static void test_kube_http__a_cancelled_call_says_nothing(void **state)
{
    struct world *w = *state;
    struct answer answers[12] = {0}, last = {0};
    struct kube_rest_call *calls[12];
    struct kube_rest_request r = {.verb = KUBE_LIST, .resource = &kube_pods};

    for (size_t i = 0; i < 12; i++)
        calls[i] = kube_rest_start(w->io, &r, on_answer, &answers[i]);
    (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    for (size_t i = 0; i < 12; i++) /* some on their way, some waiting */
        kube_rest_cancel(&calls[i]);
    (void)kube_rest_start(w->io, &r, on_answer, &last);
    loop_turn_until(&w->loop, &last.count, 1);
    for (size_t i = 0; i < 12; i++)
        assert_int_equal(answers[i].count, 0);
    free(last.text);
}

static void test_kube_http__a_deadline_holds(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.verb = KUBE_LIST, .resource = &kube_pods, .timeout_ms = 300};
    struct answer answers[6] = {0}; /* more than may be in flight: waiting counts too */
    double began = fleet_monotonic_ms(), took;
    char server[64];
    int port;
    FLEET_AUTO_CLOSE int fd = listen_silently(&port);

    snprintf(server, sizeof(server), "http://127.0.0.1:%d", port);
    free(w->config.server);
    w->config.server = strdup(server);
    for (size_t i = 0; i < 6; i++)
        (void)kube_rest_start(w->io, &r, on_answer, &answers[i]);
    for (size_t i = 0; i < 6; i++) {
        loop_turn_until(&w->loop, &answers[i].count, 1);
        assert_true(answers[i].failed && kube_is_unreachable(&answers[i].err));
    }
    took = fleet_monotonic_ms() - began;
    if (took < 299)
        fail_msg("expected an end after 300 ms, took %.0f ms", took);
}

/* The places are all taken by requests that have longer. */
static void test_kube_http__a_deadline_holds_for_those_that_wait(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.verb = KUBE_LIST, .resource = &kube_pods, .timeout_ms = 100000};
    struct kube_rest_call *calls[4];
    struct answer long_ones[4] = {0}, short_ones[2] = {0};
    char server[64];
    int port;
    FLEET_AUTO_CLOSE int fd = listen_silently(&port);

    snprintf(server, sizeof(server), "http://127.0.0.1:%d", port);
    free(w->config.server);
    w->config.server = strdup(server);
    for (size_t i = 0; i < 4; i++)
        calls[i] = kube_rest_start(w->io, &r, on_answer, &long_ones[i]);
    r.timeout_ms = 300;
    (void)kube_rest_start(w->io, &r, on_answer, &short_ones[0]);
    r.timeout_ms = 200; /* earlier than the one before it */
    (void)kube_rest_start(w->io, &r, on_answer, &short_ones[1]);
    loop_turn_until(&w->loop, &short_ones[0].count, 1);
    assert_int_equal(short_ones[1].count, 1);
    assert_true(short_ones[0].failed && kube_is_unreachable(&short_ones[0].err));
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(long_ones[i].count, 0);
        kube_rest_cancel(&calls[i]);
    }
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void count_up(void *user)
{
    ++*(int *)user;
}

static void test_kube_http__timers_fire_once_unless_cancelled(void **state)
{
    struct world *w = *state;
    int fired = 0, never = 0;
    double began = fleet_monotonic_ms();
    struct kube_call *cancelled = kube_after(w->io, 5, count_up, &never);

    (void)kube_after(w->io, 20, count_up, &fired);
    kube_cancel(w->io, &cancelled);
    assert_null(cancelled);
    loop_turn_until(&w->loop, &fired, 1);
    assert_true(fleet_monotonic_ms() - began >= 19.0);
    assert_int_equal(never, 0);
}

/* For the sanitizers, which find leaks and uses after free. The test itself checks that no callback
 * comes any more. */
static void test_kube_http__can_be_freed_with_everything_under_way(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.resource = &kube_pods, .verb = KUBE_LIST};
    struct kube_rest_call *calls[12];
    struct answer a[12] = {0};
    struct log log = {0};
    int fired = 0;

    log.call = kube_rest_watch(w->io, &r, on_event, on_end, &log);
    for (size_t i = 0; i < 12; i++)
        calls[i] = kube_rest_start(w->io, &r, on_answer, &a[i]);
    (void)kube_after(w->io, 1000, count_up, &fired);
    (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    for (size_t i = 0; i < 12; i++)
        if (a[i].count == 0)
            kube_rest_cancel(&calls[i]); /* rest's own memory; the io is freed by tear_down */
    kube_rest_cancel(&log.call);
    for (size_t i = 0; i < 12; i++)
        free(a[i].text);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_kube_rest__does_every_verb),
        TEST(test_kube_rest__apply_creates_and_updates),
        TEST(test_kube_rest__pages_carry_their_token),
        TEST(test_kube_rest__a_busy_server_is_asked_again),
        TEST(test_kube_rest__tells_no_answer_from_a_refusal),
        TEST(test_kube_rest__a_write_without_an_answer_is_not_repeated),
        TEST(test_kube_http__asks_again_when_it_leaves),
        TEST(test_kube_http__caps_what_is_in_flight_and_lets_the_urgent_pass),
        TEST(test_kube_http__a_cancelled_call_says_nothing),
        TEST(test_kube_http__a_deadline_holds),
        TEST(test_kube_http__a_deadline_holds_for_those_that_wait),
        TEST(test_kube_http__timers_fire_once_unless_cancelled),
        TEST(test_kube_http__can_be_freed_with_everything_under_way),
    };
    return cmocka_run_group_tests_name("kube_http", tests, NULL, NULL);
}
