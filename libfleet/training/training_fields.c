/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The table of `spec.training`: every field once, with its range, default and words. What a table
 * cannot say (fields that depend on each other) is in training.c.
 */
#include "libfleet/training/training.h"
#include "libfleet/training/training_tables.h"

/* ---- checkpoint, evaluation, health, log --------------------------------------------------- */

static const char *const resume_names[] = {"auto", "never", NULL}; /* -1, -2: TRAINING_RESUME_* */
static const char *const format_names[] = {"sharded", "single", NULL};
static const char *const spike_names[] = {"off", "skip", "rollback", NULL};

static const struct fleet_field checkpoint_fields[] = {
    {.name = "path",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED | FLEET_PATH | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_checkpoint, path),
     .count_max = 4096,
     .description = "Folder that holds the checkpoints of this job; or a folder in a store, as "
                    "data.path names it, to which they are sent."},
    {.name = "everySteps",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_checkpoint, every_steps),
     .min = 1,
     .default_words = "only at the end",
     .description =
         "Steps between checkpoints; with gradient_merge moved to the end of the update."},
    {.name = "keep",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_checkpoint, keep),
     .default_text = "3",
     .min = 1,
     .max = 10000,
     .description =
         "Number of newest checkpoints to keep. Checkpoints of the job that this one continues "
         "count up to the step where it continues. Those of an abandoned branch are removed once "
         "so many newer ones are complete."},
    {.name = "resume",
     .kind = FLEET_FIELD_INT_OR_CHOICE,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_checkpoint, resume),
     .default_text = "\"auto\"",
     .min = 0,
     .choices = resume_names,
     .description =
         "auto: start from the newest complete checkpoint: the highest step of the job that saved "
         "last in this folder. A warning names a higher step of an earlier job, which is not used, "
         "and a checkpoint of a job with other settings or data. never: start from step 0, even "
         "if there are checkpoints (restarts of the job still use its own). A number: start from "
         "that step."},
    {.name = "format",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_checkpoint, format),
     .default_text = "\"sharded\"",
     .choices = format_names,
     .description = "One file a rank, or a single file."},
    {0},
};

static const struct fleet_hint checkpoint_field_hints[] = {
    {"dir", "path"},
    {"folder", "path"},
    {"interval", "everySteps"},
    {"every", "everySteps"},
    {"max_to_keep", "keep"},
    {"save_total_limit", "keep"},
    {NULL, NULL},
};

static const struct fleet_object checkpoint_type = {
    .name = "checkpoint",
    .hints = checkpoint_field_hints,
    .description = "Where and how often the state is saved. Absent: never.",
    .fields = checkpoint_fields,
    .size = sizeof(struct training_checkpoint),
};

static const struct fleet_field evaluation_fields[] = {
    {.name = "everySteps",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN,
     .offset = offsetof(struct training_evaluation, every_steps),
     .min = 1,
     .description = "Steps between evaluations; the last step is evaluated, too."},
    {.name = "batches",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_evaluation, batches),
     .min = 1,
     .default_words = "all held-out data",
     .description = "Global batches of held-out data that are evaluated."},
    {0},
};

static const struct fleet_object evaluation_type = {
    .name = "evaluation",
    .description = "Loss on held-out data. Absent: never.",
    .fields = evaluation_fields,
    .size = sizeof(struct training_evaluation),
};

static const struct fleet_field health_fields[] = {
    {.name = "lossSpike",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_health, loss_spike),
     .default_text = "\"off\"",
     .choices = spike_names,
     .description =
         "What to do when the loss jumps: nothing, skip the update, or go back to the last "
         "checkpoint."},
    {.name = "factor",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_ABOVE,
     .offset = offsetof(struct training_health, factor),
     .default_text = "6",
     .min = 0,
     .description = "Standard deviations above the mean that count as a jump."},
    {.name = "window",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_health, window),
     .default_text = "100",
     .min = 2,
     .max = 100000,
     .description = "Steps that mean and deviation are taken over."},
    {0},
};

static const struct fleet_object health_type = {
    .name = "health",
    .description = "Watch over the loss.",
    .fields = health_fields,
    .size = sizeof(struct training_health),
};

