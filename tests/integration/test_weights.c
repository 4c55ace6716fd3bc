/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Weights from outside, trained, and out again, under the names of others.
 *
 * A ResNet: PyTorch's initial weights under torchvision's names, its images as a CIFAR-10 file;
 * losses, gradient norms, final weights and running statistics must be PyTorch's, after a kill in
 * between, too. A GPT-2: what is exported starts the next job, which begins exactly where the last
 * one ended. And a file that Hugging Face's GPT2LMHeadModel.save_pretrained() wrote, trained as it
 * trains there and exported under its names (its own load_state_dict() took such an export,
 * strictly).
 *
 * Tolerances as the recording's page reasons them: loss 5e-5 absolute, norm 1e-4 relative, final
 * tensors 1e-4 relative L2.
 */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/safetensors.h"
#include "tests/support/job_folder.h"
#include "tests/support/job_run.h"

#define LIMIT_S      600.0
#define RESNET       "tests/golden/torch/resnet"
#define STEPS        5
#define BATCH        4
#define IMAGE_BYTES  3072
#define SAMPLES      64
#define FINAL_PREFIX "final."

static void write_job(const char *training)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(&text,
                         "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\n"
                         "metadata: {name: weights}\n"
                         "spec: {worker: {replicas: 1}, training: {%s}}\n",
                         training);
    write_file("job.yaml", text.text, text.length);
}

static void run_job(job_run_watch watch, void *context, struct job_run *out)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
    if (out->exit_code != 0 || out->problem[0])
        fail_msg("exit %d, problem \"%s\": %s", out->exit_code, out->problem, out->errors);
}

/* Export the newest checkpoint below folder/checkpoints to folder/`name`. */
static char *export_to(const char *name)
{
    FLEET_AUTO_FREE char *checkpoints = fleet_file_join(folder, "checkpoints");
    FLEET_AUTO_FREE char *errors = NULL;
    char *file = fleet_file_join(folder, name);
    const char *arguments[] = {"export", checkpoints, file, NULL};

    if (job_run_command("fleetjob", arguments, NULL, &errors) != 0)
        fail_msg("export: %s", errors);
    return file;
}

static void open_tensors(const char *path, struct safetensors_file *out)
{
    struct fleet_error err;

    if (safetensors_open(path, out, &err) < 0)
        fail_msg("%s", err.text);
}

static float *read_tensor(const struct safetensors_tensor *tensor, int64_t *out_count)
{
    float *values;

    *out_count = safetensors_elements(tensor);
    values = malloc((size_t)*out_count * sizeof(*values));
    assert_non_null(values);
    assert_int_equal(safetensors_read_f32(tensor, 0, *out_count, values, NULL), 0);
    return values;
}

/* ---- ResNet ---------------------------------------------------------------------------------- */

/* The recording's images, a batch a step, as records of a CIFAR-10 file. */
static void write_images(void)
{
    static uint8_t records[STEPS * BATCH * (1 + IMAGE_BYTES)];
    struct safetensors_file file;
    const struct safetensors_tensor *images, *labels;

    open_tensors(RESNET "/images.safetensors", &file);
    images = safetensors_find(&file, "images");
    labels = safetensors_find(&file, "labels");
    assert_non_null(images);
    assert_non_null(labels);
    assert_int_equal(images->bytes, (size_t)STEPS * BATCH * IMAGE_BYTES);
    for (size_t i = 0; i < (size_t)STEPS * BATCH; i++) {
        uint8_t *record = records + i * (1 + IMAGE_BYTES); /* the label's lowest byte is first */
        assert_int_equal(safetensors_read(labels, i * sizeof(int64_t), record, 1, NULL), 0);
        assert_int_equal(safetensors_read(images, i * IMAGE_BYTES, record + 1, IMAGE_BYTES, NULL),
                         0);
    }
    write_file("data_batch_1.bin", records, sizeof(records));
    safetensors_release(&file);
}

static cJSON *read_config(void)
{
    FLEET_AUTO_FREE char *text = NULL;
    cJSON *root = NULL;
    size_t size;

    assert_int_equal(fleet_file_read(RESNET "/config.json", 1 << 20, &text, &size, NULL), 0);
    assert_int_equal(fleet_json_parse(text, size, 1 << 20, &root, NULL), 0);
    return root;
}

