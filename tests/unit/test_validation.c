/* SPDX-License-Identifier: Apache-2.0 */

/* Parts of a job that do not fit together, by the words of their refusal; and every example. */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/validation.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"

/* %s: name, then lines of the spec. */
#define JOB                                                                              \
    "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: %s}\nspec:\n%s" \
    "  training:\n"                                                                      \
    "    model: {name: gpt, layers: 2, heads: 4, width: 64, context: 32}\n"              \
    "    data: {path: %s}\n"                                                             \
    "    optimizer: {name: %s, learningRate: 0.001}\n"                                   \
    "    globalBatchSize: 16\n"                                                          \
    "    microBatchSize: 2\n"                                                            \
    "    steps: 10\n"

static void validate(const char *yaml, struct validation_options options, struct fleet_strbuf *out,
                     struct fleet_strbuf *out_warnings)
{
    struct fleet_errors errors = {0}, warnings = {0};
    struct fleetjob job;

    if (fleetjob_read(yaml, strlen(yaml), &job, &errors) == 0)
        (void)validation_check(&job, &options, &errors, &warnings);
    fleet_errors_print(&errors, out);
    if (out_warnings)
        fleet_errors_print(&warnings, out_warnings);
    fleet_errors_release(&errors);
    fleet_errors_release(&warnings);
    fleetjob_release(&job);
}

static void assert_result(const char *yaml, struct validation_options options, const char *lines)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    validate(yaml, options, &text, NULL);
    assert_string_equal(fleet_strbuf_text(&text), lines);
}

/* A job of this name and these lines of the spec. */
static void assert_job(const char *name, const char *spec, const char *lines)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf yaml = {0};

    fleet_strbuf_appendf(&yaml, JOB, name, spec, "/data", "adamw");
    assert_result(yaml.text, (struct validation_options){0}, lines);
}

static void test_validation__names_must_fit_pods(void **state)
{
    (void)state;
    assert_job("a-job-of-forty-six-bytes-is-the-longest-that-f", "", "");
    assert_job("a-job-of-forty-seven-bytes-is-one-byte-too-long", "",
               "metadata.name: has 47 bytes; at most 46 fit, because pods are called "
               "<name>-worker-<index>-<attempt> within 63\n");
    assert_job(
        "My_Job", "",
        "metadata.name: \"My_Job\" must be lower-case letters, digits and '-', with a letter "
        "or digit at both ends\n");
    assert_job(
        "3d-unet", "",
        "metadata.name: \"3d-unet\" begins with a digit; it must begin with a letter, because "
        "the job's Service has this name: call it \"job-3d-unet\", for instance\n");
}

static void test_validation__replicas_lie_between_their_bounds(void **state)
{
    (void)state;
    assert_job("j", "  worker: {replicas: 4, minReplicas: 2, maxReplicas: 8}\n", "");
    assert_job("j", "  worker: {replicas: 4, minReplicas: 8, maxReplicas: 2}\n",
               "spec.worker.minReplicas: 8 is more than maxReplicas (2)\n");
    assert_job("j", "  worker: {replicas: 1, minReplicas: 2, maxReplicas: 4}\n",
               "spec.worker.replicas: 1 is not between minReplicas (2) and maxReplicas (4)\n");
    assert_job("j", "  worker: {replicas: 5, maxReplicas: 4}\n",
               "spec.worker.replicas: 5 is more than maxReplicas (4)\n");
    assert_job(
        "j", "  worker: {replicas: 4096, processesPerPod: 17}\n",
        "spec.worker.processesPerPod: 17 processes in each of 4096 workers are more than the "
        "limit of 65536 ranks\n");
}

static void test_validation__an_elastic_strategy_needs_room(void **state)
{
    (void)state;
    assert_job("j",
               "  worker: {replicas: 2, minReplicas: 1, maxReplicas: 4}\n"
               "  strategy: {elastic: true}\n",
               "");
    assert_job(
        "j", "  worker: {replicas: 2}\n  strategy: {elastic: true}\n",
        "spec.strategy.elastic: elastic: true needs minReplicas < maxReplicas, not 2 and 2\n");
}

