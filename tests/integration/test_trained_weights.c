/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Trained weights in use: `fleetjob eval` gives the loss that the job's own evaluation gave, bit
 * for bit, from the checkpoint, from an exported folder and from an exported file; `fleetjob
 * generate` goes on with a text, the same way each time. The logits are PyTorch's as recorded in
 * tests/golden/torch/gpt2.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/error.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/safetensors.h"
#include "tests/integration/trained_weights_fixture.h"
#include "tests/support/job_folder.h"

/* ---- eval ------------------------------------------------------------------------------------ */

/* One job after another in fresh folders. */
static void expect_own_numbers(const struct job *job, const char *data, const char *tokenizer)
{
    double loss = train(job);

    assert_false(isnan(loss));
    export_both();
    expect_same_loss(job->name, "checkpoints", data, loss, NULL, NULL);
    expect_same_loss(job->name, "out", data, loss, NULL, NULL);
    expect_same_loss(job->name, "alone.safetensors", data, loss, tokenizer ? "--tokenizer" : NULL,
                     tokenizer);
}

static void test_trained_weights__eval_is_the_jobs_own(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, bpe = {0}, path = {0}, tokenizer = {0};
    struct job job = {.name = "gpt",
                      .model =
                          "name: gpt, layers: 2, heads: 2, width: 16, context: 16, dropout: 0.1",
                      .more = ADAMW "evaluation: {everySteps: 3}",
                      .workers = "2"};

    (void)state;
    fleet_strbuf_appendf(&path, "%s/" TEXT, here);
    fleet_strbuf_appendf(&tokenizer, "%s/" BPE, here);
    fleet_strbuf_appendf(&text, "path: %s, validation: 0.03", path.text);
    fleet_strbuf_appendf(&bpe,
                         "path: %s, validation: 0.1, tokenizer: bpe, vocabulary: %s/vocab.json"
                         ", merges: %s/merges.txt",
                         path.text, tokenizer.text, tokenizer.text);
    job.data = text.text;
    expect_own_numbers(&job, path.text, NULL);
    (void)job_folder_remove(state);
    (void)job_folder_make(state);
    job = (struct job){.name = "llama",
                       .model = "name: llama, layers: 1, heads: 2, width: 16, context: 8",
                       .data = bpe.text,
                       .more = ADAMW "evaluation: {everySteps: 6, batches: 3}"};
    expect_own_numbers(&job, path.text, tokenizer.text);
}

/* Older transformers find the body of a model with a head of its own by its prefix only. */
static void expect_names_with_a_head(void)
{
    FLEET_AUTO_FREE char *path = in_folder("out/model.safetensors");
    struct safetensors_file file;
    struct fleet_error err;

    if (safetensors_open(path, &file, &err) < 0)
        fail_msg("%s", err.text);
    assert_non_null(safetensors_find(&file, "lm_head.weight"));
    assert_non_null(safetensors_find(&file, "transformer.wte.weight"));
    assert_null(safetensors_find(&file, "wte.weight"));
    safetensors_release(&file);
}

static void test_trained_weights__eval_is_the_jobs_own_under_amp_and_merging(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, path = {0};
    struct job job = {.name = "amp",
                      .model = "name: gpt, layers: 1, heads: 2, width: 16, context: 16, "
                               "tieEmbeddings: false",
                      .more = ADAMW "evaluation: {everySteps: 2}\n    precision: bf16",
                      .strategy = "amp: true, gradient_merge: true, "
                                  "gradient_merge_configs: {k_steps: 2}, recompute: true"};

    (void)state;
    fleet_strbuf_appendf(&path, "%s/" TEXT, here);
    fleet_strbuf_appendf(&text, "path: %s, validation: 0.02", path.text);
    job.data = text.text;
    expect_own_numbers(&job, path.text, NULL);
    expect_names_with_a_head();
}

/* Images: running statistics are part of the weights; there is no perplexity and no text. */
static void test_trained_weights__a_resnet_is_evaluated_and_writes_nothing(void **state)
{
    static uint8_t records[40 * 3073];
    FLEET_AUTO_FREE char *data = in_folder("data_batch_1.bin");
    FLEET_AUTO_FREE char *checkpoints = in_folder("checkpoints");
    FLEET_AUTO_FREE char *config = in_folder("out/config.json");
    struct job job = {.name = "resnet",
                      .model = "name: resnet, preset: resnet18, baseWidth: 8",
                      .data = "path: data_batch_1.bin, tokenizer: cifar10, validation: 0.2",
                      .more = "optimizer: {name: sgd, learningRate: 0.01}\n"
                              "    evaluation: {everySteps: 6}"};
    struct fleet_random_key key = fleet_random_key(1, "images", 0);
    cJSON *json;

    (void)state;
    for (size_t i = 0; i < sizeof(records); i++)
        records[i] = (uint8_t)(fleet_random_u64(key, i) % (i % 3073 ? 256 : 10));
    write_file("data_batch_1.bin", records, sizeof(records));
    expect_own_numbers(&job, data, NULL);
    json = evaluate("out", data, NULL, NULL);
    assert_null(cJSON_GetObjectItem(json, "perplexity"));
    cJSON_Delete(json);
    assert_int_equal(access(config, F_OK), -1); /* transformers has no such model */
    expect_refused((const char *[]){"generate", checkpoints, "--prompt", "x", NULL},
                   "the model is a resnet, which makes no text; gpt and llama do");
}

