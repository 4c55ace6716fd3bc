/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Fields beside the strategy: each field of strategyOptions, training and runPolicy is read by the
 * file that this test names, or a job that sets it is warned. A field that leaves another one
 * without an effect is reported as well.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/validation.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

#define SOURCE_MAX (1 << 20)

/* ---- warnings -------------------------------------------------------------------------------- */

#define ADAMW    "optimizer: {name: adamw, learningRate: 0.1}"
#define MOMENTUM "optimizer: {name: momentum, learningRate: 0.1, nesterov: true}"

static const struct {
    const char *spec;     /* beside worker and training */
    const char *training; /* beside model, data, sizes */
    const char *warning;  /* "" = none */
} jobs[] = {
    {"", ADAMW ", deterministic: false",
     "spec.training.deterministic: has no effect: on CPUs sums have one fixed order; only those of "
     "NCCL on GPUs may have another\n"},
    {"", ADAMW ", deterministic: true", ""},
    {"strategyOptions: {adacommFormula: paper}", ADAMW,
     "spec.strategyOptions.adacommFormula: has no effect: adaptive_localsgd is off\n"},
    {"strategyOptions: {dgcSelect: sampled}", ADAMW,
     "spec.strategyOptions.dgcSelect: has no effect: dgc is off\n"},
    {"strategyOptions: {partition: greedy}", ADAMW,
     "spec.strategyOptions.partition: has no effect: sharding is off\n"},
    {"strategyOptions: {partition: greedy}, strategy: {sharding: true}", ADAMW, ""},
    {"strategyOptions: {allReduceEnds: [1]}", ADAMW, ""},
    {"strategyOptions: {allReduceEnds: [1]}, strategy: {fuse_all_reduce_ops: false}", ADAMW,
     "spec.strategyOptions.allReduceEnds: has no effect: fuse_all_reduce_ops is off\n"},
    {"strategyOptions: {repeatedLossAdds: true}", ADAMW,
     "spec.strategyOptions.repeatedLossAdds: has no effect: no ranks share tensors\n"},
    {"strategyOptions: {pipelineSchedule: zeroBubble, pipelineChunks: 2}", ADAMW,
     "spec.strategyOptions.pipelineSchedule: has no effect: pipeline is off\n"
     "spec.strategyOptions.pipelineChunks: has no effect: pipeline is off\n"},
    {"strategyOptions: {pipelineLayers: [1, 1]}", ADAMW,
     "spec.strategyOptions.pipelineLayers: has no effect: pipeline is off\n"},
    {"strategyOptions: {overflowAction: zeroGrad}", ADAMW,
     "spec.strategyOptions.overflowAction: has no effect: without amp and a loss scale no update "
     "overflows\n"},
    {"strategyOptions: {overflowAction: zeroGrad}, strategy: {amp: true}", ADAMW, ""},
    {"strategyOptions: {alwaysAdapt: false}", ADAMW,
     "spec.strategyOptions.alwaysAdapt: has no effect: lamb updates no parameter\n"},
    {"strategyOptions: {alwaysAdapt: false}", "optimizer: {name: lamb, learningRate: 0.1}", ""},
    {"strategyOptions: {alwaysAdapt: false}, strategy: {lamb: true}",
     "optimizer: {name: adam, learningRate: 0.1}", ""},
    {"runPolicy: {elastic: {replicas: 0}}", ADAMW,
     "spec.runPolicy.elastic.replicas: has no effect: without sharding each worker holds the whole "
     "state\n"},
    {"runPolicy: {elastic: {replicas: 0}}, strategy: {sharding: true}", ADAMW, ""},
    {"runPolicy: {dataEncryption: AES-GCM}", ADAMW, ""},
    {"", MOMENTUM, ""},
    {"strategy: {lars: true}", MOMENTUM,
     "spec.training.optimizer.nesterov: has no effect: lars does not use Nesterov momentum\n"},
    {"", "optimizer: {name: sgd, learningRate: 0.1, weightDecayOn: all}",
     "spec.training.optimizer.weightDecayOn: has no effect: weightDecay is 0\n"},
    {"", "optimizer: {name: sgd, learningRate: 0.1, regularizer: l1}",
     "spec.training.optimizer.regularizer: has no effect: weightDecay is 0\n"},
    {"", "optimizer: {name: sgd, learningRate: 0.1, weightDecay: 0.1, weightDecayOn: all}", ""},
    {"", ADAMW ", health: {factor: 3, window: 10}",
     "spec.training.health.factor: has no effect: health.lossSpike is off\n"
     "spec.training.health.window: has no effect: health.lossSpike is off\n"},
    {"", ADAMW ", health: {lossSpike: skip, factor: 3, window: 3}", ""},
    {"autoParallel: {parallel_mode: data_parallel, gradients_mean: true}",
     ADAMW ", operatorStrategies: [{operator: h.0.ln_1, in: [[1, 1, 1]]}]",
     "spec.training.operatorStrategies: has no effect: spec.autoParallel.parallel_mode is neither "
     "semi_auto_parallel nor auto_parallel\n"},
};