static void compare_steps(const struct job_run *run, const cJSON *config)
{
    assert_int_equal(run->step_count, STEPS);
    for (int i = 0; i < STEPS; i++) {
        double loss = cJSON_GetArrayItem(cJSON_GetObjectItem(config, "loss"), i)->valuedouble;
        double norm = cJSON_GetArrayItem(cJSON_GetObjectItem(config, "grad_norm"), i)->valuedouble;
        if (fabs(run->steps[i].loss - loss) > 5e-5)
            fail_msg("step %d: loss %.8f, PyTorch's %.8f", i + 1, run->steps[i].loss, loss);
        if (fabs(run->steps[i].grad_norm - norm) > 1e-4 * norm)
            fail_msg("step %d: norm %.8f, PyTorch's %.8f", i + 1, run->steps[i].grad_norm, norm);
    }
}

/* All of a tensor of n elements, or 64 samples of it at floor(j · n / 64). */
static void compare_tensor(const struct safetensors_tensor *samples,
                           const struct safetensors_tensor *found)
{
    int64_t n, count;
    FLEET_AUTO_FREE float *wanted = read_tensor(samples, &count);
    FLEET_AUTO_FREE float *values = read_tensor(found, &n);
    double difference = 0, length = 0;

    assert_true(count == n || count == SAMPLES);
    for (int64_t j = 0; j < count; j++) {
        double have = (double)values[count == n ? j : j * n / SAMPLES];
        difference += (have - (double)wanted[j]) * (have - (double)wanted[j]);
        length += (double)wanted[j] * (double)wanted[j];
    }
    if (sqrt(difference) > 1e-4 * sqrt(length))
        fail_msg("%s: off by %.3g of %.3g", samples->name, sqrt(difference), sqrt(length));
}

static void compare_export(const char *path)
{
    struct safetensors_file wanted, found;
    int running = 0, weights = 0;

    open_tensors(RESNET "/expected.safetensors", &wanted);
    open_tensors(path, &found);
    for (size_t i = 0; i < wanted.count; i++) {
        const char *name = wanted.tensors[i].name;
        const struct safetensors_tensor *tensor;
        if (strncmp(name, FINAL_PREFIX, strlen(FINAL_PREFIX)) != 0 ||
            strstr(name, "num_batches_tracked"))
            continue;
        tensor = safetensors_find(&found, name + strlen(FINAL_PREFIX));
        if (!tensor)
            fail_msg("the export has no %s", name + strlen(FINAL_PREFIX));
        compare_tensor(&wanted.tensors[i], tensor);
        *(strstr(name, "running_") ? &running : &weights) += 1;
    }
    assert_int_equal(running, 40); /* 20 batch_norms */
    assert_int_equal(weights, 62);
    safetensors_release(&wanted);
    safetensors_release(&found);
}

static void kill_once(void *context, struct job_run *run, const cJSON *event)
{
    bool *armed = context;
    pid_t pids[4];

    (void)event;
    if (*armed && run->checkpoint_count >= 1 && job_run_trainers(run->pid, pids, 4) > 0) {
        (void)kill(pids[0], SIGKILL);
        *armed = false;
    }
}

static void train_resnet(bool is_killed)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf training = {0};
    FLEET_AUTO_JSON cJSON *config = read_config();
    FLEET_AUTO_FREE char *exported = NULL;
    char here[4096];
    struct job_run run;

    assert_non_null(getcwd(here, sizeof(here)));
    write_images();
    fleet_strbuf_appendf(
        &training,
        "model: {name: resnet, preset: resnet18, baseWidth: 16, initialWeights: "
        "%s/" RESNET "/init.safetensors}, data: {path: ., tokenizer: cifar10, shuffle: false}, "
        "optimizer: {name: momentum, learningRate: 0.01, momentum: 0.9, weightDecay: 0.0005, "
        "weightDecayOn: all}, globalBatchSize: 4, microBatchSize: 4, steps: 5, "
        "checkpoint: {path: checkpoints, everySteps: 2}",
        here);
    write_job(training.text);
    run_job(is_killed ? kill_once : NULL, &is_killed, &run);
    compare_steps(&run, config);
    exported = export_to("out.safetensors");
    compare_export(exported);
    job_run_release(&run);
}

static void test_weights__a_resnet_trains_as_pytorch_does(void **state)
{
    (void)state;
    train_resnet(false);
}

static void test_weights__and_so_it_does_through_a_kill(void **state)
{
    (void)state;
    job_run_may_lose_state = true; /* it has one worker */
    train_resnet(true);
    job_run_may_lose_state = false;
}

