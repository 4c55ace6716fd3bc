/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs with spec.autoParallel on 1 to 8 workers, beside one process without it: each step has the
 * same loss and the same norm of the gradient, times a number where gradients are added. Where no
 * ranks share tensors or sequences, the weights have the same bits.
 *
 * One context for each number of workers, or with AUTO_PARALLEL=all each context (`make
 * auto-parallel`).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"

#define LIMIT_S     600.0
#define STEPS       3
#define SAMPLES     24 /* of a batch */
#define WORKERS_MAX 8
#define TOLERANCE   1e-4 /* of sums in another order */

/* A factor of the gradient in the first step. */
enum factor {
    ONCE,
    REPLICAS, /* all of them are added */
    SHARERS,  /* ranks that compute one loss */
};

static const struct context {
    const char *keys;
    enum {
        DATA,    /* replicas alone */
        TENSORS, /* as an operator says */
        STAGES,  /* of a pipeline */
    } shared;    /* by as many ranks as the least divisor of the workers */
    enum factor factor;
} contexts[] = {
    {"data_parallel, gradients_mean: true", DATA, ONCE},
    {"data_parallel, gradients_mean: true, enable_parallel_optimizer: true", DATA, ONCE},
    {"semi_auto_parallel, gradients_mean: true, loss_repeated_mean: false", TENSORS, SHARERS},
    {"semi_auto_parallel, gradients_mean: true", STAGES, ONCE},
    {"data_parallel", DATA, REPLICAS},
    {"auto_parallel, gradients_mean: true, search_mode: sharding_propagation", TENSORS, ONCE},
    {"hybrid_parallel, gradients_mean: true", DATA, ONCE},
    {"semi_auto_parallel", TENSORS, REPLICAS},
    {"semi_auto_parallel, gradients_mean: true", TENSORS, ONCE},
    {"hybrid_parallel, gradients_mean: false", DATA, REPLICAS},
    {"semi_auto_parallel, gradients_mean: true, enable_parallel_optimizer: true, "
     "parallel_optimizer_config: {optimizer_level: level2}",
     DATA, ONCE},
    {"semi_auto_parallel, gradients_mean: true, enable_parallel_optimizer: true, "
     "parallel_optimizer_config: {optimizer_level: level3}",
     DATA, ONCE},
    {"semi_auto_parallel", STAGES, REPLICAS},
    {"auto_parallel, gradients_mean: true, search_mode: dynamic_programming", DATA, ONCE},
    {"auto_parallel, gradients_mean: true, auto_parallel_search_mode: dynamic_programming", STAGES,
     ONCE},
};

/* The smallest divisor of the workers above 1. Nothing divides 24 heads over 5 or 7 ranks. */
static int divisor_of(int workers, bool of_heads)
{
    for (int i = 2; i <= workers; i++)
        if (workers % i == 0 && (!of_heads || 24 % i == 0))
            return i;
    return 1;
}

static void train(int workers, const char *operators, const char *context, struct job_run *run)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {path, NULL};

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: workers}\nspec:\n"
        "  worker: {replicas: %d}\n"
        "  training:\n"
        "    model: {name: gpt, layers: 8, heads: 24, width: 48, context: 16}\n"
        "    data: {tokenizer: synthetic-markov, symbols: 16}\n"
        "    optimizer: {name: adamw, learningRate: 1.0e-3}\n"
        "    globalBatchSize: %d\n    microBatchSize: 1\n    steps: %d\n%s%s",
        workers, SAMPLES, STEPS, operators, context);
    write_file("job.yaml", text.text, text.length);
    job_run(arguments, LIMIT_S, NULL, NULL, run);
    if (run->exit_code != 0 || run->problem[0] || run->step_count != STEPS)
        fail_msg("%d workers, %s: exit %d, problem \"%s\": %s", workers, context, run->exit_code,
                 run->problem, run->errors);
}

static void expect_close(double found, double expected, const char *what, int workers,
                         const char *context)
{
    if (!(fabs(found - expected) <= TOLERANCE * fabs(expected)))
        fail_msg("%d workers, %s: %s is %.9g, not %.9g", workers, context, what, found, expected);
}

/* Adamw hardly depends on a factor of the gradient, but on its epsilon: behind the first step, jobs
 * with a factor are not compared. */
static void compare(const struct job_run *alone, int workers, const struct context *context)
{
    int divisor = divisor_of(workers, context->shared == TENSORS), factor = 1;
    char keys[300], lines[400], operators[200] = "";
    struct job_run run;

    if (context->shared == TENSORS && SAMPLES % (workers / divisor) != 0)
        return; /* 5 and 7 parts of the samples, as an operator would say */
    (void)snprintf(keys, sizeof(keys), "%s", context->keys);
    if (context->shared == STAGES)
        (void)snprintf(keys, sizeof(keys), "%s, pipeline_stages: %d", context->keys, divisor);
    (void)snprintf(lines, sizeof(lines), "  autoParallel: {parallel_mode: %s}\n", keys);
    if (context->shared == TENSORS)
        (void)snprintf(operators, sizeof(operators),
                       "    operatorStrategies: [{operator: 'h.*.mlp.c_fc', in: [[%d, 1, 1], [1, "
                       "%d]]}]\n",
                       workers / divisor, divisor);
    if (context->factor == SHARERS)
        factor = divisor;
    else if (context->factor == REPLICAS)
        factor = context->shared == DATA ? workers : workers / divisor;
    train(workers, operators, lines, &run);
    expect_close(run.steps[0].grad_norm, factor * alone->steps[0].grad_norm, "the gradient",
                 workers, keys);
    for (int i = 0; i < (factor == 1 ? STEPS : 1); i++)
        expect_close(run.steps[i].loss, alone->steps[i].loss, "the loss", workers, keys);
    if (factor == 1 && context->shared != TENSORS && strcmp(run.sha256, alone->sha256) != 0)
        fail_msg("%d workers, %s: other bits", workers, keys);
    job_run_release(&run);
}

static void test_auto_parallel_workers__train_as_one_process(void **state)
{
    const char *all = getenv("AUTO_PARALLEL");
    struct job_run alone;

    (void)state;
    train(1, "", "", &alone);
    for (int workers = 1; workers <= WORKERS_MAX; workers++)
        for (size_t i = 0; i < FLEET_COUNT(contexts); i++)
            if ((all && strcmp(all, "all") == 0) || i == (size_t)workers - 1)
                compare(&alone, workers, &contexts[i]);
    job_run_release(&alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_auto_parallel_workers__train_as_one_process,
                                        job_folder_make, job_folder_remove),
    };
    return cmocka_run_group_tests_name("auto_parallel_workers", tests, NULL, NULL);
}
