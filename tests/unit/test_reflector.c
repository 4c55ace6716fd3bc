/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A reflector on the fake API server in virtual time: what it asks for in each situation, and that
 * after any history with any weather its store is what the server has.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/reflector.h"
#include "controller/machinery/store.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/rest.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"
#include "tests/support/seeds.h"

#define PODS "/api/v1/namespaces/default/pods"

static void *version_project(const cJSON *object, struct fleet_error *err)
{
    char *version = NULL;

    (void)fleet_json_dup_string(object, "metadata.resourceVersion", &version, err);
    return version;
}

static const struct store_kind versions = {version_project, free, {NULL}};

struct world {
    struct fake_apiserver *server;
    struct fake_io *io;
    struct store *store;
    struct reflector *reflector;
    int synced, changes;
    struct fleet_error trouble; /* the last one */
};

static void on_synced(void *user)
{
    ((struct world *)user)->synced++;
}

static void on_trouble(void *user, const struct fleet_error *err)
{
    ((struct world *)user)->trouble = *err;
}

static void on_change(void *user, const char *key, const void *before, const void *after)
{
    (void)key;
    (void)before;
    (void)after;
    ((struct world *)user)->changes++;
}

static void start(struct world *w, uint64_t seed, int page)
{
    *w = (struct world){.server = fake_apiserver_new()};
    w->io = fake_io_new(w->server, seed);
    w->store = store_new(&versions, on_change, w);
    w->reflector = reflector_new(fake_io_kube(w->io), w->store,
                                 &(struct reflector_options){.resource = &kube_pods,
                                                             .page = page,
                                                             .on_synced = on_synced,
                                                             .on_trouble = on_trouble,
                                                             .user = w});
}

static void stop(struct world *w)
{
    reflector_free(w->reflector);
    store_free(w->store);
    fake_io_free(w->io);
    fake_apiserver_free(w->server);
}

static void put(struct world *w, int i)
{
    char text[64];

    snprintf(text, sizeof(text), "{\"metadata\":{\"name\":\"p%d\"}}", i);
    assert_int_equal(fake_apiserver_do(w->server, "POST", PODS, text), 201);
}

/* The store holds every pod in the server's version, and nothing else. */
static bool is_equal(const struct world *w, int names)
{
    if (store_count(w->store) != fake_apiserver_count(w->server, "/api/v1/pods"))
        return false;
    for (int i = 0; i < names; i++) {
        char path[64], key[32];
        const char *version = "", *have;
        snprintf(path, sizeof(path), PODS "/p%d", i);
        snprintf(key, sizeof(key), "default/p%d", i);
        (void)fleet_json_opt_string(fake_apiserver_get(w->server, path), "metadata.resourceVersion",
                                    &version, NULL);
        have = store_get(w->store, key);
        if (strcmp(have ? have : "", version) != 0)
            return false;
    }
    return true;
}

static void test_reflector__lists_pages_and_then_follows(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1, 2);
    for (int i = 0; i < 5; i++)
        put(&w, i);
    assert_false(reflector_has_synced(w.reflector));
    assert_true(fake_io_run_until(w.io, &w.synced, 1, 1000));
    assert_true(is_equal(&w, 5));
    assert_int_equal(fake_apiserver_requests(w.server, "GET /api/v1/pods?limit=2"), 3);
    put(&w, 5);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", PODS "/p0", NULL), 200);
    fake_io_run(w.io, 100);
    assert_true(is_equal(&w, 6));
    assert_int_equal(reflector_counts(w.reflector).lists, 1);
    assert_int_equal(reflector_counts(w.reflector).watches, 1);
    stop(&w);
}

/* Until the list has come there may be more than the store has; a watch that is silent is only
 * so. */
static void test_reflector__is_live_while_a_watch_is_open(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1, 0);
    assert_false(reflector_is_live(w.reflector));
    assert_true(fake_io_run_until(w.io, &w.synced, 1, 1000));
    fake_io_run(w.io, 10);
    assert_false(reflector_is_live(w.reflector)); /* the watch may not have arrived yet */
    put(&w, 0);
    fake_io_run(w.io, 100);
    assert_true(reflector_is_live(w.reflector));
    fake_io_weather(w.io)->unreachable = true;
    fake_io_run(w.io, 60000);
    assert_false(reflector_is_live(w.reflector));
    fake_io_weather(w.io)->unreachable = false;
    fake_io_run(w.io, 90000); /* nothing happens any more */
    assert_true(reflector_is_live(w.reflector));
    stop(&w);
}

