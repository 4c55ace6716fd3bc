/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of spec.training.optimizer and spec.training.schedule, for training_fields.c. */
#include "libfleet/training/training.h"
#include "libfleet/training/training_tables.h"

/* ---- optimizer ----------------------------------------------------------------------------- */

static const char *const optimizer_names[] = {"sgd",  "momentum", "adam", "adamw",
                                              "lamb", "lars",     NULL};

static const struct fleet_hint optimizer_hints[] = {
    {"adamax", "adam"},   {"nadam", "adam"},
    {"adam_w", "adamw"},  {"nesterov", "momentum with nesterov: true"},
    {"sgdm", "momentum"}, {NULL, NULL},
};
static const char *const decay_on_names[] = {"matrices", "all", NULL};
static const char *const regularizer_names[] = {"l2", "l1", NULL};

#define SGD      (1U << TRAINING_OPTIMIZER_SGD)
#define MOMENTUM (1U << TRAINING_OPTIMIZER_MOMENTUM)
#define ADAM     (1U << TRAINING_OPTIMIZER_ADAM)
#define ADAMW    (1U << TRAINING_OPTIMIZER_ADAMW)
#define LAMB     (1U << TRAINING_OPTIMIZER_LAMB)
#define LARS     (1U << TRAINING_OPTIMIZER_LARS)

static const struct fleet_field clip_fields[] = {
    {.name = "globalNorm",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_ABOVE,
     .offset = offsetof(struct training_clip, global_norm),
     .min = 0,
     .description = "Scale all gradients by c / max(norm of all, c)."},
    {.name = "norm",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_ABOVE,
     .offset = offsetof(struct training_clip, norm),
     .min = 0,
     .description = "Scale each tensor's gradient by c / norm if its norm is above c."},
    {.name = "value",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_ABOVE,
     .offset = offsetof(struct training_clip, value),
     .min = 0,
     .description = "Limit every element to [-c, c]."},
    {0},
};

static const struct fleet_rule clip_rules[] = {
    {"[has(self.globalNorm), has(self.norm), has(self.value)].filter(x, x).size() <= 1",
     "only one of globalNorm, norm, value may be given", NULL},
    {0},
};

static const struct fleet_object clip_type = {
    .name = "clip",
    .description = "Gradient clipping: at most one of the three.",
    .rules = clip_rules,
    .fields = clip_fields,
    .size = sizeof(struct training_clip),
};