static const struct fleet_field log_fields[] = {
    {.name = "everySteps",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_log, every_steps),
     .default_text = "1",
     .min = 1,
     .description = "Steps between two lines of the log."},
    {.name = "tensorboard",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_PATH,
     .offset = offsetof(struct training_log, tensorboard),
     .count_max = 4096,
     .description = "Folder for TensorBoard's event files."},
    {.name = "curve",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_PATH,
     .offset = offsetof(struct training_log, curve),
     .count_max = 4096,
     .pattern = "^$|\\.(svg|png)$",
     .pattern_words = "a path that ends in .svg or .png",
     .description = "Picture of the loss curve, drawn at the end."},
    {0},
};

static const struct fleet_object log_type = {
    .name = "log",
    .description = "What is written on the way.",
    .fields = log_fields,
    .size = sizeof(struct training_log),
};

/* ---- operators ----------------------------------------------------------------------------- */

#define OPERATORS_MAX 4096
#define TUPLES_MAX    1024 /* bytes of JSON */

static const struct fleet_field operator_fields[] = {
    {.name = "operator",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_operator, operator_name),
     .count_max = 200,
     .description = "Name of an operator, as `fleetjob plan --program` prints the tensor that it "
                    "writes, or a pattern: * stands for any letters, ? for one."},
    {.name = "in",
     .kind = FLEET_FIELD_JSON,
     .flags = FLEET_TUPLES,
     .offset = offsetof(struct training_operator, in),
     .count_max = TUPLES_MAX,
     .description = "A list for each input, with the parts of each of its dimensions: [[2, 1, 1], "
                    "[1, 2], [2]]. Inputs at the end may be left out."},
    {.name = "out",
     .kind = FLEET_FIELD_JSON,
     .flags = FLEET_TUPLES,
     .offset = offsetof(struct training_operator, out),
     .count_max = TUPLES_MAX,
     .description = "The same for the output: [[2, 1, 2]]."},
    {0},
};

static const struct fleet_hint operator_field_hints[] = {
    {"name", "operator"}, {"pattern", "operator"}, {"in_strategy", "in"}, {"strategy", "in"},
    {"inputs", "in"},     {"out_strategy", "out"}, {"outputs", "out"},    {NULL, NULL},
};

static const struct fleet_object operator_type = {
    .name = "operator strategy",
    .hints = operator_field_hints,
    .description = "How operators are divided over ranks.",
    .fields = operator_fields,
    .size = sizeof(struct training_operator),
};

/* ---- the block ----------------------------------------------------------------------------- */

static const char *const precision_names[] = {"fp32", "bf16", "fp16", "fp8", NULL};

static const struct fleet_hint precision_hints[] = {
    {"float32", "fp32"}, {"float", "fp32"},         {"single", "fp32"},      {"float16", "fp16"},
    {"half", "fp16"},    {"bfloat16", "bf16"},      {"float8", "fp8"},       {"e4m3", "fp8"},
    {"e5m2", "fp8"},     {"mixed", "bf16 or fp16"}, {"amp", "bf16 or fp16"}, {NULL, NULL},
};

#define BATCH_MAX 16777216

