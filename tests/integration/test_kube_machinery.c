/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two replicas of a small controller on a real API server, in one process on one loop: one leads,
 * sees what others change, writes Events that the server takes, and hands over. Skipped (77) unless
 * FLEET_TEST_KUBECONFIG names a cluster that may be written to; e2e/01-client.bats and
 * 04-controller.bats bring one.
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

#include "controller/machinery/event_recorder.h"
#include "controller/machinery/manager.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"
#include "libfleet/kube/meta.h"
#include "libfleet/kube/rest.h"
#include "tests/support/loop_turn.h"

#define LEASE "machinery-test"

/* A Lease outlasts all delays of a slow machine, our patience included: a replica follows only
 * after a release. */
#define PATIENCE_MS       180000.0 /* a busy machine */
#define RENEW_DEADLINE_MS 500000.0
#define LEASE_DURATION_MS 600000.0

static void *uid_project(const cJSON *object, struct fleet_error *err)
{
    char *uid = NULL;

    (void)fleet_json_dup_string(object, "metadata.uid", &uid, err);
    return uid;
}

static const struct store_kind uids = {uid_project, free, {NULL}};

struct replica {
    struct kube_io *io;
    struct metrics *metrics;
    struct manager *manager;
    int informer, reconciles, leading, ends;
    int64_t epoch;
    char last_uid[64]; /* of the object that was reconciled last, "" if it was gone */
    struct fleet_error trouble;
    int troubles;
};

static void on_change(void *user, const char *key, const void *before, const void *after)
{
    (void)before;
    (void)after;
    manager_enqueue(((struct replica *)user)->manager, key);
}

static void reconcile(void *user, const char *key)
{
    struct replica *r = user;
    const char *uid = store_get(manager_store(r->manager, r->informer), key);

    snprintf(r->last_uid, sizeof(r->last_uid), "%s", uid ? uid : "");
    r->reconciles++;
    manager_done(r->manager, key, NULL, -1);
}

static void on_leading(void *user, int64_t epoch)
{
    struct replica *r = user;

    r->leading++;
    r->epoch = epoch;
}

static void on_end(void *user, enum manager_end how)
{
    (void)how;
    ((struct replica *)user)->ends++;
}

static void on_trouble(void *user, const char *what, const char *key, const struct fleet_error *err)
{
    struct replica *r = user;

    (void)what;
    (void)key;
    r->trouble = *err;
    r->troubles++;
}

/* Until the object that was reconciled last has this UID. */
static void wait_for_uid(uv_loop_t *loop, const struct replica *r, const char *uid)
{
    double end = fleet_monotonic_ms() + PATIENCE_MS;

    while (strcmp(r->last_uid, uid) != 0) {
        if (fleet_monotonic_ms() > end || r->ends > 0)
            fail_msg("waited for \"%s\", got \"%s\"; ends %d, last trouble: %s", uid, r->last_uid,
                     r->ends, r->troubles ? r->trouble.text : "none");
        (void)uv_run(loop, UV_RUN_ONCE);
    }
}

static void start(struct replica *r, uv_loop_t *loop, struct kube_config *config,
                  const char *identity)
{
    *r = (struct replica){.metrics = metrics_new()};
    assert_int_equal(kube_http_new(loop, config, NULL, &r->io, NULL), 0);
    r->manager = manager_new(&(struct manager_options){
        .io = r->io,
        .metrics = r->metrics,
        .election = &(struct leader_election_options){.namespace_ = "default",
                                                      .name = LEASE,
                                                      .identity = identity,
                                                      .lease_duration_ms = LEASE_DURATION_MS,
                                                      .renew_deadline_ms = RENEW_DEADLINE_MS},
        .reconcile = reconcile,
        .on_leading = on_leading,
        .on_end = on_end,
        .on_trouble = on_trouble,
        .user = r});
    r->informer = manager_add_informer(
        r->manager, &(struct informer_options){.resource = &kube_config_maps,
                                               .kind = &uids,
                                               .namespaces = (const char *const[]){"default"},
                                               .namespace_count = 1,
                                               .label_selector = "test=kube-machinery",
                                               .on_change = on_change,
                                               .user = r});
    manager_start(r->manager);
}

static void stop(struct replica *r)
{
    manager_free(r->manager);
    kube_http_free(r->io);
    metrics_free(r->metrics);
}

struct answer {
    int count;
    cJSON *object;
    struct fleet_error err;
};

static void on_answer(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct answer *a = user;

    a->object = object ? cJSON_Duplicate(object, true) : NULL;
    if (err)
        a->err = *err;
    a->count++;
}

