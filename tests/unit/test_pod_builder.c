/* SPDX-License-Identifier: Apache-2.0 */

/* Pods as the builder makes them, looked at through the paths that the kubelet would read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/job_secret.h"
#include "controller/fleetjob/job_service.h"
#include "controller/fleetjob/pod_agent.h"
#include "controller/fleetjob/pod_builder.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"

#define RUNTIME "registry.local/runtime:1"

#define TRAINING                                                                                   \
    "training: {model: {name: gpt, layers: 1, heads: 1, width: 8, context: 8},"                    \
    " data: {path: /data/t.txt, tokenizer: bytes}, optimizer: {name: adamw, learningRate: 0.001}," \
    " globalBatchSize: 8, microBatchSize: 1, steps: 3}"

static void read_job(const char *worker, const char *rest, struct fleetjob *job)
{
    struct fleet_strbuf text = {0}, words = {0};
    struct fleet_errors errors = {0};

    fleet_strbuf_appendf(&text,
                         "{apiVersion: fleetjob.dev/v1alpha1, kind: FleetJob, metadata: {name: gpt,"
                         " namespace: team, uid: 0123456789-abc, generation: 1},"
                         " spec: {worker: %s, %s}}",
                         worker, rest);
    (void)fleetjob_read(text.text, text.length, job, &errors);
    fleet_errors_print(&errors, &words);
    if (errors.count > 0)
        fail_msg("%s: %s", worker, words.text);
    fleet_strbuf_release(&text);
}

static int64_t worker_bytes; /* by the plan */
static bool has_json_logs;
static const char *cuda_image;

static cJSON *build(const struct fleetjob *job, int index, int attempt, const char *avoid)
{
    struct pod_builder_request request = {.job = job,
                                          .index = index,
                                          .attempt = attempt,
                                          .runtime_image = RUNTIME,
                                          .cuda_image = cuda_image,
                                          .hub_address = "10.96.0.9:7443",
                                          .secret = "gpt-abc",
                                          .has_json_logs = has_json_logs,
                                          .worker_bytes = worker_bytes,
                                          .avoid_node = avoid};

    return pod_builder_build(&request);
}

static void expect(const cJSON *pod, const char *path, const char *wanted)
{
    const cJSON *item = fleet_json_at(pod, path);
    FLEET_AUTO_FREE char *printed = item ? fleet_json_print(item) : strdup("(none)");

    if (strcmp(printed, wanted) != 0)
        fail_msg("%s: expected %s, got %s", path, wanted, printed);
}

/* The value of a variable of the first container, or its field path. */
static const char *variable(const cJSON *pod, const char *name)
{
    const cJSON *item;
    const char *found = "(none)";
    int count = 0;

    cJSON_ArrayForEach(item, fleet_json_at(pod, "spec.containers[0].env"))
    {
        const char *field = NULL;
        if (strcmp(cJSON_GetObjectItem(item, "name")->valuestring, name) != 0)
            continue;
        (void)fleet_json_opt_string(item, "valueFrom.fieldRef.fieldPath", &field, NULL);
        found = field ? field : cJSON_GetObjectItem(item, "value")->valuestring;
        count++;
    }
    if (count > 1)
        fail_msg("%s is set %d times", name, count);
    return found;
}

/* What the file for all workers says. */
static void expect_common(const struct fleetjob *job, const char *name, const char *wanted)
{
    FLEET_AUTO_JSON cJSON *all = pod_agent_common_variables(job);
    const char *found = "(none)";
    const cJSON *item;

    cJSON_ArrayForEach(item,
                       all) if (strcmp(cJSON_GetObjectItem(item, "name")->valuestring, name) == 0)
        found = cJSON_GetObjectItem(item, "value")->valuestring;
    assert_string_equal(found, wanted);
}

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

static void test_pod_builder__a_frozen_image_stays(void **state)
{
    struct fleetjob job;
    FLEET_AUTO_JSON cJSON *pod = NULL;

    (void)state;
    read_job("{replicas: 1}", TRAINING, &job);
    job.status.image = strdup("registry.local/runtime@sha256:abc");
    pod = build(&job, 0, 0, NULL);
    expect(pod, "spec.containers[0].image", "\"registry.local/runtime@sha256:abc\"");
    expect(pod, "spec.initContainers", "(none)");
    fleetjob_release(&job);
}

