/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The grand equality. One small job on eight workers, under every grid of data, sharding (stages
 * 1 to 3), pipeline (each schedule) and tensor parallelism, with one or two ranks to a sequence:
 *
 *   - with the same numbers of ranks to a tensor and to a sequence, all grids give the same bits.
 *     Grids that also divide the rows of activations have bits of their own, the same for all of
 *     these;
 *   - with different numbers, losses agree up to rounding. The bound is measured: micro-batches of
 *     one, two and four samples compute the same means in another order, so the losses of these
 *     jobs differ by what rounding does in this model, or by less than the distance of two fp32
 *     numbers. The ranks that share a tensor, or a sequence, change the order of other sums of the
 *     same kind.
 *
 * Without GRIDS=all in the environment only a few grids run (`make grids` runs all).
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
#include "tests/support/job_run.h"

#define LIMIT_S     600.0
#define WORKERS     8
#define STEPS       20
#define RESULTS_MAX 15   /* 1, 2, 4 and 8 ranks to a tensor; 2, 4 and 8 with divided rows; … */
#define ROUNDINGS   16.0 /* a degree may differ by so many times what the micro-batch size does */

enum schedule {
    ONE_F_ONE_B,
    F_THEN_B,
    ZERO_BUBBLE,
    INTERLEAVED,
    SCHEDULES
};

static const char *const schedule_names[] = {"1F1B", "F-then-B", "zero-bubble", "interleaved"};

struct grid {
    int data, sharding, stage, pipeline, model;
    enum schedule schedule;
    bool rows;    /* the ranks to a tensor divide the tokens of a micro-batch, too */
    int sequence; /* 0 counts as 1 */
};

static char *folder;

static int ranks_to_a_sequence(const struct grid *g)
{
    return g->sequence > 1 ? g->sequence : 1;
}

/* ---- a job ----------------------------------------------------------------------------------- */

static void print_grid(const struct grid *g, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(
        out, "data %d, sharding %d (stage %d), pipeline %d (%s), model %d%s, sequence %d", g->data,
        g->sharding, g->stage, g->pipeline, schedule_names[g->schedule], g->model,
        g->rows ? " with divided rows" : "", ranks_to_a_sequence(g));
}

static void write_division(const struct grid *g, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "  strategyOptions: {%s}\n  strategy: {",
                         g->schedule == ZERO_BUBBLE   ? "pipelineSchedule: zeroBubble"
                         : g->schedule == INTERLEAVED ? "pipelineChunks: 2"
                                                      : "");
    if (g->pipeline > 1)
        fleet_strbuf_appendf(
            out, "pipeline: true, %s",
            g->schedule == F_THEN_B ? "pipeline_configs: {schedule_mode: F-then-B}, " : "");
    if (g->sharding > 1)
        fleet_strbuf_appendf(out, "sharding: true, sharding_configs: {stage: %d}, ", g->stage);
    if (g->rows)
        fleet_strbuf_append(out, "tensor_parallel_configs: {sequence_parallel: true}, ");
    fleet_strbuf_appendf(out,
                         "hybrid_configs: {dp_degree: %d, sharding_degree: %d, pp_degree: %d, "
                         "mp_degree: %d, sep_degree: %d}}\n",
                         g->data, g->sharding, g->pipeline, g->model, ranks_to_a_sequence(g));
}

/* 16 samples to a step: eight stages have as many micro-batches as they need. */
static void train(const struct grid *g, int micro_batch, struct job_run *out)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, name = {0};
    const char *arguments[] = {path, NULL};
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(&text,
                         "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\n"
                         "metadata: {name: grids}\nspec:\n  worker: {replicas: %d}\n",
                         g->data * g->sharding * g->pipeline * g->model * ranks_to_a_sequence(g));
    write_division(g, &text);
    fleet_strbuf_appendf(
        &text,
        "  training:\n    model: {name: gpt, layers: 8, heads: 8, width: 32, context: 16}\n"
        "    data: {path: %s/tests/golden/torch/jobs/text.txt}\n"
        "    optimizer: {name: adamw, learningRate: 0.003, clip: {globalNorm: 1}}\n"
        "    globalBatchSize: 16\n    microBatchSize: %d\n    steps: %d\n    seed: 11\n",
        here, micro_batch, STEPS);
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    job_run(arguments, LIMIT_S, NULL, NULL, out);
    print_grid(g, &name);
    if (out->exit_code != 0 || out->problem[0] || out->step_count != STEPS)
        fail_msg("%s: exit %d, problem \"%s\", after %d steps: %s", name.text, out->exit_code,
                 out->problem, out->step_count, out->errors);
}

/* ---- one degree ------------------------------------------------------------------------------ */

/* What the first grid of each tensor and sequence degree gave. */
static struct {
    int model, sequence;
    bool rows;
    struct job_run run;
} firsts[RESULTS_MAX];
static int first_count;

static const struct job_run *first_of(const struct grid *g)
{
    for (int i = 0; i < first_count; i++)
        if (firsts[i].model == g->model && firsts[i].rows == g->rows &&
            firsts[i].sequence == ranks_to_a_sequence(g))
            return &firsts[i].run;
    assert_true(first_count < RESULTS_MAX);
    firsts[first_count].model = g->model;
    firsts[first_count].rows = g->rows;
    firsts[first_count].sequence = ranks_to_a_sequence(g);
    train(&(struct grid){1, 1, 1, 1, g->model, ONE_F_ONE_B, g->rows, g->sequence}, 1,
          &firsts[first_count].run);
    return &firsts[first_count++].run;
}

