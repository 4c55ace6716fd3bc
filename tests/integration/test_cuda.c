/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whole jobs on the back end for NVIDIA GPUs, over a fake libcudart (tests/cuda_fake): its device
 * memory cannot be touched by the host, its streams run late and in the order of a seed, and its
 * kernels are ours, on the emulator. Each model trains as on the CPU; one worker, two workers,
 * other seeds, a killed trainer and a lost device give the same bits.
 *
 * FLEET_TEST_GPU=LIBRARY: the same over a real GPU (tests/gpu/check.sh), with that libfleet_cuda.so
 * and the NCCL of FLEET_NCCL_LIBRARY. Tests that need a fake's failures are left out.
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

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_killer.h"
#include "tests/support/job_run.h"

#define LIMIT_S     600.0
#define LIMIT_GPU_S 60.0

/* Losses on the two back ends differ by the order of sums in fp32. */
#define TOLERANCE      2e-5
#define TOLERANCE_BF16 4e-3

#define RECORD_BYTES (1 + 3 * 32 * 32) /* of CIFAR-10 */
#define IMAGES       16

static char library[4096], other_library[4200]; /* the fake; a path where there is nothing */
static char nccl[4096], cublaslt[4096];
static const char *gpu; /* FLEET_TEST_GPU; NULL: over fakes */
static char *folder, *images;

struct model {
    const char *name, *model, *optimizer;
    int steps, batch, micro_batch;
};

static const struct model models[] = {
    {"gpt", "{name: gpt, layers: 1, heads: 2, width: 16, context: 8, dropout: 0.1}",
     "{name: adamw, learningRate: 0.003, clip: {globalNorm: 1}}", 4, 8, 2},
    {"llama", "{name: llama, layers: 1, heads: 2, width: 16, context: 8}",
     "{name: lamb, learningRate: 0.003}", 3, 8, 4},
    {"mlp", "{name: mlp, sizes: [3072, 8, 10]}", "{name: adam, learningRate: 0.003}", 3, 8, 4},
    {"resnet", "{name: resnet, depths: [1, 1], stem: cifar, baseWidth: 2}",
     "{name: momentum, learningRate: 0.05}", 2, 2, 1},
};

/* tests/gpu/check.sh --fake runs the tests of a GPU over the fake. */
static bool is_fake(void)
{
    return strstr(library, "/cuda_fake/") != NULL;
}

/* `strategy` is that of the job, after "strategy: ". */
static char *write_divided_job(const struct model *m, const char *training, const char *strategy)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool is_text = strstr(m->model, "gpt") || strstr(m->model, "llama");
    char here[4096], name[64];
    char *path;

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(&text,
                         "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\n"
                         "metadata: {name: cuda}\n"
                         "spec:\n  worker: {replicas: 1}\n"
                         "  runPolicy: {restart: {maxRestarts: 3}}\n"
                         "  strategy: %s\n"
                         "  training: {model: %s, optimizer: %s, globalBatchSize: %d, "
                         "microBatchSize: %d, steps: %d, seed: 7, %s",
                         strategy, m->model, m->optimizer, m->batch, m->micro_batch, m->steps,
                         training);
    if (is_text)
        fleet_strbuf_appendf(&text, "data: {path: %s/tests/golden/torch/jobs/text.txt%s}}\n", here,
                             strstr(training, "evaluation") ? ", validation: 0.1" : "");
    else
        fleet_strbuf_appendf(&text, "data: {path: %s, tokenizer: cifar10}}\n", images);
    (void)snprintf(name, sizeof(name), "%s.yaml", m->name);
    path = fleet_file_join(folder, name);
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    return path;
}

static char *write_job(const struct model *m, const char *training)
{
    return write_divided_job(m, training, "{}");
}

