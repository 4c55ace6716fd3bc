/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_GENERATOR_H
#define AGENT_RUNTIME_INFERENCE_GENERATOR_H

/*
 * Generates text with a gpt or llama model, token by token: `fleetjob generate`.
 *
 * For each token the model's forward program runs in fp32 over the text so far, padded to a power
 * of two. Causal attention ignores the padding. Nothing is kept between tokens, so the time per
 * token grows with the text. If the text is longer than model.context, the oldest tokens are left
 * out.
 *
 * The same weights, text, options and instruction-set level give the same tokens.
 */

#include <stdint.h>

struct fleet_error;
struct generator;
struct weights;

struct generator_options {
    /* 0: the likeliest token, the smallest if several are equal; > 0: sample softmax(logits / t) */
    double temperature;
    int64_t top_k; /* > 0: sample only among this number of likeliest tokens */
    uint64_t seed;
};

/* -EINVAL for a model that does not make text (resnet, mlp); errors of weights_load().
 * `threads`: 0 = what the CPU quota allows. `weights` is borrowed for the call. */
int generator_open(const struct weights *weights, int threads, struct generator **out,
                   struct fleet_error *err);
void generator_free(struct generator *generator); /* NULL is fine */

int64_t generator_vocabulary(const struct generator *generator);
int64_t generator_context(const struct generator *generator);

/* The logits [vocabulary] after tokens[0 … count), count >= 1, every token in [0, vocabulary)
 * (asserted). Borrowed until the next call. Errors of the kernels; -ENOMEM. */
int generator_logits(struct generator *generator, const int32_t *tokens, int64_t count,
                     const float **out, struct fleet_error *err);

/* The token after tokens[0 … count). `number` (0, 1, …) counts the generated tokens; it keys the
 * random number. */
int generator_next(struct generator *generator, const int32_t *tokens, int64_t count,
                   const struct generator_options *options, int64_t number, int32_t *out,
                   struct fleet_error *err);

/* The token that `options` choose from logits[vocabulary]. A pure function. */
int32_t generator_choose(const float *logits, int64_t vocabulary,
                         const struct generator_options *options, int64_t number);

#endif
