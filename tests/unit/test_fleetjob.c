/* SPDX-License-Identifier: Apache-2.0 */

/* The resource: what is read, what is completed, what is refused, and the status both ways. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"

#define HEAD "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: demo}\nspec:\n"
#define TRAINING                                                            \
    "  training:\n"                                                         \
    "    model: {name: gpt, layers: 2, heads: 4, width: 64, context: 32}\n" \
    "    data: {path: /data}\n"                                             \
    "    optimizer: {learningRate: 0.001}\n"                                \
    "    globalBatchSize: 8\n"                                              \
    "    microBatchSize: 2\n"                                               \
    "    steps: 10\n"

static void read_good(const char *yaml, struct fleetjob *job)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};

    if (fleetjob_read(yaml, strlen(yaml), job, &errors) < 0) {
        fleet_errors_print(&errors, &text);
        fail_msg("%s: refused: %s", yaml, text.text);
    }
}

static void assert_refused(const char *yaml, const char *lines)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    struct fleetjob job;

    assert_int_equal(fleetjob_read(yaml, strlen(yaml), &job, &errors), -EINVAL);
    fleet_errors_print(&errors, &text);
    assert_string_equal(fleet_strbuf_text(&text), lines);
    fleet_errors_release(&errors);
    fleetjob_release(&job);
}

/* The API server drops nulls before it fills in defaults; required fields are then missing. */
static void test_fleetjob__null_is_absent(void **state)
{
    struct fleetjob job;

    (void)state;
    read_good(HEAD "  worker: {replicas: null, minReplicas: null, image: ~, volumes: null}\n"
                   "  strategy: null\n"
                   "  strategyOptions: null\n"
                   "  runPolicy: {restart: null, elastic: {timeoutSeconds: null}}\n" TRAINING
                   "    schedule: null\n"
                   "    precision: null\n"
                   "    checkpoint: null\n",
              &job);
    assert_int_equal(job.spec.worker.replicas, 1);
    assert_int_equal(job.spec.worker.min_replicas, 1);
    assert_string_equal(job.spec.worker.image, "");
    assert_int_equal(job.spec.worker.volumes.count, 0);
    assert_int_equal(job.spec.run_policy.restart.max_restarts, 10);
    assert_false(job.spec.training.has_checkpoint);
    fleetjob_release(&job);
    assert_refused(HEAD TRAINING "    checkpoint: {path: null}\n",
                   "spec.training.checkpoint.path: required\n");
}

static void test_fleetjob__a_small_job_is_completed(void **state)
{
    struct fleetjob job;

    (void)state;
    read_good(HEAD "  worker: {replicas: 3}\n" TRAINING, &job);
    assert_string_equal(job.metadata.name, "demo");
    assert_string_equal(job.metadata.namespace_, "default");
    assert_int_equal(job.spec.worker.replicas, 3);
    assert_int_equal(job.spec.worker.min_replicas, 3);
    assert_int_equal(job.spec.worker.max_replicas, 3);
    assert_false(job.spec.worker.elastic);
    assert_int_equal(job.spec.worker.processes_per_pod, 1);
    assert_string_equal(job.spec.worker.image, "");
    assert_false(job.spec.strategy.amp);
    assert_int_equal(job.spec.strategy_policy, STRATEGY_FULL);
    assert_true(job.spec.strategy_options.always_adapt);
    assert_true(job.spec.has_training);
    assert_int_equal(job.spec.training.steps, 10);
    assert_int_equal(job.spec.run_policy.clean_pod_policy, FLEETJOB_CLEAN_RUNNING);
    assert_int_equal(job.spec.run_policy.ttl_seconds_after_finished, -1);
    assert_int_equal(job.spec.run_policy.active_deadline_seconds, 0);
    assert_int_equal(job.spec.run_policy.restart.max_restarts, 10);
    assert_int_equal(job.spec.run_policy.restart.reset_after_steps, 1000);
    assert_int_equal(job.spec.run_policy.elastic.rejoin_grace_ms, 500);
    assert_int_equal(job.spec.run_policy.elastic.timeout_seconds, 300);
    assert_int_equal(job.spec.run_policy.elastic.replicas, 1);
    assert_int_equal(job.spec.run_policy.scheduling.gang, FLEETJOB_GANG_AUTO);
    assert_int_equal(fleetjob_gradient_merge_k(&job), 1);
    assert_false(job.has_status);
    fleetjob_release(&job);
}