/* The answer, owned by the caller; NULL if it was refused. */
static cJSON *ask(uv_loop_t *loop, struct kube_io *io, const struct kube_rest_request *request)
{
    struct answer a = {0};

    (void)kube_rest_start(io, request, on_answer, &a);
    loop_turn_until(loop, &a.count, 1);
    return a.object;
}

/* Three of the same and one other, about `object`: two Events, one of them a series. */
static void check_events(uv_loop_t *loop, struct replica *r, const cJSON *object)
{
    struct event_recorder *recorder = event_recorder_new(
        r->io, &(struct event_recorder_options){.controller = "fleetjob.dev/controller",
                                                .instance = "test-1"});
    struct kube_meta meta;
    struct event_object about = {.api_version = "v1", .kind = "ConfigMap"};
    double end = fleet_monotonic_ms() + PATIENCE_MS;
    char selector[128];
    int64_t count = 0;

    assert_int_equal(kube_meta_view(object, &meta, NULL), 0);
    about.namespace_ = meta.namespace_;
    about.name = meta.name;
    about.uid = meta.uid;
    about.resource_version = meta.resource_version;
    for (int i = 0; i < 3; i++)
        event_recorder_record(recorder, &about, EVENT_WARNING, "PodFailed", "Replace", "again");
    event_recorder_record(recorder, &about, EVENT_NORMAL, "Created", "Create", "%d pods", 4);
    snprintf(selector, sizeof(selector), "reason=PodFailed,regarding.uid=%s", meta.uid);
    while (count != 3 && fleet_monotonic_ms() < end) {
        FLEET_AUTO_JSON cJSON *list = ask(loop, r->io,
                                          &(struct kube_rest_request){.verb = KUBE_LIST,
                                                                      .resource = &kube_events,
                                                                      .namespace_ = "default",
                                                                      .field_selector = selector});
        assert_non_null(list);
        (void)fleet_json_opt_int(list, "items[0].series.count", &count, NULL);
        for (int turn = 0; turn < 20; turn++)
            (void)uv_run(loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(count, 3);
    assert_int_equal(event_recorder_dropped(recorder), 0);
    event_recorder_free(recorder);
}

static void test_machinery__leads_sees_tells_and_hands_over(void **state)
{
    uv_loop_t loop;
    struct kube_config config;
    struct replica a, b;
    struct fleet_error err;
    FLEET_AUTO_JSON cJSON *body = cJSON_Parse(
        "{\"metadata\":{\"name\":\"machinery\",\"labels\":{\"test\":\"kube-machinery\"}}}");
    FLEET_AUTO_JSON cJSON *made = NULL;
    struct kube_rest_request request = {.verb = KUBE_DELETE,
                                        .resource = &kube_config_maps,
                                        .namespace_ = "default",
                                        .name = "machinery"};
    const char *uid;
    double began;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    if (kube_config_load(getenv("FLEET_TEST_KUBECONFIG"), NULL, &config, &err) < 0)
        fail_msg("%s", err.text);
    start(&a, &loop, &config, "replica-a");
    cJSON_Delete(ask(&loop, a.io, &request)); /* of a run before */
    loop_turn_until(&loop, &a.leading, 1);
    start(&b, &loop, &config, "replica-b");

    request.verb = KUBE_CREATE;
    request.name = NULL;
    request.body = body;
    made = ask(&loop, a.io, &request);
    assert_non_null(made);
    assert_int_equal(fleet_json_get_string(made, "metadata.uid", &uid, NULL), 0);
    wait_for_uid(&loop, &a, uid); /* through the watch */
    assert_int_equal(b.reconciles, 0);
    check_events(&loop, &a, made);

    began = fleet_monotonic_ms();
    manager_stop(a.manager);
    loop_turn_until(&loop, &a.ends, 1);
    loop_turn_until(&loop, &b.leading, 1);
    print_message("handed over in %.0f ms\n", fleet_monotonic_ms() - began);
    assert_true(b.epoch > a.epoch);
    loop_turn_until(&loop, &b.reconciles, 1); /* what it saw while it stood by */
    assert_string_equal(b.last_uid, uid);
    if (a.troubles + b.troubles > 0) /* a busy API server may end a watch, or answer late */
        print_message("trouble: %s\n", a.troubles ? a.trouble.text : b.trouble.text);

    request.verb = KUBE_DELETE;
    request.name = "machinery";
    cJSON_Delete(ask(&loop, b.io, &request));
    wait_for_uid(&loop, &b, "");
    request.resource = &kube_leases;
    request.name = LEASE;
    cJSON_Delete(ask(&loop, b.io, &request));
    stop(&a);
    stop(&b);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    kube_config_release(&config);
}

static void on_exit_status(uv_process_t *process, int64_t status, int signal)
{
    *(int *)process->data = status == 0 && signal == 0 ? 1 : -1;
    uv_close((uv_handle_t *)process, NULL);
}

/* Run `$FLEET_CLUSTER restart apiserver` while the loop turns. */
static void restart_api_server(uv_loop_t *loop, const char *cluster)
{
    char *arguments[] = {(char *)cluster, (char *)"restart", (char *)"apiserver", NULL};
    uv_stdio_container_t inherit[] = {
        {.flags = UV_IGNORE}, {.flags = UV_IGNORE}, {.flags = UV_INHERIT_FD, .data.fd = 2}};
    uv_process_options_t options = {.file = cluster,
                                    .args = arguments,
                                    .exit_cb = on_exit_status,
                                    .stdio = inherit,
                                    .stdio_count = 3};
    uv_process_t process;
    int ended = 0;

    process.data = &ended;
    assert_int_equal(uv_spawn(loop, &process, &options), 0);
    while (ended == 0)
        (void)uv_run(loop, UV_RUN_ONCE);
    assert_int_equal(ended, 1);
    while (uv_is_active((uv_handle_t *)&process))
        (void)uv_run(loop, UV_RUN_ONCE);
    (void)uv_run(loop, UV_RUN_NOWAIT); /* the close of the handle, which lives here */
}

/* A create whose answer was lost is found by name. */
static void make_until(uv_loop_t *loop, struct kube_io *io, const struct kube_rest_request *create,
                       cJSON **out_made)
{
    const struct kube_rest_request get = {.verb = KUBE_GET,
                                          .resource = create->resource,
                                          .namespace_ = "default",
                                          .name = "machinery"};
    double end = fleet_monotonic_ms() + PATIENCE_MS;

    while (!*out_made && fleet_monotonic_ms() < end) {
        *out_made = ask(loop, io, create);
        if (!*out_made)
            *out_made = ask(loop, io, &get);
    }
    assert_non_null(*out_made);
}

static void test_machinery__outlives_the_api_server(void **state)
{
    const char *cluster = getenv("FLEET_CLUSTER"), *uid = NULL;
    uv_loop_t loop;
    struct kube_config config;
    struct replica a;
    FLEET_AUTO_JSON cJSON *body = cJSON_Parse(
        "{\"metadata\":{\"name\":\"machinery\",\"labels\":{\"test\":\"kube-machinery\"}}}");
    FLEET_AUTO_JSON cJSON *made = NULL;
    struct kube_rest_request request = {
        .verb = KUBE_CREATE, .resource = &kube_config_maps, .namespace_ = "default", .body = body};
    double began;

    (void)state;
    if (!cluster)
        skip();
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(kube_config_load(getenv("FLEET_TEST_KUBECONFIG"), NULL, &config, NULL), 0);
    start(&a, &loop, &config, "replica-a");
    loop_turn_until(&loop, &a.leading, 1);
    request.verb = KUBE_DELETE;
    request.name = "machinery";
    cJSON_Delete(ask(&loop, a.io, &request)); /* of a run before */
    request.verb = KUBE_CREATE;
    request.name = NULL;
    restart_api_server(&loop, cluster);
    make_until(&loop, a.io, &request, &made);
    assert_int_equal(fleet_json_get_string(made, "metadata.uid", &uid, NULL), 0);
    began = fleet_monotonic_ms();
    wait_for_uid(&loop, &a, uid);
    print_message("seen %.0f ms after the restart, %d troubles, last: %s\n",
                  fleet_monotonic_ms() - began, a.troubles, a.troubles ? a.trouble.text : "none");
    assert_int_equal(a.ends, 0); /* and led all the time */
    assert_int_equal(a.leading, 1);

    request = (struct kube_rest_request){.verb = KUBE_DELETE,
                                         .resource = &kube_config_maps,
                                         .namespace_ = "default",
                                         .name = "machinery"};
    cJSON_Delete(ask(&loop, a.io, &request));
    manager_stop(a.manager);
    loop_turn_until(&loop, &a.ends, 1);
    stop(&a);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    kube_config_release(&config);
}

/* An argument: only the tests whose names match. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machinery__leads_sees_tells_and_hands_over),
        cmocka_unit_test(test_machinery__outlives_the_api_server),
    };
    const char *config = getenv("FLEET_TEST_KUBECONFIG");

    if (!config || !*config)
        return 77;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("kube_machinery", tests, NULL, NULL);
}
