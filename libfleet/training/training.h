/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_TRAINING_H
#define LIBFLEET_TRAINING_TRAINING_H

/*
 * `spec.training`, the configuration of the built-in trainer, as C types
 * (docs/reference/training.md).
 *
 * Invariants after training_config_decode() and training_config_check() without errors:
 *  (1) Every field below holds a value in its range; presets and defaults that depend on other
 *      fields (hidden, epsilon, minLearningRate, …) are filled in.
 *  (2) Fields that do not belong to the chosen model, optimizer or schedule are zero.
 *  (3) global_batch_size is a multiple of micro_batch_size.
 *  (4) encode followed by decode gives an equal configuration, on any machine.
 *
 * Nothing here depends on the number of workers except the checks that have it as an argument.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/base/field.h"

struct fleet_errors;
struct strategy;
struct strategy_options;

struct training_int_list {
    int64_t *items;
    size_t count;
};

struct training_number_list {
    double *items;
    size_t count;
};

struct training_string_list {
    char **items;
    size_t count;
};

/* ---- model --------------------------------------------------------------------------------- */

enum training_model_name {
    TRAINING_MODEL_GPT,
    TRAINING_MODEL_LLAMA,
    TRAINING_MODEL_RESNET,
    TRAINING_MODEL_MLP,
};

enum training_preset {
    TRAINING_PRESET_NONE,
    TRAINING_PRESET_GPT2_124M,
    TRAINING_PRESET_GPT2_355M,
    TRAINING_PRESET_GPT2_774M,
    TRAINING_PRESET_GPT2_1558M,
    TRAINING_PRESET_RESNET18,
    TRAINING_PRESET_RESNET50,
};

enum training_stem {
    TRAINING_STEM_CIFAR,
    TRAINING_STEM_IMAGENET
};

enum training_activation {
    TRAINING_ACTIVATION_RELU,
    TRAINING_ACTIVATION_GELU
};

struct training_model {
    enum training_model_name name;
    enum training_preset preset; /* already applied; kept to be shown */
    /* gpt, llama */
    int64_t layers, heads, width; /* width % heads == 0 */
    int64_t kv_heads;             /* llama: heads of keys and values; heads % kv_heads == 0 */
    int64_t context;              /* tokens of a sample */
    int64_t vocabulary;           /* tokens; 0 = as many as the tokenizer's file has (bpe) */
    int64_t hidden;               /* width of the feed-forward part; 4 · width unless given */
    double dropout;               /* probability, [0, 1) */
    bool tie_embeddings;          /* output head = token embedding */
    /* resnet */
    enum training_stem stem;
    int64_t classes;
    int64_t base_width;              /* channels of the first stage */
    struct training_int_list depths; /* blocks of each of the 4 stages */
    bool bottleneck;                 /* 1x1-3x3-1x1 blocks (resnet50) instead of two 3x3 */
    /* mlp */
    struct training_int_list sizes; /* input, hidden …, output; at least 2 */
    enum training_activation activation;
    char *initial_weights; /* path of a safetensors file, or NULL */
};

/* ---- data ---------------------------------------------------------------------------------- */

enum training_tokenizer {
    TRAINING_TOKENIZER_BYTES,
    TRAINING_TOKENIZER_TOKENS_U16,
    TRAINING_TOKENIZER_TOKENS_U32,
    TRAINING_TOKENIZER_BPE,
    TRAINING_TOKENIZER_CIFAR10,
    TRAINING_TOKENIZER_CIFAR100,
    TRAINING_TOKENIZER_SYNTHETIC_MARKOV,
};

struct training_data {
    char *path; /* file, folder or glob; NULL only with synthetic-markov */
    enum training_tokenizer tokenizer;
    char *vocabulary, *merges; /* bpe: paths; else NULL */
    int64_t order, symbols;    /* synthetic-markov: tokens of history, size of the alphabet */
    double validation;         /* share held out at the end of the data, [0, 0.5] */
    bool shuffle;
};

/* ---- optimizer ----------------------------------------------------------------------------- */

enum training_optimizer_name {
    TRAINING_OPTIMIZER_SGD,
    TRAINING_OPTIMIZER_MOMENTUM,
    TRAINING_OPTIMIZER_ADAM,
    TRAINING_OPTIMIZER_ADAMW,
    TRAINING_OPTIMIZER_LAMB,
    TRAINING_OPTIMIZER_LARS,
};

enum training_decay_on {
    TRAINING_DECAY_ON_MATRICES,
    TRAINING_DECAY_ON_ALL
};

