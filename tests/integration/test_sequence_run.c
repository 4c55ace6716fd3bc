/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose workers share sequences (hybrid_configs.sep_degree), as a user runs them. At one
 * degree the weights are the same bits under any other division, through evaluations and kills.
 * Jobs of different degrees go on from each other's checkpoints, and begin with the same loss.
 */
#include <math.h>
#include <setjmp.h>
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

#define LIMIT_S 600.0
#define FEW     8

#define SMALL ", layers: 2, heads: 4, width: 32, context: 32"
#define SEVEN ", layers: 2, heads: 7, width: 56, context: 28"
#define GPT   "gpt" SMALL
#define PAIR  "hybrid_configs: {sep_degree: 2}"

static char *folder; /* of the job at work */

struct job {
    const char *model, *settings; /* NULL: GPT, nothing */
    const char *training;         /* lines of spec.training, NULL: none */
    const char *division, *options;
    int workers, steps;
    int micro_batch; /* 0: 1 */
};

static char *write_job(const struct job *job)
{
    char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *settings = job->settings ? job->settings : "";
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: sequence}\nspec:\n"
        "  worker: {replicas: %d}\n  runPolicy: {restart: {maxRestarts: 100}}\n"
        "  strategy: {%s%s%s}\n  strategyOptions: {%s}\n  training:\n"
        "    model: {name: %s}\n    data: {path: %s/tests/golden/torch/jobs/text.txt, "
        "validation: 0.1}\n"
        "    optimizer: {name: adamw, learningRate: 0.003, clip: {globalNorm: 1}}\n"
        "    globalBatchSize: 8\n    microBatchSize: %d\n    steps: %d\n    seed: 3\n%s",
        job->workers, settings, *settings ? ", " : "", job->division,
        job->options ? job->options : "", job->model ? job->model : GPT, here,
        job->micro_batch ? job->micro_batch : 1, job->steps, job->training ? job->training : "");
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    return path;
}

static void run_job(const struct job *job, job_run_watch watch, void *context, struct job_run *out)
{
    FLEET_AUTO_FREE char *path = write_job(job);
    const char *arguments[] = {path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
    if (out->exit_code != 0 || out->problem[0] || strcmp(out->state, "Succeeded") != 0)
        fail_msg("%s, %d workers: exit %d, problem \"%s\", after %d steps: %s", job->division,
                 job->workers, out->exit_code, out->problem, out->step_count, out->errors);
}

static void train(const struct job *job, struct job_run *out)
{
    run_job(job, NULL, NULL, out);
    assert_int_equal(out->step_count, job->steps);
}

/* Each loss, each evaluation and the weights. */
static void expect_equal(const struct job *job, const struct job_run *run,
                         const struct job_run *wanted)
{
    for (int i = 0; i < run->step_count; i++)
        if (memcmp(&run->steps[i].loss, &wanted->steps[run->steps[i].step - 1].loss,
                   sizeof(double)) != 0)
            fail_msg("%s, %d workers: step %d: loss %.9g, expected %.9g", job->division,
                     job->workers, (int)run->steps[i].step, run->steps[i].loss,
                     wanted->steps[run->steps[i].step - 1].loss);
    if (strcmp(run->sha256, wanted->sha256) != 0)
        fail_msg("%s, %d workers: weights %s, expected %s", job->division, job->workers,
                 run->sha256, wanted->sha256);
}

/* ---- the same bits --------------------------------------------------------------------------- */

static const struct row {
    const char *model, *settings, *alike; /* the division of the reference */
    int workers;                          /* of the reference */
    const char *division, *options;
    int many;
} rows[] = {
    {GPT ", dropout: 0.1", "recompute: true", PAIR, 2, "hybrid_configs: {sep_degree: 2}", "", 4},
    {"llama" SMALL, "amp: true", PAIR, 2,
     "sharding: true, sharding_configs: {stage: 2}, hybrid_configs: {sharding_degree: 2, "
     "sep_degree: 2}",
     "", 4},
    {GPT, "", PAIR, 2,
     "sharding: true, sharding_configs: {stage: 3}, hybrid_configs: {sharding_degree: 2, "
     "sep_degree: 2}",
     "", 4},
    {GPT, "gradient_merge: true, gradient_merge_configs: {k_steps: 2}", PAIR, 2,
     "pipeline: true, hybrid_configs: {pp_degree: 2, sep_degree: 2}",
     "pipelineSchedule: zeroBubble", 8},
    {"llama" SMALL ", dropout: 0.1", "tensor_parallel_configs: {sequence_parallel: true}",
     "hybrid_configs: {mp_degree: 2, sep_degree: 2}", 4,
     "hybrid_configs: {mp_degree: 2, sep_degree: 2, order: [sep, dp, pp, sharding, mp]}", "", 8},
};

static void test_sequence_run__all_divisions_train_with_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct job job = {.model = rows[i].model,
                          .settings = rows[i].settings,
                          .division = rows[i].alike,
                          .workers = rows[i].workers,
                          .steps = FEW};
        struct job_run reference, run;

        train(&job, &reference);
        assert_true(reference.steps[FEW - 1].loss < reference.steps[0].loss);
        job.division = rows[i].division;
        job.options = rows[i].options;
        job.workers = rows[i].many;
        print_message("%s: %s, %d workers\n", job.model, job.division, job.workers);
        train(&job, &run);
        expect_equal(&job, &run, &reference);
        job_run_release(&run);
        job_run_release(&reference);
    }
}

