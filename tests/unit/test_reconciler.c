/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The whole controller on the fake API server in virtual time, its hubs in memory. The test plays
 * kubelet (it writes pods' status) and members (they say hello). What is looked at is what stands
 * on the server, and in which order it came there.
 */
#include "tests/unit/reconciler_fixture.h"

static void test_reconciler__makes_what_a_job_needs_once(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
    assert_int_equal(fake_apiserver_count(w.server, SECRETS), 1);
    assert_int_equal(fake_apiserver_count(w.server, "/api/v1/namespaces/team/services"), 0);
    assert_string_equal(condition(&w, "Accepted"), "True");
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.plan.digest")[0] ? "a plan" : "no plan",
                        "a plan");
    assert_int_equal(w.hubs, 1);
    fake_io_run(w.io, 60000);
    assert_int_equal(fake_apiserver_requests(w.server, "POST " PODS), 4); /* one a dry run */
    assert_int_equal(fake_apiserver_requests(w.server, "POST " SECRETS), 1);
    assert_int_equal(fake_apiserver_requests(w.server, "PATCH " JOBS), 2); /* then the counts */
    stop(&w);
}

/* Workers with GPUs have the image with CUDA's libraries, from the dry run of the pod on; and their
 * job keeps it. */
static void test_reconciler__gpus_get_the_image_with_cuda(void **state)
{
    static const char *const resources[] = {"",
                                            ",\"resources\":{\"limits\":{\"nvidia.com/gpu\":1}}"};
    static const char *const images[] = {"runtime:1", "runtime-cuda:1"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(images); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        const char *at = strstr(JOB_TEXT, ",\"minReplicas\"");
        struct world w;

        fleet_strbuf_appendf(&text, "%.*s%s%s", (int)(at - JOB_TEXT), JOB_TEXT, resources[i], at);
        start(&w, 1);
        assert_int_equal(fake_apiserver_do(w.server, "POST", JOBS, text.text), 201);
        fake_io_run(w.io, 2000);
        expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
        assert_string_equal(text_at(&w, PODS "/gpt-worker-2-0", "spec.containers[0].image"),
                            images[i]);
        set_pod(&w, "gpt-worker-2-0", /* the node has the image without a digest */
                "{\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":\"worker\","
                "\"imageID\":\"sha256:1\"}]}}");
        fake_io_run(w.io, 2000);
        assert_string_equal(text_at(&w, JOBS "/gpt", "status.image"), images[i]);
        assert_string_equal(text_at(&w, JOBS "/gpt", "status.agentImage"), images[i]);
        stop(&w);
    }
}

/* One, a list, or all: what is not listed is neither read nor touched. */
static void test_reconciler__looks_after_the_namespaces_it_is_given(void **state)
{
    static const char *const all[] = {"team", "other", "third"};
    struct world w;
    char path[128];

    (void)state;
    for (size_t count = 0; count <= 2; count++) {
        size_t watched = count > 0 ? count : FLEET_COUNT(all);
        start_for(&w, 1, all, count);
        for (size_t i = 0; i < FLEET_COUNT(all); i++) {
            (void)snprintf(path, sizeof(path),
                           "/apis/fleetjob.dev/v1alpha1/namespaces/%s/fleetjobs", all[i]);
            assert_int_equal(fake_apiserver_do(w.server, "POST", path, JOB_TEXT), 201);
        }
        fake_io_run(w.io, 5000);
        for (size_t i = 0; i < FLEET_COUNT(all); i++) {
            (void)snprintf(path, sizeof(path), "/api/v1/namespaces/%s/pods", all[i]);
            assert_int_equal(fake_apiserver_count(w.server, path), i < watched ? 3 : 0);
            (void)snprintf(path, sizeof(path), "WATCH /api/v1/namespaces/%s/pods", all[i]);
            assert_int_equal(fake_apiserver_requests(w.server, path), count > 0 && i < watched);
        }
        assert_int_equal(fake_apiserver_requests(w.server, "WATCH /api/v1/pods"), count == 0);
        stop(&w);
    }
}