static void set(const char *name, const char *value)
{
    assert_int_equal(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void run_on(const char *backend, const char *path, const char *workers, job_run_watch watch,
                   void *context, struct job_run *out)
{
    const char *arguments[] = {"--workers", workers, path, NULL};

    set("FLEET_BACKEND", backend);
    job_run(arguments, gpu ? LIMIT_GPU_S : LIMIT_S, watch, context, out);
    set("FLEET_BACKEND", NULL);
}

static void expect_success(const struct job_run *run, int steps)
{
    if (run->exit_code != 0 || run->problem[0])
        fail_msg("exit %d, problem \"%s\", after %d steps: %s", run->exit_code, run->problem,
                 run->step_count, run->errors);
    assert_int_equal(run->step_count, steps);
}

static void expect_within(const struct job_run *run, const struct job_run *cpu, const char *model,
                          double tolerance)
{
    for (int i = 0; i < run->step_count; i++)
        if (!(fabs(run->steps[i].loss - cpu->steps[i].loss) <=
              tolerance * fabs(cpu->steps[i].loss)))
            fail_msg("%s, step %d: loss %.9g, on the CPU %.9g", model, i + 1, run->steps[i].loss,
                     cpu->steps[i].loss);
}

static void expect_near(const struct job_run *run, const struct job_run *cpu, const char *model)
{
    expect_within(run, cpu, model, TOLERANCE);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void test_cuda__models_train_as_on_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(models); i++) {
        FLEET_AUTO_FREE char *path = write_job(&models[i], "");
        struct job_run cpu, one, two;

        run_on("cpu", path, "1", NULL, NULL, &cpu);
        expect_success(&cpu, models[i].steps);
        run_on("cuda", path, "1", NULL, NULL, &one);
        expect_success(&one, models[i].steps);
        expect_near(&one, &cpu, models[i].name);
        set("FAKE_CUDA_SEED", "77");
        run_on("cuda", path, "2", NULL, NULL, &two);
        set("FAKE_CUDA_SEED", NULL);
        expect_success(&two, models[i].steps);
        assert_string_equal(two.sha256, one.sha256);
        job_run_release(&cpu);
        job_run_release(&one);
        job_run_release(&two);
    }
}

/* By default kernels run as CUDA graphs. */
static void test_cuda__graphs_change_no_bits(void **state)
{
    static const char *const workers[] = {"1", "2"};
    struct model model = models[0];
    FLEET_AUTO_FREE char *mark = fleet_file_join(folder, "graphed");
    FLEET_AUTO_FREE char *path = NULL;
    struct job_run plain, graphs;

    (void)state;
    model.steps = 8;
    path = write_job(&model, "");
    set("FAKE_CUDA_GRAPHED", mark);
    set("FLEET_CUDA_GRAPH", "0");
    run_on("cuda", path, "2", NULL, NULL, &plain);
    set("FLEET_CUDA_GRAPH", NULL);
    expect_success(&plain, model.steps);
    assert_int_not_equal(access(mark, F_OK), 0); /* the fake makes it, a GPU does not */
    for (size_t i = 0; i < FLEET_COUNT(workers); i++) {
        run_on("cuda", path, workers[i], NULL, NULL, &graphs);
        expect_success(&graphs, model.steps);
        assert_true(gpu || unlink(mark) == 0);
        assert_null(strstr(graphs.errors, "without a CUDA graph"));
        assert_string_equal(graphs.sha256, plain.sha256);
        job_run_release(&graphs);
    }
    set("FAKE_CUDA_GRAPHED", NULL);
    job_run_release(&plain);
}

/* Pieces of the runtime that use the device beside the step. */
static void test_cuda__checkpoints_and_evaluation_use_the_device(void **state)
{
    FLEET_AUTO_FREE char *path =
        write_job(&models[0], "evaluation: {everySteps: 2}, checkpoint: {path: saved, "
                              "everySteps: 2}, ");
    FLEET_AUTO_FREE char *saved = fleet_file_join(folder, "saved");
    struct job_run cpu, cuda;

    (void)state;
    run_on("cuda", path, "2", NULL, NULL, &cuda);
    expect_success(&cuda, models[0].steps);
    assert_true(cuda.checkpoint_count > 0 && cuda.evaluation_count > 0);
    job_run_remove(saved);
    run_on("cpu", path, "1", NULL, NULL, &cpu);
    expect_success(&cpu, models[0].steps);
    expect_near(&cuda, &cpu, "gpt");
    job_run_release(&cpu);
    job_run_release(&cuda);
}

/* Heads of 64 columns, several tiles a product, in both types of weights. */
static void test_cuda__a_larger_model_trains_as_on_the_cpu(void **state)
{
    static const struct model larger = {
        "gpt",
        "{name: gpt, layers: 2, heads: 2, width: 128, context: 96, dropout: 0.1}",
        "{name: adamw, learningRate: 0.001, clip: {globalNorm: 1}}",
        12,
        8,
        2};
    static const char *const precisions[] = {"", "precision: bf16, "};

    (void)state;
    if (is_fake())
        skip(); /* minutes on the emulator */
    for (size_t i = 0; i < FLEET_COUNT(precisions); i++) {
        FLEET_AUTO_FREE char *path = write_job(&larger, precisions[i]);
        struct job_run cpu, one, two;

        run_on("cpu", path, "1", NULL, NULL, &cpu);
        expect_success(&cpu, larger.steps);
        run_on("cuda", path, "1", NULL, NULL, &one);
        expect_success(&one, larger.steps);
        expect_within(&one, &cpu, larger.name, i == 0 ? TOLERANCE : TOLERANCE_BF16);
        run_on("cuda", path, "2", NULL, NULL, &two);
        expect_success(&two, larger.steps);
        assert_string_equal(two.sha256, one.sha256);
        job_run_release(&cpu);
        job_run_release(&one);
        job_run_release(&two);
    }
}

/* ---- matrix products ------------------------------------------------------------------------- */

static void test_cuda__matrices_are_multiplied_without_cublaslt(void **state)
{
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run with, without;

    (void)state;
    if (strcmp(cublaslt, "none") == 0)
        skip();
    run_on("cuda", path, "1", NULL, NULL, &with);
    expect_success(&with, models[0].steps);
    set("FLEET_CUBLASLT_LIBRARY", "none");
    run_on("cuda", path, "1", NULL, NULL, &without);
    set("FLEET_CUBLASLT_LIBRARY", cublaslt);
    expect_success(&without, models[0].steps);
    expect_near(&without, &with, "gpt");
    /* in another order, so the library was there */
    assert_string_not_equal(without.sha256, with.sha256);
    job_run_release(&with);
    job_run_release(&without);
}

/* Of several algorithms each rank takes the same one. */
static void test_cuda__two_workers_have_one_worker_s_bits_in_bf16(void **state)
{
    FLEET_AUTO_FREE char *path = write_job(&models[0], "precision: bf16, ");
    struct job_run one, two;

    (void)state;
    run_on("cuda", path, "1", NULL, NULL, &one);
    expect_success(&one, models[0].steps);
    run_on("cuda", path, "2", NULL, NULL, &two);
    expect_success(&two, models[0].steps);
    assert_string_equal(two.sha256, one.sha256);
    job_run_release(&one);
    job_run_release(&two);
}

/* ---- divided models -------------------------------------------------------------------------- */

/* The stages of a pipeline have the weights of one worker, and of two pipelines. */
static void test_cuda__stages_have_one_worker_s_bits(void **state)
{
    static const struct {
        const char *strategy, *workers;
    } rows[] = {{"{pipeline: true, hybrid_configs: {pp_degree: 2}}", "2"},
                {"{pipeline: true, hybrid_configs: {pp_degree: 2}}", "4"},
                {"{pipeline: true, hybrid_configs: {pp_degree: 2}, "
                 "pipeline_configs: {schedule_mode: F-then-B}}",
                 "2"}};
    struct model model = models[0];
    FLEET_AUTO_FREE char *path = NULL;
    struct job_run one, stages;

    (void)state;
    model.model = "{name: gpt, layers: 2, heads: 2, width: 16, context: 8, dropout: 0.1}";
    path = write_job(&model, "");
    run_on("cuda", path, "1", NULL, NULL, &one);
    expect_success(&one, model.steps);
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        FLEET_AUTO_FREE char *divided = write_divided_job(&model, "", rows[i].strategy);

        run_on("cuda", divided, rows[i].workers, NULL, NULL, &stages);
        expect_success(&stages, model.steps);
        assert_string_equal(stages.sha256, one.sha256);
        job_run_release(&stages);
    }
    job_run_release(&one);
}