static void test_reflector__resumes_from_a_bookmark_without_a_list(void **state)
{
    struct world w;

    (void)state;
    start(&w, 2, 0);
    put(&w, 0);
    assert_true(fake_io_run_until(w.io, &w.synced, 1, 1000));
    fake_io_run(w.io, 10); /* the watch is there */
    (void)fake_apiserver_do(w.server, "POST", "/api/v1/namespaces/default/secrets",
                            "{\"metadata\":{\"name\":\"other\"}}"); /* moves the version on */
    fake_apiserver_bookmark(w.server);
    fake_io_run(w.io, 100);
    fake_apiserver_compact(w.server); /* the version of the list alone would be too old now */
    fake_apiserver_cut_watches(w.server, false);
    put(&w, 1);
    fake_io_run(w.io, 5000);
    assert_true(is_equal(&w, 2));
    assert_int_equal(reflector_counts(w.reflector).lists, 1);
    assert_int_equal(reflector_counts(w.reflector).watches, 2);
    stop(&w);
}

static void test_reflector__lists_anew_when_its_version_is_gone(void **state)
{
    struct world w;

    (void)state;
    start(&w, 3, 0);
    put(&w, 0);
    put(&w, 1);
    assert_true(fake_io_run_until(w.io, &w.synced, 1, 1000));
    fake_io_weather(w.io)->unreachable = true;
    fake_io_run(w.io, 30000);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", PODS "/p0", NULL), 200); /* unseen */
    put(&w, 2);
    fake_apiserver_compact(w.server);
    fake_io_weather(w.io)->unreachable = false;
    fake_io_run(w.io, 120000);
    assert_true(is_equal(&w, 3));
    assert_int_equal(reflector_counts(w.reflector).lists, 2);
    assert_int_equal(w.synced, 1); /* told once */
    stop(&w);
}

static void test_reflector__asks_for_fewer_where_objects_are_large(void **state)
{
    struct world w;

    (void)state;
    start(&w, 11, 64);
    for (int i = 0; i < 20; i++)
        put(&w, i);
    fake_io_weather(w.io)->answer_max = 1000; /* some six of them */
    assert_true(fake_io_run_until(w.io, &w.synced, 1, 10000));
    assert_true(is_equal(&w, 20));
    assert_int_equal(w.trouble.code, -EFBIG);
    assert_int_equal(fake_apiserver_requests(w.server, "limit=64"), 1);
    assert_int_equal(fake_apiserver_requests(w.server, "limit=16"), 1);
    assert_int_equal(fake_apiserver_requests(w.server, "limit=4"), 5);
    stop(&w);
}

static void test_reflector__asks_for_larger_pages_when_they_are_too_old(void **state)
{
    struct world w;

    (void)state;
    start(&w, 4, 2);
    for (int i = 0; i < 5; i++)
        put(&w, i);
    fake_apiserver_fail(w.server,
                        &(struct fake_failure){.path = "continue=", .count = 1, .status = 410});
    assert_true(fake_io_run_until(w.io, &w.synced, 1, 10000));
    assert_true(is_equal(&w, 5));
    assert_int_equal(fake_apiserver_requests(w.server, "limit=2"), 2);
    assert_int_equal(fake_apiserver_requests(w.server, "limit=8"), 1); /* never without a limit */
    assert_int_equal(reflector_counts(w.reflector).lists, 2);
    stop(&w);
}

static void test_reflector__an_event_cut_in_half_is_read_again(void **state)
{
    struct world w;

    (void)state;
    start(&w, 5, 0);
    put(&w, 0);
    assert_true(fake_io_run_until(w.io, &w.synced, 1, 1000));
    fake_io_run(w.io, 10);
    put(&w, 1);
    fake_apiserver_cut_watches(w.server, true);
    fake_io_run(w.io, 5000);
    assert_true(is_equal(&w, 2));
    assert_int_equal(reflector_counts(w.reflector).lists, 1);
    stop(&w);
}

static void test_reflector__does_not_hammer_a_server_that_refuses(void **state)
{
    struct world w;
    size_t requests;

    (void)state;
    start(&w, 6, 0);
    fake_apiserver_fail(w.server, &(struct fake_failure){.count = 100000, .status = 403});
    fake_io_run(w.io, 600000);
    requests = fake_apiserver_requests(w.server, "GET");
    if (requests < 15 || requests > 35) /* 8 while it doubles, then one in 30 to 37.5 s */
        fail_msg("expected 15 to 35 requests in ten minutes, got %zu", requests);
    assert_non_null(strstr(w.trouble.text, "403"));
    stop(&w);
}

