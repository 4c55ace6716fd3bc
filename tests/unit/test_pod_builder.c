/* SPDX-License-Identifier: Apache-2.0 */

/* Pods as the builder makes them, looked at through the paths that the kubelet would read. */
#include "tests/unit/pod_builder_fixture.h"

/* An agent of another version may not read the file. */
static void test_pod_builder__an_agent_of_another_image_has_all_in_its_environment(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job(
        "{replicas: 1, template: {spec: {terminationGracePeriodSeconds: 90, containers: [{name: w,"
        " image: my/torch:2, command: [train], env: [{name: FLEET_JOB_NAME, value: other},"
        " {name: FLEET_ATTEMPT, value: '9'}]}]}}}",
        "strategyPolicy: Full", &job);
    job.status.agent_image = strdup("runtime:before");
    pod = build(&job, 0, 0, NULL);
    assert_string_equal(variable(pod, "FLEET_ENVIRONMENT_FILE"), "(none)");
    assert_string_equal(variable(pod, "FLEET_JOB_NAME"), "gpt");
    assert_string_equal(variable(pod, "FLEET_INDEX"), "0");
    assert_string_equal(variable(pod, "FLEET_ATTEMPT"), "0");
    assert_string_equal(variable(pod, "FLEET_HUB_FILE"), POD_BUILDER_JOB_FOLDER "/hub");
    assert_string_equal(variable(pod, "FLEET_GRACE_SECONDS"), "90");
    fleetjob_release(&job);
}

static void test_pod_builder__runs_the_runtime_image_as_it_is(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job("{replicas: 2, resources: {limits: {memory: 1Gi}},"
             " volumes: [{name: text, mountPath: /data, configMap: text}]}",
             TRAINING, &job);
    pod = build(&job, 1, 2, NULL);
    expect(pod, "metadata.name", "\"gpt-worker-1-2\"");
    expect(pod, "metadata.namespace", "\"team\"");
    expect(pod, "metadata.ownerReferences[0].uid", "\"0123456789-abc\"");
    expect(pod, "metadata.ownerReferences[0].controller", "true");
    expect(pod, "metadata.ownerReferences[1]", "(none)");
    expect(pod, "spec.restartPolicy", "\"Never\"");
    expect(pod, "spec.automountServiceAccountToken", "false");
    expect(pod, "spec.subdomain", "(none)");
    expect(pod, "spec.initContainers", "(none)");
    expect(pod, "spec.containers[0].image", "\"" RUNTIME "\"");
    expect(pod, "spec.containers[0].command", "[\"/fleetjob/bin/fleetjob-agent\"]");
    expect(pod, "spec.containers[0].resources.limits.memory", "\"1Gi\"");
    expect(pod, "spec.containers[0].terminationMessagePolicy", "\"FallbackToLogsOnError\"");
    expect(pod, "spec.containers[0].volumeMounts[0]",
           "{\"name\":\"text\",\"mountPath\":\"/data\"}");
    expect(pod, "spec.containers[0].volumeMounts[1].mountPath", "\"/run/fleetjob\"");
    expect(pod, "spec.containers[0].volumeMounts[2].mountPath", "\"/dev/shm\"");
    expect(pod, "spec.volumes[0].configMap.name", "\"text\"");
    expect(pod, "spec.volumes[1].secret.secretName", "\"gpt-abc\"");
    expect(pod, "spec.volumes[2].emptyDir.medium", "\"Memory\"");
    assert_string_equal(variable(pod, "FLEET_POD_NAME"), "gpt-worker-1-2");
    assert_string_equal(variable(pod, "FLEET_ENVIRONMENT_FILE"),
                        POD_BUILDER_JOB_FOLDER "/environment");
    expect(pod, "spec.containers[0].env[4]", "(none)"); /* each one costs every watcher of pods */
    expect_common(&job, "FLEET_GRACE_SECONDS", "30");
    expect_common(&job, "FLEET_HUB_FILE", POD_BUILDER_JOB_FOLDER "/hub");
    expect_common(&job, "FLEET_JOB_UID", "0123456789-abc");
    assert_string_equal(variable(pod, "FLEET_POD_UID"), "metadata.uid");
    assert_string_equal(variable(pod, "FLEET_ADDRESS"), "status.podIP");
    fleetjob_release(&job);
}