/* ---- as one worker --------------------------------------------------------------------------- */

static double distance(const struct job_run *a, const struct job_run *b)
{
    double most = 0;

    for (int i = 0; i < FEW; i++)
        most = fmax(most, fabs(a->steps[i].loss - b->steps[i].loss));
    return most;
}

/* The loss of the last evaluation. */
static void note_evaluation(void *context, struct job_run *run, const cJSON *event)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "event");

    (void)run;
    if (cJSON_IsString(name) && strcmp(name->valuestring, "evaluation") == 0)
        *(double *)context = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(event, "loss"));
}

static void train_and_evaluate(const struct job *job, struct job_run *run, double *loss)
{
    *loss = NAN;
    run_job(job, note_evaluation, loss, run);
    assert_int_equal(run->step_count, job->steps);
    assert_true(isfinite(*loss));
}

/* Micro-batches of another size compute the same means in another order, so their losses differ by
 * what rounding does in this model; the ranks of a sequence change the order of sums of the same
 * kind, and dropout drops the same elements. The evaluation has samples for no whole number of
 * micro-batches. */
static void test_sequence_run__learns_as_one_worker_does(void **state)
{
    static const struct {
        const char *model, *division;
        int workers, micro_batch;
    } jobs[] = {{GPT ", dropout: 0.1", PAIR, 2, 1},
                {GPT ", dropout: 0.1", PAIR, 2, 2},
                {GPT ", dropout: 0.1", "hybrid_configs: {sep_degree: 4}", 4, 2},
                {GPT, "pipeline: true, hybrid_configs: {pp_degree: 2, sep_degree: 2}", 4, 4},
                {"llama" SMALL, PAIR, 2, 1},
                {"llama, kvHeads: 2" SMALL, "hybrid_configs: {sep_degree: 4}", 4, 8},
                {"llama, kvHeads: 1" SEVEN, "hybrid_configs: {sep_degree: 7}", 7, 2}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        struct job job = {.model = jobs[i].model,
                          .training = "    evaluation: {everySteps: 8}\n",
                          .division = "",
                          .workers = 1,
                          .steps = FEW};
        double bound, loss, loss_of_one, loss_of_other;
        struct job_run one, other, run;

        job.micro_batch = jobs[i].micro_batch;
        train_and_evaluate(&job, &one, &loss_of_one);
        job.micro_batch = jobs[i].micro_batch == 4 ? 2 : 4;
        train_and_evaluate(&job, &other, &loss_of_other);
        bound = 16 * fmax(distance(&one, &other), ldexp(one.steps[0].loss, -23));
        bound = fmax(bound, 16 * fabs(loss_of_one - loss_of_other));
        assert_true(bound < 1e-3 * one.steps[0].loss);
        job.micro_batch = jobs[i].micro_batch;
        job.division = jobs[i].division;
        job.workers = jobs[i].workers;
        train_and_evaluate(&job, &run, &loss);
        print_message("%s: %s: %.3g, evaluation %.3g, at most %.3g\n", job.model, job.division,
                      distance(&run, &one), fabs(loss - loss_of_one), bound);
        assert_true(distance(&run, &one) <= bound);
        assert_true(fabs(loss - loss_of_one) <= bound);
        job_run_release(&run);
        job_run_release(&other);
        job_run_release(&one);
    }
}

/* ---- evaluations, checkpoints ---------------------------------------------------------------- */