static void test_reflector__short_empty_watches_wait_too(void **state)
{
    struct world w;
    size_t before;

    (void)state;
    start(&w, 7, 0);
    assert_true(fake_io_run_until(w.io, &w.synced, 1, 1000));
    before = fake_apiserver_requests(w.server, "WATCH");
    for (int i = 0; i < 600; i++) { /* a server that ends each watch at once */
        fake_io_run(w.io, 100);
        fake_apiserver_cut_watches(w.server, false);
    }
    before = fake_apiserver_requests(w.server, "WATCH") - before;
    if (before > 15)
        fail_msg("expected at most 15 watches in a minute, got %zu", before);
    stop(&w);
}

/* Everything at once for a while; then the weather clears and the store must come right. */
static void run_history(uint64_t seed)
{
    struct world w;
    unsigned int random = (unsigned int)seed;
    double end;

    start(&w, seed, 3);
    *fake_io_weather(w.io) = (struct fake_weather){.latency_min_ms = 1,
                                                   .latency_max_ms = 30,
                                                   .lost_request = 0.05,
                                                   .lost_answer = 0.05,
                                                   .cut_stream = 0.02};
    for (int step = 0; step < 150; step++) {
        char path[64], body[96];
        int i = rand_r(&random) % 10;
        snprintf(path, sizeof(path), PODS "/p%d", i);
        snprintf(body, sizeof(body), "{\"metadata\":{\"labels\":{\"x\":\"%d\"}}}", step);
        switch (rand_r(&random) % 12) {
        case 0:
        case 1:
        case 2:
        case 3:
            (void)fake_apiserver_do(w.server, "DELETE", path, NULL);
            snprintf(body, sizeof(body), "{\"metadata\":{\"name\":\"p%d\"}}", i);
            (void)fake_apiserver_do(w.server, "POST", PODS, body);
            break;
        case 4:
        case 5:
            (void)fake_apiserver_do(w.server, "PATCH", path, body);
            break;
        case 6:
            (void)fake_apiserver_do(w.server, "DELETE", path, NULL);
            break;
        case 7:
            fake_apiserver_compact(w.server);
            break;
        case 8:
            fake_apiserver_cut_watches(w.server, rand_r(&random) % 2);
            break;
        case 9:
            fake_apiserver_bookmark(w.server);
            break;
        case 10:
            fake_io_weather(w.io)->unreachable = rand_r(&random) % 4 == 0;
            break;
        default:
            fake_apiserver_fail(w.server, &(struct fake_failure){.count = 1, .status = 500});
        }
        fake_io_run(w.io, rand_r(&random) % 2000);
    }
    *fake_io_weather(w.io) = (struct fake_weather){.latency_min_ms = 1, .latency_max_ms = 1};
    end = fake_io_now_ms(w.io) + 400000; /* a lost answer of a LIST costs its whole deadline */
    while (!is_equal(&w, 10) && fake_io_now_ms(w.io) < end)
        fake_io_run(w.io, 1000);
    if (!is_equal(&w, 10) || !w.synced)
        fail_msg("seed %llu: %zu objects in the store, %zu in the server, last trouble: %s",
                 (unsigned long long)seed, store_count(w.store),
                 fake_apiserver_count(w.server, "/api/v1/pods"), w.trouble.text);
    stop(&w);
}

static void test_reflector__comes_right_after_any_history(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= seeds_count(300); seed++)
        run_history(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reflector__lists_pages_and_then_follows),
        cmocka_unit_test(test_reflector__is_live_while_a_watch_is_open),
        cmocka_unit_test(test_reflector__resumes_from_a_bookmark_without_a_list),
        cmocka_unit_test(test_reflector__lists_anew_when_its_version_is_gone),
        cmocka_unit_test(test_reflector__asks_for_fewer_where_objects_are_large),
        cmocka_unit_test(test_reflector__asks_for_larger_pages_when_they_are_too_old),
        cmocka_unit_test(test_reflector__an_event_cut_in_half_is_read_again),
        cmocka_unit_test(test_reflector__does_not_hammer_a_server_that_refuses),
        cmocka_unit_test(test_reflector__short_empty_watches_wait_too),
        cmocka_unit_test(test_reflector__comes_right_after_any_history),
    };
    return cmocka_run_group_tests_name("reflector", tests, NULL, NULL);
}
