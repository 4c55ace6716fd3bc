/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A controller of ten lines on the manager, the fake API server and virtual time: for each Secret
 * it keeps a ConfigMap of the same name. What is checked is when it is called, and that two
 * replicas with bad networks bring the cluster to what it should be without working at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/manager.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/map.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/rest.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"
#include "tests/support/seeds.h"

#define SECRETS     "/api/v1/namespaces/default/secrets"
#define CONFIG_MAPS "/api/v1/namespaces/default/configmaps"

static void *nothing_project(const cJSON *object, struct fleet_error *err)
{
    (void)object;
    (void)err;
    return calloc(1, 1);
}

static const struct store_kind nothing = {nothing_project, free, {NULL}};

struct replica {
    struct fake_io *io;
    struct metrics *metrics;
    struct manager *manager;
    int secrets, config_maps; /* informers */
    int reconciles, leading, ends, troubles;
    enum manager_end how;
    bool fail;             /* every reconcile fails at once */
    struct fleet_map busy; /* keys being reconciled */
};

struct work { /* a request under way for a key */
    struct replica *replica;
    char key[64];
};

static void on_change(void *user, const char *key, const void *before, const void *after)
{
    (void)before;
    (void)after;
    manager_enqueue(((struct replica *)user)->manager, key);
}

static void on_created(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct work *work = user;
    bool fine = !err || kube_is_already_exists(err) || kube_is_not_found(err);

    (void)object;
    fleet_map_remove(&work->replica->busy, work->key);
    /* look again: what was made may be gone before a list that replaces the cache has seen it */
    manager_done(work->replica->manager, work->key, fine ? NULL : err, 30000);
    free(work);
}

static void reconcile(void *user, const char *key)
{
    struct replica *r = user;
    bool wanted = store_get(manager_store(r->manager, r->secrets), key) != NULL;
    bool there = store_get(manager_store(r->manager, r->config_maps), key) != NULL;
    const char *name = strchr(key, '/') + 1;
    FLEET_AUTO_JSON cJSON *body = cJSON_CreateObject();
    struct kube_rest_request request = {.resource = &kube_config_maps, .namespace_ = "default"};
    struct fleet_error err;
    struct work *work;

    r->reconciles++;
    assert_true(manager_is_leading(r->manager));
    assert_true(manager_has_synced(r->manager));
    if (!fleet_map_insert(&r->busy, key, r))
        fail_msg("%s is reconciled twice at once", key);
    if (wanted == there || r->fail) {
        (void)fleet_error(&err, -1, "ordered");
        fleet_map_remove(&r->busy, key);
        manager_done(r->manager, key, r->fail ? &err : NULL, -1);
        return;
    }
    work = calloc(1, sizeof(*work));
    work->replica = r;
    snprintf(work->key, sizeof(work->key), "%s", key);
    request.verb = wanted ? KUBE_CREATE : KUBE_DELETE;
    request.name = wanted ? NULL : name;
    request.body = wanted ? body : NULL;
    cJSON_AddStringToObject(cJSON_AddObjectToObject(body, "metadata"), "name", name);
    (void)kube_rest_start(fake_io_kube(r->io), &request, on_created, work);
}

static void on_leading(void *user, int64_t epoch)
{
    (void)epoch;
    ((struct replica *)user)->leading++;
}

static void on_end(void *user, enum manager_end how)
{
    struct replica *r = user;

    r->ends++;
    r->how = how;
}

static void on_trouble(void *user, const char *what, const char *key, const struct fleet_error *err)
{
    (void)key;
    (void)what;
    (void)err;
    ((struct replica *)user)->troubles++;
}