/* Requests without watches, from creation to all of `count` pods Running, one after the other as
 * kubelets are. */
static size_t requests_for(int count)
{
    struct world w;
    size_t requests;
    char text[128];

    start(&w, 1);
    make_job(&w);
    (void)snprintf(
        text, sizeof(text),
        "{\"spec\":{\"worker\":{\"replicas\":%d},\"training\":{\"globalBatchSize\":64}}}", count);
    assert_int_equal(fake_apiserver_do(w.server, "PATCH", JOBS "/gpt", text), 200);
    fake_io_run(w.io, 2000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), count);
    for (int i = 0; i < count; i++) {
        (void)snprintf(text, sizeof(text), "gpt-worker-%d-0", i);
        bind_pod(&w, text);
        fake_io_run(w.io, 50);
    }
    for (int i = 0; i < count; i++) {
        (void)snprintf(text, sizeof(text), "gpt-worker-%d-0", i);
        set_pod(&w, text, "{\"status\":{\"phase\":\"Running\"}}");
        fake_io_run(w.io, 50);
    }
    fake_io_run(w.io, 60000);
    assert_string_equal(condition(&w, "Scheduled"), "True");
    requests = fake_apiserver_requests(w.server, "") - fake_apiserver_requests(w.server, "WATCH") -
               (size_t)(2 + 2 * count); /* of the test itself */
    stop(&w);
    return requests;
}

static void test_reconciler__n_pods_cost_n_requests_and_a_few(void **state)
{
    (void)state;
    assert_in_range(requests_for(4), 4, 4 + 14);
    assert_in_range(requests_for(64), 64, 64 + 14);
}

/* The connection breaks under a create, done or not: the pod is looked for, not waited for. */
static void test_reconciler__a_broken_connection_costs_no_half_minute(void **state)
{
    (void)state;
    for (int after = 0; after <= 1; after++) {
        struct world w;
        start(&w, 1);
        make_job(&w);
        while (fake_apiserver_requests(w.server, "POST " PODS) == 0) /* a dry run comes first */
            fake_io_run(w.io, 0.5);
        fake_apiserver_fail(
            w.server,
            &(struct fake_failure){.method = "POST", .path = "/pods", .count = 2, .after = after});
        fake_io_run(w.io, 5000);
        assert_int_equal(fake_apiserver_count(w.server, PODS), 3);
        assert_int_equal(fake_apiserver_requests(w.server, "POST " PODS), after ? 4 : 6);
        stop(&w);
    }
}

static void test_reconciler__lost_answers_make_no_second_pod(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world w;
        start(&w, seed);
        fake_io_weather(w.io)->lost_answer = 0.2;
        fake_io_weather(w.io)->lost_request = 0.1;
        fake_io_weather(w.io)->cut_stream = 0.1;
        make_job(&w);
        fake_io_run(w.io, 300000);
        *fake_io_weather(w.io) = (struct fake_weather){.latency_min_ms = 1, .latency_max_ms = 1};
        fake_io_run(w.io, 300000);
        expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
        stop(&w);
    }
}

