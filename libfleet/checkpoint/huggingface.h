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
 * Everything that transformers would fill with a default of its own (special tokens, epsilon, base
 * of the rotary positions) is written out, because its defaults are those of other models. Pure.
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

/* config.json, owned by the caller; NULL for models that transformers does not have under the
 * names of our tensors (resnet, mlp). `end_of_text` is the id of that token, -1 if the tokenizer
 * has none. */
cJSON *huggingface_config(const struct training_model *model, int64_t end_of_text);

/*
 * Back from config.json, as far as our models go. -EINVAL names the key, its value and what is
 * supported: another architecture, grouped key-value heads, scaled rotary positions, … . *out is to
 * not be released: it holds no pointers.
 */
int huggingface_config_decode(const cJSON *config, struct training_model *out,
                              struct fleet_error *err);

/* tokenizer_config.json for a model of `context` tokens; owned by the caller. */
cJSON *huggingface_tokenizer_config(int64_t context, bool has_end_of_text);

/* vocab.json of `tokenizer: bytes`: token i is the byte i. Its merges.txt is
 * HUGGINGFACE_NO_MERGES. */
void huggingface_byte_vocabulary(struct fleet_strbuf *out);
#define HUGGINGFACE_NO_MERGES "#version: 0.2\n"

#endif
