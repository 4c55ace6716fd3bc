/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/inference/generator.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/registry.h"
#include "agent/runtime/inference/forward.h"
#include "agent/runtime/inference/weights.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"

#define LENGTH_LEAST 32 /* tokens of the shortest program */

struct generator {
    const struct job_record *model; /* &own */
    struct job_record own;          /* only the training block: model, one sample, fp32 */
    struct backend *backend;
    struct forward *parameters; /* of the whole context; runs nothing */
    struct forward *forward;    /* of `length` tokens */
    int64_t length;
    float *logits; /* [vocabulary] of the newest call */
};

/* ---- opening --------------------------------------------------------------------------------- */

/* The model in fp32, one sample a micro-batch, for every strategy of the job. Borrows texts. */
static void make_record(struct generator *g, const struct job_record *record)
{
    g->own = (struct job_record){.training = record->training};
    g->own.training.precision = TRAINING_FP32;
    g->own.training.precision_given = true;
    g->own.training.global_batch_size = 1;
    g->own.training.micro_batch_size = 1;
    strategy_init(&g->own.strategy.strategy);
    strategy_options_init(&g->own.strategy.options);
    g->model = &g->own;
}

static int open_parameters(struct generator *g, const struct weights *weights, int threads,
                           struct fleet_error *err)
{
    struct forward_options options = {.parameters_only = true};
    int rc = backend_open(threads, &g->backend, err);

    if (rc < 0)
        return rc;
    options.backend = g->backend;
    rc = forward_new(g->model, &options, &g->parameters, err);
    return rc < 0 ? rc : forward_load(g->parameters, weights, err);
}

int generator_open(const struct weights *weights, int threads, struct generator **out,
                   struct fleet_error *err)
{
    const struct training_model *model = &weights->record.training.model;
    struct generator *g;
    int rc;

    if (model->name != TRAINING_MODEL_GPT && model->name != TRAINING_MODEL_LLAMA)
        return fleet_error(err, -EINVAL,
                           "%s: the model is a %s, which makes no text; gpt and llama do",
                           weights->path, training_model_text(model->name));
    g = calloc(1, sizeof(*g));
    fleet_assert(g != NULL);
    make_record(g, &weights->record);
    rc = open_parameters(g, weights, threads, err);
    if (rc < 0) {
        generator_free(g);
        return rc;
    }
    g->logits = calloc((size_t)generator_vocabulary(g), sizeof(*g->logits));
    fleet_assert(g->logits != NULL);
    *out = g;
    return 0;
}

void generator_free(struct generator *generator)
{
    if (!generator)
        return;
    forward_free(generator->forward);
    forward_free(generator->parameters);
    backend_free(generator->backend);
    strategy_spec_release(&generator->own.strategy);
    free(generator->logits);
    free(generator);
}

int64_t generator_vocabulary(const struct generator *generator)
{
    return generator->own.training.model.vocabulary;
}

int64_t generator_context(const struct generator *generator)
{
    return generator->parameters->program.tokens_per_sample;
}

/* ---- logits ---------------------------------------------------------------------------------- */

/* Make sure that there is a program for at least `count` tokens. */
static int use_length(struct generator *g, int64_t count, struct fleet_error *err)
{
    struct forward_options options = {
        .backend = g->backend, .without_loss = true, .parameters = g->parameters};
    int64_t context = generator_context(g), length = LENGTH_LEAST;
    struct job_record shorter = *g->model;

    while (length < count)
        length *= 2;
    if (length > context)
        length = context;
    if (g->forward && g->length == length)
        return 0;
    forward_free(g->forward);
    g->forward = NULL;
    shorter.training.model.context = length;
    g->length = length;
    return forward_new(&shorter, &options, &g->forward, err);
}