static void test_fleetjob__gpus_decide_the_processes_of_a_pod(void **state)
{
    struct fleetjob job;

    (void)state;
    read_good(HEAD "  worker:\n    resources: {limits: {nvidia.com/gpu: '4', cpu: 2}}\n" TRAINING,
              &job);
    assert_int_equal(job.spec.worker.processes_per_pod, 4);
    assert_int_equal(fleetjob_world_size(&job, 2), 8);
    fleetjob_release(&job);
    read_good(HEAD "  worker:\n    processesPerPod: 2\n    template: {spec: {containers: "
                   "[{resources: {requests: {amd.com/gpu: 8}}}]}}\n",
              &job);
    assert_int_equal(job.spec.worker.processes_per_pod, 2);
    fleetjob_release(&job);
    read_good(HEAD "  worker:\n    template: {spec: {containers: [{resources: {requests: "
                   "{amd.com/gpu: 8}}}]}}\n",
              &job);
    assert_int_equal(job.spec.worker.processes_per_pod, 8);
    assert_false(job.spec.has_training);
    fleetjob_release(&job);
}

static void test_fleetjob__lists_of_the_spec_are_read(void **state)
{
    struct fleetjob job;

    (void)state;
    read_good(
        HEAD "  worker:\n    replicas: 2\n    maxReplicas: 4\n    volumes:\n"
             "    - {name: a, mountPath: /a, claim: c}\n"
             "    - {name: b, mountPath: /b, emptyDir: {}, readOnly: true}\n"
             "  strategy: {amp: true, gradient_merge: true, gradient_merge_configs: {k_steps: 4}}\n"
             "  strategyPolicy: Paddle\n"
             "  strategyOptions: {overflowAction: zeroGrad, partition: greedy}\n"
             "  autoParallel: {parallel_mode: semi_auto_parallel}\n"
             "  runPolicy:\n    suspend: true\n    failurePolicy:\n      rules:\n"
             "      - {name: oom, action: Fail, exitCodes: [137, 139], reasons: [OOMKilled]}\n"
             "      - {action: Ignore}\n" TRAINING,
        &job);
    assert_true(job.spec.worker.elastic);
    assert_int_equal(job.spec.worker.volumes.count, 2);
    assert_string_equal(job.spec.worker.volumes.items[0].claim, "c");
    assert_non_null(job.spec.worker.volumes.items[1].empty_dir);
    assert_true(job.spec.worker.volumes.items[1].read_only);
    assert_true(job.spec.strategy.amp);
    assert_int_equal(fleetjob_gradient_merge_k(&job), 4);
    assert_int_equal(job.spec.strategy_policy, STRATEGY_PADDLE);
    assert_int_equal(job.spec.strategy_options.overflow_action, STRATEGY_OVERFLOW_ZERO_GRAD);
    assert_int_equal(job.spec.strategy_options.partition, STRATEGY_PARTITION_GREEDY);
    assert_non_null(job.spec.auto_parallel);
    assert_true(job.spec.run_policy.suspend);
    assert_int_equal(job.spec.run_policy.failure_policy.rules.count, 2);
    assert_int_equal(job.spec.run_policy.failure_policy.rules.items[0].exit_codes.items[1], 139);
    assert_string_equal(job.spec.run_policy.failure_policy.rules.items[0].reasons.items[0],
                        "OOMKilled");
    assert_int_equal(job.spec.run_policy.failure_policy.rules.items[1].action,
                     FLEETJOB_ACTION_IGNORE);
    fleetjob_release(&job);
}

