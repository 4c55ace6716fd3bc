/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Trained weights in use: `fleetjob eval` gives the loss that the job's own evaluation gave, bit
 * for bit, from the checkpoint, from an exported folder and from an exported file; `fleetjob
 * generate` goes on with a text, the same way each time. The logits are PyTorch's as recorded in
 * tests/golden/torch/gpt2.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/runtime/inference/generator.h"
#include "agent/runtime/inference/weights.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/safetensors.h"
#include "tests/support/job_folder.h"

#define LIMIT_S 600.0
#define GPT2    "tests/golden/torch/gpt2"
#define BPE     "tests/golden/bpe"
#define TEXT    "tests/golden/torch/jobs/text.txt"

static char here[4096];

/* ---- jobs ------------------------------------------------------------------------------------ */

struct job {
    const char *name, *model, *data, *more; /* parts of spec.training */
    const char *strategy;
    const char *workers;
};

static void on_event(void *context, struct job_run *run, const cJSON *event)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "event");

    (void)run;
    if (cJSON_IsString(name) && strcmp(name->valuestring, "evaluation") == 0)
        *(double *)context = cJSON_GetObjectItemCaseSensitive(event, "loss")->valuedouble;
}

/* Train it in the folder; returns the loss of its last evaluation, NaN without one. */
static double train(const struct job *job)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {"--workers", job->workers ? job->workers : "1", path, NULL};
    double loss = NAN;
    struct job_run run;

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: %s}\n"
        "spec:\n  worker: {replicas: 1}\n  strategy: {%s}\n"
        "  training:\n    model: {%s}\n    data: {%s}\n    globalBatchSize: 4\n"
        "    microBatchSize: 2\n    steps: 6\n    checkpoint: {path: checkpoints}\n    %s\n",
        job->name, job->strategy ? job->strategy : "", job->model, job->data, job->more);
    write_file("job.yaml", text.text, text.length);
    job_run(arguments, LIMIT_S, on_event, &loss, &run);
    if (run.exit_code != 0 || run.problem[0])
        fail_msg("%s: exit %d, problem \"%s\": %s", job->name, run.exit_code, run.problem,
                 run.errors);
    job_run_release(&run);
    return loss;
}

/* Standard output of a command that must succeed; heap. */
static char *command(const char *const *arguments)
{
    char *out = NULL;
    FLEET_AUTO_FREE char *errors = NULL;
    int code = job_run_command("fleetjob", arguments, &out, &errors);

    if (code != 0)
        fail_msg("%s %s: exit %d: %s", arguments[0], arguments[1], code, errors);
    return out;
}

static void expect_refused(const char *const *arguments, const char *words)
{
    FLEET_AUTO_FREE char *out = NULL;
    FLEET_AUTO_FREE char *errors = NULL;
    int code = job_run_command("fleetjob", arguments, &out, &errors);

    if (code == 0 || !strstr(errors, words))
        fail_msg("%s: exit %d: %s", arguments[0], code, errors);
}

static char *in_folder(const char *name)
{
    return fleet_file_join(folder, name);
}

static void export_both(void)
{
    FLEET_AUTO_FREE char *checkpoints = in_folder("checkpoints");
    FLEET_AUTO_FREE char *out = in_folder("out");
    FLEET_AUTO_FREE char *file = in_folder("alone.safetensors");

    free(command((const char *[]){"export", checkpoints, out, NULL}));
    free(command((const char *[]){"export", checkpoints, file, NULL}));
}

static cJSON *evaluate(const char *weights, const char *data, const char *option, const char *value)
{
    FLEET_AUTO_FREE char *path = in_folder(weights);
    FLEET_AUTO_FREE char *out =
        command((const char *[]){"eval", path, data, "--json", option, value, NULL});
    cJSON *json = cJSON_Parse(out);

    assert_non_null(json);
    return json;
}

static double number(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);

    if (!cJSON_IsNumber(item))
        fail_msg("no number %s", key);
    return item->valuedouble;
}

/* ---- eval ------------------------------------------------------------------------------------ */

static void expect_same_loss(const char *name, const char *weights, const char *data, double loss,
                             const char *option, const char *value)
{
    cJSON *json = evaluate(weights, data, option, value);

    if (number(json, "loss") != loss)
        fail_msg("%s: %s: eval gives %.17g, the job %.17g", name, weights, number(json, "loss"),
                 loss);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(json, "heldOut")));
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(json, "ownData")));
    cJSON_Delete(json);
}

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

#define ADAMW "optimizer: {name: adamw, learningRate: 0.01}\n    "

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

static void copy_file(const char *from, const char *to)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    assert_int_equal(fleet_file_read(from, 64 << 20, &text, &size, NULL), 0);
    write_file(to, text, size);
}

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

static int find_everything(void)
{
    if (!getenv("FLEET_BIN")) {
        (void)fprintf(stderr, "FLEET_BIN is not set: run by tests/run.sh\n");
        return -1;
    }
    return getcwd(here, sizeof(here)) ? 0 : -1;
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, job_folder_make, job_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_trained_weights__eval_is_the_jobs_own),
        IN_FOLDER(test_trained_weights__eval_is_the_jobs_own_under_amp_and_merging),
        IN_FOLDER(test_trained_weights__a_resnet_is_evaluated_and_writes_nothing),
        IN_FOLDER(test_trained_weights__other_data_are_evaluated_whole),
        IN_FOLDER(test_trained_weights__generate_goes_on_with_a_text),
        IN_FOLDER(test_trained_weights__token_ids_go_in_and_out),
        IN_FOLDER(test_trained_weights__logits_are_pytorchs),
        IN_FOLDER(test_trained_weights__an_export_has_its_forms),
    };

    if (find_everything() < 0)
        return 1;
    return cmocka_run_group_tests_name("trained_weights", tests, NULL, NULL);
}