static const struct fleet_field optimizer_fields[] = {
    {.name = "name",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_optimizer, name),
     .default_text = "\"adamw\"",
     .choices = optimizer_names,
     .hints = optimizer_hints,
     .description = "Update rule."},
    {.name = "learningRate",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_REQUIRED | FLEET_ABOVE,
     .offset = offsetof(struct training_optimizer, learning_rate),
     .min = 0,
     .description = "Step size that the schedule starts from."},
    {.name = "beta1",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN | FLEET_BELOW,
     .offset = offsetof(struct training_optimizer, beta1),
     .default_text = "0.9",
     .min = 0,
     .max = 1,
     .only = ADAM | ADAMW | LAMB,
     .description = "Decay of the mean of the gradients."},
    {.name = "beta2",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN | FLEET_BELOW,
     .offset = offsetof(struct training_optimizer, beta2),
     .default_text = "0.999",
     .min = 0,
     .max = 1,
     .only = ADAM | ADAMW | LAMB,
     .description = "Decay of the mean of the squared gradients."},
    {.name = "epsilon",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_optimizer, epsilon),
     .unset = -1,
     .min = 0,
     .only = ADAM | ADAMW | LAMB | LARS,
     .default_words = "1e-8; lamb 1e-6; lars 0",
     .description = "Added to the denominator."},
    {.name = "momentum",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN | FLEET_BELOW,
     .offset = offsetof(struct training_optimizer, momentum),
     .default_text = "0.9",
     .min = 0,
     .max = 1,
     .only = MOMENTUM | LARS,
     .description = "Share of the velocity that is kept."},
    {.name = "nesterov",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct training_optimizer, nesterov),
     .default_text = "false",
     .only = MOMENTUM,
     .description = "Use Nesterov's form."},
    {.name = "weightDecay",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_optimizer, weight_decay),
     .unset = -1,
     .min = 0,
     .default_words = "0; adamw 0.01; lamb 0.01; lars 0.0005",
     .description =
         "adamw: decoupled decay of the weights; lamb and lars: lambda of their formula; else a "
         "term of the gradient."},
    {.name = "lambWeightDecay",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_optimizer, named_weight_decay),
     .unset = -1,
     .min = 0,
     .only = LAMB,
     .default_words = "weightDecay",
     .description = "Paddle's name for weightDecay."},
    {.name = "larsWeightDecay",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_optimizer, named_weight_decay),
     .unset = -1,
     .min = 0,
     .only = LARS,
     .default_words = "weightDecay",
     .description = "Paddle's name for weightDecay."},
    {.name = "weightDecayOn",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_optimizer, weight_decay_on),
     .default_text = "\"matrices\"",
     .choices = decay_on_names,
     .description = "Which tensors decay: those of two and more dimensions, or all."},
    {.name = "regularizer",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_optimizer, regularizer),
     .default_text = "\"l2\"",
     .choices = regularizer_names,
     .only = SGD | MOMENTUM | ADAM,
     .description =
         "What weightDecay adds to the gradient: decay times p (l2) or times the sign of p (l1)."},
    {.name = "larsCoeff",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_ABOVE,
     .offset = offsetof(struct training_optimizer, lars_coeff),
     .default_text = "0.001",
     .min = 0,
     .only = LARS,
     .description = "Trust coefficient eta."},
    {.name = "excludeFromWeightDecay",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_STRING,
     .flags = FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_optimizer, exclude_from_weight_decay),
     .only = LAMB | LARS,
     .description = "Parameters without decay: lars by a part of the name, lamb by its end."},
    {.name = "rescaleGrad",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_ABOVE,
     .offset = offsetof(struct training_optimizer, rescale_grad),
     .default_text = "1",
     .min = 0,
     .description = "Factor on every gradient."},
    {.name = "clip",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct training_optimizer, clip),
     .object = &clip_type,
     .description = "Gradient clipping: at most one of globalNorm, norm, value."},
    {0},
};

static const struct fleet_hint optimizer_field_hints[] = {
    {"lr", "learningRate"},
    {"betas", "beta1 and beta2"},
    {"eps", "epsilon"},
    {"grad_clip", "clip: {globalNorm: …}"},
    {"max_grad_norm", "clip: {globalNorm: …}"},
    {"type", "name"},
    {NULL, NULL},
};

const struct fleet_object training_optimizer_type = {
    .name = "optimizer",
    .hints = optimizer_field_hints,
    .description = "How gradients become updates.",
    .fields = optimizer_fields,
    .size = sizeof(struct training_optimizer),
    .discriminator = "name",
};

/* ---- schedule ------------------------------------------------------------------------------ */

static const char *const schedule_names[] = {
    "constant",           "noam",        "cosine", "polynomial", "piecewise", "exponential",
    "naturalExponential", "inverseTime", "step",   NULL};

static const struct fleet_hint schedule_hints[] = {
    {"linear", "polynomial with power: 1"},
    {"linear_with_warmup", "polynomial with power: 1 and warmupSteps"},
    {"cosine_with_warmup", "cosine with warmupSteps"},
    {"constant_with_warmup", "constant with warmupSteps"},
    {"warmup", "constant with warmupSteps"},
    {"none", "constant"},
    {"exp", "exponential"},
    {"multistep", "piecewise"},
    {NULL, NULL},
};

#define NOAM          (1U << TRAINING_SCHEDULE_NOAM)
#define COSINE        (1U << TRAINING_SCHEDULE_COSINE)
#define POLYNOMIAL    (1U << TRAINING_SCHEDULE_POLYNOMIAL)
#define PIECEWISE     (1U << TRAINING_SCHEDULE_PIECEWISE)
#define EXPONENTIAL   (1U << TRAINING_SCHEDULE_EXPONENTIAL)
#define NATURAL       (1U << TRAINING_SCHEDULE_NATURAL_EXPONENTIAL)
#define INVERSE       (1U << TRAINING_SCHEDULE_INVERSE_TIME)
#define STEP          (1U << TRAINING_SCHEDULE_STEP)
#define ALL_SCHEDULES ((STEP << 1) - 1)