static void warn(const char *spec, const char *training, bool in_cluster, struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0}, warnings = {0};
    struct fleetjob job;

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: j}\n"
        "spec: {worker: {replicas: 1}, %s%straining: {model: {name: gpt, layers: 2, heads: 2, "
        "width: 16, context: 8}, data: {path: /t}, globalBatchSize: 8, microBatchSize: 2, steps: "
        "4, "
        "%s}}\n",
        spec, spec[0] ? ", " : "", training);
    if (fleetjob_read(text.text, text.length, &job, &errors) == 0)
        (void)validation_check(&job, &(struct validation_options){.in_cluster = in_cluster},
                               &errors, &warnings);
    fleet_errors_print(&errors, out);
    fleet_errors_print(&warnings, out);
    fleet_errors_release(&errors);
    fleet_errors_release(&warnings);
    fleetjob_release(&job);
}

static void test_idle_fields__what_has_no_effect_is_reported(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

        warn(jobs[i].spec, jobs[i].training, false, &out);
        if (strcmp(fleet_strbuf_text(&out), jobs[i].warning) != 0)
            fail_msg("%s, %s: expected \"%s\", got \"%s\"", jobs[i].spec, jobs[i].training,
                     jobs[i].warning, fleet_strbuf_text(&out));
    }
}

static void test_idle_fields__an_own_trainer_may_not_read_the_encryption(void **state)
{
    static const char text[] =
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: j}\n"
        "spec: {runPolicy: {dataEncryption: AES-GCM}, worker: {replicas: 1, template: "
        "{spec: {containers: [{name: trainer, image: i, command: [a]}]}}}}\n";
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    struct fleet_errors errors = {0}, warnings = {0};
    struct fleetjob job;

    (void)state;
    assert_int_equal(fleetjob_read(text, sizeof(text) - 1, &job, &errors), 0);
    (void)validation_check(&job, &(struct validation_options){.in_cluster = true}, &errors,
                           &warnings);
    fleet_errors_print(&errors, &out);
    fleet_errors_print(&warnings, &out);
    assert_string_equal(
        fleet_strbuf_text(&out),
        "spec.runPolicy.dataEncryption: an own trainer gets it as "
        "FLEET_DATA_ENCRYPTION: fleet.h encrypts, other libraries do not read it\n");
    fleet_errors_release(&errors);
    fleet_errors_release(&warnings);
    fleetjob_release(&job);
}

static void test_idle_fields__a_cluster_draws_no_curve(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf here = {0}, there = {0};

    (void)state;
    warn("", ADAMW ", log: {curve: /c.svg}", false, &here);
    assert_string_equal(fleet_strbuf_text(&here), "");
    warn("", ADAMW ", log: {curve: /c.svg}", true, &there);
    assert_string_equal(fleet_strbuf_text(&there),
                        "spec.training.log.curve: has no effect: in a cluster nothing draws it, "
                        "only `fleetjob run` does\n");
}

/* ---- who reads a field ----------------------------------------------------------------------- */

