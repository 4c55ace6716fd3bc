/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs that divide a model in several ways at once: by stages, by tensors, and its state by shards,
 * as a user runs them. All divisions with the same number of ranks to a tensor train with the same
 * bits: through evaluations, kills, and a resume under another division.
 */
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
#define FEW     12

#define SMALL  ", heads: 2, width: 32, context: 32"
#define GPT    "gpt, layers: 4" SMALL
#define ADAMW  "adamw, learningRate: 0.003, clip: {globalNorm: 1}"
#define TENSOR "hybrid_configs: {mp_degree: 2}"
#define CUT    "pipeline: true, hybrid_configs: {pp_degree: 2}"
#define BOTH   "pipeline: true, hybrid_configs: {pp_degree: 2, mp_degree: 2}"
#define SHARDS "sharding: true, sharding_configs: {stage: 1}, "
#define SUMS   "sharding: true, sharding_configs: {stage: 2}, "
#define PARTS \
    "sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.02}, " /* of parameters */

/* Two replicas of two shards, with two ranks to a tensor or two stages. */
#define SHARED_TENSORS "hybrid_configs: {sharding_degree: 2, mp_degree: 2}"
#define SHARED_STAGES  "pipeline: true, hybrid_configs: {sharding_degree: 2, pp_degree: 2}"
#define SHARED_BOTH \
    "pipeline: true, hybrid_configs: {sharding_degree: 2, pp_degree: 2, mp_degree: 2}"

static char *folder; /* of the job at work */

struct job {
    const char *model, *optimizer, *training; /* NULL: GPT, ADAMW, nothing */
    const char *settings;                     /* of the strategy, NULL: none */
    const char *division, *options;           /* over workers, NULL: none */
    int workers, steps;
    bool without_buddies;
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
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: hybrid}\nspec:\n"
        "  worker: {replicas: %d, minReplicas: %d, maxReplicas: %d}\n"
        "  runPolicy: {restart: {maxRestarts: 100}, elastic: {replicas: %d}}\n"
        "  strategy: {%s%s%s}\n  strategyOptions: {%s}\n  training:\n"
        "    model: {name: %s}\n    data: {path: %s/tests/golden/torch/jobs/text.txt, "
        "validation: 0.1}\n"
        "    optimizer: {name: %s}\n    globalBatchSize: 12\n    microBatchSize: 1\n"
        "    steps: %d\n    seed: 3\n%s",
        job->workers, job->workers, job->workers, job->without_buddies ? 0 : 1, settings,
        *settings ? ", " : "", job->division ? job->division : "", job->options ? job->options : "",
        job->model ? job->model : GPT, here, job->optimizer ? job->optimizer : ADAMW, job->steps,
        job->training ? job->training : "");
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

/* Each loss and the weights. */
static void expect_equal(const struct job *job, const struct job_run *run,
                         const struct job_run *wanted)
{
    for (int i = 0; i < run->step_count; i++)
        if (memcmp(&run->steps[i].loss, &wanted->steps[run->steps[i].step - 1].loss,
                   sizeof(double)) != 0)
            fail_msg("%s, %s, %d workers: step %d: loss %.9g, expected %.9g", job->division,
                     job->options ? job->options : "", job->workers, (int)run->steps[i].step,
                     run->steps[i].loss, wanted->steps[run->steps[i].step - 1].loss);
    if (strcmp(run->sha256, wanted->sha256) != 0)
        fail_msg("%s, %s, %d workers: weights %s, expected %s", job->division,
                 job->options ? job->options : "", job->workers, run->sha256, wanted->sha256);
}

/* ---- the same bits --------------------------------------------------------------------------- */

struct division {
    const char *division, *options;
    int workers;
};

#define DIVISIONS_MAX 6

