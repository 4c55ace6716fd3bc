/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/strategy/strategy_options.h"

#include "libfleet/base/field.h"

static const char *const overflows[] = {"skip", "zeroGrad", NULL};
static const char *const adacomms[] = {"reference", "paper", NULL};
static const char *const dgc_selects[] = {"exact", "sampled", NULL};
static const char *const partitions[] = {"ordered", "greedy", NULL};
static const char *const schedules[] = {"strategy", "zeroBubble", NULL};

static const struct fleet_field options_fields[] = {
    {.name = "overflowAction",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct strategy_options, overflow_action),
     .default_text = "\"skip\"",
     .choices = overflows,
     .description = "What a step with inf or nan gradients does under amp: skip the update, or "
                    "apply it with zero gradients as Paddle does."},
    {.name = "alwaysAdapt",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct strategy_options, always_adapt),
     .default_text = "true",
     .description = "lamb: apply the trust ratio to tensors without decay too (Paddle 2.0); "
                    "false is what later versions do."},
    {.name = "adacommFormula",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct strategy_options, adacomm_formula),
     .default_text = "\"reference\"",
     .choices = adacomms,
     .description = "adaptive_localsgd: Paddle's formula for the next interval, or the paper's."},
    {.name = "dgcSelect",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct strategy_options, dgc_select),
     .default_text = "\"exact\"",
     .choices = dgc_selects,
     .description = "dgc: choose the largest elements exactly, or by a threshold found on a "
                    "sample."},
    {.name = "partition",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct strategy_options, partition),
     .default_text = "\"ordered\"",
     .choices = partitions,
     .description = "sharding: give parameters to ranks in order, as Paddle does, or each to the "
                    "lightest rank."},
    {.name = "pipelineSchedule",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct strategy_options, pipeline_schedule),
     .default_text = "\"strategy\"",
     .choices = schedules,
     .description = "pipeline: the order of pipeline_configs.schedule_mode, or ZB-H1, which fills "
                    "bubbles with the gradients of weights."},
    {.name = "pipelineChunks",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct strategy_options, pipeline_chunks),
     .min = 1,
     .max = STRATEGY_CHUNKS_MAX,
     .default_text = "1",
     .description = "pipeline: chunks of layers on each stage; more than 1 interleaves them, which "
                    "needs 1F1B, at least 3 stages, and a multiple of the stages, at least twice "
                    "them, as micro-batches."},
    {.name = "pipelineLayers",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_INT,
     .flags = FLEET_INLINE | FLEET_MIN,
     .offset = offsetof(struct strategy_options, pipeline_layers),
     .min = 1,
     .count_max = STRATEGY_ENDS_MAX,
     .description = "pipeline: the number of layers of each stage, in order; with pipelineChunks "
                    "that of each virtual stage, c·P + s for chunk c of stage s. Without it the "
                    "layers are divided by the operations that they take."},
    {.name = "allReduceEnds",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_INT,
     .flags = FLEET_INLINE | FLEET_MIN,
     .offset = offsetof(struct strategy_options, all_reduce_ends),
     .min = 0,
     .count_max = STRATEGY_ENDS_MAX,
     .description = "The last gradient of each all-reduce, by the number of its parameter from 0, "
                    "ascending; in place of sizes, as MindSpore's all_reduce_fusion_config. It "
                    "changes no result."},
    {.name = "repeatedLossAdds",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct strategy_options, repeated_loss_adds),
     .presence = FLEET_PRESENCE(struct strategy_options, has_repeated_loss_adds),
     .default_words = "false",
     .description = "Tensor parallelism: gradients are multiplied by the number of ranks that "
                    "share tensors, since each of them computes the loss; as MindSpore's "
                    "loss_repeated_mean: false."},
    {.name = "operatorDivisions",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct strategy_options, operator_divisions),
     .presence = FLEET_PRESENCE(struct strategy_options, has_operator_divisions),
     .default_words = "true where operatorStrategies need it",
     .description = "Tensor parallelism: each operator is divided as "
                    "spec.training.operatorStrategies says, and activations are gathered or split "
                    "between operators. false: all operators are divided in one way."},
    {0},
};

const struct fleet_object strategy_options_type = {
    .name = "strategyOptions",
    .description = "FleetJob's own choices where Paddle has no setting.",
    .fields = options_fields,
    .size = sizeof(struct strategy_options),
};

void strategy_options_init(struct strategy_options *options)
{
    fleet_object_init(&strategy_options_type, options);
}