static void start(struct replica *r, struct fake_apiserver *server, const char *identity,
                  uint64_t seed)
{
    struct leader_election_options election = {
        .namespace_ = "fleet", .name = "l", .identity = identity};

    *r = (struct replica){.io = fake_io_new(server, seed), .metrics = metrics_new()};
    r->manager = manager_new(&(struct manager_options){.io = fake_io_kube(r->io),
                                                       .metrics = r->metrics,
                                                       .election = identity ? &election : NULL,
                                                       .reconcile = reconcile,
                                                       .on_leading = on_leading,
                                                       .on_end = on_end,
                                                       .on_trouble = on_trouble,
                                                       .user = r});
    r->secrets = manager_add_informer(
        r->manager,
        &(struct informer_options){
            .resource = &kube_secrets, .kind = &nothing, .on_change = on_change, .user = r});
    r->config_maps = manager_add_informer(
        r->manager,
        &(struct informer_options){
            .resource = &kube_config_maps, .kind = &nothing, .on_change = on_change, .user = r});
    manager_start(r->manager);
}

static void stop(struct replica *r)
{
    fake_io_run(r->io, 200000); /* requests under way end, and free what belongs to them */
    manager_free(r->manager);
    metrics_free(r->metrics);
    fleet_map_release(&r->busy);
    fake_io_free(r->io);
}

static void put_secret(struct fake_apiserver *server, int i)
{
    char text[64];

    snprintf(text, sizeof(text), "{\"metadata\":{\"name\":\"s%d\"}}", i);
    (void)fake_apiserver_do(server, "POST", SECRETS, text);
}

static bool is_converged(struct fake_apiserver *server, int names)
{
    for (int i = 0; i < names; i++) {
        char secret[64], map[64];
        snprintf(secret, sizeof(secret), SECRETS "/s%d", i);
        snprintf(map, sizeof(map), CONFIG_MAPS "/s%d", i);
        if (!fake_apiserver_get(server, secret) != !fake_apiserver_get(server, map))
            return false;
    }
    return true;
}

static void test_manager__works_when_everything_has_synced(void **state)
{
    struct fake_apiserver *server = fake_apiserver_new();
    struct replica r;

    (void)state;
    for (int i = 0; i < 200; i++) /* more than a turn, and than may be worked on at once */
        put_secret(server, i);
    fake_apiserver_fail(server,
                        &(struct fake_failure){.path = "configmaps", .count = 1, .status = 500});
    start(&r, server, NULL, 1);
    fake_io_run(r.io, 100);
    assert_int_equal(r.reconciles, 0); /* the second list has failed and waits */
    assert_int_equal(r.leading, 0);
    fake_io_run(r.io, 10000);
    assert_int_equal(r.leading, 1);
    assert_true(is_converged(server, 200));
    for (int i = 0; i < 2; i++) { /* collecting twice counts once */
        struct fleet_strbuf text = {0};
        manager_collect(r.manager);
        metrics_print(r.metrics, &text);
        assert_non_null(strstr(text.text, "fleetjob_lists_total{resource=\"secrets\"} 1\n"));
        assert_non_null(strstr(text.text, "fleetjob_lists_total{resource=\"configmaps\"} 2\n"));
        assert_non_null(
            strstr(text.text, "fleetjob_watch_troubles_total{resource=\"configmaps\"} 1\n"));
        assert_non_null(
            strstr(text.text, "fleetjob_cached_objects{resource=\"configmaps\"} 200\n"));
        assert_non_null(strstr(text.text, "fleetjob_leader 1\n"));
        fleet_strbuf_release(&text);
    }
    manager_stop(r.manager);
    put_secret(server, 200);
    fake_io_run(r.io, 1000);
    assert_int_equal(r.ends, 1);
    assert_int_equal(r.how, MANAGER_STOPPED);
    assert_false(is_converged(server, 201)); /* nothing is begun after the end */
    stop(&r);
    fake_apiserver_free(server);
}

static void test_manager__waits_longer_after_each_failure(void **state)
{
    struct fake_apiserver *server = fake_apiserver_new();
    struct replica r;

    (void)state;
    put_secret(server, 0);
    start(&r, server, NULL, 2);
    r.fail = true;
    fake_io_run(r.io, 60000);
    if (r.reconciles < 9 || r.reconciles > 12) /* 50 ms, doubling: ten or so in a minute */
        fail_msg("expected 9 to 12 tries in a minute, got %d", r.reconciles);
    assert_int_equal(r.troubles, r.reconciles);
    r.fail = false;
    fake_io_run(r.io, 120000);
    assert_true(is_converged(server, 1));
    stop(&r);
    fake_apiserver_free(server);
}