static void test_reconciler__a_taken_name_costs_an_attempt(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    assert_int_equal(
        fake_apiserver_do(w.server, "POST", PODS, "{\"metadata\":{\"name\":\"gpt-worker-1-0\"}}"),
        201);
    make_job(&w);
    for (int i = 0; i < 5000 && !find_pod(&w, "gpt-worker-1-1"); i++)
        fake_io_run(w.io, 1);
    expect_pods(&w, 4, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-1-1", "gpt-worker-2-0");
    /* written before the pod is made: it may vanish before anybody has seen it */
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.attempts.1"), 1);
    stop(&w);
}

static void test_reconciler__a_gang_scheduler_that_is_there_places_all_or_none(void **state)
{
    const char *group;
    char path[256];
    struct world w;

    (void)state;
    start(&w, 1);
    fake_apiserver_offer(w.server, "scheduling.volcano.sh/v1beta1");
    make_job(&w);
    fake_io_run(w.io, 2000);
    expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
    group = kube_meta_annotation(find_pod(&w, "gpt-worker-0-0"), "scheduling.k8s.io/group-name");
    assert_non_null(group);
    (void)snprintf(path, sizeof(path), VOLCANO_GROUPS "/%s", group);
    assert_int_equal(number_at(&w, path, "spec.minMember"), 1); /* worker.minReplicas */
    assert_string_equal(text_at(&w, PODS "/gpt-worker-0-0", "spec.schedulerName"), "volcano");
    stop(&w);
}

static void test_reconciler__without_a_gang_scheduler_pods_are_placed_one_by_one(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    assert_int_equal(fake_apiserver_requests(w.server, "podgroups"), 0);
    assert_null(fleet_json_at(find_pod(&w, "gpt-worker-0-0"), "spec.schedulerName"));
    stop(&w);
}

static void test_reconciler__a_gang_scheduler_that_is_named_must_be_there(void **state)
{
    FLEET_AUTO_JSON cJSON *job = cJSON_Parse(JOB_TEXT);
    FLEET_AUTO_FREE char *text = NULL;
    struct world w;

    (void)state;
    start(&w, 1);
    fake_apiserver_fail(
        w.server,
        &(struct fake_failure){.method = "POST", .path = "podgroups", .count = 1, .status = 404});
    cJSON_AddStringToObject(
        cJSON_AddObjectToObject(
            cJSON_AddObjectToObject(cJSON_GetObjectItem(job, "spec"), "runPolicy"), "scheduling"),
        "gang", "SchedulerPlugins");
    text = fleet_json_print(job);
    assert_int_equal(fake_apiserver_do(w.server, "POST", JOBS, text), 201);
    fake_io_run(w.io, 5000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
    assert_string_equal(condition(&w, "Accepted"), "False");
    stop(&w);
}

/* The namespace is being deleted: pods vanish, none can be made, and retries are useless. */
static void test_reconciler__a_namespace_that_ends_is_left_alone(void **state)
{
    struct world w;
    size_t requests;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    run_pods(&w);
    fake_apiserver_fail(w.server, &(struct fake_failure){.method = "POST",
                                                         .count = 1000,
                                                         .status = 403,
                                                         .cause = "NamespaceTerminating"});
    requests = fake_apiserver_requests(w.server, "POST");
    for (int i = 0; i < 3; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), PODS "/gpt-worker-%d-0", i);
        assert_int_equal(fake_apiserver_do(w.server, "DELETE", path, NULL), 200);
        fake_io_run(w.io, 5000);
    }
    assert_in_range(fake_apiserver_requests(w.server, "POST") - requests, 1, 4);
    stop(&w);
}

