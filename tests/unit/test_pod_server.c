/* SPDX-License-Identifier: Apache-2.0 */

/* What the pods of servers and workers of a parameter server know of each other. */
#include "controller/fleetjob/pod_server.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/kube/meta.h"
#include "tests/unit/pod_builder_fixture.h"

#define OWN                                                                                  \
    "{replicas: 3, processesPerPod: 2, template: {spec: {containers: [{name: t, image: img," \
    " command: [train], args: [fast], env: [{name: LEVEL, value: '3'}, {name: PADDLE_PORT,"  \
    " value: '1'}], ports: [{name: web, containerPort: 80}]}]}}}"

static cJSON *build_server(const struct fleetjob *job, int index, const char *address,
                           bool encrypts)
{
    struct pod_builder_request request = {.job = job,
                                          .index = index,
                                          .runtime_image = RUNTIME,
                                          .pull_policy = "Always",
                                          .secret = "gpt-abc",
                                          .server_address = address,
                                          .encrypts = encrypts};

    return pod_builder_build_server(&request);
}

static void test_pod_server__a_server_runs_the_workers_program_without_the_agent(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job(OWN, "server: {replicas: 2}", &job);
    pod = build_server(&job, 1, "10.96.0.7", false);
    expect(pod, "metadata.name", "\"gpt-server-1\"");
    expect(pod, "metadata.ownerReferences[0].uid", "\"0123456789-abc\"");
    assert_string_equal(kube_meta_label(pod, WELLKNOWN_LABEL_ROLE), "server");
    assert_string_equal(kube_meta_label(pod, WELLKNOWN_LABEL_SERVER), "1");
    assert_string_equal(kube_meta_label(pod, WELLKNOWN_LABEL_JOB_UID), "0123456789-abc");
    assert_null(kube_meta_label(pod, WELLKNOWN_LABEL_INDEX));
    expect(pod, "spec.restartPolicy", "\"OnFailure\"");
    expect(pod, "spec.initContainers", "(none)");
    expect(pod, "spec.securityContext.runAsNonRoot", "true");
    expect(pod, "spec.containers[0].image", "\"img\"");
    expect(pod, "spec.containers[0].imagePullPolicy", "\"Always\"");
    expect(pod, "spec.containers[0].command", "[\"train\"]");
    expect(pod, "spec.containers[0].args", "[\"fast\"]");
    expect(pod, "spec.containers[0].ports[0].name", "\"web\"");
    expect(pod, "spec.containers[0].ports[1]", "{\"name\":\"server-1\",\"containerPort\":6175}");
    expect(pod, "spec.volumes", "(none)"); /* not even the job's Secret */
    fleetjob_release(&job);
}

static void test_pod_server__a_server_finds_itself_in_the_list(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job(OWN, "server: {replicas: 2}", &job);
    pod = build_server(&job, 1, "10.96.0.7", true);
    assert_string_equal(variable(pod, "TRAINING_ROLE"), "PSERVER");
    assert_string_equal(variable(pod, "PADDLE_PSERVERS_IP_PORT_LIST"),
                        "10.96.0.7:6174,10.96.0.7:6175");
    assert_string_equal(variable(pod, "POD_IP"), "10.96.0.7");
    assert_string_equal(variable(pod, "PADDLE_PORT"), "6175"); /* ours, not the user's */
    assert_string_equal(variable(pod, "PADDLE_TRAINERS_NUM"), "6");
    assert_string_equal(variable(pod, "FLEET_JOB_UID"), "0123456789-abc");
    assert_string_equal(variable(pod, "FLEET_DATA_ENCRYPTION"), "AES-GCM");
    assert_string_equal(variable(pod, "LEVEL"), "3");
    expect(pod, "spec.containers[0].env[4].valueFrom.secretKeyRef",
           "{\"name\":\"gpt-abc\",\"key\":\"world-secret\"}");
    cJSON_Delete(pod);
    pod = build_server(&job, 0, "fd00::7", false);
    assert_string_equal(variable(pod, "PADDLE_PSERVERS_IP_PORT_LIST"),
                        "[fd00::7]:6174,[fd00::7]:6175");
    assert_string_equal(variable(pod, "POD_IP"), "[fd00::7]");
    assert_string_equal(variable(pod, "FLEET_DATA_ENCRYPTION"), "(none)");
    fleetjob_release(&job);
}