enum training_regularizer {
    TRAINING_REGULARIZER_L2,
    TRAINING_REGULARIZER_L1
};

/* At most one is > 0; 0 = off. */
struct training_clip {
    double global_norm; /* g · c / max(‖all g‖, c) */
    double norm;        /* the same for each tensor alone */
    double value;       /* every element to [-c, c] */
};

struct training_optimizer {
    enum training_optimizer_name name;
    double learning_rate; /* > 0 */
    double beta1, beta2;  /* adam, adamw, lamb: [0, 1) */
    double epsilon;       /* adam, adamw, lamb: > 0; lars: >= 0 */
    double momentum;      /* momentum, lars: [0, 1) */
    bool nesterov;        /* momentum */
    /* >= 0. adamw: decoupled; lamb, lars: lambda of the formula; else as `regularizer` says */
    double weight_decay;
    double named_weight_decay; /* lambWeightDecay, larsWeightDecay: folded in by decode, then -1 */
    enum training_decay_on weight_decay_on;
    enum training_regularizer regularizer; /* sgd, momentum, adam: g += decay·p or decay·sign(p) */
    double lars_coeff;                     /* lars: eta > 0 */
    struct training_string_list exclude_from_weight_decay; /* lars: part of a name; lamb: its end */
    double rescale_grad;                                   /* multiplier on g, > 0 */
    struct training_clip clip;
};

/* ---- schedule ------------------------------------------------------------------------------ */

enum training_schedule_name {
    TRAINING_SCHEDULE_CONSTANT,
    TRAINING_SCHEDULE_NOAM,
    TRAINING_SCHEDULE_COSINE,
    TRAINING_SCHEDULE_POLYNOMIAL,
    TRAINING_SCHEDULE_PIECEWISE,
    TRAINING_SCHEDULE_EXPONENTIAL,
    TRAINING_SCHEDULE_NATURAL_EXPONENTIAL,
    TRAINING_SCHEDULE_INVERSE_TIME,
    TRAINING_SCHEDULE_STEP,
};

/* Rates: libfleet/training/schedule.h. */
struct training_schedule {
    enum training_schedule_name name;
    int64_t warmup_steps;                /* updates; noam: >= 1, its own warm-up */
    double start_learning_rate;          /* not noam */
    double min_learning_rate;            /* cosine */
    double end_learning_rate;            /* polynomial */
    double power;                        /* polynomial, > 0 */
    int64_t decay_steps;                 /* polynomial: updates; 0 = all that follow the warm-up */
    struct training_int_list boundaries; /* piecewise: updates after the warm-up, ascending */
    struct training_number_list values;  /* piecewise: boundaries.count + 1 rates */
    double gamma;       /* exponential, naturalExponential, inverseTime, step: > 0 */
    int64_t step_size;  /* step: updates */
    int64_t model_size; /* noam */
};

/* ---- the rest ------------------------------------------------------------------------------ */

enum training_precision {
    TRAINING_FP32,
    TRAINING_BF16,
    TRAINING_FP16,
    TRAINING_FP8 /* bf16, with products of linear layers in fp8 */
};

enum training_format {
    TRAINING_FORMAT_SHARDED,
    TRAINING_FORMAT_SINGLE
};

#define TRAINING_RESUME_AUTO  ((int64_t)-1)
#define TRAINING_RESUME_NEVER ((int64_t)-2)

struct training_checkpoint {
    char *path;          /* folder */
    int64_t every_steps; /* steps; 0 = only at the end */
    int64_t keep;        /* newest ones kept, >= 1 */
    int64_t resume;      /* TRAINING_RESUME_AUTO, TRAINING_RESUME_NEVER, or the step */
    enum training_format format;
};

struct training_evaluation {
    int64_t every_steps; /* steps, >= 1 */
    int64_t batches;     /* global batches of held-out data; 0 = all of it */
};

enum training_loss_spike {
    TRAINING_LOSS_SPIKE_OFF,
    TRAINING_LOSS_SPIKE_SKIP,
    TRAINING_LOSS_SPIKE_ROLLBACK,
};

struct training_health {
    enum training_loss_spike loss_spike;
    double factor;  /* standard deviations above the mean */
    int64_t window; /* number of steps for mean and deviation */
};

/* How operators are divided over ranks; libfleet/autoparallel/given_operators.h reads it. */
struct training_operator {
    char *operator_name; /* of operators; * and ? stand for any letters, and for one */
    cJSON *in, *out;     /* lists of tuples; NULL = not given */
};

struct training_operator_list {
    struct training_operator *items;
    size_t count;
};