static void test_validation__degrees_fit_every_size_of_an_elastic_job(void **state)
{
    (void)state;
    assert_job("j",
               "  worker: {replicas: 2}\n"
               "  strategy: {hybrid_configs: {dp_degree: 2}}\n",
               "");
    assert_job("j",
               "  worker: {replicas: 2, minReplicas: 1, maxReplicas: 4}\n"
               "  strategy: {hybrid_configs: {dp_degree: -1}}\n",
               "");
    assert_job("j",
               "  worker: {replicas: 2, minReplicas: 1, maxReplicas: 4}\n"
               "  strategy: {hybrid_configs: {dp_degree: 2}}\n",
               "spec.strategy.hybrid_configs.dp_degree: dp_degree 2 is not 1 worker; "
               "nearest possible: 2 workers; or dp_degree 1; minReplicas (1) to maxReplicas (4) "
               "allow that number of workers: leave the degree out, or make both equal\n");
}

static void test_validation__every_worker_has_a_micro_batch(void **state)
{
    (void)state;
    assert_job("j", "  worker: {replicas: 8}\n", "");
    assert_job("j", "  worker: {replicas: 9}\n",
               "spec.worker.replicas: 9 workers, but a step has only 8 micro-batches "
               "(globalBatchSize 16 / microBatchSize 2): some would have nothing to do; nearest "
               "possible: 8 workers, or globalBatchSize 18\n");
    assert_job("j", "  worker: {replicas: 4, maxReplicas: 9}\n",
               "spec.worker.maxReplicas: 9 workers, but a step has only 8 micro-batches "
               "(globalBatchSize 16 / microBatchSize 2): some would have nothing to do; nearest "
               "possible: 8 workers, or globalBatchSize 18\n");
    assert_job("j", "  worker: {replicas: 4, processesPerPod: 3}\n",
               "spec.worker.replicas: 12 ranks, but a step has only 8 micro-batches "
               "(globalBatchSize 16 / microBatchSize 2): some would have nothing to do; nearest "
               "possible: 2 workers, or globalBatchSize 24\n");
    assert_job("j",
               "  worker: {replicas: 16}\n"
               "  strategy: {gradient_merge: true, gradient_merge_configs: {k_steps: 2}}\n",
               "");
    /* Stages of a pipeline share one batch. */
    assert_job("j",
               "  worker: {replicas: 16}\n"
               "  strategy: {pipeline: true, hybrid_configs: {pp_degree: 2}}\n",
               "");
}

static void test_validation__another_world_can_be_asked_for(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf yaml = {0};

    (void)state;
    fleet_strbuf_appendf(&yaml, JOB, "j", "", "data", "adamw");
    assert_result(yaml.text, (struct validation_options){.world_size = 8}, "");
    assert_result(yaml.text, (struct validation_options){.world_size = 9},
                  "spec.training.globalBatchSize: 9 workers, but a step has only 8 micro-batches "
                  "(globalBatchSize 16 "
                  "/ microBatchSize 2): some would have nothing to do; nearest possible: 8 "
                  "workers, or globalBatchSize 18\n");
}

static void test_validation__pipelines_count_their_micro_batches(void **state)
{
    (void)state;
    assert_job("j",
               "  worker: {replicas: 4}\n"
               "  strategy: {pipeline: true, hybrid_configs: {pp_degree: 2}, "
               "pipeline_configs: {micro_batch: 4}}\n",
               "");
    assert_job("j",
               "  worker: {replicas: 4}\n"
               "  strategy: {pipeline: true, hybrid_configs: {pp_degree: 2}, "
               "pipeline_configs: {micro_batch: 8, micro_batch_size: 3}}\n",
               "spec.strategy.pipeline_configs.micro_batch_size: 3 differs from "
               "training.microBatchSize (2)\n"
               "spec.strategy.pipeline_configs.micro_batch: 8 does not fit globalBatchSize 16 = 2 "
               "data-parallel × micro_batch × microBatchSize 2; 4 would\n");
    assert_job(
        "j",
        "  worker: {replicas: 4}\n"
        "  strategyText: 'pipeline: true hybrid_configs { pp_degree: 2 } "
        "pipeline_configs { accumulate_steps: 8 }'\n",
        "spec.strategyText.pipeline_configs.accumulate_steps: 8 does not fit globalBatchSize "
        "16 = 2 data-parallel × accumulate_steps × microBatchSize 2; 4 would\n");
}