static void test_pod_server__a_template_of_its_own_wins(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job(OWN,
             "server: {template: {metadata: {labels: {team: ads}}, spec: {nodeSelector: {disk: "
             "fast}, terminationGracePeriodSeconds: 9, containers: [{command: [serve]}]}}}",
             &job);
    pod = build_server(&job, 0, "10.96.0.7", false);
    expect(pod, "metadata.labels.team", "\"ads\"");
    expect(pod, "spec.nodeSelector.disk", "\"fast\"");
    expect(pod, "spec.terminationGracePeriodSeconds", "9");
    expect(pod, "spec.containers[0].name", "\"server\"");
    expect(pod, "spec.containers[0].image", "\"" RUNTIME "\"");
    expect(pod, "spec.containers[0].command", "[\"serve\"]");
    fleetjob_release(&job);
}

/* The other variables of workers come from their agent. */
static void test_pod_server__a_worker_knows_the_servers(void **state)
{
    struct fleetjob job;
    struct pod_builder_request request = {
        .job = &job, .runtime_image = RUNTIME, .secret = "gpt-abc", .server_address = "10.96.0.7"};
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job(OWN, "server: {replicas: 2}", &job);
    pod = pod_builder_build(&request);
    expect(pod, "metadata.name", "\"gpt-worker-0-0\"");
    assert_string_equal(variable(pod, "TRAINING_ROLE"), "TRAINER");
    assert_string_equal(variable(pod, "PADDLE_PSERVERS_IP_PORT_LIST"),
                        "10.96.0.7:6174,10.96.0.7:6175");
    assert_string_equal(variable(pod, "FLEET_ENVIRONMENT_FILE"),
                        POD_BUILDER_JOB_FOLDER "/environment");
    cJSON_Delete(pod);
    job.spec.has_server = false;
    pod = pod_builder_build(&request);
    assert_string_equal(variable(pod, "TRAINING_ROLE"), "(none)");
    assert_string_equal(variable(pod, "PADDLE_PSERVERS_IP_PORT_LIST"), "(none)");
    fleetjob_release(&job);
}

/* Only then is there one: without servers the Secret is as before. */
static void test_pod_server__the_secret_of_the_job_has_theirs(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *secret = NULL, *other = NULL;
    const char *value = "", *value_of_other = "";

    (void)state;
    read_job(OWN, "server: {replicas: 2}", &job);
    secret = job_secret_build(&job, "hub:1", "token", "ca", false);
    other = job_secret_build(&job, "hub:1", "another token", "ca", false);
    assert_int_equal(fleet_json_opt_string(secret, "stringData.world-secret", &value, NULL), 0);
    assert_int_equal(fleet_json_opt_string(other, "stringData.world-secret", &value_of_other, NULL),
                     0);
    assert_int_equal(strlen(value), 64);
    assert_string_not_equal(value, value_of_other);
    cJSON_Delete(secret);
    job.spec.has_server = false;
    secret = job_secret_build(&job, "hub:1", "token", "ca", false);
    assert_null(fleet_json_at(secret, "stringData.world-secret"));
    fleetjob_release(&job);
}

static void test_pod_server__the_service_leads_each_port_to_its_server(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *service = NULL;

    (void)state;
    read_job(OWN, "server: {replicas: 2}", &job);
    service = job_service_build_servers(&job, NULL);
    expect(service, "metadata.name", "\"gpt-servers\"");
    expect(service, "spec.clusterIP", "(none)");
    expect(service, "spec.publishNotReadyAddresses", "true");
    expect(service, "spec.selector",
           "{\"fleetjob.dev/job-uid\":\"0123456789-abc\",\"fleetjob.dev/role\":\"server\"}");
    expect(service, "spec.ports[1]",
           "{\"name\":\"server-1\",\"protocol\":\"TCP\",\"port\":6175,\"targetPort\":"
           "\"server-1\"}");
    expect(service, "spec.ports[2]", "(none)");
    cJSON_Delete(service);
    service = job_service_build_servers(&job, "10.96.0.7"); /* it was deleted */
    expect(service, "spec.clusterIP", "\"10.96.0.7\"");
    fleetjob_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pod_server__a_server_runs_the_workers_program_without_the_agent),
        cmocka_unit_test(test_pod_server__a_server_finds_itself_in_the_list),
        cmocka_unit_test(test_pod_server__a_template_of_its_own_wins),
        cmocka_unit_test(test_pod_server__a_worker_knows_the_servers),
        cmocka_unit_test(test_pod_server__the_secret_of_the_job_has_theirs),
        cmocka_unit_test(test_pod_server__the_service_leads_each_port_to_its_server),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