struct training_log {
    int64_t every_steps; /* steps, >= 1 */
    char *tensorboard;   /* folder, or NULL */
    char *curve;         /* path of an SVG or PNG, or NULL */
};

struct training_config {
    struct training_model model;
    struct training_data data;
    struct training_optimizer optimizer;
    struct training_schedule schedule;
    int64_t global_batch_size;         /* samples */
    int64_t micro_batch_size;          /* samples */
    int64_t steps;                     /* batches */
    enum training_precision precision; /* use training_precision(), which adds amp's default */
    bool precision_given;
    bool stochastic_rounding;
    bool deterministic;
    uint64_t seed;
    bool has_checkpoint;
    struct training_checkpoint checkpoint; /* if has_checkpoint */
    bool has_evaluation;
    struct training_evaluation evaluation; /* if has_evaluation */
    struct training_health health;
    struct training_log log;
    struct training_operator_list operators; /* semi_auto_parallel, auto_parallel */
};

/* The table of the block's fields, for the schema and the reference pages. */
extern const struct fleet_object training_type;

/*
 * Read a training block and make all checks that need only the block. `path` is the block's path
 * ("spec.training"). Release *out after any result. Returns 0, or -EINVAL if errors were
 * appended: wrong types, ranges and names, unknown keys, parameters that do not belong to the
 * chosen model, optimizer or schedule, a width not divisible by heads, batch sizes that do not fit.
 */
int training_config_decode(const cJSON *json, const char *path, struct training_config *out,
                           struct fleet_errors *errors);

/*
 * The two halves of training_config_decode(). _read() handles types, ranges, names, presets, and
 * defaults that depend on other fields. _relate() makes the checks between fields. `unread` is the
 * errors of reading; a check that needs a value with such an error is left out
 * (fleet_errors_touch()). Both return 0 or -EINVAL.
 */
int training_config_read(const cJSON *json, const char *path, struct training_config *out,
                         struct fleet_errors *errors);
int training_config_relate(const struct training_config *config, const char *path,
                           const struct fleet_errors *unread, struct fleet_errors *errors);

/* The complete JSON, with defaults written out; owned by the caller. */
cJSON *training_config_encode(const struct training_config *config);

/* Free what it holds and zero it. */
void training_config_release(struct training_config *config);

/* The values outside the block that its checks need. */
struct training_surroundings {
    int64_t world_size;     /* ranks that share the micro-batches (data-parallel); 0 = not known */
    int ranks_of_replica;   /* each of them stands for so many that share a model; 0 = 1 */
    int ranks_of_worker;    /* 0 = 1 */
    const char *world_path; /* the field that sets it, for errors: "spec.worker.replicas" */
    int64_t gradient_merge_k; /* k_steps, 1 when gradient_merge is off */
    /* For the numbers that an error suggests; NULL: it suggests none, the defaults. */
    const struct strategy *strategy;
    const struct strategy_options *options;
    bool amp;                          /* strategy.amp */
    const struct fleet_errors *unread; /* as in training_config_relate(); NULL = none */
};

/*
 * The checks that need more than the block: that there are no more workers than leaves of the
 * summation tree, and that the precision fits amp. Appends to `errors`; returns 0 or -EINVAL.
 */
int training_config_check(const struct training_config *config, const char *path,
                          const struct training_surroundings *surroundings,
                          struct fleet_errors *errors);

/* The precision to compute in: the given one, else fp16 with amp and fp32 without. */
enum training_precision training_precision(const struct training_config *config, bool amp);

/* True if the size of the model's vocabulary is in the tokenizer's file (bpe) and has not been read
 * yet: see vocabulary.h. */
bool training_lacks_vocabulary(const struct training_config *config);

/* True if the model normalizes over the samples of a micro-batch. */
bool training_has_batch_norm(const struct training_config *config);

/* Micro-batches of one global batch. */
int64_t training_micro_batches(const struct training_config *config);

/* Complete optimizer updates of the whole job: steps / k, rounded down. */
int64_t training_updates(const struct training_config *config, int64_t gradient_merge_k);

/* Put `folder` before every relative path of the block. A local run gives the job file's folder. */
void training_config_resolve_paths(struct training_config *config, const char *folder);

/* The name as the resource has it: "adamw", "cosine", "bf16". Static. */
const char *training_model_text(enum training_model_name name);
const char *training_optimizer_text(enum training_optimizer_name name);
const char *training_schedule_text(enum training_schedule_name name);
const char *training_precision_text(enum training_precision precision);

#endif