static void test_validation__volumes_have_one_source_and_one_place(void **state)
{
    (void)state;
    assert_job("j",
               "  worker:\n    volumes:\n"
               "    - {name: a, mountPath: /a, claim: c}\n"
               "    - {name: a, mountPath: /a, claim: c, hostPath: /x}\n"
               "    - {name: b, mountPath: /b}\n",
               "spec.worker.volumes[1]: must have exactly one of claim, configMap, emptyDir, "
               "hostPath, not 2\n"
               "spec.worker.volumes[1]: the name \"a\" is taken by volumes[0]\n"
               "spec.worker.volumes[1]: the mountPath \"/a\" is taken by volumes[0]\n"
               "spec.worker.volumes[2]: must have exactly one of claim, configMap, emptyDir, "
               "hostPath, not 0\n");
}

static void test_validation__a_template_stands_alone(void **state)
{
    (void)state;
    assert_job(
        "j", "  worker: {image: x, template: {spec: {}}}\n",
        "spec.worker.image: image and template cannot both be given: set the image in "
        "template.spec.containers[0].image\n"
        "spec.worker.template.spec.containers: must be a list of at least one container; the first "
        "is the worker's\n");
    assert_result("apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: j}\n"
                  "spec: {worker: {replicas: 1}}\n",
                  (struct validation_options){0},
                  "spec.training: required, unless worker.template has a program of its own to "
                  "run\n");
}

#define OWN                                                                    \
    "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: j}\n" \
    "spec: {worker: {template: {spec: {containers: [{name: t, image: r/i:1"

/* In a cluster the agent takes its place; on this machine there is no image. */
static void test_validation__an_images_entrypoint_needs_an_image(void **state)
{
#define REFUSED                                                                               \
    "spec.worker.template.spec.containers[0].command: required on this machine, where the "   \
    "image's ENTRYPOINT is not known (in a cluster the agent takes its place); put it here, " \
    "as \"docker inspect -f '{{json .Config.Entrypoint}} {{json .Config.Cmd}}' r/i:1\" or "   \
    "\"crane config\" show it"
    const struct validation_options here = {.without_image = true}, cluster = {.in_cluster = true},
                                    anywhere = {0};

    (void)state;
    assert_result(OWN ", args: [--epochs, '3']}]}}}}\n", here, REFUSED "; args stay as they are\n");
    assert_result(OWN "}]}}}}\n", here, REFUSED "\n");
    assert_result(OWN ", command: []}]}}}}\n", here, REFUSED "\n");
    assert_result(OWN ", command: [x], args: [y]}]}}}}\n", here, "");
    assert_result(OWN ", args: [--epochs, '3']}]}}}}\n", cluster, "");
    assert_result(OWN ", command: []}]}}}}\n", cluster, "");
    assert_result(OWN "}]}}}}\n", anywhere, "");
    assert_result("apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: j}\n"
                  "spec: {worker: {template: {spec: {containers: [{name: t, args: [x]}]}}}}\n",
                  cluster,
                  "spec.worker.template.spec.containers[0].command: required, because without an "
                  "image there is no ENTRYPOINT either\n");
}

/* What the agent needs to take the ENTRYPOINT's place is refused by name, with what to do. */
static void test_validation__an_images_entrypoint_needs_its_hook_and_a_namespace(void **state)
{
#define HOOK ", lifecycle: {preStop: {exec: {command: [b]}}, postStart: {exec: {command: [a]}}}"
    const struct validation_options cluster = {.in_cluster = true};

    (void)state;
    assert_result(OWN HOOK "}]}}}}\n", cluster,
                  "spec.worker.template.spec.containers[0].lifecycle.postStart: needs command: "
                  "without it the agent has this hook, to see that it runs in place of the image's "
                  "ENTRYPOINT; set command, or drop the hook\n");
    assert_result(OWN HOOK ", command: [x]}]}}}}\n", cluster, "");
    assert_result(OWN "}], hostPID: true}}}}\n", cluster,
                  "spec.worker.template.spec.hostPID: true needs command: among the node's "
                  "processes the agent cannot tell which one is the image's ENTRYPOINT; set "
                  "command, or drop hostPID\n");
    assert_result(OWN ", command: [x]}], hostPID: true}}}}\n", cluster, "");
    assert_result(OWN "}], hostPID: false, shareProcessNamespace: true}}}}\n", cluster, "");
}