static void compare_grid(const struct grid *g)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};
    const struct job_run *first = first_of(g);
    struct job_run run;

    train(g, 1, &run);
    print_grid(g, &name);
    print_message("%s: %.16s\n", name.text, run.sha256);
    for (int i = 0; i < STEPS; i++)
        if (memcmp(&run.steps[i].loss, &first->steps[i].loss, sizeof(double)) != 0)
            fail_msg("%s: step %d: loss %.9g, expected %.9g", name.text, i + 1, run.steps[i].loss,
                     first->steps[i].loss);
    if (strcmp(run.sha256, first->sha256) != 0)
        fail_msg("%s: weights %s, expected %s", name.text, run.sha256, first->sha256);
    job_run_release(&run);
}

/* ---- all grids ------------------------------------------------------------------------------- */

static bool has_schedule(const struct grid *g)
{
    if (g->pipeline == 1)
        return g->schedule == ONE_F_ONE_B;
    return g->schedule != INTERLEAVED || g->pipeline == 4; /* of 8 layers, two chunks a stage */
}

/* Each one whose product is eight. */
static int list_grids(struct grid *out, int capacity)
{
    int count = 0;

    for (int code = 0; code < 4 * 4 * 4 * 4 * 3 * SCHEDULES * 2 * 2; code++) {
        struct grid g = {.data = 1 << code % 4,
                         .sharding = 1 << code / 4 % 4,
                         .pipeline = 1 << code / 16 % 4,
                         .model = 1 << code / 64 % 4,
                         .stage = 1 + code / 256 % 3,
                         .schedule = (enum schedule)(code / 768 % SCHEDULES),
                         .rows = code / (768 * SCHEDULES) % 2 > 0,
                         .sequence = 1 + code / (768 * SCHEDULES * 2)};

        if (g.data * g.sharding * g.pipeline * g.model * g.sequence != WORKERS ||
            !has_schedule(&g) || (g.stage > 1 && g.sharding == 1) || (g.rows && g.model == 1))
            continue;
        assert_true(count < capacity);
        out[count++] = g;
    }
    return count;
}

static void test_grids__one_degree_has_one_result(void **state)
{
    static const struct grid few[] = {
        {1, 2, 2, 2, 2, ZERO_BUBBLE, false, 1}, {1, 1, 1, 4, 2, INTERLEAVED, true, 1},
        {1, 2, 3, 2, 2, ONE_F_ONE_B, false, 1}, {1, 2, 3, 2, 2, ZERO_BUBBLE, true, 1},
        {2, 2, 2, 1, 1, ONE_F_ONE_B, false, 2}, {1, 2, 3, 2, 1, ZERO_BUBBLE, false, 2},
        {1, 1, 1, 2, 2, ONE_F_ONE_B, true, 2}};
    const char *wanted = getenv("GRIDS");
    struct grid all[600];
    int count;

    (void)state;
    if (!wanted || strcmp(wanted, "all") != 0) {
        for (size_t i = 0; i < FLEET_COUNT(few); i++)
            compare_grid(&few[i]);
        return;
    }
    count = list_grids(all, (int)FLEET_COUNT(all));
    for (int i = 0; i < count; i++)
        compare_grid(&all[i]);
    print_message("%d grids\n", count);
}

/* ---- different degrees ----------------------------------------------------------------------- */

static double distance(const struct job_run *a, const struct job_run *b)
{
    double most = 0;

    for (int i = 0; i < STEPS; i++)
        most = fmax(most, fabs(a->steps[i].loss - b->steps[i].loss));
    return most;
}

static void expect_near(const struct grid *grid, const struct job_run *whole, double bound)
{
    double found = distance(first_of(grid), whole);

    print_message("%d ranks to a tensor%s, %d to a sequence: %.3g, at most %.3g\n", grid->model,
                  grid->rows ? " with divided rows" : "", ranks_to_a_sequence(grid), found, bound);
    assert_true(found <= bound);
}

static void test_grids__degrees_agree_up_to_rounding(void **state)
{
    static const struct grid alone = {1, 1, 1, 1, 1, ONE_F_ONE_B, false, 1};
    const struct job_run *whole = first_of(&alone);
    double bound = ROUNDINGS * ldexp(whole->steps[0].loss, -23);

    (void)state;
    for (int micro_batch = 2; micro_batch <= 4; micro_batch *= 2) {
        struct job_run other;
        train(&alone, micro_batch, &other);
        bound = fmax(bound, ROUNDINGS * distance(whole, &other));
        job_run_release(&other);
    }
    assert_true(bound > 0 && bound < 1e-3 * whole->steps[0].loss);
    for (int code = 2; code < 8; code++) /* 2, 4 and 8 ranks, without and with divided rows */
        expect_near(&(struct grid){1, 1, 1, 1, 1 << code / 2, ONE_F_ONE_B, code % 2 == 1, 1}, whole,
                    bound);
    for (int ranks = 2; ranks <= 8; ranks *= 4)
        expect_near(&(struct grid){1, 1, 1, 1, 1, ONE_F_ONE_B, false, ranks}, whole, bound);
    expect_near(&(struct grid){1, 1, 1, 1, 2, ONE_F_ONE_B, true, 2}, whole, bound);
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
    for (int i = 0; i < first_count; i++)
        job_run_release(&firsts[i].run);
    job_run_remove(folder);
    free(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grids__one_degree_has_one_result),
        cmocka_unit_test(test_grids__degrees_agree_up_to_rounding),
    };

    return cmocka_run_group_tests_name("grids", tests, make_folder, remove_folder);
}