/* A file that acts on the field, and its text that reads it. */
static const struct {
    const char *path, *file, *words;
} readers[] = {
    {"spec.training.model.name", "agent/runtime/trainer.c", "model.name"},
    {"spec.training.model.preset", "libfleet/training/training.c", "preset"},
    {"spec.training.model.layers", "libfleet/program/models/llama.c", "model.layers"},
    {"spec.training.model.heads", "libfleet/program/models/builder.c", "heads"},
    {"spec.training.model.kvHeads", "libfleet/program/models/llama.c", "kv_heads"},
    {"spec.training.model.width", "libfleet/program/models/gpt.c", "m->width"},
    {"spec.training.model.context", "agent/runtime/data/dataset.c", "model.context"},
    {"spec.training.model.vocabulary", "agent/runtime/data/dataset.c", "model.vocabulary"},
    {"spec.training.model.hidden", "libfleet/program/models/gpt.c", "->hidden"},
    {"spec.training.model.dropout", "libfleet/program/models/gpt.c", "->dropout"},
    {"spec.training.model.tieEmbeddings", "libfleet/program/models/gpt.c", "->tie_embeddings"},
    {"spec.training.model.stem", "libfleet/program/models/resnet.c", "->stem"},
    {"spec.training.model.classes", "libfleet/program/models/resnet.c", "->classes"},
    {"spec.training.model.baseWidth", "libfleet/program/models/resnet.c", "->base_width"},
    {"spec.training.model.depths", "libfleet/program/models/resnet.c", "->depths"},
    {"spec.training.model.sizes", "libfleet/program/models/mlp.c", "model.sizes"},
    {"spec.training.model.activation", "libfleet/program/models/mlp.c", "model.activation"},
    {"spec.training.model.initialWeights", "agent/runtime/save/save_restore.c",
     "model.initial_weights"},
    {"spec.training.data.path", "agent/runtime/origin.c", "data.path"},
    {"spec.training.data.tokenizer", "agent/runtime/data/dataset.c", "data.tokenizer"},
    {"spec.training.data.vocabulary", "libfleet/plan/plan_program.c", "data.vocabulary"},
    {"spec.training.data.merges", "agent/runtime/data/bpe.c", "data.merges"},
    {"spec.training.data.order", "agent/runtime/data/source_markov.c", "->order"},
    {"spec.training.data.symbols", "agent/runtime/data/source_markov.c", "->symbols"},
    {"spec.training.data.validation", "agent/runtime/data/dataset.c", "data.validation"},
    {"spec.training.data.shuffle", "agent/runtime/trainer.c", "data.shuffle"},
    {"spec.training.checkpoint.path", "agent/runtime/save/save.c", "checkpoint.path"},
    {"spec.training.checkpoint.everySteps", "agent/runtime/join/rollback.c",
     "checkpoint.every_steps"},
    {"spec.training.checkpoint.keep", "agent/runtime/checkpoint/snapshot.c", "->keep"},
    {"spec.training.checkpoint.resume", "agent/runtime/save/save_restore.c", "checkpoint.resume"},
    {"spec.training.checkpoint.format", "agent/runtime/save/save.c", "checkpoint.format"},
    {"spec.training.evaluation.everySteps", "agent/runtime/step/evaluate.c",
     "evaluation.every_steps"},
    {"spec.training.evaluation.batches", "agent/runtime/step/evaluate.c", "evaluation.batches"},
    {"spec.training.health.lossSpike", "agent/runtime/ledger.c", "health->loss_spike"},
    {"spec.training.health.factor", "agent/runtime/ledger.c", "health->factor"},
    {"spec.training.health.window", "agent/runtime/ledger.c", "health->window"},
    {"spec.training.log.everySteps", "agent/runtime/report.c", "log.every_steps"},
    {"spec.training.log.tensorboard", "agent/runtime/charts.c", "log.tensorboard"},
    {"spec.training.log.curve", "cli/run_curve.c", "log.curve"},
    {"spec.training.optimizer.clip.globalNorm", "libfleet/program/passes/optimizer.c",
     "clip->global_norm"},
    {"spec.training.optimizer.clip.norm", "libfleet/program/passes/optimizer.c", "clip->norm"},
    {"spec.training.optimizer.clip.value", "libfleet/program/passes/optimizer.c", "clip->value"},
    {"spec.training.optimizer.name", "libfleet/program/passes/optimizer.c", "optimizer.name"},
    {"spec.training.optimizer.learningRate", "libfleet/training/schedule.c",
     "optimizer.learning_rate"},
    {"spec.training.optimizer.beta1", "libfleet/program/passes/optimizer.c", "o->beta1"},
    {"spec.training.optimizer.beta2", "libfleet/program/passes/optimizer.c", "o->beta2"},
    {"spec.training.optimizer.epsilon", "libfleet/program/passes/optimizer.c", "o->epsilon"},
    {"spec.training.optimizer.momentum", "libfleet/program/passes/optimizer.c", "o->momentum"},
    {"spec.training.optimizer.nesterov", "libfleet/program/passes/optimizer.c", "o->nesterov"},
    {"spec.training.optimizer.weightDecay", "libfleet/program/passes/optimizer.c",
     "o->weight_decay"},
    {"spec.training.optimizer.lambWeightDecay", "libfleet/training/training.c",
     "named_weight_decay"},
    {"spec.training.optimizer.larsWeightDecay", "libfleet/training/training.c",
     "named_weight_decay"},
    {"spec.training.optimizer.weightDecayOn", "libfleet/program/passes/optimizer.c",
     "o->weight_decay_on"},
    {"spec.training.optimizer.regularizer", "libfleet/program/passes/optimizer.c",
     "o->regularizer"},
    {"spec.training.optimizer.larsCoeff", "libfleet/program/passes/optimizer.c", "o->lars_coeff"},
    {"spec.training.optimizer.excludeFromWeightDecay", "libfleet/program/passes/optimizer.c",
     "o->exclude_from_weight_decay"},
    {"spec.training.optimizer.rescaleGrad", "libfleet/program/passes/optimizer.c",
     "o->rescale_grad"},
    {"spec.training.schedule.name", "libfleet/training/schedule.c", "schedule->name"},
    {"spec.training.schedule.warmupSteps", "libfleet/training/schedule.c",
     "schedule->warmup_steps"},
    {"spec.training.schedule.startLearningRate", "libfleet/training/schedule.c",
     "schedule->start_learning_rate"},
    {"spec.training.schedule.minLearningRate", "libfleet/training/schedule.c",
     "schedule->min_learning_rate"},
    {"spec.training.schedule.endLearningRate", "libfleet/training/schedule.c",
     "schedule->end_learning_rate"},
    {"spec.training.schedule.power", "libfleet/training/schedule.c", "schedule->power"},
    {"spec.training.schedule.decaySteps", "libfleet/training/schedule.c", "schedule->decay_steps"},
    {"spec.training.schedule.boundaries", "libfleet/training/schedule.c", "schedule->boundaries"},
    {"spec.training.schedule.values", "libfleet/training/schedule.c", "schedule->values"},
    {"spec.training.schedule.gamma", "libfleet/training/schedule.c", "schedule->gamma"},
    {"spec.training.schedule.stepSize", "libfleet/training/schedule.c", "schedule->step_size"},
    {"spec.training.schedule.modelSize", "libfleet/training/schedule.c", "schedule->model_size"},
    {"spec.training.globalBatchSize", "agent/runtime/step/leaf.c", "config.global_batch_size"},
    {"spec.training.microBatchSize", "libfleet/program/models/gpt.c", "micro_batch_size"},
    {"spec.training.steps", "libfleet/plan/plan_select.c", "training->steps"},
    {"spec.training.precision", "libfleet/program/passes/amp.c", "training->precision"},
    {"spec.training.stochasticRounding", "libfleet/program/passes/amp.c",
     "training->stochastic_rounding"},
    {"spec.training.seed", "agent/runtime/trainer.c", "config.seed"},
    {"spec.strategyOptions.overflowAction", "agent/runtime/ledger.c", "options->overflow_action"},
    {"spec.strategyOptions.alwaysAdapt", "libfleet/program/passes/lamb.c", "options->always_adapt"},
    {"spec.strategyOptions.operatorDivisions", "libfleet/plan/plan.c",
     "options->operator_divisions"},
    {"spec.runPolicy.dataEncryption", "controller/fleetjob/job_secret.c", "data_encryption"},
    {"spec.runPolicy.suspend", "controller/fleetjob/suspend.c", "suspend"},
    {"spec.runPolicy.cleanPodPolicy", "controller/fleetjob/clean_pod_policy.c", "clean_pod_policy"},
    {"spec.runPolicy.ttlSecondsAfterFinished", "controller/fleetjob/ttl_after_finished.c",
     "ttl_seconds_after_finished"},
    {"spec.runPolicy.activeDeadlineSeconds", "controller/fleetjob/deadline.c",
     "active_deadline_seconds"},
    {"spec.runPolicy.progressDeadlineSeconds", "controller/fleetjob/deadline.c",
     "progress_deadline_seconds"},
    {"spec.runPolicy.restart.maxRestarts", "controller/fleetjob/restart_policy.c", "max_restarts"},
    {"spec.runPolicy.restart.resetAfterSteps", "controller/fleetjob/elastic_policy.c",
     "reset_after_steps"},
    {"spec.runPolicy.elastic.rejoinGraceMs", "controller/fleetjob/elastic_policy.c",
     "rejoin_grace_ms"},
    {"spec.runPolicy.elastic.timeoutSeconds", "controller/fleetjob/elastic_policy.c",
     "timeout_seconds"},
    {"spec.runPolicy.elastic.waitForReplacementSeconds", "controller/fleetjob/elastic_policy.c",
     "wait_for_replacement_seconds"},
    {"spec.runPolicy.failurePolicy.rules", "controller/fleetjob/failure_policy.c", "rules"},
    {"spec.runPolicy.scheduling.gang", "controller/fleetjob/gang.c", "scheduling.gang"},
    {"spec.server.replicas", "controller/fleetjob/servers.c", "server.replicas"},
    {"spec.server.template", "libfleet/api/fleetjob.c", "server.template_"},
    {"spec.runPolicy.scheduling.queue", "controller/fleetjob/pod_common.c", "scheduling.queue"},
};