static void test_validation__the_strategy_is_checked_at_the_jobs_size(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_STRBUF struct fleet_strbuf yaml = {0};

    (void)state;
    assert_job("j", "  strategy: {amp: true, amp_configs: {decr_ratio: 2}}\n",
               "spec.strategy.amp_configs.decr_ratio: must be finite and greater than 0 and less "
               "than 1, not 2\n");
    fleet_strbuf_appendf(&yaml, JOB, "j", "  strategy: {lars: true, lamb: true}\n", "data",
                         "momentum");
    validate(yaml.text, (struct validation_options){0}, &text, NULL);
    if (!strstr(fleet_strbuf_text(&text), "two optimizers for one parameter"))
        fail_msg("expected lars and lamb to be refused, got: %s", fleet_strbuf_text(&text));
}

static void test_validation__precision_and_amp_agree(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf yaml = {0};

    (void)state;
    fleet_strbuf_appendf(&yaml, JOB "    precision: fp32\n", "j", "  strategy: {amp: true}\n",
                         "data", "adamw");
    assert_result(yaml.text, (struct validation_options){0},
                  "spec.training.precision: fp32 contradicts strategy.amp, which asks for bf16 or "
                  "fp16; drop one of them\n");
}

static void test_validation__paths_of_a_cluster_are_absolute(void **state)
{
    static const struct validation_options cluster = {.in_cluster = true};
    FLEET_AUTO_STRBUF struct fleet_strbuf relative = {0}, climbing = {0}, lost = {0}, kept = {0},
                                          fixed = {0}, passing = {0}, warned = {0}, text = {0};

    (void)state;
    fleet_strbuf_appendf(&relative, JOB, "j", "", "text.txt", "adamw");
    assert_result(relative.text, (struct validation_options){0}, "");
    assert_result(relative.text, cluster,
                  "spec.training.data.path: \"text.txt\" must be absolute in a cluster, where no "
                  "job file is near\n");
    fleet_strbuf_appendf(&climbing, JOB, "j", "", "/data/../etc", "adamw");
    assert_result(climbing.text, cluster,
                  "spec.training.data.path: \"/data/../etc\" must not contain \"..\"\n");
    fleet_strbuf_appendf(&lost, JOB "    checkpoint: {path: /ckpt2/a}\n", "j",
                         "  worker: {volumes: [{name: c, mountPath: /ckpt, claim: c}]}\n", "/d",
                         "adamw");
    assert_result(lost.text, (struct validation_options){0}, "");
    assert_result(lost.text, cluster,
                  "spec.training.checkpoint.path: \"/ckpt2/a\" lies on no volume of "
                  "spec.worker.volumes, so it would be lost with the pod\n");
    fleet_strbuf_appendf(&kept, JOB "    checkpoint: {path: /ckpt/a}\n", "j",
                         "  worker: {volumes: [{name: c, mountPath: /ckpt/, claim: c}]}\n", "/d",
                         "adamw");
    assert_result(kept.text, cluster, "");
    fleet_strbuf_appendf(&fixed, JOB "    checkpoint: {path: /ckpt}\n", "j",
                         "  worker: {volumes: [{name: c, mountPath: /ckpt, configMap: c}]}\n", "/d",
                         "adamw");
    assert_result(fixed.text, cluster,
                  "spec.training.checkpoint.path: \"/ckpt\" lies on volume c, which cannot be "
                  "written\n");
    fleet_strbuf_appendf(&passing, JOB "    checkpoint: {path: /ckpt}\n", "j",
                         "  worker: {volumes: [{name: c, mountPath: /ckpt, emptyDir: {}}]}\n", "/d",
                         "adamw");
    validate(passing.text, cluster, &text, &warned);
    assert_string_equal(fleet_strbuf_text(&text), "");
    assert_string_equal(fleet_strbuf_text(&warned),
                        "spec.training.checkpoint.path: \"/ckpt\" lies on volume c, an emptyDir "
                        "that is lost with its pod\n");
}