static void test_manager__gives_its_lease_to_the_next(void **state)
{
    struct fake_apiserver *server = fake_apiserver_new();
    struct replica a, b;
    double now;

    (void)state;
    start(&a, server, "a", 3);
    fake_io_run(a.io, 5000);
    assert_true(manager_is_leading(a.manager));
    start(&b, server, "b", 4);
    fake_io_turn(b.io, 5000);
    assert_int_equal(b.leading, 0);
    manager_stop(a.manager);
    assert_false(manager_is_leading(a.manager));
    fake_io_run(a.io, 100);
    assert_int_equal(a.how, MANAGER_STOPPED);
    now = fake_io_now_ms(a.io);
    put_secret(server, 0);
    fake_io_turn(b.io, now + 3000);
    assert_int_equal(b.leading, 1); /* long before the lease would have run out */
    assert_true(is_converged(server, 1));
    stop(&a);
    stop(&b);
    fake_apiserver_free(server);
}

static void test_manager__does_nothing_after_it_was_stopped_too_long(void **state)
{
    struct fake_apiserver *server = fake_apiserver_new();
    struct replica a;
    int before;

    (void)state;
    start(&a, server, "a", 5);
    fake_io_run(a.io, 5000);
    assert_int_equal(a.leading, 1);
    before = a.reconciles;
    put_secret(server, 0); /* would be seen first thing */
    fake_io_freeze(a.io, 60000);
    fake_io_run(a.io, 60000);
    assert_int_equal(a.reconciles, before);
    assert_int_equal(a.ends, 1);
    assert_int_equal(a.how, MANAGER_LEASE_LOST);
    stop(&a);
    fake_apiserver_free(server);
}

static void run_history(uint64_t seed)
{
    struct fake_apiserver *server = fake_apiserver_new();
    struct replica r;
    unsigned int random = (unsigned int)seed;

    start(&r, server, NULL, seed);
    *fake_io_weather(r.io) = (struct fake_weather){.latency_min_ms = 1,
                                                   .latency_max_ms = 200,
                                                   .lost_request = 0.05,
                                                   .lost_answer = 0.05,
                                                   .cut_stream = 0.01};
    for (int step = 0; step < 100; step++) {
        char path[64];
        int i = rand_r(&random) % 8;
        snprintf(path, sizeof(path), "%s/s%d", rand_r(&random) % 3 ? SECRETS : CONFIG_MAPS, i);
        if (rand_r(&random) % 2)
            put_secret(server, i);
        else
            (void)fake_apiserver_do(server, "DELETE", path, NULL);
        if (rand_r(&random) % 10 == 0)
            fake_apiserver_compact(server);
        if (rand_r(&random) % 10 == 0)
            fake_apiserver_fail(server, &(struct fake_failure){.method = "POST",
                                                               .count = 2,
                                                               .status = 500,
                                                               .after = rand_r(&random) % 2});
        fake_io_run(r.io, rand_r(&random) % 1000);
    }
    *fake_io_weather(r.io) = (struct fake_weather){.latency_min_ms = 1, .latency_max_ms = 1};
    for (int turn = 0; turn < 500 && !is_converged(server, 8); turn++)
        fake_io_run(r.io, 1000);
    if (!is_converged(server, 8))
        fail_msg("seed %llu: not converged after 500 s of peace", (unsigned long long)seed);
    stop(&r);
    fake_apiserver_free(server);
}

static void test_manager__converges_after_any_history(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= seeds_count(200); seed++)
        run_history(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manager__works_when_everything_has_synced),
        cmocka_unit_test(test_manager__waits_longer_after_each_failure),
        cmocka_unit_test(test_manager__gives_its_lease_to_the_next),
        cmocka_unit_test(test_manager__does_nothing_after_it_was_stopped_too_long),
        cmocka_unit_test(test_manager__converges_after_any_history),
    };
    return cmocka_run_group_tests_name("manager", tests, NULL, NULL);
}
