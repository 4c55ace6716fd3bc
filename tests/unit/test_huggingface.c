/* SPDX-License-Identifier: Apache-2.0 */

/* config.json and the tokenizer's files say what our models are, not what transformers would
 * assume. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/huggingface.h"
#include "libfleet/checkpoint/vocabulary.h"
#include "libfleet/training/training.h"

static const struct training_model gpt = {.name = TRAINING_MODEL_GPT,
                                          .layers = 3,
                                          .heads = 4,
                                          .width = 64,
                                          .hidden = 100,
                                          .context = 48,
                                          .vocabulary = 1000,
                                          .dropout = 0.1,
                                          .tie_embeddings = true};
static const struct training_model llama = {.name = TRAINING_MODEL_LLAMA,
                                            .layers = 2,
                                            .heads = 8,
                                            .kv_heads = 4,
                                            .width = 64,
                                            .hidden = 96,
                                            .context = 32,
                                            .vocabulary = 256};

static void expect_json(const cJSON *found, const char *expected)
{
    cJSON *json = cJSON_Parse(expected);
    FLEET_AUTO_FREE char *text = fleet_json_print(found);

    assert_non_null(json);
    if (!fleet_json_equal(found, json))
        fail_msg("found %s", text);
    cJSON_Delete(json);
}

static void test_huggingface__gpt_config(void **state)
{
    cJSON *config = huggingface_config(&gpt, 999);

    (void)state;
    expect_json(config,
                "{\"architectures\":[\"GPT2LMHeadModel\"],\"model_type\":\"gpt2\",\"n_layer\":3,"
                "\"n_head\":4,\"n_embd\":64,\"n_inner\":100,\"n_positions\":48,\"n_ctx\":48,"
                "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5,"
                "\"embd_pdrop\":0.1,\"resid_pdrop\":0.1,\"attn_pdrop\":0,"
                "\"scale_attn_weights\":true,\"vocab_size\":1000,\"tie_word_embeddings\":true,"
                "\"bos_token_id\":999,\"eos_token_id\":999,\"initializer_range\":0.02,"
                "\"torch_dtype\":\"float32\",\"use_cache\":true}");
    cJSON_Delete(config);
}

static void test_huggingface__llama_config(void **state)
{
    cJSON *config = huggingface_config(&llama, -1);

    (void)state;
    expect_json(config,
                "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":4,"
                "\"head_dim\":8,\"hidden_size\":64,\"intermediate_size\":96,"
                "\"max_position_embeddings\":32,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,"
                "\"rope_theta\":10000,\"rope_parameters\":{\"rope_type\":\"default\","
                "\"rope_theta\":10000},\"attention_bias\":false,\"mlp_bias\":false,"
                "\"attention_dropout\":0,\"vocab_size\":256,\"tie_word_embeddings\":false,"
                "\"bos_token_id\":null,\"eos_token_id\":null,\"initializer_range\":0.02,"
                "\"torch_dtype\":\"float32\",\"use_cache\":true}");
    cJSON_Delete(config);
}

static void test_huggingface__other_models_have_none(void **state)
{
    (void)state;
    assert_null(huggingface_config(&(struct training_model){.name = TRAINING_MODEL_RESNET}, -1));
    assert_null(huggingface_config(&(struct training_model){.name = TRAINING_MODEL_MLP}, -1));
}

static void expect_back(const struct training_model *model)
{
    cJSON *config = huggingface_config(model, -1);
    struct training_model back;
    struct fleet_error err;

    if (huggingface_config_decode(config, &back, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(back.name, model->name);
    assert_int_equal(back.layers, model->layers);
    assert_int_equal(back.heads, model->heads);
    assert_int_equal(back.kv_heads, model->kv_heads);
    assert_int_equal(back.width, model->width);
    assert_int_equal(back.hidden, model->hidden);
    assert_int_equal(back.context, model->context);
    assert_int_equal(back.vocabulary, model->vocabulary);
    assert_int_equal(back.tie_embeddings, model->tie_embeddings);
    cJSON_Delete(config);
}

static void test_huggingface__a_config_reads_back(void **state)
{
    (void)state;
    expect_back(&gpt);
    expect_back(&llama);
}

/* The file that GPT-2 is published with leaves much out: the defaults are transformers'. */
static void test_huggingface__published_gpt2_reads(void **state)
{
    cJSON *config = cJSON_Parse("{\"activation_function\":\"gelu_new\",\"model_type\":\"gpt2\","
                                "\"n_ctx\":1024,\"n_embd\":768,\"n_head\":12,\"n_layer\":12,"
                                "\"n_positions\":1024,\"vocab_size\":50257,"
                                "\"layer_norm_epsilon\":1e-05,\"n_inner\":null}");
    struct training_model model;
    struct fleet_error err;

    (void)state;
    if (huggingface_config_decode(config, &model, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(model.hidden, 3072);
    assert_true(model.tie_embeddings);
    cJSON_Delete(config);
}

/* `change` replaces a key of the llama's config; the error names `words`. */
static void expect_refused(const char *key, const char *value, const char *words)
{
    cJSON *config = huggingface_config(&llama, -1);
    struct training_model model;
    struct fleet_error err;

    cJSON_DeleteItemFromObjectCaseSensitive(config, key);
    cJSON_AddItemToObject(config, key, cJSON_Parse(value));
    assert_int_equal(huggingface_config_decode(config, &model, &err), -EINVAL);
    if (!strstr(err.text, words))
        fail_msg("%s: %s", key, err.text);
    cJSON_Delete(config);
}

static void test_huggingface__what_we_do_not_have_is_refused(void **state)
{
    (void)state;
    expect_refused("model_type", "\"mistral\"", "\"mistral\" is not supported");
    expect_refused("num_key_value_heads", "3",
                   "num_key_value_heads: 3 does not divide the 8 attention");
    expect_refused("num_key_value_heads", "0", "num_key_value_heads: 0 is not a size");
    expect_refused("num_key_value_heads", "\"4\"", "num_key_value_heads");
    expect_refused("rope_theta", "500000", "rope_theta: 500000");
    expect_refused("rms_norm_eps", "1e-5", "rms_norm_eps: 1e-05");
    expect_refused("attention_bias", "true", "attention_bias");
    expect_refused("hidden_act", "\"gelu\"", "hidden_act");
    expect_refused("rope_scaling", "{\"factor\":8}", "rope_scaling");
    expect_refused("hidden_size", "65", "head_dim");
    expect_refused("num_hidden_layers", "0", "num_hidden_layers");
}

static void test_huggingface__bytes_have_a_vocabulary(void **state)
{
    struct fleet_strbuf text = {0};
    struct vocabulary vocabulary;
    struct fleet_error err;

    (void)state;
    huggingface_byte_vocabulary(&text);
    if (vocabulary_decode(text.text, text.length, &vocabulary, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(vocabulary.size, 256);
    for (int byte = 0; byte < 256; byte++)
        assert_int_equal(vocabulary.byte_ids[byte], byte);
    vocabulary_release(&vocabulary);
    fleet_strbuf_release(&text);
}

static void test_huggingface__a_token_is_spelled_back(void **state)
{
    (void)state;
    for (int byte = 0; byte < 256; byte++) {
        char spelled[VOCABULARY_SPELLED_BYTE], back[VOCABULARY_SPELLED_BYTE];
        vocabulary_spell_byte(byte, spelled);
        assert_int_equal(vocabulary_unspell(spelled, back), 1);
        assert_int_equal((unsigned char)back[0], byte);
    }
    for (const char *const *token = (const char *const[]){"<|endoftext|>", "\xe4\xb8\xad", NULL};
         *token; token++) {
        char back[32];
        size_t size = vocabulary_unspell(*token, back);
        assert_int_equal(size, strlen(*token));
        assert_memory_equal(back, *token, size);
    }
}

static void test_huggingface__special_tokens_are_written_out(void **state)
{
    cJSON *with = huggingface_tokenizer_config(64, true);
    cJSON *without = huggingface_tokenizer_config(64, false);

    (void)state;
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(with, "eos_token")),
                        "<|endoftext|>");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(without, "eos_token")));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(without, "unk_token")));
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(without, "tokenizer_class")),
                        "GPT2Tokenizer");
    cJSON_Delete(with);
    cJSON_Delete(without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_huggingface__gpt_config),
        cmocka_unit_test(test_huggingface__llama_config),
        cmocka_unit_test(test_huggingface__other_models_have_none),
        cmocka_unit_test(test_huggingface__a_config_reads_back),
        cmocka_unit_test(test_huggingface__published_gpt2_reads),
        cmocka_unit_test(test_huggingface__what_we_do_not_have_is_refused),
        cmocka_unit_test(test_huggingface__bytes_have_a_vocabulary),
        cmocka_unit_test(test_huggingface__a_token_is_spelled_back),
        cmocka_unit_test(test_huggingface__special_tokens_are_written_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
