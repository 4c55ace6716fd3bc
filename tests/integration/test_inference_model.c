/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A trained model as one file for inference: what comes out of it has the bits of the job's own
 * program, of the generator and of the job's evaluation. And what damaged files and wrong requests
 * say.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/runtime/inference/generator.h"
#include "agent/runtime/inference/inference_model.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "tests/integration/trained_weights_fixture.h"
#include "tests/support/noise_images.h"

#define MARKOV  "tokenizer: synthetic-markov"
#define DROPOUT "vocabulary: 256, dropout: 0.1"
#define GPT     "name: gpt, layers: 2, heads: 2, width: 32, context: 16, " DROPOUT

/* `fleetjob export --inference`; its JSON. */
static cJSON *export_model(const char *name, const char *fetch)
{
    FLEET_AUTO_FREE char *checkpoints = in_folder("checkpoints");
    FLEET_AUTO_FREE char *file = in_folder(name);
    const char *arguments[] = {"export",      checkpoints, file,
                               "--inference", "--json",    fetch ? "--fetch" : NULL,
                               fetch,         NULL};
    FLEET_AUTO_FREE char *text = command(arguments);
    cJSON *json = cJSON_Parse(text);

    assert_non_null(json);
    return json;
}

static struct weights open_weights(void)
{
    FLEET_AUTO_FREE char *checkpoints = in_folder("checkpoints");
    struct fleet_error err;
    struct weights weights;

    if (weights_open(checkpoints, NULL, &weights, &err) < 0)
        fail_msg("%s", err.text);
    return weights;
}

static struct inference_model *open_model(const char *name)
{
    FLEET_AUTO_FREE char *file = in_folder(name);
    struct inference_model *model = NULL;
    struct fleet_error err;

    if (inference_model_open(file, 1, &model, &err) < 0)
        fail_msg("%s", err.text);
    return model;
}

/* ---- the same bits --------------------------------------------------------------------------- */

static const struct job jobs[] = {
    {"gpt-of-two", GPT, MARKOV, ADAMW, NULL, "2"},
    {"gpt-bf16", GPT, MARKOV, "precision: bf16\n    " ADAMW, NULL, "1"},
    {"llama", "name: llama, layers: 1, heads: 2, width: 32, context: 16, vocabulary: 256", MARKOV,
     ADAMW, NULL, "1"},
};

