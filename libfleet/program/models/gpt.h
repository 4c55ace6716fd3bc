/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_GPT_H
#define LIBFLEET_PROGRAM_MODELS_GPT_H

#define GPT_EPSILON 1e-5 /* of every layer_norm */

struct builder;
struct training_config;

/* GPT-2 as spec.training.model says: names and layouts of Hugging Face's GPT2LMHeadModel. */
void gpt_build(struct builder *b, const struct training_config *config);

#endif
