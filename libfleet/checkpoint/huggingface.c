/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/checkpoint/huggingface.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/checkpoint/vocabulary.h"
#include "libfleet/program/models/gpt.h"
#include "libfleet/program/models/llama.h"
#include "libfleet/training/training.h"

/* ---- writing --------------------------------------------------------------------------------- */

static void add_int(cJSON *to, const char *key, int64_t value)
{
    fleet_json_set_number(to, key, (double)value);
}

static void add_id(cJSON *to, const char *key, int64_t id)
{
    if (id >= 0)
        add_int(to, key, id);
    else
        fleet_json_set_null(to, key);
}

static cJSON *begin(const char *type, const char *architecture)
{
    cJSON *config = fleet_json_new_object(), *list;

    list = fleet_json_set_list(config, "architectures");
    fleet_json_add_string(list, architecture);
    fleet_json_set_string(config, "model_type", type);
    return config;
}

/* Keys that both models have. */
static cJSON *end(cJSON *config, const struct training_model *model, int64_t end_of_text)
{
    add_int(config, "vocab_size", model->vocabulary);
    fleet_json_set_bool(config, "tie_word_embeddings", model->tie_embeddings);
    add_id(config, "bos_token_id", end_of_text);
    add_id(config, "eos_token_id", end_of_text);
    fleet_json_set_number(config, "initializer_range", 0.02);
    fleet_json_set_string(config, "torch_dtype", "float32");
    fleet_json_set_bool(config, "use_cache", true);
    return config;
}

static cJSON *gpt_config(const struct training_model *model, int64_t end_of_text)
{
    cJSON *config = begin("gpt2", "GPT2LMHeadModel");

    add_int(config, "n_layer", model->layers);
    add_int(config, "n_head", model->heads);
    add_int(config, "n_embd", model->width);
    add_int(config, "n_inner", model->hidden);
    add_int(config, "n_positions", model->context);
    add_int(config, "n_ctx", model->context);
    fleet_json_set_string(config, "activation_function", "gelu_new");
    fleet_json_set_number(config, "layer_norm_epsilon", GPT_EPSILON);
    fleet_json_set_number(config, "embd_pdrop", model->dropout);
    fleet_json_set_number(config, "resid_pdrop", model->dropout);
    fleet_json_set_number(config, "attn_pdrop", 0); /* our attention drops no probabilities */
    fleet_json_set_bool(config, "scale_attn_weights", true);
    return end(config, model, end_of_text);
}

static cJSON *llama_config(const struct training_model *model, int64_t end_of_text)
{
    cJSON *config = begin("llama", "LlamaForCausalLM"), *rope;

    add_int(config, "num_hidden_layers", model->layers);
    add_int(config, "num_attention_heads", model->heads);
    add_int(config, "num_key_value_heads", model->kv_heads);
    add_int(config, "head_dim", model->width / model->heads);
    add_int(config, "hidden_size", model->width);
    add_int(config, "intermediate_size", model->hidden);
    add_int(config, "max_position_embeddings", model->context);
    fleet_json_set_string(config, "hidden_act", "silu");
    fleet_json_set_number(config, "rms_norm_eps", LLAMA_EPSILON);
    fleet_json_set_number(config, "rope_theta", LLAMA_ROPE_BASE); /* transformers < 5 */
    rope = fleet_json_set_object(config, "rope_parameters");      /* since 5 */
    fleet_json_set_string(rope, "rope_type", "default");
    fleet_json_set_number(rope, "rope_theta", LLAMA_ROPE_BASE);
    fleet_json_set_bool(config, "attention_bias", false);
    fleet_json_set_bool(config, "mlp_bias", false);
    fleet_json_set_number(config, "attention_dropout", 0);
    return end(config, model, end_of_text);
}

cJSON *huggingface_config(const struct training_model *model, int64_t end_of_text)
{
    switch (model->name) {
    case TRAINING_MODEL_GPT:
        return gpt_config(model, end_of_text);
    case TRAINING_MODEL_LLAMA:
        return llama_config(model, end_of_text);
    default:
        return NULL;
    }
}

static void add_special(cJSON *to, const char *key, bool has_end_of_text)
{
    if (has_end_of_text)
        fleet_json_set_string(to, key, HUGGINGFACE_END_OF_TEXT);
    else
        fleet_json_set_null(to, key);
}

cJSON *huggingface_tokenizer_config(int64_t context, bool has_end_of_text)
{
    cJSON *config = fleet_json_new_object();

    fleet_json_set_string(config, "tokenizer_class", "GPT2Tokenizer");
    fleet_json_set_bool(config, "add_prefix_space", false);
    fleet_json_set_bool(config, "add_bos_token", false);
    fleet_json_set_bool(config, "clean_up_tokenization_spaces", false);
    add_special(config, "bos_token", has_end_of_text);
    add_special(config, "eos_token", has_end_of_text);
    add_special(config, "unk_token", has_end_of_text);
    add_int(config, "model_max_length", context);
    return config;
}

