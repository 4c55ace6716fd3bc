/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a job needs besides pods (controller/fleetjob/job_objects.h), by the requests of a whole
 * controller on the fake API server: what is deleted comes back, what belongs to others stays, and
 * no Secret is ever read.
 */
#include "tests/unit/reconciler_fixture.h"

#define SERVICES "/api/v1/namespaces/team/services"
#define SERVICE  SERVICES "/gpt-workers"

static void start_running(struct world *w)
{
    start(w, 1);
    make_job(w);
    fake_io_run(w->io, 2000);
    run_pods(w);
    fake_io_run(w->io, 2000);
}

static void next_controller(struct world *w)
{
    reconciler_stop(w->reconciler);
    fake_io_run(w->io, 1000);
    reconciler_free(w->reconciler);
    metrics_free(w->metrics);
    w->metrics = metrics_new();
    start_controller(w);
}

/* The only Secret there is; NULL = none. */
static const cJSON *find_secret(const struct world *w)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **secrets = fake_apiserver_list(w->server, SECRETS, &count);

    assert_in_range(count, 0, 1);
    return count ? secrets[0] : NULL;
}

static void delete_secret(struct world *w)
{
    char path[256];

    (void)snprintf(path, sizeof(path), SECRETS "/%s",
                   cJSON_GetStringValue(fleet_json_at(find_secret(w), "metadata.name")));
    assert_int_equal(fake_apiserver_do(w->server, "DELETE", path, NULL), 200);
    assert_null(find_secret(w));
}

static void refuse_secrets(struct world *w)
{
    fake_apiserver_fail(w->server, &(struct fake_failure){.method = "POST",
                                                          .path = "secrets",
                                                          .count = 1000000,
                                                          .status = 403,
                                                          .cause = "Forbidden"});
}

static void expect_no_secret_read(const struct world *w)
{
    assert_int_equal(fake_apiserver_requests(w->server, "GET " SECRETS), 0);
    assert_int_equal(fake_apiserver_requests(w->server, "PATCH " SECRETS), 0);
    assert_int_equal(fake_apiserver_requests(w->server, "WATCH " SECRETS), 0);
    assert_int_equal(fake_apiserver_requests(w->server, "/api/v1/secrets"), 0);
}

/* The quota counts the Secret that is there, and refuses another one before its name is looked
 * at. */
static void
test_job_objects__a_full_quota_of_secrets_is_no_matter_to_a_job_that_has_one(void **state)
{
    struct world w;

    (void)state;
    start_running(&w);
    refuse_secrets(&w);
    next_controller(&w);
    fake_io_run(w.io, 5000);
    assert_int_equal(
        fake_apiserver_do(w.server, "DELETE", PODS "/gpt-worker-1-0", "{\"gracePeriodSeconds\":0}"),
        200);
    fake_io_run(w.io, 5000);
    assert_non_null(find_pod(&w, "gpt-worker-1-1"));
    assert_int_equal(w.troubles, 0);
    expect_no_secret_read(&w);
    stop(&w);
}

static void test_job_objects__a_deleted_secret_is_back_when_a_pod_is_made(void **state)
{
    struct world w;

    (void)state;
    start_running(&w);
    fake_io_run(w.io, 120000);
    delete_secret(&w);
    set_pod(&w, "gpt-worker-1-0", "{\"status\":{\"phase\":\"Failed\"}}");
    fake_io_run(w.io, 5000);
    assert_non_null(find_pod(&w, "gpt-worker-1-1"));
    assert_non_null(find_secret(&w));
    expect_no_secret_read(&w);
    stop(&w);
}

/* Nothing tells of it but pods that have a node and do not start. */
static void test_job_objects__a_deleted_secret_is_back_when_pods_do_not_start(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    delete_secret(&w);
    for (int i = 0; i < 3; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "gpt-worker-%d-0", i);
        bind_pod(&w, name);
    }
    fake_io_run(w.io, 60000);
    assert_non_null(find_secret(&w));
    run_pods(&w);
    fake_io_run(w.io, 1000);
    delete_secret(&w);
    fake_io_run(w.io, 600000); /* it is not needed: no pod waits */
    assert_null(find_secret(&w));
    stop(&w);
}

/* Another CA, key or address: pods that run mount the Secret by its name, so the name stays. */
static void test_job_objects__a_new_installation_replaces_the_secret(void **state)
{
    static char other[] = "another CA";
    FLEET_AUTO_FREE char *name = NULL;
    struct world w;

    (void)state;
    start_running(&w);
    name = strdup(cJSON_GetStringValue(fleet_json_at(find_secret(&w), "metadata.name")));
    w.identity.ca.certificate_pem = other;
    next_controller(&w);
    fake_io_run(w.io, 5000);
    assert_string_equal(cJSON_GetStringValue(fleet_json_at(find_secret(&w), "metadata.name")),
                        name);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(
                            fleet_json_at(find_secret(&w), "stringData"), "ca.crt")),
                        other);
    assert_int_equal(fake_apiserver_requests(w.server, "DELETE " SECRETS), 1);
    next_controller(&w); /* it is recorded: nothing to do for the next one */
    fake_io_run(w.io, 5000);
    assert_int_equal(fake_apiserver_requests(w.server, "DELETE " SECRETS), 1);
    expect_no_secret_read(&w);
    stop(&w);
}

static void want_names(struct world *w)
{
    assert_int_equal(fake_apiserver_do(w->server, "PATCH", JOBS "/gpt",
                                       "{\"spec\":{\"worker\":{\"hostnames\":true}}}"),
                     200);
}