/* The controller's form is the workers', unless their container has one of its own. */
static void test_pod_builder__workers_log_as_the_controller_does(void **state)
{
    static const char *const workers[] = {
        "{replicas: 1}",
        "{replicas: 1, template: {spec: {containers: [{name: trainer, env: [{name: "
        "FLEET_LOG_FORMAT, value: text}]}]}}}"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        FLEET_AUTO_JSON cJSON *pod = NULL;
        struct fleetjob job;
        read_job(workers[i / 2], TRAINING, &job);
        has_json_logs = i % 2 == 1;
        pod = build(&job, 0, 0, NULL);
        assert_string_equal(variable(pod, "FLEET_LOG_FORMAT"), i == 0   ? "(none)"
                                                               : i == 1 ? "json"
                                                                        : "text");
        fleetjob_release(&job);
    }
    has_json_logs = false;
}

static void test_pod_builder__is_restricted_unless_the_user_says_otherwise(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL, *own = NULL;

    (void)state;
    read_job("{replicas: 1}", TRAINING, &job);
    pod = build(&job, 0, 0, NULL);
    expect(pod, "spec.securityContext.runAsNonRoot", "true");
    expect(pod, "spec.securityContext.seccompProfile.type", "\"RuntimeDefault\"");
    expect(pod, "spec.containers[0].securityContext",
           "{\"allowPrivilegeEscalation\":false,\"capabilities\":{\"drop\":[\"ALL\"]}}");
    fleetjob_release(&job);
    read_job("{replicas: 1, template: {spec: {securityContext: {runAsUser: 0}, containers: [{name: "
             "w, image: " RUNTIME ", securityContext: {privileged: true}}]}}}",
             TRAINING, &job);
    own = build(&job, 0, 0, NULL);
    expect(own, "spec.securityContext", "{\"runAsUser\":0}");
    expect(own, "spec.containers[0].securityContext", "{\"privileged\":true}");
    expect(own, "spec.initContainers", "(none)");
    fleetjob_release(&job);
}

static void test_pod_builder__brings_the_agent_into_another_image(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job("{replicas: 1, template: {metadata: {labels: {team: a}}, spec: {"
             "terminationGracePeriodSeconds: 90, initContainers: [{name: first, image: x}],"
             " volumes: [{name: shm, emptyDir: {}}], tolerations: [{key: "
             "node.kubernetes.io/unreachable, operator: Exists}],"
             " containers: [{name: trainer, image: my/torch:2, command: [python3], args: [train.py,"
             " --fast], resources: {limits: {cpu: 2, memory: 1Gi, nvidia.com/gpu: 1}, requests:"
             " {cpu: 1}}, env: [{name: FLEET_INDEX, value: '7'},"
             " {name: FLEET_JOB_NAME, value: other}, {name: LR, value: '1'}],"
             " volumeMounts: [{name: shm, mountPath: /dev/shm}]}, {name: side, image: other}]}}}",
             "strategyPolicy: Full", &job);
    pod = build(&job, 0, 0, NULL);
    expect(pod, "metadata.labels.team", "\"a\"");
    expect(pod, "spec.initContainers[0].image", "\"" RUNTIME "\"");
    expect(pod, "spec.initContainers[0].command",
           "[\"/fleetjob/bin/fleetjob-agent\",\"--install\",\"/target\"]");
    expect(pod, "spec.initContainers[0].resources",
           "{\"requests\":{\"cpu\":1},\"limits\":{\"cpu\":2,\"memory\":\"1Gi\"}}");
    expect(pod, "spec.initContainers[1].name", "\"first\"");
    expect(pod, "spec.initContainers[1].resources", "(none)");
    expect(pod, "spec.initContainers[1].securityContext",
           "{\"allowPrivilegeEscalation\":false,\"capabilities\":{\"drop\":[\"ALL\"]}}");
    expect(pod, "spec.containers[0].image", "\"my/torch:2\"");
    expect(pod, "spec.containers[0].command",
           "[\"/fleetjob/bin/fleetjob-agent\",\"--\",\"python3\",\"train.py\",\"--fast\"]");
    expect(pod, "spec.containers[0].args", "(none)");
    expect(pod, "spec.containers[0].volumeMounts[2]",
           "{\"name\":\"fleetjob-agent\",\"mountPath\":\"/fleetjob\",\"readOnly\":true}");
    expect(pod, "spec.containers[0].volumeMounts[3]", "(none)"); /* /dev/shm is the user's */
    expect(pod, "spec.containers[1].image", "\"other\"");
    expect(pod, "spec.containers[1].command", "(none)");
    expect(pod, "spec.tolerations[1].key", "\"node.kubernetes.io/not-ready\"");
    expect(pod, "spec.tolerations[2]", "(none)");
    assert_string_equal(variable(pod, "FLEET_INDEX"), "(none)"); /* the name's, not the user's */
    assert_string_equal(variable(pod, "LR"), "1");
    assert_string_equal(variable(pod, "FLEET_JOB_NAME"), "(none)"); /* the file's */
    expect_common(&job, "FLEET_GRACE_SECONDS", "90");
    fleetjob_release(&job);
}

