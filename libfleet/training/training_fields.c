/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The table of `spec.training`: every field once, with its range, default and words. What a table
 * cannot say (fields that depend on each other) is in training.c.
 */
#include "libfleet/training/training.h"
#include "libfleet/training/training_tables.h"

/* ---- model --------------------------------------------------------------------------------- */

static const char *const model_names[] = {"gpt", "llama", "resnet", "mlp", NULL};

static const struct fleet_hint model_hints[] = {
    {"gpt2", "gpt"},
    {"gpt-2", "gpt"},
    {"transformer", "gpt"},
    {"llama2", "llama"},
    {"llama3", "llama"},
    {"resnet18", "preset: resnet18"},
    {"gpt2-124m", "preset: gpt2-124m"},
    {"resnet50", "preset: resnet50"},
    {NULL, NULL},
};
static const char *const preset_names[] = {"",           "gpt2-124m", "gpt2-355m", "gpt2-774m",
                                           "gpt2-1558m", "resnet18",  "resnet50",  NULL};
static const char *const stem_names[] = {"cifar", "imagenet", NULL};
static const char *const activation_names[] = {"relu", "gelu", NULL};

#define GPT_LLAMA (1U << TRAINING_MODEL_GPT | 1U << TRAINING_MODEL_LLAMA)
#define RESNET    (1U << TRAINING_MODEL_RESNET)
#define MLP       (1U << TRAINING_MODEL_MLP)

static const struct fleet_field model_fields[] = {
    {.name = "name",
     .kind = FLEET_FIELD_ENUM,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct training_model, name),
     .choices = model_names,
     .hints = model_hints,
     .description = "Architecture. May be left out beside a preset."},
    {.name = "preset",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_model, preset),
     .choices = preset_names,
     .description = "Fills in the sizes of a published model; a field given besides wins."},
    {.name = "layers",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_model, layers),
     .min = 1,
     .max = 1024,
     .only = GPT_LLAMA,
     .description = "Transformer blocks."},
    {.name = "heads",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_model, heads),
     .min = 1,
     .max = 1024,
     .only = GPT_LLAMA,
     .description = "Attention heads; must divide width."},
    {.name = "width",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_model, width),
     .min = 1,
     .max = 262144,
     .only = GPT_LLAMA,
     .description = "Size of the embedding and of the residual stream."},
    {.name = "context",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_model, context),
     .min = 1,
     .max = 1048576,
     .only = GPT_LLAMA,
     .description = "Tokens of one sample."},
    {.name = "vocabulary",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_model, vocabulary),
     .min = 1,
     .max = 16777216,
     .only = GPT_LLAMA,
     .default_words = "the tokenizer's size",
     .description =
         "Number of different tokens. Required with tokens-u32. With bpe it is read from "
         "data.vocabulary. The controller of a cluster cannot read that file, so it plans and "
         "checks memory only if the number is given."},
    {.name = "hidden",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_model, hidden),
     .min = 1,
     .max = 1048576,
     .only = GPT_LLAMA,
     .default_words = "4 × width",
     .description = "Width of the feed-forward part."},
    {.name = "dropout",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN | FLEET_BELOW,
     .offset = offsetof(struct training_model, dropout),
     .default_text = "0",
     .min = 0,
     .max = 1,
     .only = GPT_LLAMA,
     .description = "Probability with which an activation is dropped during training."},
    {.name = "tieEmbeddings",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct training_model, tie_embeddings),
     .default_text = "true",
     .only = GPT_LLAMA,
     .description = "Use the token embedding as the output matrix as well."},
    {.name = "stem",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_model, stem),
     .default_text = "\"cifar\"",
     .choices = stem_names,
     .only = RESNET,
     .description =
         "First layers: cifar is one 3x3 convolution, imagenet a 7x7 one with stride 2 and a "
         "max-pool."},
    {.name = "classes",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_model, classes),
     .min = 1,
     .max = 1048576,
     .only = RESNET,
     .default_words = "10; 100 with tokenizer cifar100",
     .description = "Number of classes."},
    {.name = "baseWidth",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_model, base_width),
     .default_text = "64",
     .min = 1,
     .max = 65536,
     .only = RESNET,
     .description = "Channels of the first stage; each further stage doubles them."},
    {.name = "depths",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_model, depths),
     .default_text = "[2, 2, 2, 2]",
     .min = 1,
     .max = 1024,
     .count_max = 4,
     .only = RESNET,
     .description = "Residual blocks of each stage."},
    {.name = "sizes",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_model, sizes),
     .min = 1,
     .max = 16777216,
     .count_max = 64,
     .only = MLP,
     .description = "Units of every layer: input, hidden layers, output."},
    {.name = "activation",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_model, activation),
     .default_text = "\"relu\"",
     .choices = activation_names,
     .only = MLP,
     .description = "Function between the layers."},
    {.name = "initialWeights",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_PATH,
     .offset = offsetof(struct training_model, initial_weights),
     .count_max = 4096,
     .description =
         "Path of a safetensors file to start from: Hugging Face names for gpt, torchvision "
         "names for resnet."},
    {0},
};

static const struct fleet_rule model_rules[] = {
    {"has(self.name) || has(self.preset)", "name or preset is required", "name"},
    {"!has(self.width) || !has(self.heads) || self.width % self.heads == 0",
     "width must be divisible by heads", "width"},
    {0},
};