static void test_job_objects__there_is_no_service_unless_names_are_wanted(void **state)
{
    struct world w;

    (void)state;
    start_running(&w);
    fake_io_run(w.io, 600000);
    assert_int_equal(fake_apiserver_requests(w.server, "POST " SERVICES), 0);
    want_names(&w);
    fake_io_run(w.io, 2000);
    assert_non_null(fake_apiserver_get(w.server, SERVICE));
    stop(&w);
}

static void test_job_objects__a_deleted_service_is_back(void **state)
{
    struct world w;

    (void)state;
    start_running(&w);
    want_names(&w);
    for (int i = 0; i < 3; i++) {
        fake_io_run(w.io, 60000);
        assert_int_equal(fake_apiserver_do(w.server, "DELETE", SERVICE, NULL), 200);
        fake_io_run(w.io, 1000);
        assert_non_null(fake_apiserver_get(w.server, SERVICE));
    }
    assert_int_equal(fake_apiserver_requests(w.server, "PATCH " SERVICES), 0);
    stop(&w);
}

/* kubectl delete --cascade=orphan takes the owner away; a Service may also outlive its job for a
 * moment. */
static void test_job_objects__a_service_of_a_job_before_is_taken_over(void **state)
{
    static const char *const before[] = {
        "{\"metadata\":{\"name\":\"gpt-workers\",\"labels\":{\"fleetjob.dev/job-name\":\"gpt\","
        "\"app.kubernetes.io/managed-by\":\"fleetjob\"}},"
        "\"spec\":{\"selector\":{\"fleetjob.dev/job-uid\":\"old\"}}}",
        "{\"metadata\":{\"name\":\"gpt-workers\",\"labels\":{\"fleetjob.dev/job-name\":\"gpt\","
        "\"app.kubernetes.io/managed-by\":\"fleetjob\"},\"ownerReferences\":[{\"apiVersion\":"
        "\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"name\":\"gpt\",\"uid\":\"old\","
        "\"controller\":true}]},\"spec\":{\"selector\":{\"fleetjob.dev/job-uid\":\"old\"}}}",
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(before); i++) {
        struct world w;
        const cJSON *selector;
        start(&w, 1);
        assert_int_equal(fake_apiserver_do(w.server, "POST", SERVICES, before[i]), 201);
        make_job(&w);
        want_names(&w);
        fake_io_run(w.io, 2000);
        selector = fleet_json_at(fake_apiserver_get(w.server, SERVICE), "spec.selector");
        assert_string_equal(
            cJSON_GetStringValue(cJSON_GetObjectItem(selector, "fleetjob.dev/job-uid")),
            text_at(&w, JOBS "/gpt", "metadata.uid"));
        assert_int_equal(fake_apiserver_count(w.server, PODS), 3);
        stop(&w);
    }
}

static void test_job_objects__a_service_of_another_owner_is_left_alone(void **state)
{
    static const char *const others[] = {
        "{\"metadata\":{\"name\":\"gpt-workers\"},\"spec\":{\"selector\":{\"app\":\"x\"}}}",
        "{\"metadata\":{\"name\":\"gpt-workers\",\"labels\":{\"fleetjob.dev/job-name\":\"gpt\"}},"
        "\"spec\":{\"selector\":{\"app\":\"x\"}}}",
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(others); i++) {
        struct world w;
        start(&w, 1);
        assert_int_equal(fake_apiserver_do(w.server, "POST", SERVICES, others[i]), 201);
        make_job(&w);
        want_names(&w);
        fake_io_run(w.io, 3600000);
        assert_string_equal(text_at(&w, SERVICE, "spec.selector.app"), "x");
        assert_int_equal(fake_apiserver_count(w.server, PODS), 3);
        assert_int_equal(fake_apiserver_requests(w.server, "DELETE " SERVICES), 0);
        assert_in_range(fake_apiserver_requests(w.server, "POST " SERVICES), 2,
                        20); /* in an hour */
        assert_int_equal(w.troubles, 0);
        stop(&w);
    }
}

/* Without it the scheduler would let the pods wait for ever. */
static void test_job_objects__a_deleted_group_is_back_when_pods_find_no_node(void **state)
{
    size_t count;
    char path[256];
    struct world w;

    (void)state;
    start(&w, 1);
    fake_apiserver_offer(w.server, "scheduling.volcano.sh/v1beta1");
    make_job(&w);
    fake_io_run(w.io, 2000);
    free(fake_apiserver_list(w.server, VOLCANO_GROUPS, &count));
    assert_int_equal(count, 1);
    (void)snprintf(
        path, sizeof(path), VOLCANO_GROUPS "/%s",
        kube_meta_annotation(find_pod(&w, "gpt-worker-0-0"), "scheduling.k8s.io/group-name"));
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", path, NULL), 200);
    fake_io_run(w.io, 60000);
    assert_non_null(fake_apiserver_get(w.server, path));
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_job_objects__a_full_quota_of_secrets_is_no_matter_to_a_job_that_has_one),
        cmocka_unit_test(test_job_objects__a_deleted_secret_is_back_when_a_pod_is_made),
        cmocka_unit_test(test_job_objects__a_deleted_secret_is_back_when_pods_do_not_start),
        cmocka_unit_test(test_job_objects__a_new_installation_replaces_the_secret),
        cmocka_unit_test(test_job_objects__there_is_no_service_unless_names_are_wanted),
        cmocka_unit_test(test_job_objects__a_deleted_service_is_back),
        cmocka_unit_test(test_job_objects__a_service_of_a_job_before_is_taken_over),
        cmocka_unit_test(test_job_objects__a_service_of_another_owner_is_left_alone),
        cmocka_unit_test(test_job_objects__a_deleted_group_is_back_when_pods_find_no_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