/* The controller was upgraded since the job began: what replaces its pods is as they are. */
static void test_pod_builder__a_frozen_agent_stays(void **state)
{
    static const struct {
        const char *worker, *training, *image, *agent;
    } cases[] = {
        {"{replicas: 1, image: 'runtime:old'}", TRAINING, "runtime:old", "(none)"},
        {"{replicas: 1, template: {spec: {containers: [{image: 'user:1'}]}}}", "", "user@sha256:1",
         "\"runtime:old\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fleetjob job;
        FLEET_AUTO_JSON cJSON *pod = NULL;
        read_job(cases[i].worker, cases[i].training, &job);
        job.status.image = strdup(cases[i].image);
        job.status.agent_image = strdup("runtime:old");
        pod = build(&job, 0, 1, NULL);
        assert_string_equal(cJSON_GetStringValue(fleet_json_at(pod, "spec.containers[0].image")),
                            cases[i].image);
        expect(pod, "spec.initContainers[0].image", cases[i].agent);
        fleetjob_release(&job);
    }
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

/* Only the built-in trainer uses CUDA's libraries of the installation, and only on NVIDIA GPUs. */
static void test_pod_builder__workers_with_gpus_get_the_image_with_cuda(void **state)
{
    static const struct {
        const char *worker, *rest, *image, *agent; /* agent: the init container's image */
    } rows[] = {
        {"{replicas: 1, resources: {limits: {nvidia.com/gpu: 2}}}", TRAINING, "\"cuda:1\"",
         "(none)"},
        {"{replicas: 1, resources: {limits: {nvidia.com/gpu: '1'}}}", TRAINING, "\"cuda:1\"",
         "(none)"},
        {"{replicas: 1, resources: {limits: {nvidia.com/gpu: 0}}}", TRAINING, "\"" RUNTIME "\"",
         "(none)"},
        {"{replicas: 1, resources: {limits: {amd.com/gpu: 1}}}", TRAINING, "\"" RUNTIME "\"",
         "(none)"},
        {"{replicas: 1, resources: {limits: {cpu: 1}}}", TRAINING, "\"" RUNTIME "\"", "(none)"},
        {"{replicas: 1, template: {spec: {containers: [{name: a, image: mine,"
         " resources: {limits: {nvidia.com/gpu: 1}}}]}}}",
         TRAINING, "\"mine\"", "\"cuda:1\""},
        {"{replicas: 1, template: {spec: {containers: [{name: a, image: mine, command: [x],"
         " resources: {limits: {nvidia.com/gpu: 1}}}]}}}",
         "strategyPolicy: Full", "\"mine\"", "\"" RUNTIME "\""},
    };

    (void)state;
    cuda_image = "cuda:1";
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct fleetjob job;
        FLEET_AUTO_JSON cJSON *pod = NULL;

        read_job(rows[i].worker, rows[i].rest, &job);
        pod = build(&job, 0, 0, NULL);
        expect(pod, "spec.containers[0].image", rows[i].image);
        expect(pod, "spec.initContainers[0].image", rows[i].agent);
        fleetjob_release(&job);
    }
    cuda_image = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pod_builder__runs_the_runtime_image_as_it_is),
        cmocka_unit_test(test_pod_builder__workers_with_gpus_get_the_image_with_cuda),
        cmocka_unit_test(test_pod_builder__an_agent_of_another_image_has_all_in_its_environment),
        cmocka_unit_test(test_pod_builder__workers_log_as_the_controller_does),
        cmocka_unit_test(test_pod_builder__is_restricted_unless_the_user_says_otherwise),
        cmocka_unit_test(test_pod_builder__brings_the_agent_into_another_image),
        cmocka_unit_test(test_pod_builder__keeps_the_entrypoint_of_an_image),
        cmocka_unit_test(test_pod_builder__keeps_no_entrypoint_where_the_agent_is_the_command),
        cmocka_unit_test(test_pod_builder__requests_what_the_plan_needs),
        cmocka_unit_test(test_pod_builder__the_hash_tells_templates_apart),
        cmocka_unit_test(test_pod_builder__a_frozen_image_stays),
        cmocka_unit_test(test_pod_builder__a_frozen_agent_stays),
        cmocka_unit_test(test_pod_builder__names_where_they_are_wanted),
        cmocka_unit_test(test_pod_builder__secret_and_service),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