/* Tokens [0, count), then zeros. */
static void load_tokens(struct generator *g, const int32_t *tokens, int64_t count)
{
    struct forward *forward = g->forward;
    int32_t *ids = state_map(&forward->state, forward->inputs, BACKEND_WRITE);

    memset(ids, 0, (size_t)g->length * sizeof(*ids));
    for (int64_t i = 0; i < count; i++) {
        fleet_assert(tokens[i] >= 0 && tokens[i] < generator_vocabulary(g));
        ids[i] = tokens[i];
    }
    state_unmap(&forward->state, forward->inputs, BACKEND_WRITE, ids);
}

int generator_logits(struct generator *generator, const int32_t *tokens, int64_t count,
                     const float **out, struct fleet_error *err)
{
    static const atomic_bool never;
    int64_t context = generator_context(generator), vocabulary = generator_vocabulary(generator);
    struct run_scalars scalars = {.evaluation = true};
    struct forward *forward;
    const float *logits;
    int rc;

    fleet_assert(count >= 1);
    if (count > context) {
        tokens += count - context;
        count = context;
    }
    rc = use_length(generator, count, err);
    if (rc < 0)
        return rc;
    forward = generator->forward;
    load_tokens(generator, tokens, count);
    rc = executor_run(forward->executor, PROGRAM_SECTION_MICRO_BATCH, &forward->state.bases,
                      &scalars, &never, err);
    if (rc < 0)
        return rc;
    logits = state_address(&forward->state, forward->logits);
    generator->backend->vtable->copy_out(generator->backend, generator->logits,
                                         logits + (count - 1) * vocabulary,
                                         (size_t)vocabulary * sizeof(*logits));
    *out = generator->logits;
    return 0;
}

/* ---- choosing -------------------------------------------------------------------------------- */

static int32_t likeliest(const float *logits, int64_t vocabulary)
{
    int32_t best = 0;

    for (int64_t i = 1; i < vocabulary; i++)
        if (logits[i] > logits[best])
            best = (int32_t)i;
    return best;
}

struct candidate {
    float logit;
    int32_t token;
};

/* By probability, the highest first; of equal ones the smallest token first. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

/* Uniform in [0, 1) with 53 bits. */
static double random_share(uint64_t seed, int64_t number)
{
    struct fleet_random_key key = fleet_random_key(seed, "generate", 0);

    return (double)(fleet_random_u64(key, (uint64_t)number) >> 11) * 0x1p-53;
}

static int32_t sample(const struct candidate *candidates, int64_t count, double temperature,
                      double share)
{
    double sum = 0, reached = 0;

    for (int64_t i = 0; i < count; i++)
        sum += exp(((double)candidates[i].logit - (double)candidates[0].logit) / temperature);
    for (int64_t i = 0; i < count; i++) {
        reached += exp(((double)candidates[i].logit - (double)candidates[0].logit) / temperature);
        if (reached > share * sum)
            return candidates[i].token;
    }
    return candidates[0].token; /* not finite logits */
}

int32_t generator_choose(const float *logits, int64_t vocabulary,
                         const struct generator_options *options, int64_t number)
{
    FLEET_AUTO_FREE struct candidate *candidates = NULL;
    int64_t count = vocabulary;

    if (options->temperature <= 0)
        return likeliest(logits, vocabulary);
    candidates = malloc((size_t)vocabulary * sizeof(*candidates));
    fleet_assert(candidates != NULL);
    for (int64_t i = 0; i < vocabulary; i++)
        candidates[i] = (struct candidate){logits[i], (int32_t)i};
    qsort(candidates, (size_t)vocabulary, sizeof(*candidates), compare_candidates);
    if (options->top_k > 0 && options->top_k < count)
        count = options->top_k;
    return sample(candidates, count, options->temperature, random_share(options->seed, number));
}

int generator_next(struct generator *generator, const int32_t *tokens, int64_t count,
                   const struct generator_options *options, int64_t number, int32_t *out,
                   struct fleet_error *err)
{
    const float *logits;
    int rc = generator_logits(generator, tokens, count, &logits, err);

    if (rc == 0)
        *out = generator_choose(logits, generator_vocabulary(generator), options, number);
    return rc;
}