/* The command compares the file with the whole program of the job, and so does this test. */
static void check_again(const char *name, const cJSON *json)
{
    FLEET_AUTO_FREE char *file = in_folder(name);
    char sha256[FLEET_SHA256_HEX_SIZE];
    struct weights weights = open_weights();
    struct fleet_error err;

    if (inference_model_check(&weights, file, 3, 1, sha256, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(sha256,
                        cJSON_GetObjectItemCaseSensitive(json, "outputsSha256")->valuestring);
    weights_release(&weights);
}

static void test_inference_model__texts_have_the_bits_of_the_job(void **state)
{
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        cJSON *json;
        (void)job_folder_remove(state);
        (void)job_folder_make(state);
        (void)train(&jobs[i]);
        json = export_model("model", NULL);
        check_again("model", json);
        cJSON_Delete(json);
        json = export_model("loss", "loss,lm_head");
        check_again("loss", json);
        cJSON_Delete(json);
    }
}

static void test_inference_model__images_have_the_bits_of_the_job(void **state)
{
    char *images = noise_images_folder();
    FLEET_AUTO_STRBUF struct fleet_strbuf data = {0};
    struct job job = {"resnet", "name: resnet, depths: [1, 1, 1, 1], baseWidth: 2",
                      NULL,     "optimizer: {name: momentum, learningRate: 0.01}",
                      NULL,     "1"};
    cJSON *json;

    (void)state;
    fleet_strbuf_appendf(&data, "tokenizer: cifar10, path: %s", images);
    job.data = data.text;
    (void)train(&job);
    json = export_model("model", NULL);
    assert_true(cJSON_GetObjectItemCaseSensitive(json, "buffers")->valueint > 0);
    check_again("model", json);
    cJSON_Delete(json);
    job_run_remove(images);
    free(images);
}

/* The generator has programs of its own, for one sample. */
static void test_inference_model__logits_are_those_of_the_generator(void **state)
{
    struct inference_request request = {.batch = 1};
    struct inference_summary summary;
    struct weights weights;
    struct generator *generator = NULL;
    struct inference_model *model;
    FLEET_AUTO_FREE char *file = in_folder("model");
    float logits[16 * 256];
    void *out[] = {logits};
    int32_t ids[16];
    const void *in[] = {ids};

    (void)state;
    (void)train(&jobs[0]);
    weights = open_weights();
    assert_int_equal(inference_model_save(&weights, &request, file, &summary, NULL), 0);
    model = open_model("model");
    assert_string_equal(inference_model_feed(model, 0)->name, "ids");
    assert_null(inference_model_feed(model, 1));
    assert_int_equal(inference_model_fetch(model, 0)->bytes, sizeof(logits));
    assert_int_equal(generator_open(&weights, 1, &generator, NULL), 0);
    for (int i = 0; i < 16; i++)
        ids[i] = (i * 37 + 5) % 256;
    assert_int_equal(inference_model_run(model, in, out, NULL), 0);
    for (int n = 1; n <= 16; n++) {
        const float *expected;
        assert_int_equal(generator_logits(generator, ids, n, &expected, NULL), 0);
        assert_memory_equal(expected, logits + (size_t)(n - 1) * 256, 256 * sizeof(float));
    }
    generator_free(generator);
    inference_model_free(model);
    weights_release(&weights);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void expect_open(const char *name, int code, const char *words)
{
    FLEET_AUTO_FREE char *file = in_folder(name);
    struct inference_model *model = NULL;
    struct fleet_error err;

    assert_int_equal(inference_model_open(file, 1, &model, &err), code);
    if (!strstr(err.text, words))
        fail_msg("%s: \"%s\", expected \"%s\"", name, err.text, words);
}

/* Each byte range of the file, damaged: never a model. */
static void try_damage(void)
{
    FLEET_AUTO_FREE char *file = in_folder("model");
    char *text;
    size_t size;

    assert_int_equal(fleet_file_read(file, 1 << 24, &text, &size, NULL), 0);
    for (size_t i = 0; i < size; i += 997) {
        FLEET_AUTO_FREE char *bad = in_folder("bad");
        struct inference_model *model = NULL;
        text[i] ^= 1;
        write_file("bad", text, size);
        text[i] ^= 1;
        if (inference_model_open(bad, 1, &model, NULL) == 0)
            fail_msg("byte %zu of %zu is damaged, and nobody has noticed", i, size);
    }
    write_file("bad", text, size - 1);
    free(text);
    expect_open("bad", -EINVAL, "bad");
}

static void try_values(struct inference_model *model)
{
    FLEET_AUTO_FREE float *logits = malloc(inference_model_fetch(model, 0)->bytes);
    void *out[] = {logits};
    int32_t ids[2 * 16] = {0};
    const void *in[] = {ids}, *none[] = {NULL};
    struct fleet_error err;

    ids[17] = 256;
    assert_int_equal(inference_model_run(model, in, out, &err), -EINVAL);
    assert_string_equal(err.text, "ids: value 17 is 256, allowed: 0 to 255");
    ids[17] = -1;
    assert_int_equal(inference_model_run(model, in, out, &err), -EINVAL);
    assert_int_equal(inference_model_run(model, none, out, &err), -EINVAL);
    assert_string_equal(err.text, "ids has no values");
}

static void try_requests(void)
{
    FLEET_AUTO_FREE char *checkpoints = in_folder("checkpoints");
    FLEET_AUTO_FREE char *file = in_folder("model");
    const char *unknown[] = {"export", checkpoints, file, "--inference", "--fetch", "nope", NULL};
    const char *empty[] = {"export", checkpoints, file, "--inference", "--fetch", "loss,", NULL};
    const char *input[] = {"export", checkpoints, file, "--inference", "--fetch", "ids", NULL};
    const char *useless[] = {"export", checkpoints, file, "--inference", "--feed", "targets", NULL};
    const char *full[] = {"export", checkpoints, "/dev/full", "--inference", NULL};
    const char *tar[] = {"export", checkpoints, file, "--inference", "--tar", NULL};
    const char *without[] = {"export", checkpoints, file, "--fetch", "loss", NULL};

    expect_refused(unknown, "the forward program has no variable nope");
    expect_refused(empty, "--fetch loss,: a name is empty");
    expect_refused(input, "ids is no result of the forward program");
    expect_refused(useless, "targets is fed, but nothing that is fetched needs it");
    expect_refused(full, "/dev/full");
    expect_refused(tar, "--tar and --tokenizer cannot be given");
    expect_refused(without, "have no effect without --inference");
}

static void test_inference_model__what_is_wrong_is_named(void **state)
{
    cJSON *json;
    struct inference_model *model;

    (void)state;
    (void)train(&jobs[0]);
    json = export_model("model", NULL);
    cJSON_Delete(json);
    expect_open("none", -ENOENT, "none");
    write_file("text", "hello", 5);
    expect_open("text", -EINVAL, "text");
    {
        FLEET_AUTO_FREE char *checkpoints = in_folder("checkpoints");
        FLEET_AUTO_FREE char *plain = in_folder("plain.safetensors");
        const char *arguments[] = {"export", checkpoints, plain, NULL};
        free(command(arguments));
        expect_open("plain.safetensors", -EINVAL, "it has no program");
    }
    try_damage();
    model = open_model("model");
    try_values(model);
    inference_model_free(model);
    try_requests();
    model = open_model("model"); /* refused requests have left it as it was */
    inference_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_inference_model__texts_have_the_bits_of_the_job),
        IN_FOLDER(test_inference_model__images_have_the_bits_of_the_job),
        IN_FOLDER(test_inference_model__logits_are_those_of_the_generator),
        IN_FOLDER(test_inference_model__what_is_wrong_is_named),
    };
    if (find_everything() < 0)
        return 1;
    return cmocka_run_group_tests_name("inference_model", tests, NULL, NULL);
}
