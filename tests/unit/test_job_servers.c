/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A job with spec.server, by the requests of a whole controller on the fake API server: its Service
 * gives the servers one address for the job's life, and lost servers come back under their names.
 */
#include "tests/unit/reconciler_fixture.h"

#define SERVICES "/api/v1/namespaces/team/services"
#define SERVICE  SERVICES "/gpt-servers"
#define ADDRESS  "10.96.0.7"

#define SERVER_JOB                                                           \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\","       \
    "\"metadata\":{\"name\":\"gpt\"},\"spec\":{\"server\":{\"replicas\":2}," \
    "\"worker\":{\"replicas\":3,\"template\":{\"spec\":{\"containers\":"     \
    "[{\"name\":\"t\",\"image\":\"i\",\"command\":[\"train\"]}]}}}}}"

static const char *const pods[] = {"gpt-server-0", "gpt-server-1", "gpt-worker-0-0",
                                   "gpt-worker-1-0", "gpt-worker-2-0"};

static void make_server_job(struct world *w)
{
    assert_int_equal(fake_apiserver_do(w->server, "POST", JOBS, SERVER_JOB), 201);
}

/* What a real API server does when the Service is created. */
static void give_address(struct world *w, const char *address)
{
    char patch[128];

    (void)snprintf(patch, sizeof(patch), "{\"spec\":{\"clusterIP\":\"%s\"}}", address);
    assert_int_equal(fake_apiserver_do(w->server, "PATCH", SERVICE, patch), 200);
}

static void start_running(struct world *w)
{
    start(w, 1);
    make_server_job(w);
    fake_io_run(w->io, 2000);
    give_address(w, ADDRESS);
    fake_io_run(w->io, 2000);
    for (size_t i = 0; i < FLEET_COUNT(pods); i++)
        set_pod(w, pods[i],
                "{\"spec\":{\"nodeName\":\"n\"},\"status\":{\"phase\":\"Running\",\"conditions\":"
                "[{\"type\":\"Ready\",\"status\":\"True\"}]}}");
    fake_io_run(w->io, 20000);
}

static const char *server_list(const struct world *w, const char *pod)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, fleet_json_at(find_pod(w, pod), "spec.containers[0].env"))
    {
        if (strcmp(cJSON_GetObjectItem(item, "name")->valuestring,
                   "PADDLE_PSERVERS_IP_PORT_LIST") == 0)
            return cJSON_GetObjectItem(item, "value")->valuestring;
    }
    return "";
}

static void delete_pod(const struct world *w, const char *name)
{
    char path[128];

    (void)snprintf(path, sizeof(path), PODS "/%s", name);
    assert_int_equal(fake_apiserver_do(w->server, "DELETE", path, "{\"gracePeriodSeconds\":0}"),
                     200);
}

static void test_job_servers__no_pod_is_made_before_the_servers_have_an_address(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_server_job(&w);
    fake_io_run(w.io, 60000);
    assert_non_null(fake_apiserver_get(w.server, SERVICE));
    assert_int_equal(fake_apiserver_requests(w.server, "POST " SERVICES), 1);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
    give_address(&w, ADDRESS);
    fake_io_run(w.io, 2000);
    for (size_t i = 0; i < FLEET_COUNT(pods); i++)
        assert_string_equal(server_list(&w, pods[i]), ADDRESS ":6174," ADDRESS ":6175");
    assert_int_equal(fake_apiserver_count(w.server, PODS), FLEET_COUNT(pods));
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.servers.address"), ADDRESS);
    assert_int_equal(w.troubles, 0);
    stop(&w);
}