/* Without a command the image's own one starts, and the agent takes its place. */
static void test_pod_builder__keeps_the_entrypoint_of_an_image(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job("{replicas: 1, template: {spec: {containers: [{name: trainer, image: my/torch:2,"
             " command: [], args: [--fast, ''], lifecycle: {preStop: {sleep: {seconds: 1}}},"
             " env: [{name: LD_PRELOAD, value: /lib/libjemalloc.so}, {name: LR, value: '1'}]},"
             " {name: side, image: other}]}}}",
             "strategyPolicy: Full", &job);
    pod = build(&job, 0, 0, NULL);
    expect(pod, "spec.initContainers[0].image", "\"" RUNTIME "\"");
    expect(pod, "spec.containers[0].command", "(none)");
    expect(pod, "spec.containers[0].args", "[\"--fast\",\"\"]");
    expect(pod, "spec.containers[0].lifecycle",
           "{\"preStop\":{\"sleep\":{\"seconds\":1}},\"postStart\":{\"exec\":{\"command\":["
           "\"/fleetjob/bin/fleetjob-agent\",\"--check-entrypoint\",\"2\"]}}}");
    assert_string_equal(variable(pod, "LD_PRELOAD"), "/fleetjob/lib/fleetjob-preload.so");
    assert_string_equal(variable(pod, "FLEET_ENTRYPOINT_AGENT"), "/fleetjob/bin/fleetjob-agent");
    assert_string_equal(variable(pod, "FLEET_ENTRYPOINT_PRELOAD"), "/lib/libjemalloc.so");
    assert_string_equal(variable(pod, "LR"), "1");
    expect(pod, "spec.containers[1].env", "(none)");
    expect(pod, "spec.containers[1].lifecycle", "(none)");
    fleetjob_release(&job);
}

/* Where the agent is the command, or the image's own ENTRYPOINT, nothing is preloaded. */
static void test_pod_builder__keeps_no_entrypoint_where_the_agent_is_the_command(void **state)
{
    static const char *const containers[] = {
        "{name: t, image: my/torch:2, command: [a], env: [{name: LD_PRELOAD, value: /x.so}]}",
        "{name: t, image: '" RUNTIME "', args: [a], env: [{name: LD_PRELOAD, value: /x.so}]}"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(containers); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf worker = {0};
        FLEET_AUTO_JSON cJSON *pod = NULL;
        struct fleetjob job;
        fleet_strbuf_appendf(&worker, "{replicas: 1, template: {spec: {containers: [%s]}}}",
                             containers[i]);
        read_job(worker.text, "strategyPolicy: Full", &job);
        pod = build(&job, 0, 0, NULL);
        expect(pod, "spec.containers[0].command",
               "[\"/fleetjob/bin/fleetjob-agent\",\"--\",\"a\"]");
        expect(pod, "spec.containers[0].lifecycle", "(none)");
        assert_string_equal(variable(pod, "LD_PRELOAD"), "(none)"); /* of the trainers */
        assert_string_equal(variable(pod, "FLEET_ENTRYPOINT_PRELOAD"), "/x.so");
        assert_string_equal(variable(pod, "FLEET_ENTRYPOINT_AGENT"), "(none)");
        fleetjob_release(&job);
    }
}

/* Built in: what the plan needs, unless the user says something about that resource. */
static void test_pod_builder__requests_what_the_plan_needs(void **state)
{
    static const struct {
        const char *worker, *rest, *cpu, *memory;
        int64_t bytes;
    } cases[] = {
        {"{replicas: 2}", TRAINING, "100m", "21Mi", (20 << 20) + 1},
        {"{replicas: 2, processesPerPod: 4}", TRAINING, "400m", "21Mi", 21 << 20},
        {"{replicas: 2}", TRAINING, "100m", NULL, 0}, /* the plan does not know */
        {"{replicas: 2, resources: {requests: {memory: 1Gi}}}", TRAINING, "100m", "1Gi", 21 << 20},
        {"{replicas: 2, resources: {limits: {memory: 1Gi}}}", TRAINING, "100m", NULL, 21 << 20},
        {"{replicas: 2, resources: {limits: {cpu: \"2\"}}}", TRAINING, NULL, "21Mi", 21 << 20},
        {"{replicas: 2, image: other, template: null}", "strategyPolicy: Full", NULL, NULL,
         21 << 20},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct fleetjob job;
        cJSON *pod;
        const char *cpu = NULL, *memory = NULL;
        read_job(cases[i].worker, cases[i].rest, &job);
        worker_bytes = cases[i].bytes;
        pod = build(&job, 0, 0, NULL);
        worker_bytes = 0;
        (void)fleet_json_opt_string(pod, "spec.containers[0].resources.requests.cpu", &cpu, NULL);
        (void)fleet_json_opt_string(pod, "spec.containers[0].resources.requests.memory", &memory,
                                    NULL);
        assert_string_equal(cpu ? cpu : "none", cases[i].cpu ? cases[i].cpu : "none");
        assert_string_equal(memory ? memory : "none", cases[i].memory ? cases[i].memory : "none");
        cJSON_Delete(pod);
        fleetjob_release(&job);
    }
}