static const struct fleet_field schedule_fields[] = {
    {.name = "name",
     .kind = FLEET_FIELD_ENUM,
     .offset = offsetof(struct training_schedule, name),
     .default_text = "\"constant\"",
     .choices = schedule_names,
     .hints = schedule_hints,
     .description = "How the learning rate changes with the number of updates."},
    {.name = "warmupSteps",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_schedule, warmup_steps),
     .default_text = "0",
     .min = 0,
     .description =
         "Updates of the linear warm-up that comes first; noam's own parameter (at least 1 "
         "there)."},
    {.name = "startLearningRate",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_schedule, start_learning_rate),
     .default_text = "0",
     .min = 0,
     .only = ALL_SCHEDULES & ~NOAM,
     .description = "Where the warm-up starts from."},
    {.name = "minLearningRate",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_schedule, min_learning_rate),
     .unset = -1,
     .min = 0,
     .only = COSINE,
     .default_words = "0.1 × learningRate",
     .description = "Rate of the last update."},
    {.name = "endLearningRate",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_schedule, end_learning_rate),
     .default_text = "0",
     .min = 0,
     .only = POLYNOMIAL,
     .description = "Rate after decaySteps."},
    {.name = "power",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_ABOVE,
     .offset = offsetof(struct training_schedule, power),
     .default_text = "1",
     .min = 0,
     .only = POLYNOMIAL,
     .description = "Exponent of the polynomial."},
    {.name = "decaySteps",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN,
     .offset = offsetof(struct training_schedule, decay_steps),
     .min = 1,
     .only = POLYNOMIAL,
     .default_words = "all updates after the warm-up",
     .description = "Updates until endLearningRate is reached."},
    {.name = "boundaries",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_schedule, boundaries),
     .min = 1,
     .only = PIECEWISE,
     .description = "Updates after the warm-up at which the next value begins, ascending."},
    {.name = "values",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_NUMBER,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_NOT_EMPTY,
     .offset = offsetof(struct training_schedule, values),
     .min = 0,
     .count_max = FLEET_FIELD_LIST_MAX + 1,
     .only = PIECEWISE,
     .description = "Rates, one more than boundaries."},
    {.name = "gamma",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_ABOVE,
     .offset = offsetof(struct training_schedule, gamma),
     .unset = 0,
     .min = 0,
     .only = EXPONENTIAL | NATURAL | INVERSE | STEP,
     .default_words = "step 0.1; else required",
     .description = "Strength of the decay."},
    {.name = "stepSize",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN,
     .offset = offsetof(struct training_schedule, step_size),
     .min = 1,
     .only = STEP,
     .description = "Updates between two decays."},
    {.name = "modelSize",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN,
     .offset = offsetof(struct training_schedule, model_size),
     .min = 1,
     .only = NOAM,
     .description = "Width of the model in noam's formula."},
    {0},
};

static const struct fleet_rule schedule_rules[] = {
    {"self.name != 'noam' || self.warmupSteps >= 1",
     "warmupSteps must be at least 1 with schedule noam", "warmupSteps"},
    {"!has(self.values) || !has(self.boundaries) || size(self.values) == size(self.boundaries) + 1",
     "values must have one entry more than boundaries", "values"},
    {"has(self.gamma) || !(self.name in ['exponential', 'naturalExponential', 'inverseTime'])",
     "gamma is required with this schedule", "gamma"},
    {0},
};

static const struct fleet_hint schedule_field_hints[] = {
    {"warmup", "warmupSteps"},
    {"warmupRatio", "warmupSteps, a number of updates"},
    {"warmup_ratio", "warmupSteps, a number of updates"},
    {"milestones", "boundaries and values"},
    {"minLr", "minLearningRate"},
    {"min_lr", "minLearningRate"},
    {"type", "name"},
    {NULL, NULL},
};

const struct fleet_object training_schedule_type = {
    .name = "schedule",
    .hints = schedule_field_hints,
    .description = "Learning rate of every update.",
    .rules = schedule_rules,
    .fields = schedule_fields,
    .size = sizeof(struct training_schedule),
    .discriminator = "name",
};

const char *training_optimizer_text(enum training_optimizer_name name)
{
    return optimizer_names[name];
}

const char *training_schedule_text(enum training_schedule_name name)
{
    return schedule_names[name];
}
