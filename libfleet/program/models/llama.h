/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_LLAMA_H
#define LIBFLEET_PROGRAM_MODELS_LLAMA_H

#define LLAMA_EPSILON   1e-6 /* of every rms_norm */
#define LLAMA_ROPE_BASE 10000.0

struct builder;
struct training_config;

/* Llama as spec.training.model says: names and layouts of Hugging Face's LlamaForCausalLM. */
void llama_build(struct builder *b, const struct training_config *config);

#endif
