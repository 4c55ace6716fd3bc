/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_GENERATOR_H
#define AGENT_RUNTIME_INFERENCE_GENERATOR_H

/*
 * One token after another from a gpt or llama: `fleetjob generate`.
 *
 * Each token runs the model's forward program in fp32 over the text so far, padded to a power of
 * two; causal attention makes the padding invisible. Nothing is kept between tokens, so the time of
 * a token grows with the text. Beyond model.context the oldest tokens are left out.
 *
 * The same weights, text, options and instruction-set level give the same tokens.
 */

#include <stdint.h>

struct fleet_error;
struct generator;
struct weights;

struct generator_options {
    /* 0: the likeliest token, of equals the smallest; > 0: sample softmax(logits / t) */
    double temperature;
    int64_t top_k; /* > 0: sample among so many likeliest only */
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

/* The token after them; `number` (0, 1, …) is its own, which keys the random number. */
int generator_next(struct generator *generator, const int32_t *tokens, int64_t count,
                   const struct generator_options *options, int64_t number, int32_t *out,
                   struct fleet_error *err);

/* Which token `options` choose from logits[vocabulary]: pure. */
int32_t generator_choose(const float *logits, int64_t vocabulary,
                         const struct generator_options *options, int64_t number);

#endif
