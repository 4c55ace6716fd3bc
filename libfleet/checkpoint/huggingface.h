/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_HUGGINGFACE_H
#define LIBFLEET_CHECKPOINT_HUGGINGFACE_H

/*
 * The small files beside model.safetensors that transformers' from_pretrained() reads:
 *
 *     config.json            sizes and constants of the model: GPT2LMHeadModel or LlamaForCausalLM
 *     vocab.json, merges.txt the tokenizer, in the format of GPT-2
 *     tokenizer_config.json  which class of tokenizer reads them
 *
 * transformers has defaults for special tokens, epsilon and the base of the rotary positions. These
 * belong to other models, so the files state each of these values. Pure.
 */

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

struct fleet_error;
struct fleet_strbuf;
struct training_model;

#define HUGGINGFACE_CONFIG           "config.json"
#define HUGGINGFACE_WEIGHTS          "model.safetensors"
#define HUGGINGFACE_VOCABULARY       "vocab.json"
#define HUGGINGFACE_MERGES           "merges.txt"
#define HUGGINGFACE_TOKENIZER_CONFIG "tokenizer_config.json"
#define HUGGINGFACE_END_OF_TEXT      "<|endoftext|>" /* GPT-2's only special token */
#define HUGGINGFACE_CONFIG_SIZE_MAX  (1u << 20)

/* config.json; the caller deletes it. NULL for resnet and mlp, which transformers cannot load from
 * our tensors. `end_of_text` is the id of HUGGINGFACE_END_OF_TEXT, -1 if the tokenizer lacks it. */
cJSON *huggingface_config(const struct training_model *model, int64_t end_of_text);

/*
 * Read a config.json. -EINVAL: a model that we cannot run (another architecture, scaled rotary
 * positions, …); the error names the key, its value and the supported values.
 * *out holds no pointers, so it needs no release.
 */
int huggingface_config_decode(const cJSON *config, struct training_model *out,
                              struct fleet_error *err);

/* tokenizer_config.json for a model with a context of `context` tokens; the caller deletes it. */
cJSON *huggingface_tokenizer_config(int64_t context, bool has_end_of_text);

/* Append the vocab.json of `tokenizer: bytes`, in which token i is byte i. The text of its
 * merges.txt is HUGGINGFACE_NO_MERGES. */
void huggingface_byte_vocabulary(struct fleet_strbuf *out);
#define HUGGINGFACE_NO_MERGES "#version: 0.2\n"

#endif