static const struct row {
    const char *model, *optimizer, *settings;
    const char *alike; /* the division of the reference, which has as many ranks to a tensor */
    int workers;       /* of the reference */
    struct division divisions[DIVISIONS_MAX];
} rows[] = {
    {GPT, ADAMW, "", TENSOR, 2, {{BOTH, "", 4}, {BOTH, "", 8}}},
    {GPT,
     "sgd, learningRate: 0.05, clip: {norm: 0.1}",
     "",
     TENSOR,
     2,
     {{BOTH ", pipeline_configs: {schedule_mode: F-then-B}", "", 4}}},
    {"llama, layers: 2, heads: 4, kvHeads: 2, width: 32, context: 32",
     "momentum, learningRate: 0.02",
     "amp: true, recompute: true",
     "hybrid_configs: {mp_degree: 4}",
     4,
     {{"pipeline: true, hybrid_configs: {pp_degree: 2, mp_degree: 4}",
       "pipelineSchedule: zeroBubble", 8}}},
    {"gpt, layers: 6, dropout: 0.1" SMALL,
     ADAMW,
     "",
     TENSOR,
     2,
     {{"pipeline: true, hybrid_configs: {pp_degree: 3, mp_degree: 2}", "pipelineChunks: 2", 6}}},
    /* 12 steps in four updates of three */
    {GPT,
     ADAMW,
     "gradient_merge: true, gradient_merge_configs: {k_steps: 3}",
     TENSOR,
     2,
     {{BOTH, "pipelineLayers: [3, 1]", 8}}},
    {GPT,
     ADAMW,
     "",
     TENSOR,
     2,
     {{SHARDS SHARED_TENSORS, "", 4},
      {SUMS SHARED_TENSORS, "", 8},
      {SUMS SHARED_BOTH, "partition: greedy", 8},
      {PARTS SHARED_TENSORS, "", 4},
      {PARTS SHARED_TENSORS, "partition: greedy", 8},
      {PARTS SHARED_BOTH, "pipelineSchedule: zeroBubble", 8}}},
    {GPT,
     ADAMW,
     "",
     "",
     1,
     {{SHARDS SHARED_STAGES, "", 4},
      {SHARDS SHARED_STAGES, "pipelineSchedule: zeroBubble", 8},
      {SUMS SHARED_STAGES, "partition: greedy", 4},
      /* five replicas have three micro-batches, or two */
      {SUMS "pipeline: true, hybrid_configs: {sharding_degree: 5, pp_degree: 2}",
       "pipelineSchedule: zeroBubble", 10}}},
    {GPT,
     ADAMW,
     "",
     "",
     1,
     {{PARTS SHARED_STAGES, "", 4},
      {PARTS SHARED_STAGES ", pipeline_configs: {schedule_mode: F-then-B}", "", 8},
      {PARTS "pipeline: true, hybrid_configs: {sharding_degree: 5, pp_degree: 2}",
       "pipelineSchedule: zeroBubble", 10}}},
    {"gpt, layers: 6, tieEmbeddings: false" SMALL,
     "adam, learningRate: 0.003, clip: {norm: 0.1}",
     "amp: true, recompute: true",
     "",
     1,
     {{SUMS "pipeline: true, hybrid_configs: {sharding_degree: 2, pp_degree: 3}",
       "pipelineChunks: 2", 6},
      {PARTS "pipeline: true, hybrid_configs: {sharding_degree: 2, pp_degree: 3}",
       "pipelineChunks: 2", 6}}},
    /* each replica rounds its part, so the reference has two of them, too */
    {GPT,
     ADAMW,
     "fp16_allreduce: true",
     "",
     2,
     {{"pipeline: true, hybrid_configs: {dp_degree: 2, pp_degree: 2}", "", 4}}},
    {GPT,
     "lamb, learningRate: 0.01, clip: {globalNorm: 1}",
     "",
     TENSOR,
     2,
     {{BOTH, "", 4},
      {SHARDS SHARED_TENSORS, "", 4},
      {SUMS SHARED_TENSORS, "", 8},
      {PARTS SHARED_TENSORS, "", 4}}},
    {"llama, layers: 2" SMALL,
     "momentum, learningRate: 0.5",
     "lars: true",
     TENSOR,
     2,
     {{BOTH, "", 8}, {SUMS SHARED_TENSORS, "", 4}}},
};

static void compare_row(const struct row *row)
{
    struct job job = {.model = row->model,
                      .optimizer = row->optimizer,
                      .settings = row->settings,
                      .division = row->alike,
                      .workers = row->workers,
                      .steps = FEW};
    struct job_run reference;

    train(&job, &reference);
    assert_true(reference.steps[FEW - 1].loss < reference.steps[0].loss);
    for (int d = 0; d < DIVISIONS_MAX && row->divisions[d].workers > 0; d++) {
        struct job_run run;
        job.division = row->divisions[d].division;
        job.options = row->divisions[d].options;
        job.workers = row->divisions[d].workers;
        print_message("%s: %s, %s, %d workers\n", row->model, job.division, job.options,
                      job.workers);
        train(&job, &run);
        expect_equal(&job, &run, &reference);
        job_run_release(&run);
    }
    job_run_release(&reference);
}