void huggingface_byte_vocabulary(struct fleet_strbuf *out)
{
    for (int byte = 0; byte < 256; byte++) {
        char spelled[VOCABULARY_SPELLED_BYTE];
        vocabulary_spell_byte(byte, spelled);
        fleet_strbuf_append(out, byte ? "," : "{");
        fleet_json_append_string(out, spelled);
        fleet_strbuf_appendf(out, ":%d", byte);
    }
    fleet_strbuf_append(out, "}\n");
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A key that must have one value, or be absent. */
static int expect_number(const cJSON *config, const char *key, double expected,
                         struct fleet_error *err)
{
    double value = expected;

    if (fleet_json_opt_number(config, key, &value, err) < 0)
        return err->code;
    if (fabs(value - expected) <= 1e-12 * fabs(expected))
        return 0;
    return fleet_error(err, -EINVAL, "%s: %.10g is not supported, only %.10g is", key, value,
                       expected);
}

static int expect_text(const cJSON *config, const char *key, const char *expected,
                       struct fleet_error *err)
{
    const char *value = expected;

    if (fleet_json_opt_string(config, key, &value, err) < 0)
        return err->code;
    return strcmp(value, expected) == 0
               ? 0
               : fleet_error(err, -EINVAL, "%s: \"%s\" is not supported, only \"%s\" is", key,
                             value, expected);
}

static int expect_bool(const cJSON *config, const char *key, bool expected, struct fleet_error *err)
{
    bool value = expected;

    if (fleet_json_opt_bool(config, key, &value, err) < 0)
        return err->code;
    return value == expected ? 0
                             : fleet_error(err, -EINVAL, "%s: %s is not supported", key,
                                           value ? "true" : "false");
}

static int get_size(const cJSON *config, const char *key, int64_t *out, struct fleet_error *err)
{
    if (fleet_json_get_int(config, key, out, err) < 0)
        return err->code;
    return *out >= 1 && *out <= INT32_MAX
               ? 0
               : fleet_error(err, -EINVAL, "%s: %lld is not a size", key, (long long)*out);
}

static int decode_gpt(const cJSON *c, struct training_model *m, struct fleet_error *err)
{
    m->name = TRAINING_MODEL_GPT;
    m->tie_embeddings = true; /* transformers' default */
    if (get_size(c, "n_layer", &m->layers, err) < 0 || get_size(c, "n_head", &m->heads, err) < 0 ||
        get_size(c, "n_embd", &m->width, err) < 0 ||
        get_size(c, "n_positions", &m->context, err) < 0 ||
        expect_text(c, "activation_function", "gelu_new", err) < 0 ||
        expect_number(c, "layer_norm_epsilon", GPT_EPSILON, err) < 0 ||
        expect_bool(c, "scale_attn_weights", true, err) < 0 ||
        expect_bool(c, "scale_attn_by_inverse_layer_idx", false, err) < 0)
        return err->code;
    m->hidden = 4 * m->width;
    return cJSON_IsNumber(fleet_json_at(c, "n_inner")) ? get_size(c, "n_inner", &m->hidden, err)
                                                       : 0;
}

/* Both numbers of heads; without the second one keys and values have as many as queries. */
static int get_heads(const cJSON *c, struct training_model *m, struct fleet_error *err)
{
    if (get_size(c, "num_attention_heads", &m->heads, err) < 0)
        return err->code;
    m->kv_heads = m->heads;
    if (fleet_json_opt_int(c, "num_key_value_heads", &m->kv_heads, err) < 0 ||
        (m->kv_heads != m->heads && get_size(c, "num_key_value_heads", &m->kv_heads, err) < 0))
        return err->code;
    return m->heads % m->kv_heads == 0
               ? 0
               : fleet_error(err, -EINVAL,
                             "num_key_value_heads: %lld does not divide the %lld attention heads",
                             (long long)m->kv_heads, (long long)m->heads);
}

static int decode_llama(const cJSON *c, struct training_model *m, struct fleet_error *err)
{
    m->name = TRAINING_MODEL_LLAMA;
    if (get_heads(c, m, err) < 0 || get_size(c, "num_hidden_layers", &m->layers, err) < 0 ||
        get_size(c, "hidden_size", &m->width, err) < 0 ||
        get_size(c, "intermediate_size", &m->hidden, err) < 0 ||
        get_size(c, "max_position_embeddings", &m->context, err) < 0 ||
        expect_number(c, "head_dim", (double)m->width / (double)m->heads, err) < 0 ||
        expect_text(c, "hidden_act", "silu", err) < 0 ||
        expect_number(c, "rms_norm_eps", LLAMA_EPSILON, err) < 0 ||
        expect_number(c, "rope_theta", LLAMA_ROPE_BASE, err) < 0 ||
        expect_number(c, "rope_parameters.rope_theta", LLAMA_ROPE_BASE, err) < 0 ||
        expect_text(c, "rope_parameters.rope_type", "default", err) < 0 ||
        expect_bool(c, "attention_bias", false, err) < 0 ||
        expect_bool(c, "mlp_bias", false, err) < 0)
        return err->code;
    if (cJSON_IsObject(fleet_json_at(c, "rope_scaling")))
        return fleet_error(err, -EINVAL, "rope_scaling: scaled rotary positions are not supported");
    return 0;
}

int huggingface_config_decode(const cJSON *config, struct training_model *out,
                              struct fleet_error *err)
{
    struct training_model model = {0};
    struct fleet_error ignored;
    const char *type;

    err = err ? err : &ignored;
    if (fleet_json_get_string(config, "model_type", &type, err) < 0)
        return err->code;
    if (strcmp(type, "gpt2") != 0 && strcmp(type, "llama") != 0)
        return fleet_error(err, -EINVAL, "model_type: \"%s\" is not supported, only gpt2 and llama",
                           type);
    if ((strcmp(type, "gpt2") == 0 ? decode_gpt : decode_llama)(config, &model, err) < 0 ||
        get_size(config, "vocab_size", &model.vocabulary, err) < 0 ||
        fleet_json_opt_bool(config, "tie_word_embeddings", &model.tie_embeddings, err) < 0)
        return err->code;
    if (model.width % model.heads != 0)
        return fleet_error(err, -EINVAL, "the width %lld is not divisible by %lld heads",
                           (long long)model.width, (long long)model.heads);
    *out = model;
    return 0;
}