/* A job of each degree goes on where one of another degree ended: weights are read as they were
 * written, evaluations are those of whole sequences up to rounding. */
static void test_sequence_run__degrees_go_on_from_each_other(void **state)
{
    static const struct {
        const char *division;
        int workers;
    } jobs[] = {{PAIR, 4},
                {"", 1},
                {"hybrid_configs: {sep_degree: 4}", 4},
                {"pipeline: true, hybrid_configs: {pp_degree: 2, sep_degree: 2}", 4},
                {"hybrid_configs: {mp_degree: 2, sep_degree: 2}", 4}};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "degrees");
    char training[4200], sha256[sizeof(((struct job_run *)NULL)->sha256)] = "";

    (void)state;
    (void)snprintf(training, sizeof(training),
                   "    checkpoint: {path: %s}\n    evaluation: {everySteps: 4, batches: 2}\n",
                   path);
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        struct job job = {.training = training,
                          .division = jobs[i].division,
                          .workers = jobs[i].workers,
                          .steps = 4}; /* all done after the first job */
        struct job_run run;
        print_message("%s, %d workers\n", job.division, job.workers);
        run_job(&job, NULL, NULL, &run);
        assert_int_equal(run.step_count, i == 0 ? 4 : 0);
        if (i > 0)
            assert_string_equal(run.sha256, sha256);
        strcpy(sha256, run.sha256);
        job_run_release(&run);
    }
    for (size_t i = 0; i < FLEET_COUNT(jobs);
         i++) { /* and trains on, also from each other's states */
        struct job job = {.training = training,
                          .division = jobs[i].division,
                          .workers = jobs[i].workers,
                          .steps = 4 + 4 * (int)(i + 1)};
        struct job_run run;
        run_job(&job, NULL, NULL, &run);
        assert_int_equal(run.step_count, 4);
        assert_int_equal(run.evaluation_count, 1);
        job_run_release(&run);
    }
    job_run_remove(path);
}

/* ---- kills ----------------------------------------------------------------------------------- */

struct killed {
    const char *division, *options;
    int workers;
    bool agents;
};

/* False: the job had ended before, or no restart was reported. */
static bool is_hit(const struct killed *killed, int steps)
{
    struct job_killer killer = {
        .every = 4, .spread = 3, .rounds = 2, .victims = 1, .agents = killed->agents, .seed = 5};
    struct job job = {.division = killed->division,
                      .options = killed->options,
                      .workers = killed->workers,
                      .steps = steps};
    struct job_run run, reference;
    bool hit;

    run_job(&job, job_killer_watch, &killer, &run);
    assert_int_equal(run.step_count, steps);
    hit = killer.sent > 0 && run.restart_count > 0;
    if (hit) {
        train(&job, &reference);
        expect_equal(&job, &run, &reference);
        job_run_release(&reference);
    }
    job_run_release(&run);
    return hit;
}

/* Another worker of the same place in its sequence, tensor, stage and shard has what a killed one
 * had. */
static void test_sequence_run__killed_workers_leave_no_trace(void **state)
{
    static const struct killed jobs[] = {
        {PAIR, "", 4, false},
        {PAIR, "", 4, true},
        {"hybrid_configs: {dp_degree: 2, mp_degree: 2, sep_degree: 2}", "", 8, false},
        {"pipeline: true, hybrid_configs: {pp_degree: 2, sep_degree: 2}",
         "pipelineSchedule: zeroBubble", 8, true},
        {"sharding: true, sharding_configs: {stage: 3}, hybrid_configs: {sharding_degree: 4, "
         "sep_degree: 2}",
         "", 8, false},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        bool hit = false;

        print_message("%s: %s, %d workers\n", jobs[i].agents ? "agents" : "trainers",
                      jobs[i].division, jobs[i].workers);
        for (int steps = 80; !hit && steps <= 32 * 80; steps *= 2)
            hit = is_hit(&jobs[i], steps);
        assert_true(hit);
    }
}

static int make_folder(void **state)
{
    (void)state;
    folder = job_run_folder();
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    job_run_remove(folder);
    free(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequence_run__all_divisions_train_with_the_same_bits),
        cmocka_unit_test(test_sequence_run__learns_as_one_worker_does),
        cmocka_unit_test(test_sequence_run__degrees_go_on_from_each_other),
        cmocka_unit_test(test_sequence_run__killed_workers_leave_no_trace),
    };

    return cmocka_run_group_tests_name("sequence_run", tests, make_folder, remove_folder);
}
