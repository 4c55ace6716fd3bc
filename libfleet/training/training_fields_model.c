/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of spec.training.model and spec.training.data, for training_fields.c. */
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
#define LLAMA     (1U << TRAINING_MODEL_LLAMA)
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
    {.name = "kvHeads",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = offsetof(struct training_model, kv_heads),
     .min = 1,
     .max = 1024,
     .only = LLAMA,
     .default_words = "heads",
     .description = "Heads of keys and values; must divide heads. With fewer than heads, each "
                    "serves a group of attention heads (grouped-query attention)."},
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
         "names for resnet. Or such a file in a store."},
    {0},
};

static const struct fleet_rule model_rules[] = {
    {"has(self.name) || has(self.preset)", "name or preset is required", "name"},
    {"!has(self.width) || !has(self.heads) || self.width % self.heads == 0",
     "width must be divisible by heads", "width"},
    {"!has(self.kvHeads) || !has(self.heads) || self.heads % self.kvHeads == 0",
     "heads must be divisible by kvHeads", "kvHeads"},
    {0},
};

static const struct fleet_hint model_field_hints[] = {
    {"type", "name"},
    {"n_layer", "layers"},
    {"num_layers", "layers"},
    {"n_head", "heads"},
    {"num_heads", "heads"},
    {"num_attention_heads", "heads"},
    {"num_key_value_heads", "kvHeads"},
    {"num_kv_heads", "kvHeads"},
    {"n_kv_heads", "kvHeads"},
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

const struct fleet_object training_model_type = {
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
         "glob, read where the trainer runs. Or a file or folder in a store, which each pod copies "
         "once: s3://BUCKET/KEY, webhdfs://HOST:PORT/PATH, swebhdfs://HOST:PORT/PATH, or hdfs: "
         "with the program hadoop. It may not change during the run. Required except with "
         "synthetic-markov."},
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
     .description = "Path of the vocabulary (vocab.json), or a file in a store."},
    {.name = "merges",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_REQUIRED | FLEET_PATH | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_data, merges),
     .count_max = 4096,
     .only = BPE,
     .description = "Path of the merges (merges.txt), or a file in a store."},
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

const struct fleet_object training_data_type = {
    .name = "data",
    .description = "What it is trained on.",
    .rules = data_rules,
    .fields = data_fields,
    .size = sizeof(struct training_data),
    .discriminator = "tokenizer",
};

const char *training_model_text(enum training_model_name name)
{
    return model_names[name];
}
