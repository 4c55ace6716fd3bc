/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Batch normalization over all workers, by real processes. N workers with micro-batches of b give
 * what one worker gives with N·b. Workers with fewer micro-batches than others take part, and a
 * worker that is killed in the midst leaves no trace.
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

#define LIMIT_S   600.0
#define STEPS     6
#define TOLERANCE 1e-5

struct job {
    const char *workers;
    int batch, micro_batch;
    const char *strategy; /* beside sync_batch_norm */
    const char *training;
};

struct result {
    struct job_run run;
    char *weights; /* as exported: parameters and running statistics */
    size_t size;
};

static void result_release(struct result *result)
{
    job_run_release(&result->run);
    free(result->weights);
}

/* The images and weights are a recording's: rounding turns no ReLU over. */
static char *write_job(const struct job *job, const char *folder)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char *path = fleet_file_join(folder, "job.yaml");
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: shared}\n"
        "spec: {worker: {replicas: 1}, runPolicy: {restart: {maxRestarts: 100}}, "
        "strategy: {sync_batch_norm: true%s}, training: {model: {name: resnet, preset: resnet18, "
        "stem: cifar, baseWidth: 6, depths: [1, 1], classes: 10, "
        "initialWeights: %s/tests/golden/torch/distributed/resnet.safetensors}, "
        "data: {path: %s/tests/golden/torch/distributed/images.bin, tokenizer: cifar10, "
        "shuffle: false, validation: 0.25}, "
        "optimizer: {name: momentum, learningRate: 0.05, weightDecay: 0.0005}, "
        "globalBatchSize: %d, microBatchSize: %d, steps: %d, seed: 1, precision: fp32%s, "
        "checkpoint: {path: checkpoints, everySteps: 6}}}\n",
        job->strategy, here, here, job->batch, job->micro_batch, STEPS, job->training);
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    return path;
}

static void run_job(const struct job *job, job_run_watch watch, void *context, struct result *out)
{
    FLEET_AUTO_FREE char *folder = job_run_folder();
    FLEET_AUTO_FREE char *path = write_job(job, folder);
    FLEET_AUTO_FREE char *checkpoints = fleet_file_join(folder, "checkpoints");
    FLEET_AUTO_FREE char *file = fleet_file_join(folder, "weights.safetensors");
    FLEET_AUTO_FREE char *errors = NULL;
    const char *arguments[] = {"--workers", job->workers, path, NULL};
    const char *export[] = {"export", checkpoints, file, NULL};

    job_run(arguments, LIMIT_S, watch, context, &out->run);
    if (out->run.exit_code != 0 || out->run.problem[0] ||
        strcmp(out->run.state, "Succeeded") != 0 || out->run.step_count != STEPS)
        fail_msg("%s workers: exit %d, problem \"%s\", after %d steps: %s", job->workers,
                 out->run.exit_code, out->run.problem, out->run.step_count, out->run.errors);
    if (job_run_command("fleetjob", export, NULL, &errors) != 0)
        fail_msg("export: %s", errors);
    assert_int_equal(fleet_file_read(file, 64 << 20, &out->weights, &out->size, NULL), 0);
    job_run_remove(folder);
}

/* ---- N workers with b, one with N·b ---------------------------------------------------------- */

/* The tensors of two files with the same header. */
static void expect_near(const struct job *job, const struct result *a, const struct result *b)
{
    uint64_t header;
    double worst = 0;

    assert_int_equal(a->size, b->size);
    memcpy(&header, a->weights, sizeof(header));
    header += sizeof(header);
    assert_true(header < a->size);
    for (size_t at = (size_t)header; at + sizeof(float) <= a->size; at += sizeof(float)) {
        float x, y;
        memcpy(&x, a->weights + at, sizeof(x));
        memcpy(&y, b->weights + at, sizeof(y));
        worst = fmax(worst, fabs((double)x - (double)y) / fmax(1.0, fabs((double)y)));
    }
    if (!(worst <= TOLERANCE))
        fail_msg("%s workers: weights or running statistics are off by %g", job->workers, worst);
}

static void test_sync_batch_norm__many_small_parts_are_one_large_one(void **state)
{
    static const struct job one = {"1", 8, 8, "", ""};
    static const struct job many[] = {{"2", 8, 4, "", ""},
                                      {"4", 8, 2, "", ""},
                                      {"8", 8, 1, "", ""},
                                      {"4", 8, 2, ", recompute: true", ""}};
    struct result wanted;

    (void)state;
    run_job(&one, NULL, NULL, &wanted);
    for (size_t i = 0; i < FLEET_COUNT(many); i++) {
        struct result found;
        run_job(&many[i], NULL, NULL, &found);
        for (int s = 0; s < STEPS; s++) {
            double loss = wanted.run.steps[s].loss, norm = wanted.run.steps[s].grad_norm;
            if (fabs(found.run.steps[s].loss - loss) > TOLERANCE ||
                fabs(found.run.steps[s].grad_norm - norm) > 10 * TOLERANCE * norm)
                fail_msg("%s workers, step %d: loss %.9g norm %.9g, expected %.9g %.9g",
                         many[i].workers, s + 1, found.run.steps[s].loss,
                         found.run.steps[s].grad_norm, loss, norm);
        }
        expect_near(&many[i], &found, &wanted);
        result_release(&found);
    }
    result_release(&wanted);
}

/* ---- kills ----------------------------------------------------------------------------------- */

static void test_sync_batch_norm__kills_leave_no_trace_where_parts_are_uneven(void **state)
{
    static const struct job jobs[] = {
        {"3", 8, 2, "", ""},  /* two micro-batches, one, one */
        {"4", 14, 2, "", ""}, /* one of four has less */
        {"2", 6, 2, ", gradient_merge: true, gradient_merge_configs: {k_steps: 4}",
         ", evaluation: {everySteps: 2}"}, /* the last update is incomplete */
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        struct job_strike strike = {.at = 2};
        struct result wanted, found;

        run_job(&jobs[i], NULL, NULL, &wanted);
        run_job(&jobs[i], job_strike_watch, &strike, &found);
        for (int s = 0; s < STEPS; s++)
            if (found.run.steps[s].loss != wanted.run.steps[s].loss)
                fail_msg("%s workers, step %d: loss %.9g, expected %.9g", jobs[i].workers, s + 1,
                         found.run.steps[s].loss, wanted.run.steps[s].loss);
        if (found.size != wanted.size || memcmp(found.weights, wanted.weights, found.size) != 0)
            fail_msg("%s workers: the exported tensors differ", jobs[i].workers);
        result_release(&wanted);
        result_release(&found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_batch_norm__many_small_parts_are_one_large_one),
        cmocka_unit_test(test_sync_batch_norm__kills_leave_no_trace_where_parts_are_uneven),
    };
    return cmocka_run_group_tests_name("sync_batch_norm", tests, NULL, NULL);
}