static void test_job_servers__a_lost_server_comes_back_under_its_name(void **state)
{
    struct world w;

    (void)state;
    start_running(&w);
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.servers.ready"), 2);
    for (int i = 2; i < 5; i++) {
        delete_pod(&w, "gpt-server-1");
        fake_io_run(w.io, 20000);
        assert_non_null(find_pod(&w, "gpt-server-1"));
        assert_int_equal(number_at(&w, JOBS "/gpt", "status.servers.pods.1"), i);
    }
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.servers.pods.0"), 1);
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.servers.ready"), 1);
    assert_int_equal(fake_apiserver_count(w.server, PODS), FLEET_COUNT(pods));
    assert_int_equal(w.troubles, 0);
    stop(&w);
}

/* Its pods have the address in their environment. */
static void test_job_servers__a_deleted_service_comes_back_with_its_address(void **state)
{
    struct world w;

    (void)state;
    start_running(&w);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", SERVICE, NULL), 200);
    fake_io_run(w.io, 2000);
    assert_string_equal(text_at(&w, SERVICE, "spec.clusterIP"), ADDRESS);
    delete_pod(&w, "gpt-server-0");
    fake_io_run(w.io, 2000);
    assert_string_equal(server_list(&w, "gpt-server-0"), ADDRESS ":6174," ADDRESS ":6175");
    stop(&w);
}

static void test_job_servers__the_next_leader_makes_nothing_again(void **state)
{
    struct world w;

    (void)state;
    start_running(&w);
    reconciler_stop(w.reconciler);
    fake_io_run(w.io, 1000);
    reconciler_free(w.reconciler);
    metrics_free(w.metrics);
    w.metrics = metrics_new();
    start_controller(&w);
    fake_io_run(w.io, 20000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), FLEET_COUNT(pods));
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.servers.pods.0"), 1);
    assert_int_equal(fake_apiserver_requests(w.server, "POST " SERVICES), 1);
    assert_int_equal(w.troubles, 0);
    stop(&w);
}

/* The job waits, and says for what. */
static void test_job_servers__a_service_of_another_owner_is_left_alone(void **state)
{
    static const char other[] =
        "{\"metadata\":{\"name\":\"gpt-servers\"},\"spec\":{\"selector\":{\"app\":\"x\"}}}";
    struct world w;

    (void)state;
    start(&w, 1);
    assert_int_equal(fake_apiserver_do(w.server, "POST", SERVICES, other), 201);
    make_server_job(&w);
    fake_io_run(w.io, 60000);
    assert_string_equal(text_at(&w, SERVICE, "spec.selector.app"), "x");
    assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
    assert_string_equal(condition(&w, "Scheduled"), "False");
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.reason"), "CreateRefused");
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", SERVICE, NULL), 200);
    fake_io_run(w.io, 600000);
    give_address(&w, ADDRESS);
    fake_io_run(w.io, 2000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), FLEET_COUNT(pods));
    stop(&w);
}

static void test_job_servers__a_pod_of_another_owner_keeps_its_name(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    assert_int_equal(
        fake_apiserver_do(w.server, "POST", PODS, "{\"metadata\":{\"name\":\"gpt-server-0\"}}"),
        201);
    make_server_job(&w);
    fake_io_run(w.io, 2000);
    give_address(&w, ADDRESS);
    fake_io_run(w.io, 60000);
    assert_string_equal(server_list(&w, "gpt-server-0"), "");
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.reason"), "CreateRefused");
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.servers.pods.0"), 1);
    delete_pod(&w, "gpt-server-0");
    fake_io_run(w.io, 600000);
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.servers.pods.0"), 1);
    assert_string_equal(server_list(&w, "gpt-server-0"), ADDRESS ":6174," ADDRESS ":6175");
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_servers__no_pod_is_made_before_the_servers_have_an_address),
        cmocka_unit_test(test_job_servers__a_lost_server_comes_back_under_its_name),
        cmocka_unit_test(test_job_servers__a_deleted_service_comes_back_with_its_address),
        cmocka_unit_test(test_job_servers__the_next_leader_makes_nothing_again),
        cmocka_unit_test(test_job_servers__a_service_of_another_owner_is_left_alone),
        cmocka_unit_test(test_job_servers__a_pod_of_another_owner_keeps_its_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