static void test_pod_builder__the_hash_tells_templates_apart(void **state)
{
    struct fleetjob job, other;
    FLEET_AUTO_JSON cJSON *pod = NULL, *same = NULL, *elsewhere = NULL, *changed = NULL;

    (void)state;
    read_job("{replicas: 1}", TRAINING, &job);
    read_job("{replicas: 1, resources: {limits: {cpu: 2}}}", TRAINING, &other);
    pod = build(&job, 0, 1, NULL);
    same = build(&job, 0, 1, NULL);
    elsewhere = build(&job, 0, 1, "node-2");
    changed = build(&other, 0, 1, NULL);
    assert_int_equal(strlen(pod_builder_hash(pod)), 64);
    assert_string_equal(pod_builder_hash(pod), pod_builder_hash(same));
    assert_string_equal(pod_builder_hash(pod), pod_builder_hash(elsewhere));
    assert_string_not_equal(pod_builder_hash(pod), pod_builder_hash(changed));
    expect(pod, "spec.affinity", "(none)");
    expect(elsewhere,
           "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
           ".preference.matchFields[0].values",
           "[\"node-2\"]");
    fleetjob_release(&job);
    fleetjob_release(&other);
}

static void test_pod_builder__names_where_they_are_wanted(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job("{replicas: 2, hostnames: true}", TRAINING, &job);
    pod = build(&job, 1, 2, NULL);
    expect(pod, "spec.hostname", "\"gpt-worker-1-2\"");
    expect(pod, "spec.subdomain", "\"gpt-workers\"");
    fleetjob_release(&job);
}

static void test_pod_builder__secret_and_service(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *secret = NULL, *service = NULL, *file = NULL;
    const char *text = "";

    (void)state;
    read_job("{replicas: 1}", TRAINING, &job);
    secret = job_secret_build(&job, "10.96.0.9:7443", "t0ken", "PEM", false);
    service = job_service_build(&job);
    expect(secret, "metadata.name", "\"gpt-abc\"");
    expect(secret, "stringData.hub", "\"10.96.0.9:7443\"");
    expect(secret, "stringData.token", "\"t0ken\"");
    expect(secret, "metadata.ownerReferences[0].uid", "\"0123456789-abc\"");
    text = cJSON_GetObjectItem(cJSON_GetObjectItem(secret, "stringData"), "job.json")->valuestring;
    assert_int_equal(fleet_json_parse(text, strlen(text), 65536, &file, NULL), 0);
    expect(file, "training.steps", "3");
    expect(file, "baseDir", "\"/\"");
    expect(file, "jobName", "\"gpt\"");
    expect(service, "spec.clusterIP", "\"None\"");
    expect(service, "spec.publishNotReadyAddresses", "true");
    fleetjob_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pod_builder__runs_the_runtime_image_as_it_is),
        cmocka_unit_test(test_pod_builder__an_agent_of_another_image_has_all_in_its_environment),
        cmocka_unit_test(test_pod_builder__workers_log_as_the_controller_does),
        cmocka_unit_test(test_pod_builder__is_restricted_unless_the_user_says_otherwise),
        cmocka_unit_test(test_pod_builder__brings_the_agent_into_another_image),
        cmocka_unit_test(test_pod_builder__keeps_the_entrypoint_of_an_image),
        cmocka_unit_test(test_pod_builder__keeps_no_entrypoint_where_the_agent_is_the_command),
        cmocka_unit_test(test_pod_builder__requests_what_the_plan_needs),
        cmocka_unit_test(test_pod_builder__the_hash_tells_templates_apart),
        cmocka_unit_test(test_pod_builder__names_where_they_are_wanted),
        cmocka_unit_test(test_pod_builder__secret_and_service),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