static void test_fleetjob__all_errors_come_at_once(void **state)
{
    (void)state;
    assert_refused("apiVersion: fleetjob.dev/v1\nkind: Fleetjob\nmetadata: {}\nspce: {}\n",
                   "apiVersion: must be \"fleetjob.dev/v1alpha1\", not \"fleetjob.dev/v1\"\n"
                   "kind: must be \"FleetJob\", not \"Fleetjob\"\n"
                   "spce: unknown field; did you mean \"spec\"?\n"
                   "metadata.name: required\n"
                   "spec: required\n");
    assert_refused(
        HEAD "  worker: {replicas: 0, minReplica: 2}\n"
             "  strategy: {ampp: true}\n"
             "  strategyPolicy: full\n"
             "  runPolicy: {restart: {maxRestarts: -1}, "
             "failurePolicy: {rules: [{exitCodes: [256]}]}}\n"
             "  training: {model: {name: gpt5}}\n",
        "spec.worker.replicas: must be in [1, 4096], not 0\n"
        "spec.worker.minReplica: unknown field; did you mean \"minReplicas\"?\n"
        "spec.strategyPolicy: \"full\" is unknown; did you mean \"Full\"? Must be one of "
        "Full, Paddle\n"
        "spec.runPolicy.restart.maxRestarts: must be in [0, 1000000], not -1\n"
        "spec.runPolicy.failurePolicy.rules[0].action: required\n"
        "spec.runPolicy.failurePolicy.rules[0].exitCodes[0]: must be in [0, 255], not "
        "256\n"
        "spec.strategy.ampp: is not a field of DistributedStrategy; did you mean \"amp\"?\n"
        "spec.training.model.name: \"gpt5\" is unknown; did you mean \"gpt\"? Must be one "
        "of gpt, llama, resnet, mlp\n"
        "spec.training.data: required\n"
        "spec.training.optimizer: required\n"
        "spec.training.globalBatchSize: required\n"
        "spec.training.microBatchSize: required\n"
        "spec.training.steps: required\n");
}

/* As the controller reads it: the API server has taken the job, with other people's in one
 * answer. */
static void test_fleetjob__a_nul_in_the_spec_is_refused_with_its_path(void **state)
{
    static const char text[] =
        "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":"
        "\"a\","
        "\"annotations\":{\"theirs\":\"\\u0000\"}},\"spec\":{\"worker\":{\"image\":\"i\","
        "\"template\":{\"spec\":{\"containers\":[{\"name\":\"worker\",\"command\":[\"sh\","
        "\"a\\u0000b\"]}]}}}}}";
    FLEET_AUTO_STRBUF struct fleet_strbuf lines = {0};
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_errors errors = {0};
    struct fleetjob job;

    (void)state;
    assert_int_equal(fleet_json_parse_foreign(text, sizeof(text) - 1, sizeof(text), &json, NULL),
                     0);
    assert_int_equal(fleetjob_decode(json, &job, &errors), -EINVAL);
    fleet_errors_print(&errors, &lines);
    assert_string_equal(fleet_strbuf_text(&lines),
                        "spec.worker.template.spec.containers[0].command[1]: must not have a NUL "
                        "character (\\u0000, or U+FFFF): leave it out\n");
    fleet_errors_release(&errors);
    fleetjob_release(&job);
}

static void test_fleetjob__what_is_no_job_is_refused(void **state)
{
    (void)state;
    assert_refused("a: [", "line 2, column 1: a value is missing, or a bracket is not closed\n");
    assert_refused("[]", "a FleetJob must be an object with apiVersion, kind, metadata and spec\n");
    assert_refused("text",
                   "a FleetJob must be an object with apiVersion, kind, metadata and spec\n");
    assert_refused(
        HEAD "  worker: 3\n  training: []\n  strategy: x\n",
        "spec.worker: must be an object (replicas, minReplicas, maxReplicas, processesPerPod, "
        "image, resources, volumes, hostnames, template), not 3\n"
        "spec.strategy: must be an object, not \"x\"\n"
        "spec.training: must be an object, not a list\n");
}

