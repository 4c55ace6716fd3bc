/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_CUDA_FIXTURE_H
#define TESTS_INTEGRATION_CUDA_FIXTURE_H

/*
 * Whole jobs on the back end for NVIDIA GPUs, over a fake libcudart (tests/cuda_fake): its device
 * memory cannot be touched by the host, its streams run late and in the order of a seed, and its
 * kernels are ours, on the emulator.
 *
 * FLEET_TEST_GPU=LIBRARY: the same over a real GPU (tests/gpu/check.sh), with that libfleet_cuda.so
 * and the NCCL of FLEET_NCCL_LIBRARY. Tests that need a fake's failures are left out.
 */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
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

#define RECORD_BYTES (1 + 3 * 32 * 32) /* of CIFAR-10 */
#define IMAGES       16

/* Losses on the two back ends differ by the order of sums in fp32. */
#define TOLERANCE      2e-5
#define TOLERANCE_BF16 4e-3

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

/* Its micro-batches have more rows than a chunk of the classifier (libfleet/plan/gpu_program.h). */
static const struct model many_rows = {"gpt",
                                       "{name: gpt, layers: 1, heads: 1, width: 8, context: 16}",
                                       "{name: adamw, learningRate: 0.003, clip: {globalNorm: 1}}",
                                       1,
                                       258,
                                       129};

/* tests/gpu/check.sh --fake runs the tests of a GPU over the fake. */
static inline bool is_fake(void)
{
    return strstr(library, "/cuda_fake/") != NULL;
}

/* `strategy` is that of the job, after "strategy: ". */
static inline char *write_divided_job(const struct model *m, const char *training,
                                      const char *strategy)
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

static inline char *write_job(const struct model *m, const char *training)
{
    return write_divided_job(m, training, "{}");
}

static inline void set(const char *name, const char *value)
{
    assert_int_equal(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

static inline void run_on(const char *backend, const char *path, const char *workers,
                          job_run_watch watch, void *context, struct job_run *out)
{
    const char *arguments[] = {"--workers", workers, path, NULL};

    set("FLEET_BACKEND", backend);
    job_run(arguments, gpu ? LIMIT_GPU_S : LIMIT_S, watch, context, out);
    set("FLEET_BACKEND", NULL);
}

static inline void expect_success(const struct job_run *run, int steps)
{
    if (run->exit_code != 0 || run->problem[0])
        fail_msg("exit %d, problem \"%s\", after %d steps: %s", run->exit_code, run->problem,
                 run->step_count, run->errors);
    assert_int_equal(run->step_count, steps);
}

/* How a job is trained, as run_on("cuda", …). */
typedef void (*cuda_train)(const char *path, const char *workers, job_run_watch watch,
                           void *context, struct job_run *out);

static inline void train_on_cuda(const char *path, const char *workers, job_run_watch watch,
                                 void *context, struct job_run *out)
{
    run_on("cuda", path, workers, watch, context, out);
}

/* A job on two workers that kills one of its trainers. */
struct struck_job {
    const struct model *model;
    const char *strategy;
    bool saves; /* it saves each step, and may need that: no worker has all of the state */
    int every;  /* as the killer's */
    cuda_train train;
};

/* For job_strike_until_hit(), `context` is a struck_job: was a trainer killed before the job was
 * over? Then the weights are those of one worker that is left alone. */
static inline bool strike_one_of_two(const void *context, int steps)
{
    const struct struck_job *job = context;
    struct model model = *job->model;
    FLEET_AUTO_FREE char *path = NULL, *saved = fleet_file_join(folder, "saved");
    struct job_killer killer = {.every = job->every, .rounds = 1, .victims = 1, .first = true};
    struct job_run calm, struck;
    bool is_hit;

    model.steps = steps;
    path = write_divided_job(&model, job->saves ? "checkpoint: {path: saved, everySteps: 1}, " : "",
                             job->strategy);
    job_run_remove(saved);
    job_run_may_lose_state = job->saves;
    job->train(path, "2", job_killer_watch, &killer, &struck);
    job_run_may_lose_state = false;
    if (job->saves && struck.exit_code != 0)
        fail_msg("exit %d: %s", struck.exit_code, struck.errors);
    if (!job->saves)
        expect_success(&struck, steps);
    is_hit = killer.sent > 0 && struck.restart_count > 0;
    job_run_remove(saved);
    if (is_hit) {
        job->train(path, "1", NULL, NULL, &calm);
        expect_success(&calm, steps);
        assert_string_equal(struck.sha256, calm.sha256);
        job_run_release(&calm);
        job_run_remove(saved);
    }
    job_run_release(&struck);
    return is_hit;
}

static inline void expect_within(const struct job_run *run, const struct job_run *cpu,
                                 const char *model, double tolerance)
{
    for (int i = 0; i < run->step_count; i++)
        if (!(fabs(run->steps[i].loss - cpu->steps[i].loss) <=
              tolerance * fabs(cpu->steps[i].loss)))
            fail_msg("%s, step %d: loss %.9g, on the CPU %.9g", model, i + 1, run->steps[i].loss,
                     cpu->steps[i].loss);
}

static inline void expect_near(const struct job_run *run, const struct job_run *cpu,
                               const char *model)
{
    expect_within(run, cpu, model, TOLERANCE);
}

static inline int set_up(void **state)
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

static inline int tear_down(void **state)
{
    (void)state;
    job_run_remove(folder);
    free(folder);
    free(images);
    return 0;
}

/* Run `on_gpu` over the GPU of FLEET_TEST_GPU, without it `tests` over the fakes. */
#define cuda_run_tests(name, tests, on_gpu)                                         \
    ((gpu = getenv("FLEET_TEST_GPU"))                                               \
         ? cmocka_run_group_tests_name(name " on a GPU", on_gpu, set_up, tear_down) \
         : cmocka_run_group_tests_name(name, tests, set_up, tear_down))

#endif