static void test_hybrid_run__all_divisions_train_with_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        compare_row(&rows[i]);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* The losses of the evaluations, as they were printed. */
static void note_evaluation(void *context, struct job_run *run, const cJSON *event)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "event");

    (void)run;
    if (cJSON_IsString(name) && strcmp(name->valuestring, "evaluation") == 0) {
        char *text = cJSON_PrintUnformatted(event);
        fleet_strbuf_appendf(context, "%s\n", text);
        free(text);
    }
}

static void test_hybrid_run__evaluations_do_not_depend_on_the_division(void **state)
{
    static const struct division divisions[] = {{TENSOR, "", 2},
                                                {BOTH, "", 4},
                                                {BOTH, "", 8},
                                                {PARTS SHARED_TENSORS, "", 8},
                                                {PARTS SHARED_BOTH, "", 8}};
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(divisions); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf found = {0};
        struct job job = {.training = "    evaluation: {everySteps: 4, batches: 2}\n",
                          .division = divisions[i].division,
                          .workers = divisions[i].workers,
                          .steps = FEW};
        struct job_run run;
        run_job(&job, note_evaluation, i == 0 ? &first : &found, &run);
        assert_int_equal(run.evaluation_count, 3);
        if (i > 0)
            assert_string_equal(fleet_strbuf_text(&found), fleet_strbuf_text(&first));
        job_run_release(&run);
    }
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* One job after another goes on from the same folder, each under another division with as many
 * ranks to a tensor; in the end it is as if one had run. */
static void resume_in_turn(const struct division *divisions, size_t count)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "resumed");
    char training[4200];
    struct job alone = {.division = divisions[0].division,
                        .workers = divisions[0].workers,
                        .steps = (int)count * 4};
    struct job_run reference;

    train(&alone, &reference);
    (void)snprintf(training, sizeof(training), "    checkpoint: {path: %s}\n", path);
    for (size_t i = 0; i < count; i++) {
        struct job job = {.training = training,
                          .division = divisions[i].division,
                          .options = divisions[i].options,
                          .workers = divisions[i].workers,
                          .steps = (int)(i + 1) * 4};
        struct job_run run;
        print_message("to step %d: %s, %d workers\n", job.steps, job.division, job.workers);
        run_job(&job, NULL, NULL, &run);
        assert_int_equal(run.step_count, 4);
        assert_null(strstr(run.errors, "with other settings"));
        if (i + 1 == count)
            expect_equal(&job, &run, &reference);
        job_run_release(&run);
    }
    job_run_release(&reference);
    job_run_remove(path);
}

static void test_hybrid_run__any_division_goes_on_from_any_checkpoint(void **state)
{
    static const struct division tensors[] = {{BOTH, "", 4},
                                              {SUMS SHARED_TENSORS, "", 8},
                                              {BOTH, "pipelineLayers: [1, 3]", 8},
                                              {SHARDS SHARED_TENSORS, "partition: greedy", 4},
                                              {PARTS SHARED_BOTH, "", 8},
                                              {PARTS SHARED_TENSORS, "", 4},
                                              {TENSOR, "", 2}};
    static const struct division stages[] = {{SHARDS SHARED_STAGES, "", 4},
                                             {CUT, "", 2},
                                             {PARTS SHARED_STAGES, "", 4},
                                             {SUMS SHARED_STAGES, "", 8},
                                             {PARTS SHARED_STAGES, "partition: greedy", 8},
                                             {"", "", 2}};

    (void)state;
    resume_in_turn(tensors, FLEET_COUNT(tensors));
    resume_in_turn(stages, FLEET_COUNT(stages));
}