static bool is_warned_of(const char *path)
{
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++)
        if (strstr(jobs[i].warning, path))
            return true;
    return false;
}

static void expect_reader(const char *path)
{
    for (size_t i = 0; i < FLEET_COUNT(readers); i++) {
        FLEET_AUTO_FREE char *text = NULL;
        size_t size;

        if (strcmp(readers[i].path, path) != 0)
            continue;
        assert_int_equal(fleet_file_read(readers[i].file, SOURCE_MAX, &text, &size, NULL), 0);
        if (!strstr(text, readers[i].words))
            fail_msg("%s: %s does not read it by \"%s\"", path, readers[i].file, readers[i].words);
        return;
    }
    if (!is_warned_of(path))
        fail_msg("%s: which file acts on it? Add a row to `readers` of this test, or a warning to "
                 "libfleet/api/idle_fields.c",
                 path);
}

/* Tables are as deep as the resource, four levels. */
static void walk(const char *path, const struct fleet_object *type)
{
    for (const struct fleet_field *field = type->fields; field->name; field++) {
        char below[256];

        (void)snprintf(below, sizeof(below), "%s.%s", path, field->name);
        if (field->kind == FLEET_FIELD_OBJECT)
            walk(below, field->object);
        else
            expect_reader(below);
    }
}

static void test_idle_fields__each_field_is_read_or_reported(void **state)
{
    (void)state;
    walk("spec.strategyOptions", &strategy_options_type);
    walk("spec.training", &training_type);
    walk("spec.runPolicy", fleet_object_field(&fleetjob_spec_type, "runPolicy")->object);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_fields__what_has_no_effect_is_reported),
        cmocka_unit_test(test_idle_fields__an_own_trainer_may_not_read_the_encryption),
        cmocka_unit_test(test_idle_fields__a_cluster_draws_no_curve),
        cmocka_unit_test(test_idle_fields__each_field_is_read_or_reported),
    };
    return cmocka_run_group_tests_name("idle_fields", tests, NULL, NULL);
}