/* ---- out and in again ------------------------------------------------------------------------ */

static void expect_same_file(const char *a, const char *b)
{
    FLEET_AUTO_FREE char *x = NULL;
    FLEET_AUTO_FREE char *y = NULL;
    size_t x_size, y_size;

    assert_int_equal(fleet_file_read(a, 64 << 20, &x, &x_size, NULL), 0);
    assert_int_equal(fleet_file_read(b, 64 << 20, &y, &y_size, NULL), 0);
    if (x_size != y_size || memcmp(x, y, x_size) != 0)
        fail_msg("%s and %s differ (%zu and %zu bytes)", a, b, x_size, y_size);
}

/* Train, export, start a job from it that changes nothing, export again: the same file. */
static void go_round(const char *model, const char *data)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0}, second = {0};
    FLEET_AUTO_FREE char *one = NULL;
    FLEET_AUTO_FREE char *two = NULL;
    struct job_run run;

    fleet_strbuf_appendf(&first,
                         "model: {%s}, %s, optimizer: {name: sgd, learningRate: 0.01}, "
                         "globalBatchSize: 4, microBatchSize: 2, steps: 3, "
                         "checkpoint: {path: checkpoints, resume: never}",
                         model, data);
    write_job(first.text);
    run_job(NULL, NULL, &run);
    job_run_release(&run);
    one = export_to("one.safetensors");
    /* sgd with a rate that is lost in rounding, evaluated once so that the forward part runs */
    fleet_strbuf_appendf(&second,
                         "model: {%s, initialWeights: one.safetensors}, %s, "
                         "optimizer: {name: sgd, learningRate: 1.0e-30}, globalBatchSize: 4, "
                         "microBatchSize: 2, steps: 1, checkpoint: {path: checkpoints, resume: "
                         "never}",
                         model, data);
    write_job(second.text);
    run_job(NULL, NULL, &run);
    job_run_release(&run);
    two = export_to("two.safetensors");
    expect_same_file(one, two);
}

static void test_weights__what_gpt_exports_it_takes(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf data = {0};
    char here[4096];

    (void)state;
    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(&data, "data: {path: %s/tests/golden/torch/jobs/text.txt}", here);
    go_round("name: gpt, layers: 2, heads: 2, width: 16, context: 16", data.text);
    go_round("name: llama, layers: 1, heads: 2, width: 16, context: 16", data.text);
}

/* ---- Hugging Face ---------------------------------------------------------------------------- */

#define HUGGING     "tests/golden/huggingface"
#define HF_PREFIX   "transformer."
#define HF_STEPS    4
#define HF_RATE     0.01
#define HF_TENSORS  28
#define HF_KEY_BIAS ".attn.c_attn.bias"

/* The gradient of the keys' bias is 0 except for rounding, which Adam scales up: bounded by the
 * rate. */
static void expect_close(const char *name, const float *found, const float *wanted, int64_t count)
{
    size_t length = strlen(name), ending = strlen(HF_KEY_BIAS);
    bool has_keys = length > ending && strcmp(name + length - ending, HF_KEY_BIAS) == 0;
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < count; i++) {
        double off = (double)found[i] - (double)wanted[i];
        if (has_keys && i >= count / 3 && i < 2 * count / 3) {
            assert_true(fabs(off) <= HF_STEPS * HF_RATE);
            continue;
        }
        difference += off * off;
        norm += (double)wanted[i] * (double)wanted[i];
    }
    if (sqrt(difference) > 1e-4 * sqrt(norm))
        fail_msg("%s: off by %.3g of %.3g", name, sqrt(difference), sqrt(norm));
}

static void expect_tensors(const char *path)
{
    struct safetensors_file wanted, found;

    open_tensors(HUGGING "/trained.safetensors", &wanted);
    open_tensors(path, &found);
    assert_int_equal(wanted.count, HF_TENSORS);
    assert_int_equal(found.count, HF_TENSORS); /* the tied head is not there twice */
    for (size_t i = 0; i < wanted.count; i++) {
        const struct safetensors_tensor *theirs = &wanted.tensors[i], *ours;
        int64_t n, count;
        FLEET_AUTO_FREE float *x = read_tensor(theirs, &n);
        FLEET_AUTO_FREE float *y = NULL;
        assert_int_equal(strncmp(theirs->name, HF_PREFIX, strlen(HF_PREFIX)), 0);
        ours = safetensors_find(&found, theirs->name + strlen(HF_PREFIX));
        if (!ours || ours->ndim != theirs->ndim ||
            memcmp(ours->shape, theirs->shape, (size_t)ours->ndim * sizeof(*ours->shape)) != 0)
            fail_msg("the export has no %s of that shape", theirs->name);
        y = read_tensor(ours, &count);
        expect_close(theirs->name, y, x, n);
    }
    safetensors_release(&wanted);
    safetensors_release(&found);
}