static void test_trained_weights__other_data_are_evaluated_whole(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *other = in_folder("other.txt");
    FLEET_AUTO_FREE char *out = in_folder("checkpoints");
    struct job job = {.name = "gpt",
                      .model = "name: gpt, layers: 1, heads: 2, width: 16, context: 16",
                      .more = "optimizer: {name: sgd, learningRate: 0.01}"};
    char content[16 * 11 + 1];
    cJSON *json, *half;

    (void)state;
    memset(content, 'a', sizeof(content));
    write_file("other.txt", content, sizeof(content)); /* 11 samples of 16 and the target */
    fleet_strbuf_appendf(&text, "path: %s/" TEXT ", validation: 0.5", here);
    job.data = text.text;
    (void)train(&job);
    json = evaluate("checkpoints", other, NULL, NULL);
    assert_int_equal((int)number(json, "samples"), 11);
    assert_int_equal((int)number(json, "tokens"), 176);
    assert_true(fabs(exp(number(json, "loss")) - number(json, "perplexity")) < 1e-9);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "heldOut")));
    half = evaluate("checkpoints", other, "--held-out", NULL);
    assert_int_equal((int)number(half, "samples"), 5);
    cJSON_Delete(half);
    half = evaluate("checkpoints", other, "--batches", "2");
    assert_int_equal((int)number(half, "samples"), 8);
    cJSON_Delete(half);
    cJSON_Delete(json);
    expect_refused((const char *[]){"eval", out, "/nowhere", NULL}, "/nowhere");
    expect_refused((const char *[]){"eval", "/nowhere", other, NULL}, "/nowhere");
    expect_refused((const char *[]){"eval", folder, other, NULL}, "neither a checkpoint");
    expect_refused((const char *[]){"eval", out, other, "--all", "--held-out", NULL}, "both");
}

/* ---- exports --------------------------------------------------------------------------------- */

static void test_trained_weights__an_export_has_its_forms(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *checkpoints = in_folder("checkpoints");
    FLEET_AUTO_FREE char *missing = in_folder("bpe/vocab.json");
    FLEET_AUTO_FREE char *tokenizer = in_folder("bpe");
    FLEET_AUTO_FREE char *out = in_folder("a/b");
    FLEET_AUTO_FREE char *file = in_folder("x.txt");
    FLEET_AUTO_FREE char *printed = NULL;
    struct job job = {.name = "bpe",
                      .model = "name: gpt, layers: 1, heads: 2, width: 16, context: 16",
                      .more = "optimizer: {name: sgd, learningRate: 0.01}"};

    (void)state;
    assert_int_equal(mkdir(tokenizer, 0777), 0);
    copy_file(BPE "/vocab.json", "bpe/vocab.json");
    copy_file(BPE "/merges.txt", "bpe/merges.txt");
    fleet_strbuf_appendf(&text,
                         "path: %s/" TEXT ", tokenizer: bpe, vocabulary: bpe/vocab.json, "
                         "merges: bpe/merges.txt",
                         here);
    job.data = text.text;
    (void)train(&job);
    printed = command((const char *[]){"export", checkpoints, out, NULL});
    assert_non_null(strstr(printed, "vocab.json, merges.txt, tokenizer_config.json, config.json"));
    write_file("bpe/vocab.json", "{}", 2);
    expect_refused((const char *[]){"export", checkpoints, out, NULL},
                   "not the file that the job was trained with");
    assert_int_equal(unlink(missing), 0);
    expect_refused((const char *[]){"export", checkpoints, out, NULL}, "--tokenizer");
    free(command((const char *[]){"export", checkpoints, out, "--tokenizer", BPE, NULL}));
    write_file("x.txt", "mine", 4);
    expect_refused((const char *[]){"export", checkpoints, file, "--tokenizer", BPE, NULL},
                   "not a folder");
    expect_refused((const char *[]){"export", checkpoints, out, "--tar", NULL}, "--tar");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_trained_weights__eval_is_the_jobs_own),
        IN_FOLDER(test_trained_weights__eval_is_the_jobs_own_under_amp_and_merging),
        IN_FOLDER(test_trained_weights__a_resnet_is_evaluated_and_writes_nothing),
        IN_FOLDER(test_trained_weights__other_data_are_evaluated_whole),
        IN_FOLDER(test_trained_weights__an_export_has_its_forms),
    };

    if (find_everything() < 0)
        return 1;
    return cmocka_run_group_tests_name("trained_weights", tests, NULL, NULL);
}