/* Every file of docs/examples is good, locally and in a cluster. */
static void test_validation__the_examples_are_good(void **state)
{
    DIR *folder = opendir("docs/examples");
    struct dirent *entry;
    int count = 0;

    (void)state;
    assert_non_null(folder);
    while ((entry = readdir(folder))) {
        FLEET_AUTO_FREE char *path = NULL, *yaml = NULL;
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        size_t size;
        if (!strstr(entry->d_name, ".yaml"))
            continue;
        path = fleet_file_join("docs/examples", entry->d_name);
        assert_int_equal(fleet_file_read(path, 1 << 20, &yaml, &size, NULL), 0);
        validate(yaml, (struct validation_options){0}, &text, NULL);
        validate(yaml, (struct validation_options){.in_cluster = true}, &text, NULL);
        if (text.length)
            fail_msg("%s is refused:\n%s", path, text.text);
        count++;
    }
    (void)closedir(folder);
    assert_true(count >= 7);
}

/* What a strategy has that is legal and unusual is said where the job is checked. */
static void test_validation__passes_on_warnings_of_the_strategy(void **state)
{
    static const struct {
        const char *optimizer, *strategy, *warned;
    } rows[] = {
        {"momentum, weightDecay: 0.0001", "{lars: true}",
         "spec.strategy.lars_configs.lars_weight_decay: the optimizer's own weight decay acts "
         "beside it, so weights decay twice: set one of them to 0\n"},
        {"adam, weightDecay: 0.0001", "{lamb: true}",
         "spec.strategy.lamb_configs.lamb_weight_decay: the optimizer's own weight decay acts "
         "beside it, so weights decay twice: set one of them to 0\n"},
        {"momentum", "{lars: true}", ""},
        {"sgd", "{gradient_merge: true, gradient_merge_configs: {k_steps: 4}}",
         "spec.strategy.gradient_merge_configs.k_steps: spec.training.steps is 10, no multiple of "
         "4: the last 2 make no update\n"},
        {"sgd", "{gradient_merge: true, gradient_merge_configs: {k_steps: 5}}", ""},
        {"momentum", "{dgc: true, dgc_configs: {sparsity: [0.9, 0.5, 0.99]}}",
         "spec.strategy.dgc_configs.sparsity: falls from 0.9 to 0.5; it is expected to rise during "
         "ramp-up\n"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf yaml = {0};
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        FLEET_AUTO_STRBUF struct fleet_strbuf warned = {0};
        FLEET_AUTO_STRBUF struct fleet_strbuf spec = {0};

        fleet_strbuf_appendf(&spec, "  strategy: %s\n", rows[i].strategy);
        fleet_strbuf_appendf(&yaml, JOB, "odd", spec.text, "/d", rows[i].optimizer);
        validate(yaml.text, (struct validation_options){0}, &text, &warned);
        assert_string_equal(fleet_strbuf_text(&text), "");
        assert_string_equal(fleet_strbuf_text(&warned), rows[i].warned);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_validation__names_must_fit_pods),
        cmocka_unit_test(test_validation__replicas_lie_between_their_bounds),
        cmocka_unit_test(test_validation__an_elastic_strategy_needs_room),
        cmocka_unit_test(test_validation__degrees_fit_every_size_of_an_elastic_job),
        cmocka_unit_test(test_validation__every_worker_has_a_micro_batch),
        cmocka_unit_test(test_validation__another_world_can_be_asked_for),
        cmocka_unit_test(test_validation__pipelines_count_their_micro_batches),
        cmocka_unit_test(test_validation__volumes_have_one_source_and_one_place),
        cmocka_unit_test(test_validation__a_template_stands_alone),
        cmocka_unit_test(test_validation__an_images_entrypoint_needs_an_image),
        cmocka_unit_test(test_validation__an_images_entrypoint_needs_its_hook_and_a_namespace),
        cmocka_unit_test(test_validation__the_strategy_is_checked_at_the_jobs_size),
        cmocka_unit_test(test_validation__precision_and_amp_agree),
        cmocka_unit_test(test_validation__paths_of_a_cluster_are_absolute),
        cmocka_unit_test(test_validation__passes_on_warnings_of_the_strategy),
        cmocka_unit_test(test_validation__the_examples_are_good),
    };
    return cmocka_run_group_tests_name("validation", tests, NULL, NULL);
}