static const struct fleet_hint model_field_hints[] = {
    {"type", "name"},
    {"n_layer", "layers"},
    {"num_layers", "layers"},
    {"n_head", "heads"},
    {"num_heads", "heads"},
    {"n_embd", "width"},
    {"hidden_size", "width"},
    {"d_model", "width"},
    {"block_size", "context"},
    {"n_positions", "context"},
    {"n_ctx", "context"},
    {"seq_len", "context"},
    {"vocab_size", "vocabulary"},
    {"intermediate_size", "hidden"},
    {"num_classes", "classes"},
    {"pretrained", "initialWeights, a safetensors file"},
    {NULL, NULL},
};

static const struct fleet_object model_type = {
    .name = "model",
    .hints = model_field_hints,
    .description = "What is trained.",
    .rules = model_rules,
    .fields = model_fields,
    .size = sizeof(struct training_model),
    .discriminator = "name",
};

/* ---- data ---------------------------------------------------------------------------------- */

static const char *const tokenizer_names[] = {"bytes",   "tokens-u16", "tokens-u32",       "bpe",
                                              "cifar10", "cifar100",   "synthetic-markov", NULL};

static const struct fleet_hint tokenizer_hints[] = {
    {"char", "bytes"},     {"character", "bytes"},
    {"none", "bytes"},     {"gpt2", "bpe"},
    {"tiktoken", "bpe"},   {"sentencepiece", "tokens-u32"},
    {"u16", "tokens-u16"}, {"uint16", "tokens-u16"},
    {"u32", "tokens-u32"}, {"uint32", "tokens-u32"},
    {"cifar", "cifar10"},  {"synthetic", "synthetic-markov"},
    {NULL, NULL},
};

#define BPE    (1U << TRAINING_TOKENIZER_BPE)
#define MARKOV (1U << TRAINING_TOKENIZER_SYNTHETIC_MARKOV)

static const struct fleet_field data_fields[] = {
    {.name = "path",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_PATH | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_data, path),
     .count_max = 4096,
     .description =
         "File, directory (its files in the order of their names, without sub-folders and hidden "
         "files; of cifar10 and cifar100 those that end in .bin and do not begin with test) or "
         "glob, read where the trainer runs. It may not change during the run. Required except "
         "with synthetic-markov."},
    {.name = "tokenizer",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_data, tokenizer),
     .default_text = "\"bytes\"",
     .choices = tokenizer_names,
     .hints = tokenizer_hints,
     .description =
         "How the files become samples. bytes: a token is a byte; tokens-u16, tokens-u32: the "
         "file holds little-endian token ids; bpe: byte-pair encoding; cifar10, cifar100: the "
         "binary image files; synthetic-markov: a made-up sequence."},
    {.name = "vocabulary",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED | FLEET_PATH | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_data, vocabulary),
     .count_max = 4096,
     .only = BPE,
     .description = "Path of the vocabulary (vocab.json)."},
    {.name = "merges",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED | FLEET_PATH | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_data, merges),
     .count_max = 4096,
     .only = BPE,
     .description = "Path of the merges (merges.txt)."},
    {.name = "order",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_data, order),
     .default_text = "1",
     .min = 1,
     .max = 8,
     .only = MARKOV,
     .description = "Tokens of history that the next token depends on."},
    {.name = "symbols",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_data, symbols),
     .default_text = "256",
     .min = 2,
     .max = 65536,
     .only = MARKOV,
     .description = "Size of the made-up alphabet."},
    {.name = "validation",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_data, validation),
     .default_text = "0",
     .min = 0,
     .max = 0.5,
     .description =
         "Share of the data held out from the end, evaluated every evaluation.everySteps."},
    {.name = "shuffle",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct training_data, shuffle),
     .default_text = "true",
     .description =
         "Permute the samples again in every epoch; false takes them in order of their index."},
    {0},
};

static const struct fleet_rule data_rules[] = {
    {"has(self.path) || self.tokenizer == 'synthetic-markov'", "path is required", "path"},
    {0},
};

static const struct fleet_object data_type = {
    .name = "data",
    .description = "What it is trained on.",
    .rules = data_rules,
    .fields = data_fields,
    .size = sizeof(struct training_data),
    .discriminator = "tokenizer",
};

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
     .description = "Folder that holds the checkpoints of this job."},
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

/* ---- the block ----------------------------------------------------------------------------- */

static const char *const precision_names[] = {"fp32", "bf16", "fp16", NULL};

static const struct fleet_hint precision_hints[] = {
    {"float32", "fp32"},       {"float", "fp32"},       {"single", "fp32"},
    {"float16", "fp16"},       {"half", "fp16"},        {"bfloat16", "bf16"},
    {"mixed", "bf16 or fp16"}, {"amp", "bf16 or fp16"}, {NULL, NULL},
};

#define BATCH_MAX 16777216

static const struct fleet_field training_fields[] = {
    {.name = "model",
     .kind = FLEET_FIELD_OBJECT,
     .flags = FLEET_REQUIRED | FLEET_IMMUTABLE,
     .offset = offsetof(struct training_config, model),
     .object = &model_type,
     .description = "What is trained. Cannot change once the job has started."},
    {.name = "data",
     .kind = FLEET_FIELD_OBJECT,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct training_config, data),
     .object = &data_type,
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
         "alone it is used wherever possible."},
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

const char *training_model_text(enum training_model_name name)
{
    return model_names[name];
}

const char *training_precision_text(enum training_precision precision)
{
    return precision_names[precision];
}
