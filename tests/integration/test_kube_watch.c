/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Watches over the fake API server: they replay and follow a history in any pieces, and say how
 * they ended.
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
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/rest.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_http.h"
#include "tests/integration/kube_http_fixture.h"

/* ---- watches --------------------------------------------------------------------------------- */

static void make_history(struct world *w)
{
    assert_int_equal(fake_apiserver_do(w->server, "POST", PODS, "{\"metadata\":{\"name\":\"a\"}}"),
                     201);
    assert_int_equal(fake_apiserver_do(w->server, "POST", PODS, "{\"metadata\":{\"name\":\"b\"}}"),
                     201);
    assert_int_equal(fake_apiserver_do(w->server, "PATCH", PODS "/a",
                                       "{\"metadata\":{\"labels\":{\"x\":\"1\"}}}"),
                     200);
    assert_int_equal(fake_apiserver_do(w->server, "DELETE", PODS "/b", NULL), 200);
}

static void test_kube_watch__replays_and_follows_in_any_pieces(void **state)
{
    struct world *w = *state;

    for (size_t piece = 1; piece <= 64; piece = piece * 3 + 1) {
        struct kube_rest_request r = {.resource = &kube_pods, .resource_version = "1000000"};
        struct log log = {0};
        char version[32];
        const char *now;
        fake_apiserver_http_cut(w->front, piece);
        (void)fake_apiserver_do(w->server, "POST", PODS, "{\"metadata\":{\"name\":\"mark\"}}");
        assert_int_equal(fleet_json_get_string(fake_apiserver_get(w->server, PODS "/mark"),
                                               "metadata.resourceVersion", &now, NULL),
                         0);
        snprintf(version, sizeof(version), "%s", now);
        r.resource_version = version;
        (void)fake_apiserver_do(w->server, "DELETE", PODS "/mark", NULL);
        make_history(w);
        log.call = kube_rest_watch(w->io, &r, on_event, on_end, &log);
        loop_turn_until(&w->loop, &log.event_count, 5);
        (void)fake_apiserver_do(w->server, "DELETE", PODS "/a", NULL);
        fake_apiserver_bookmark(w->server);
        loop_turn_until(&w->loop, &log.event_count, 7);
        assert_string_equal(log.events.text, "Dmark Aa Ab Ma Db Da B ");
        fake_apiserver_cut_watches(w->server, false);
        loop_turn_until(&w->loop, &log.end_count, 1);
        assert_false(log.failed);
        fleet_strbuf_release(&log.events);
    }
}

static void test_kube_watch__an_end_in_mid_event_is_a_failure(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.resource = &kube_pods};
    struct log log = {0};

    make_history(w);
    log.call = kube_rest_watch(w->io, &r, on_event, on_end, &log);
    loop_turn_until(&w->loop, &log.event_count, 4);
    fake_apiserver_cut_watches(w->server, true);
    loop_turn_until(&w->loop, &log.end_count, 1);
    assert_true(log.failed);
    assert_string_equal(log.err.text,
                        "WATCH /api/v1/pods: the watch ended in the middle of an event");
    fleet_strbuf_release(&log.events);
}

static void test_kube_watch__an_old_version_is_gone(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.resource = &kube_pods, .resource_version = "1"};
    struct log log = {0};

    make_history(w);
    fake_apiserver_compact(w->server);
    log.call = kube_rest_watch(w->io, &r, on_event, on_end, &log);
    loop_turn_until(&w->loop, &log.end_count, 1);
    assert_true(log.failed && kube_is_gone(&log.err));
    fake_apiserver_fail(w->server,
                        &(struct fake_failure){.method = "WATCH", .count = 1, .status = 410});
    log.call = kube_rest_watch(w->io, &r, on_event, on_end, &log);
    loop_turn_until(&w->loop, &log.end_count, 2);
    assert_true(log.failed && kube_is_gone(&log.err)); /* both reports of it */
}

static void test_kube_watch__a_lost_connection_ends_it(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.resource = &kube_pods};
    struct log log = {0};

    make_history(w);
    log.call = kube_rest_watch(w->io, &r, on_event, on_end, &log);
    loop_turn_until(&w->loop, &log.event_count, 4);
    fake_apiserver_http_drop(w->front);
    loop_turn_until(&w->loop, &log.end_count, 1);
    assert_true(log.failed && kube_is_unreachable(&log.err));
    fleet_strbuf_release(&log.events);
}

static void test_kube_watch__can_be_cancelled_within_any_event(void **state)
{
    struct world *w = *state;
    struct kube_rest_request r = {.resource = &kube_pods};

    make_history(w);
    for (int at = 1; at <= 4; at++) {
        struct log log = {.cancel_at = at};
        struct answer a;
        log.call = kube_rest_watch(w->io, &r, on_event, on_end, &log);
        loop_turn_until(&w->loop, &log.event_count, at);
        a = do_request(w, &(struct kube_rest_request){.verb = KUBE_LIST, .resource = &kube_pods});
        assert_int_equal(log.event_count, at);
        assert_int_equal(log.end_count, 0);
        free(a.text);
        fleet_strbuf_release(&log.events);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_kube_watch__replays_and_follows_in_any_pieces),
        TEST(test_kube_watch__an_end_in_mid_event_is_a_failure),
        TEST(test_kube_watch__an_old_version_is_gone),
        TEST(test_kube_watch__a_lost_connection_ends_it),
        TEST(test_kube_watch__can_be_cancelled_within_any_event),
    };
    return cmocka_run_group_tests_name("kube_watch", tests, NULL, NULL);
}
