/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `fleetjob generate` with weights of real jobs: it goes on with a text or with token ids, and
 * its logits are PyTorch's.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/runtime/inference/generator.h"
#include "agent/runtime/inference/weights.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/safetensors.h"
#include "tests/integration/trained_weights_fixture.h"
#include "tests/support/job_folder.h"

#define GPT2 "tests/golden/torch/gpt2"

/* ---- generate -------------------------------------------------------------------------------- */

static char *generate(const char *weights, const char *prompt, const char *const *options)
{
    FLEET_AUTO_FREE char *path = in_folder(weights);
    const char *arguments[16] = {"generate", path, "--prompt", prompt};
    int count = 4;

    while (options && *options)
        arguments[count++] = *options++;
    return command(arguments);
}

#define OPTIONS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void expect_generates(const char *prompt)
{
    FLEET_AUTO_FREE char *greedy = generate("checkpoints", prompt, OPTIONS("--tokens", "40"));
    FLEET_AUTO_FREE char *exported = generate("out", prompt, OPTIONS("--tokens", "40"));
    FLEET_AUTO_FREE char *one =
        generate("out", prompt, OPTIONS("--tokens", "40", "--temperature", "1.5", "--seed", "1"));
    FLEET_AUTO_FREE char *again =
        generate("out", prompt, OPTIONS("--tokens", "40", "--temperature", "1.5", "--seed", "1"));
    FLEET_AUTO_FREE char *two =
        generate("out", prompt, OPTIONS("--tokens", "40", "--temperature", "1.5", "--seed", "2"));
    FLEET_AUTO_FREE char *cold =
        generate("out", prompt, OPTIONS("--tokens", "40", "--temperature", "2", "--top-k", "1"));

    assert_int_equal(strncmp(greedy, prompt, strlen(prompt)), 0);
    assert_string_equal(exported, greedy);
    assert_string_equal(cold, greedy);
    assert_string_equal(one, again);
    assert_string_not_equal(one, two);
    assert_true(strstr(one, "\x1b") == NULL);
}

static void test_trained_weights__generate_goes_on_with_a_text(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *out = NULL;
    FLEET_AUTO_FREE char *alone = NULL;
    struct job job = {.name = "gpt",
                      .model = "name: gpt, layers: 1, heads: 2, width: 16, context: 16",
                      .more = "optimizer: {name: adamw, learningRate: 0.01}"};

    (void)state;
    fleet_strbuf_appendf(&text, "path: %s/" TEXT, here);
    job.data = text.text;
    (void)train(&job);
    export_both();
    expect_generates("The License \xc3\xb6");
    (void)job_folder_remove(state);
    (void)job_folder_make(state);
    fleet_strbuf_appendf(&text,
                         ", tokenizer: bpe, vocabulary: %s/" BPE "/vocab.json, merges: "
                         "%s/" BPE "/merges.txt",
                         here, here);
    job.data = text.text;
    job.name = "llama";
    job.model = "name: llama, layers: 1, heads: 2, width: 16, context: 16";
    (void)train(&job);
    export_both();
    expect_generates("The License  \xc3\xb6");
    out = in_folder("out");
    alone = in_folder("alone.safetensors");
    expect_refused((const char *[]){"generate", alone, "--prompt", "x", NULL},
                   "does not say where its tokenizer is");
    expect_refused((const char *[]){"eval", alone, TEXT, NULL}, "--tokenizer");
    expect_refused((const char *[]){"generate", out, "--prompt", "", NULL}, "empty");
    expect_refused((const char *[]){"generate", out, "--prompt-tokens", "1 700", NULL},
                   "token 700");
    expect_refused((const char *[]){"generate", out, "--prompt", "x", "--seed", "1", NULL},
                   "no effect");
    expect_refused((const char *[]){"generate", out, "--prompt", "x", "--temperature", "-1", NULL},
                   "--temperature");
    expect_refused((const char *[]){"generate", out, NULL}, "--prompt");
}

static void test_trained_weights__token_ids_go_in_and_out(void **state)
{
    FLEET_AUTO_FREE char *checkpoints = in_folder("checkpoints");
    FLEET_AUTO_FREE char *out = NULL;
    struct job job = {.name = "ids",
                      .model = "name: llama, layers: 1, heads: 2, width: 16, context: 16",
                      .data = "tokenizer: synthetic-markov, symbols: 12, validation: 0.00001",
                      .more = ADAMW "evaluation: {everySteps: 6}"};
    double loss = train(&job);
    const char *at;
    int spaces = 0;

    (void)state;
    expect_same_loss("ids", "checkpoints", "-", loss, NULL, NULL);
    out = command((const char *[]){"generate", checkpoints, "--prompt-tokens", "1 2, 3", "--tokens",
                                   "4", NULL});
    assert_int_equal(strncmp(out, "1 2 3 ", 6), 0);
    for (at = out; *at; at++)
        spaces += *at == ' ';
    assert_int_equal(spaces, 6);
    expect_refused((const char *[]){"generate", checkpoints, "--prompt", "x", NULL},
                   "--prompt-tokens");
}

/* ---- logits ---------------------------------------------------------------------------------- */

/* Weights of others with a config.json; the logits after every prefix of PyTorch's first
 * samples. */
static void test_trained_weights__logits_are_pytorchs(void **state)
{
    static const char config[] =
        "{\"model_type\":\"gpt2\",\"n_layer\":4,\"n_head\":4,\"n_embd\":128,\"n_positions\":64,"
        "\"vocab_size\":256,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5}";
    struct safetensors_file batches, forward;
    struct generator *generator;
    struct weights weights;
    struct fleet_error err;
    static float logits[2 * 64 * 256];
    int32_t x[2 * 64];

    (void)state;
    copy_file(GPT2 "/init.safetensors", "model.safetensors");
    write_file("config.json", config, sizeof(config) - 1);
    if (weights_open(folder, NULL, &weights, &err) < 0 ||
        generator_open(&weights, 1, &generator, &err) < 0 ||
        safetensors_open(GPT2 "/batches.safetensors", &batches, &err) < 0 ||
        safetensors_open(GPT2 "/forward.safetensors", &forward, &err) < 0 ||
        safetensors_read_i32(safetensors_find(&batches, "x"), 0, 128, x, &err) < 0 ||
        safetensors_read_f32(safetensors_find(&forward, "logits"), 0, 2 * 64 * 256, logits, &err) <
            0)
        fail_msg("%s", err.text);
    for (int sample = 0; sample < 2; sample++)
        for (int count = 1; count <= 64; count++) {
            const float *found, *wanted = logits + (sample * 64 + count - 1) * 256;
            if (generator_logits(generator, x + sample * 64, count, &found, &err) < 0)
                fail_msg("%s", err.text);
            for (int i = 0; i < 256; i++)
                if (fabsf(found[i] - wanted[i]) > 1e-4f)
                    fail_msg("sample %d, %d tokens, logit %d: %g, PyTorch's %g", sample, count, i,
                             (double)found[i], (double)wanted[i]);
        }
    generator_free(generator);
    weights_release(&weights);
    safetensors_release(&batches);
    safetensors_release(&forward);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_trained_weights__generate_goes_on_with_a_text),
        IN_FOLDER(test_trained_weights__token_ids_go_in_and_out),
        IN_FOLDER(test_trained_weights__logits_are_pytorchs),
    };

    if (find_everything() < 0)
        return 1;
    return cmocka_run_group_tests_name("generate", tests, NULL, NULL);
}