static void test_reconciler__a_failed_pod_is_replaced(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    run_pods(&w);
    assert_string_equal(note_of(&w, "CreatedPods"), "Created 3 workers");
    set_pod(&w, "gpt-worker-1-0",
            "{\"status\":{\"phase\":\"Failed\",\"reason\":\"Evicted\",\"containerStatuses\":[{"
            "\"name\":\"worker\",\"state\":{\"terminated\":{\"exitCode\":137}}}]}}");
    fake_io_run(w.io, 5000);
    expect_pods(&w, 4, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-1-1", "gpt-worker-2-0");
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.attempts.1"), 1);
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.workers.failed"), 1);
    metrics_print(w.metrics, &text);
    assert_non_null(strstr(text.text, "fleetjob_jobs{namespace=\"team\",state=\"Pending\"} 1\n"));
    stop(&w);
}

/* A third party deletes the pods of a worker as soon as they are made. A pod that is deleted only
 * now and then is made again at once. */
static void test_reconciler__a_storm_of_deletions_is_not_answered_by_one_of_pods(void **state)
{
    struct world w;
    size_t made;
    char name[64];

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    for (int attempt = 0; attempt < 5; attempt++) { /* by hand */
        (void)snprintf(name, sizeof(name), PODS "/gpt-worker-1-%d", attempt);
        assert_int_equal(fake_apiserver_do(w.server, "DELETE", name, NULL), 200);
        fake_io_run(w.io, 150);
        (void)snprintf(name, sizeof(name), "gpt-worker-1-%d", attempt + 1);
        assert_non_null(find_pod(&w, name));
        fake_io_run(w.io, 10000);
    }
    made = fake_apiserver_requests(w.server, "POST " PODS);
    for (double ms = 0; ms < 60000; ms += 10) {
        for (int attempt = 5; attempt < 50; attempt++) {
            (void)snprintf(name, sizeof(name), PODS "/gpt-worker-1-%d", attempt);
            (void)fake_apiserver_do(w.server, "DELETE", name, NULL);
        }
        fake_io_run(w.io, 10);
    }
    made = fake_apiserver_requests(w.server, "POST " PODS) - made;
    assert_in_range(made, 6, 10); /* after 0, 0.25, 0.5, 1, 2, 4, 8, 16, 30 s */
    stop(&w);
}

/* The server makes the pod and answers with an error, and the cache is late. */
static void make_in_spite_of(int status)
{
    struct fake_failure failure = {
        .method = "POST", .path = "/pods", .count = 1, .status = status, .after = true};
    struct world w;

    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    run_pods(&w);
    fake_io_run(w.io, 1000);
    fake_apiserver_fail(w.server, &failure);
    set_pod(&w, "gpt-worker-1-0", "{\"status\":{\"phase\":\"Failed\"}}");
    while (fake_apiserver_count(w.server, PODS) == 3)
        fake_io_run(w.io, 0.5);
    fake_io_weather(w.io)->cut_stream = 1;
    fake_io_run(w.io, 2000);
    fake_io_weather(w.io)->cut_stream = 0;
    fake_io_run(w.io, 60000);
    expect_pods(&w, 4, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-1-1", "gpt-worker-2-0");
    stop(&w);
}

static void test_reconciler__a_pod_made_in_spite_of_an_error_is_not_made_again(void **state)
{
    (void)state;
    make_in_spite_of(500);
    make_in_spite_of(409); /* a conflict of the server's own, not of names */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reconciler__makes_what_a_job_needs_once),
        cmocka_unit_test(test_reconciler__gpus_get_the_image_with_cuda),
        cmocka_unit_test(test_reconciler__looks_after_the_namespaces_it_is_given),
        cmocka_unit_test(test_reconciler__n_pods_cost_n_requests_and_a_few),
        cmocka_unit_test(test_reconciler__a_broken_connection_costs_no_half_minute),
        cmocka_unit_test(test_reconciler__lost_answers_make_no_second_pod),
        cmocka_unit_test(test_reconciler__a_taken_name_costs_an_attempt),
        cmocka_unit_test(test_reconciler__a_gang_scheduler_that_is_there_places_all_or_none),
        cmocka_unit_test(test_reconciler__without_a_gang_scheduler_pods_are_placed_one_by_one),
        cmocka_unit_test(test_reconciler__a_gang_scheduler_that_is_named_must_be_there),
        cmocka_unit_test(test_reconciler__a_namespace_that_ends_is_left_alone),
        cmocka_unit_test(test_reconciler__a_failed_pod_is_replaced),
        cmocka_unit_test(test_reconciler__a_storm_of_deletions_is_not_answered_by_one_of_pods),
        cmocka_unit_test(test_reconciler__a_pod_made_in_spite_of_an_error_is_not_made_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