/* Two ranks share the tensors of a model. Sums have another order than on one worker. */
static void test_cuda__shared_tensors_do_not_depend_on_the_workers(void **state)
{
    static const char strategy[] = "{hybrid_configs: {mp_degree: 2}}";
    FLEET_AUTO_FREE char *path = write_divided_job(&models[0], "", strategy);
    struct job_run cpu, two, four;

    (void)state;
    run_on("cpu", path, "2", NULL, NULL, &cpu);
    expect_success(&cpu, models[0].steps);
    run_on("cuda", path, "2", NULL, NULL, &two);
    expect_success(&two, models[0].steps);
    expect_near(&two, &cpu, models[0].name);
    run_on("cuda", path, "4", NULL, NULL, &four);
    expect_success(&four, models[0].steps);
    assert_string_equal(four.sha256, two.sha256);
    job_run_release(&cpu);
    job_run_release(&two);
    job_run_release(&four);
}

/* Gradients and states that ranks divide, clipped by the norm of all. */
static void test_cuda__divided_gradients_have_one_worker_s_bits(void **state)
{
    static const char *const workers[] = {"2", "3"};
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    FLEET_AUTO_FREE char *divided = NULL;
    struct job_run one, parts;

    (void)state;
    run_on("cuda", path, "1", NULL, NULL, &one);
    expect_success(&one, models[0].steps);
    divided = write_divided_job(&models[0], "", "{sharding: true, sharding_configs: {stage: 2}}");
    for (size_t i = 0; i < FLEET_COUNT(workers); i++) {
        run_on("cuda", divided, workers[i], NULL, NULL, &parts);
        expect_success(&parts, models[0].steps);
        assert_string_equal(parts.sha256, one.sha256);
        job_run_release(&parts);
    }
    job_run_release(&one);
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* Is the job's trainer killed before the job is over? Then it has the weights of one left alone. */
static bool strike(int steps)
{
    struct model model = models[0];
    FLEET_AUTO_FREE char *path = NULL;
    struct job_killer killer = {.every = 2, .rounds = 1, .victims = 1, .first = true};
    struct job_run calm, struck;
    bool is_hit;

    model.steps = steps;
    path = write_job(&model, "");
    run_on("cuda", path, "2", job_killer_watch, &killer, &struck);
    expect_success(&struck, steps);
    is_hit = killer.sent > 0 && struck.restart_count > 0;
    if (is_hit) {
        run_on("cuda", path, "1", NULL, NULL, &calm);
        expect_success(&calm, steps);
        assert_string_equal(struck.sha256, calm.sha256);
        job_run_release(&calm);
    }
    job_run_release(&struck);
    return is_hit;
}

static void test_cuda__a_killed_trainer_loses_nothing(void **state)
{
    int steps = 20;

    (void)state;
    while (!strike(steps) && steps < 320) /* this reader may be later than the job */
        steps *= 2;
    assert_true(steps < 320);
}

/* A context that is lost ends its process; the agent starts another one. */
static void test_cuda__a_lost_device_costs_a_restart(void **state)
{
    static const char *const calls[] = {"150:214", "400:700", "700:719"};
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run calm, struck;

    (void)state;
    run_on("cuda", path, "1", NULL, NULL, &calm);
    expect_success(&calm, models[0].steps);
    for (size_t i = 0; i < FLEET_COUNT(calls); i++) {
        FLEET_AUTO_FREE char *once = fleet_file_join(folder, "failed");
        char fail[4200];

        (void)unlink(once);
        (void)snprintf(fail, sizeof(fail), "%s:%s", calls[i], once);
        set("FAKE_CUDA_FAIL", fail);
        run_on("cuda", path, "2", NULL, NULL, &struck);
        set("FAKE_CUDA_FAIL", NULL);
        expect_success(&struck, models[0].steps);
        assert_int_equal(access(once, F_OK), 0);
        assert_int_equal(struck.restart_count, 1);
        assert_string_equal(struck.sha256, calm.sha256);
        job_run_release(&struck);
    }
    job_run_release(&calm);
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

static void test_cuda__gradients_go_by_the_host_without_nccl(void **state)
{
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run with, without;

    (void)state;
    run_on("cuda", path, "2", NULL, NULL, &with);
    expect_success(&with, models[0].steps);
    set("FLEET_NCCL_LIBRARY", other_library);
    run_on("cuda", path, "2", NULL, NULL, &without);
    set("FLEET_NCCL_LIBRARY", nccl);
    expect_success(&without, models[0].steps);
    assert_string_equal(without.sha256, with.sha256);
    job_run_release(&with);
    job_run_release(&without);
}

/* A connection that breaks costs a generation in the same processes; anything else, and a call that
 * never returns, a trainer. No step is lost. */
static void test_cuda__failures_of_nccl_lose_nothing(void **state)
{
    static const struct {
        const char *variable, *value;
    } faults[] = {{"FAKE_NCCL_FAIL", "4:2"},  /* while the communicator is made */
                  {"FAKE_NCCL_FAIL", "60:2"}, /* in a step */
                  {"FAKE_NCCL_FAIL", "90:3"},
                  {"FAKE_NCCL_HANG", "70"}};
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run calm, struck;

    (void)state;
    run_on("cuda", path, "2", NULL, NULL, &calm);
    expect_success(&calm, models[0].steps);
    for (size_t i = 0; i < FLEET_COUNT(faults); i++) {
        FLEET_AUTO_FREE char *once = fleet_file_join(folder, "failed");
        char value[4200];

        (void)unlink(once);
        (void)snprintf(value, sizeof(value), "%s:%s", faults[i].value, once);
        set(faults[i].variable, value);
        run_on("cuda", path, "2", NULL, NULL, &struck);
        set(faults[i].variable, NULL);
        expect_success(&struck, models[0].steps);
        assert_int_equal(access(once, F_OK), 0);
        assert_string_equal(struck.sha256, calm.sha256);
        job_run_release(&struck);
    }
    job_run_release(&calm);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void expect_refusal(const char *variable, const char *value, const char *text)
{
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run run;

    set(variable, value);
    run_on("cuda", path, "1", NULL, NULL, &run);
    set("FLEET_CUDA_LIBRARY", library);
    if (strcmp(variable, "FLEET_CUDA_LIBRARY") != 0)
        set(variable, NULL);
    assert_int_not_equal(run.exit_code, 0);
    assert_int_equal(run.step_count, 0);
    if (!strstr(run.errors, text))
        fail_msg("%s=%s: \"%s\" is not in: %s", variable, value, text, run.errors);
    job_run_release(&run);
}

static void test_cuda__says_why_there_is_no_gpu(void **state)
{
    (void)state;
    expect_refusal("FLEET_CUDA_LIBRARY", other_library, "cannot open shared object file");
    expect_refusal("FAKE_CUDA_DRIVER", "0", "this machine has no NVIDIA driver (libcuda.so.1)");
    expect_refusal("FAKE_CUDA_DRIVER", "12040",
                   "the NVIDIA driver knows CUDA 12.4, and this program needs CUDA 13.0 or later");
    expect_refusal("FAKE_CUDA_DEVICES", "0", "this machine has no GPU that a process may use");
    expect_refusal("FAKE_CUDA_CAPABILITY", "75",
                   "the GPU has compute capability 7.5, at least 8.0 is needed");
    expect_refusal("FLEET_CUBLASLT_LIBRARY", other_library,
                   "FLEET_CUBLASLT_LIBRARY: cannot be opened");
    set("FLEET_CUBLASLT_LIBRARY", cublaslt);
    expect_refusal("FAKE_CUDA_MEMORY", "100000", "of its 100000 bytes are free");
}

static void test_cuda__says_that_a_gpu_is_hidden(void **state)
{
    (void)state;
    if (is_fake())
        skip(); /* it does not look at the variable */
    expect_refusal("CUDA_VISIBLE_DEVICES", "-1", "this machine has no GPU that a process may use");
}

static int set_up(void **state)
{
    FLEET_AUTO_FREE char *bytes = malloc((size_t)IMAGES * RECORD_BYTES);
    const char *variant = getenv("FLEET_TEST_VARIANT"), *named = getenv("FLEET_CUBLASLT_LIBRARY");
    char here[3000];
    uint32_t random = 1;

    (void)state;
    assert_true(bytes && getcwd(here, sizeof(here)));
    if (gpu)
        (void)snprintf(library, sizeof(library), "%s", gpu);
    else
        (void)snprintf(library, sizeof(library), "%s/build/cuda_fake/%s/libfleet_cuda.so", here,
                       variant && variant[0] ? variant : "release");
    (void)snprintf(other_library, sizeof(other_library), "%s.gone", library);
    (void)snprintf(nccl, sizeof(nccl), "%s/build/nccl_fake/libnccl.so.2", here);
    if (gpu)
        (void)snprintf(cublaslt, sizeof(cublaslt), "%s", named ? named : "none");
    else
        (void)snprintf(cublaslt, sizeof(cublaslt), "%s/build/cublaslt_fake/libcublasLt.so.13",
                       here);
    set("FLEET_CUDA_LIBRARY", library);
    if (!gpu)
        set("FLEET_NCCL_LIBRARY", nccl);
    set("FLEET_CUBLASLT_LIBRARY", cublaslt);
    folder = job_run_folder();
    set("FAKE_NCCL_FOLDER", folder);
    images = fleet_file_join(folder, "images.bin");
    for (size_t i = 0; i < (size_t)IMAGES * RECORD_BYTES; i++) {
        random = random * 1664525u + 1013904223u;
        bytes[i] = (char)(i % RECORD_BYTES == 0 ? (random >> 24) % 10 : random >> 24);
    }
    return fleet_file_write(images, bytes, (size_t)IMAGES * RECORD_BYTES, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    job_run_remove(folder);
    free(folder);
    free(images);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda__models_train_as_on_the_cpu),
        cmocka_unit_test(test_cuda__graphs_change_no_bits),
        cmocka_unit_test(test_cuda__checkpoints_and_evaluation_use_the_device),
        cmocka_unit_test(test_cuda__matrices_are_multiplied_without_cublaslt),
        cmocka_unit_test(test_cuda__two_workers_have_one_worker_s_bits_in_bf16),
        cmocka_unit_test(test_cuda__stages_have_one_worker_s_bits),
        cmocka_unit_test(test_cuda__shared_tensors_do_not_depend_on_the_workers),
        cmocka_unit_test(test_cuda__divided_gradients_have_one_worker_s_bits),
        cmocka_unit_test(test_cuda__a_killed_trainer_loses_nothing),
        cmocka_unit_test(test_cuda__a_lost_device_costs_a_restart),
        cmocka_unit_test(test_cuda__gradients_go_by_the_host_without_nccl),
        cmocka_unit_test(test_cuda__failures_of_nccl_lose_nothing),
        cmocka_unit_test(test_cuda__says_why_there_is_no_gpu),
    };

    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(test_cuda__models_train_as_on_the_cpu),
        cmocka_unit_test(test_cuda__a_larger_model_trains_as_on_the_cpu),
        cmocka_unit_test(test_cuda__graphs_change_no_bits),
        cmocka_unit_test(test_cuda__checkpoints_and_evaluation_use_the_device),
        cmocka_unit_test(test_cuda__matrices_are_multiplied_without_cublaslt),
        cmocka_unit_test(test_cuda__two_workers_have_one_worker_s_bits_in_bf16),
        cmocka_unit_test(test_cuda__stages_have_one_worker_s_bits),
        cmocka_unit_test(test_cuda__shared_tensors_do_not_depend_on_the_workers),
        cmocka_unit_test(test_cuda__divided_gradients_have_one_worker_s_bits),
        cmocka_unit_test(test_cuda__a_killed_trainer_loses_nothing),
        cmocka_unit_test(test_cuda__says_that_a_gpu_is_hidden),
    };

    gpu = getenv("FLEET_TEST_GPU");
    return gpu ? cmocka_run_group_tests_name("gpu", on_gpu, set_up, tear_down)
               : cmocka_run_group_tests(tests, set_up, tear_down);
}