static void expect_steps(const struct job_run *run)
{
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_JSON cJSON *root = NULL;
    size_t size;

    assert_int_equal(fleet_file_read(HUGGING "/expected.json", 1 << 16, &text, &size, NULL), 0);
    assert_int_equal(fleet_json_parse(text, size, 1 << 16, &root, NULL), 0);
    assert_int_equal(run->step_count, HF_STEPS);
    for (int i = 0; i < HF_STEPS; i++) {
        double loss = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "loss"), i)->valuedouble;
        double norm = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "grad_norm"), i)->valuedouble;
        if (fabs(run->steps[i].loss - loss) > 2e-5 ||
            fabs(run->steps[i].grad_norm - norm) > 1e-4 * norm)
            fail_msg("step %d: loss %.8f norm %.8f, there %.8f and %.8f", i + 1, run->steps[i].loss,
                     run->steps[i].grad_norm, loss, norm);
    }
}

static void test_weights__a_model_of_transformers_trains_as_it_does_there(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf training = {0};
    FLEET_AUTO_FREE char *exported = NULL;
    char here[4096];
    struct job_run run;

    (void)state;
    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(
        &training,
        "model: {name: gpt, layers: 2, heads: 2, width: 8, context: 6, vocabulary: 40, "
        "initialWeights: %s/" HUGGING "/model.safetensors}, "
        "data: {path: %s/" HUGGING "/tokens.bin, tokenizer: tokens-u16, shuffle: false}, "
        "optimizer: {name: adamw, learningRate: %g, weightDecay: 0.1, beta1: 0.9, beta2: 0.95, "
        "epsilon: 1.0e-8, clip: {globalNorm: 0.5}}, globalBatchSize: 4, microBatchSize: 2, "
        "steps: %d, checkpoint: {path: checkpoints}",
        here, here, HF_RATE, HF_STEPS);
    write_job(training.text);
    run_job(NULL, NULL, &run);
    expect_steps(&run);
    job_run_release(&run);
    exported = export_to("out.safetensors");
    expect_tensors(exported);
}

static void test_weights__a_file_that_does_not_fit_is_refused_with_all_reasons(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf training = {0};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {path, NULL};
    char here[4096];
    struct job_run run;

    (void)state;
    assert_non_null(getcwd(here, sizeof(here)));
    write_images();
    fleet_strbuf_appendf(
        &training,
        "model: {name: resnet, preset: resnet18, baseWidth: 8, classes: 12, initialWeights: "
        "%s/" RESNET "/init.safetensors}, data: {path: ., tokenizer: cifar10}, "
        "optimizer: {name: sgd, learningRate: 0.01}, globalBatchSize: 4, microBatchSize: 4, "
        "steps: 1",
        here);
    write_job(training.text);
    job_run(arguments, LIMIT_S, NULL, NULL, &run);
    assert_int_equal(run.exit_code, 1);
    if (!strstr(run.errors, "model.initialWeights") ||
        !strstr(run.errors, "bn1.bias: shape [16], the model's is [8]; ") ||
        !strstr(run.errors, "bn1.running_mean") || !strstr(run.errors, " more of the kind") ||
        strstr(run.errors, "Training failed")) /* which says the same once more */
        fail_msg("not all that does not fit is listed: %s", run.errors);
    job_run_release(&run);
}

int main(void)
{
#define WEIGHTS_TEST(name) \
    cmocka_unit_test_setup_teardown(test_weights__##name, job_folder_make, job_folder_remove)
    const struct CMUnitTest tests[] = {
        WEIGHTS_TEST(a_resnet_trains_as_pytorch_does),
        WEIGHTS_TEST(and_so_it_does_through_a_kill),
        WEIGHTS_TEST(what_gpt_exports_it_takes),
        WEIGHTS_TEST(a_model_of_transformers_trains_as_it_does_there),
        WEIGHTS_TEST(a_file_that_does_not_fit_is_refused_with_all_reasons),
    };
    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