static const struct fleet_field training_fields[] = {
    {.name = "model",
     .kind = FLEET_FIELD_OBJECT,
     .flags = FLEET_REQUIRED | FLEET_IMMUTABLE,
     .offset = offsetof(struct training_config, model),
     .object = &training_model_type,
     .description = "What is trained. Cannot change once the job has started."},
    {.name = "data",
     .kind = FLEET_FIELD_OBJECT,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct training_config, data),
     .object = &training_data_type,
     .description = "What it is trained on."},
    {.name = "optimizer",
     .kind = FLEET_FIELD_OBJECT,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct training_config, optimizer),
     .object = &training_optimizer_type,
     .description = "How gradients become updates."},
    {.name = "schedule",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct training_config, schedule),
     .object = &training_schedule_type,
     .description = "Learning rate of every update."},
    {.name = "globalBatchSize",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_config, global_batch_size),
     .min = 1,
     .max = BATCH_MAX,
     .description =
         "Samples of one batch, that is of one forward and backward pass of the whole job; a "
         "multiple of microBatchSize."},
    {.name = "microBatchSize",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_config, micro_batch_size),
     .min = 1,
     .max = BATCH_MAX,
     .description =
         "Samples that one trainer takes through the model at a time. Changing it changes results "
         "slightly; with batch normalization more, because its statistics are of a micro-batch."},
    {.name = "steps",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_config, steps),
     .min = 1,
     .max = 1e12,
     .description = "Batches of the whole job; without gradient_merge also optimizer updates."},
    {.name = "precision",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_config, precision),
     .presence = FLEET_PRESENCE(struct training_config, precision_given),
     .choices = precision_names,
     .hints = precision_hints,
     .default_words = "fp32; fp16 with strategy.amp",
     .description =
         "Type of the arithmetic, with fp32 master weights. strategy.amp says where it is used; "
         "alone it is used wherever possible. fp8 is bf16, and linear layers multiply in fp8: it "
         "needs a GPU of compute capability 8.9 or later; the CPU computes the same in bf16."},
    {.name = "stochasticRounding",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct training_config, stochastic_rounding),
     .description =
         "Round weights to bf16 at random, up with the probability that makes the mean the weight "
         "itself; needs a precision of bf16 or fp8. The same numbers on any number of workers. "
         "Otherwise weights are rounded to the nearest."},
    {.name = "deterministic",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct training_config, deterministic),
     .default_text = "true",
     .description =
         "The same bits on any number of workers; false allows faster orders of summation. The "
         "built-in runtime has none: results are the same with false."},
    {.name = "seed",
     .kind = FLEET_FIELD_SEED,
     .offset = offsetof(struct training_config, seed),
     .default_text = "0",
     .description =
         "Initial weights, order of the data and dropout follow from it. Above 2^53 write it as "
         "a string."},
    {.name = "checkpoint",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct training_config, checkpoint),
     .presence = FLEET_PRESENCE(struct training_config, has_checkpoint),
     .object = &checkpoint_type,
     .description = "Where and how often the state is saved. Absent: never."},
    {.name = "evaluation",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct training_config, evaluation),
     .presence = FLEET_PRESENCE(struct training_config, has_evaluation),
     .object = &evaluation_type,
     .description = "Loss on held-out data. Absent: never."},
    {.name = "health",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct training_config, health),
     .object = &health_type,
     .description = "Watch over the loss."},
    {.name = "log",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct training_config, log),
     .object = &log_type,
     .description = "What is written on the way."},
    {.name = "operatorStrategies",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct training_config, operators),
     .object = &operator_type,
     .count_max = OPERATORS_MAX,
     .description =
         "MindSpore's strategies of operators, for spec.autoParallel.parallel_mode "
         "semi_auto_parallel and auto_parallel. The first entry that matches an operator is for "
         "it. The built-in trainer has one grid of ranks; single operators may be whole on "
         "each rank, or divided otherwise by columns, rows, tokens or samples."},
    {0},
};

static const struct fleet_rule training_rules[] = {
    {"self.globalBatchSize % self.microBatchSize == 0",
     "globalBatchSize must be a multiple of microBatchSize", "globalBatchSize"},
    {"!has(self.evaluation) || (has(self.data.validation) && self.data.validation > 0.0)",
     "evaluation needs data.validation above 0", "evaluation"},
    {"!has(self.health) || self.health.lossSpike != 'rollback' || has(self.checkpoint)",
     "lossSpike rollback needs checkpoint", "health"},
    {0},
};

static const struct fleet_hint training_field_hints[] = {
    {"epochs", "steps: one is an update from globalBatchSize samples"},
    {"max_steps", "steps"},
    {"iterations", "steps"},
    {"batchSize", "globalBatchSize, the samples of a step on all workers, and microBatchSize"},
    {"batch_size", "globalBatchSize, the samples of a step on all workers, and microBatchSize"},
    {"lr", "optimizer.learningRate"},
    {"dataset", "data"},
    {"dtype", "precision"},
    {"checkpoints", "checkpoint"},
    {NULL, NULL},
};

const struct fleet_object training_type = {
    .name = "training",
    .hints = training_field_hints,
    .description = "The built-in training runtime: model, data, optimizer and batch.",
    .rules = training_rules,
    .fields = training_fields,
    .size = sizeof(struct training_config),
};

const char *training_precision_text(enum training_precision precision)
{
    return precision_names[precision];
}