static void test_fleetjob__a_status_is_read_and_written(void **state)
{
    const char *text =
        "{\"state\":\"Running\",\"conditions\":[{\"type\":\"Accepted\",\"status\":\"True\","
        "\"reason\":\"Valid\",\"message\":\"\",\"lastTransitionTime\":\"2026-01-31T12:00:00Z\","
        "\"observedGeneration\":2}],\"observedGeneration\":2,\"rendezvous\":{\"epoch\":1,"
        "\"generation\":3,\"lineage\":[{\"generation\":1,\"firstStep\":1},{\"generation\":3,"
        "\"firstStep\":812}]},\"attempts\":{\"3\":2},\"workers\":{\"desired\":4,\"active\":4,"
        "\"ready\":3,\"succeeded\":0,\"failed\":0,\"selector\":\"a=b\"},\"progress\":{\"step\":"
        "1200,\"steps\":10000,"
        "\"loss\":1.83},\"restarts\":{\"count\":1,\"sinceReset\":0,\"ignored\":0,\"history\":[{"
        "\"generation\":2,"
        "\"at\":\"2026-01-31T12:00:00.250Z\",\"cause\":\"MemberLost\",\"member\":3,"
        "\"exitCode\":137,\"detectMs\":12.5,\"lostSteps\":0}]},\"plan\":{\"applied\":[]}}";
    struct fleet_errors errors = {0};
    struct fleetjob_status status;

    (void)state;
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text);
    assert_int_equal(fleetjob_status_decode(json, &status, &errors), 0);
    assert_int_equal(fleet_int_map_get(&status.attempts, "3", 0), 2);
    assert_int_equal(fleet_int_map_get(&status.attempts, "0", 0), 0);
    assert_true(isnan(status.progress.goodput));
    assert_true(isnan(status.restarts.history.items[0].agree_ms));
    assert_false(status.has_checkpoint);
    FLEET_AUTO_JSON cJSON *again = fleetjob_status_encode(&status);
    FLEET_AUTO_FREE char *printed = fleet_json_print(again);
    assert_string_equal(printed, text);
    fleet_int_map_set(&status.attempts, "0", 1);
    assert_int_equal(fleet_int_map_get(&status.attempts, "0", 0), 1);
    fleetjob_status_release(&status);
}

static void test_fleetjob__what_the_api_server_adds_is_left_alone(void **state)
{
    struct fleetjob job;

    (void)state;
    read_good("apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata:\n  name: demo\n"
              "  namespace: team\n  uid: 1-2\n  resourceVersion: '77'\n  generation: 3\n"
              "  creationTimestamp: '2026-01-31T12:00:00Z'\n  labels: {a: b}\n"
              "  managedFields: [{manager: kubectl}]\n  finalizers: [x]\n"
              "spec:\n" TRAINING "status: {later: true, workers: {newer: 1}}\n",
              &job);
    assert_string_equal(job.metadata.namespace_, "team");
    assert_string_equal(job.metadata.resource_version, "77");
    assert_int_equal(job.metadata.generation, 3);
    assert_true(job.metadata.created_wall_ms == 1769860800000);
    assert_string_equal(fleet_string_map_get(&job.metadata.labels, "a"), "b");
    assert_true(job.has_status);
    fleetjob_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fleetjob__a_nul_in_the_spec_is_refused_with_its_path),
        cmocka_unit_test(test_fleetjob__a_small_job_is_completed),
        cmocka_unit_test(test_fleetjob__null_is_absent),
        cmocka_unit_test(test_fleetjob__gpus_decide_the_processes_of_a_pod),
        cmocka_unit_test(test_fleetjob__lists_of_the_spec_are_read),
        cmocka_unit_test(test_fleetjob__all_errors_come_at_once),
        cmocka_unit_test(test_fleetjob__what_is_no_job_is_refused),
        cmocka_unit_test(test_fleetjob__a_status_is_read_and_written),
        cmocka_unit_test(test_fleetjob__what_the_api_server_adds_is_left_alone),
    };
    return cmocka_run_group_tests_name("fleetjob", tests, NULL, NULL);
}
