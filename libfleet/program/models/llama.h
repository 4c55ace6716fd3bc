/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_MODELS_LLAMA_H
#define LIBFLEET_PROGRAM_MODELS_LLAMA_H

struct builder;
struct training_config;

/* Llama as spec.training.model says: names and layouts of Hugging Face's LlamaForCausalLM. */
void llama_build(struct builder *b, const struct training_config *config);

#endif