/* Another number of ranks to a tensor: the weights are read as they were written. */
static void test_hybrid_run__weights_are_read_under_another_tensor_degree(void **state)
{
    static const struct division divisions[] = {{BOTH, "", 4}, {CUT, "", 2}, {BOTH, "", 8}};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "degrees");
    char training[4200], sha256[sizeof(((struct job_run *)NULL)->sha256)] = "";

    (void)state;
    (void)snprintf(training, sizeof(training), "    checkpoint: {path: %s}\n", path);
    for (size_t i = 0; i < FLEET_COUNT(divisions); i++) {
        struct job job = {.training = training,
                          .division = divisions[i].division,
                          .workers = divisions[i].workers,
                          .steps = 4}; /* all done after the first job */
        struct job_run run;
        run_job(&job, NULL, NULL, &run);
        if (i > 0)
            assert_string_equal(run.sha256, sha256);
        strcpy(sha256, run.sha256);
        job_run_release(&run);
    }
    job_run_remove(path);
}

/* ---- kills ----------------------------------------------------------------------------------- */

/* False: the job had ended before, or no restart was reported. */
static bool is_hit(const struct division *division, bool agents, int steps)
{
    struct job_killer killer = {
        .every = 4, .spread = 3, .rounds = 2, .victims = 1, .agents = agents, .seed = 5};
    struct job job = {.division = division->division,
                      .options = division->options,
                      .workers = division->workers,
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

/* Another worker has what a killed one had. */
static void strike(const struct division *division)
{
    for (int agents = 0; agents < 2; agents++) {
        bool hit = false;

        print_message("%s: %s, %d workers\n", agents ? "agents" : "trainers", division->division,
                      division->workers);
        for (int steps = 80; !hit && steps <= 32 * 80; steps *= 2)
            hit = is_hit(division, agents != 0, steps);
        assert_true(hit);
    }
}

static void test_hybrid_run__killed_workers_leave_no_trace(void **state)
{
    static const struct division divisions[] = {{BOTH, "", 8},
                                                {SHARDS SHARED_TENSORS, "", 4},
                                                {SUMS SHARED_TENSORS, "", 8},
                                                {SUMS SHARED_STAGES, "", 4},
                                                {SHARDS SHARED_BOTH, "", 8},
                                                {PARTS SHARED_TENSORS, "", 4},
                                                {PARTS SHARED_STAGES, "", 4}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(divisions); i++)
        strike(&divisions[i]);
}

/* Without buddies a worker alone has its shard, and only its cell sees the loss. */
static void test_hybrid_run__a_shard_that_one_cell_lost_leaves_the_checkpoint(void **state)
{
    static const char *const divisions[] = {SHARDS SHARED_TENSORS, SUMS SHARED_STAGES,
                                            PARTS SHARED_STAGES};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(divisions); i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, "lost");
        char training[4200];
        struct job job = {
            .training = training, .division = divisions[i], .workers = 4, .without_buddies = true};
        bool hit = false;

        for (int steps = 80; !hit && steps <= 32 * 80; steps *= 2) {
            struct job_killer killer = {.every = 9, .rounds = 1, .victims = 1, .seed = 2};
            struct job_run run, reference;
            (void)snprintf(training, sizeof(training),
                           "    checkpoint: {path: %s, everySteps: 5}\n", path);
            job.steps = steps;
            job_run_may_lose_state = true;
            run_job(&job, job_killer_watch, &killer, &run);
            job_run_may_lose_state = false;
            hit = killer.sent > 0 && run.restart_count > 0;
            training[0] = '\0';
            if (hit) {
                train(&job, &reference);
                assert_string_equal(run.sha256, reference.sha256);
                job_run_release(&reference);
            }
            job_run_release(&run);
            job_run_remove(path);
        }
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
        cmocka_unit_test(test_hybrid_run__all_divisions_train_with_the_same_bits),
        cmocka_unit_test(test_hybrid_run__evaluations_do_not_depend_on_the_division),
        cmocka_unit_test(test_hybrid_run__any_division_goes_on_from_any_checkpoint),
        cmocka_unit_test(test_hybrid_run__weights_are_read_under_another_tensor_degree),
        cmocka_unit_test(test_hybrid_run__killed_workers_leave_no_trace),
        cmocka_unit_test(test_hybrid_run__a_shard_that_one_cell_lost_leaves_the_checkpoint),
    };

    return cmocka_run_group_tests_name("hybrid_run", tests, make_folder, remove_folder);
}
