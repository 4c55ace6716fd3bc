/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose workers share the tensors of a model, as a user runs them. At one degree the weights
 * are the same bits on any number of replicas, through kills, and through a resume on another
 * number of workers. Any degree goes on from the checkpoint of any other one, and an export does
 * not depend on the degree.
 */
#include <math.h>

#include "tests/integration/run_fixture.h"

#define BY_TWO          "  strategy: {hybrid_configs: {mp_degree: 2}}\n"
#define BY_ROWS         "tensor_parallel_configs: {sequence_parallel: true}"
#define BY_TWO_AND_ROWS "  strategy: {hybrid_configs: {mp_degree: 2}, " BY_ROWS "}\n"
#define FEW             "60"

/* A line for spec.training: one checkpoint, at the end, below `name`. */
static const char *checkpoint(const char *name)
{
    static char line[200];

    (void)snprintf(line, sizeof(line), "    checkpoint: {path: %s}\n", name);
    return line;
}

/* Run the job to its end. */
static struct story train(const char *name, const char *training, const char *spec,
                          const char *workers, const char *steps)
{
    struct run run;
    struct story story;

    start_small_job(&run, write_job(name, training, spec), workers, steps);
    wait_for_end(&run);
    expect_exit(&run, 0);
    story = read_story(&run);
    assert_string_equal(story.state, "Succeeded");
    expect_nothing_left(&run);
    release(&run);
    return story;
}

static void expect_weights(const struct story *story, const struct story *expected)
{
    if (strcmp(story->sha256, expected->sha256) != 0)
        fail_msg("the weights differ: expected %s, got %s", expected->sha256, story->sha256);
}

static void test_cells_run__weights_do_not_depend_on_the_replicas(void **state)
{
    static const char *const rows[] = {
        BY_TWO, /* with clipping by the global norm, as all of these jobs */
        "  strategy: {hybrid_configs: {mp_degree: 2}, recompute: true, gradient_merge: true, "
        "gradient_merge_configs: {k_steps: 2}}\n",
        "  strategy: {hybrid_configs: {mp_degree: 2}, amp: true}\n",
        /* The first loss scales overflow, and both ranks of a cell apply zeros. */
        "  strategyOptions: {overflowAction: zeroGrad}\n"
        "  strategy: {hybrid_configs: {mp_degree: 2}, amp: true, amp_configs: "
        "{init_loss_scaling: 1.0e9, decr_every_n_nan_or_inf: 1}}\n",
        "  strategy: {hybrid_configs: {mp_degree: 2}, " BY_ROWS "}\n",
        "  strategy: {hybrid_configs: {mp_degree: 2}, " BY_ROWS
        ", recompute: true, gradient_merge: true, gradient_merge_configs: {k_steps: 2}}\n",
        "  strategy: {hybrid_configs: {mp_degree: 2}, " BY_ROWS ", amp: true}\n"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct story one = train("replicas", "", rows[i], "2", FEW);
        struct story two = train("replicas", "", rows[i], "4", FEW);
        expect_weights(&two, &one);
        assert_true(one.last_loss < one.first_loss);
    }
}

/* The first loss comes from the initial weights, which are those of one worker. */
static void test_cells_run__a_model_begins_as_on_one_worker(void **state)
{
    struct story divided = train("begin", "", BY_TWO, "2", FEW);
    struct story whole = train("begin", "", "", "1", FEW);

    (void)state;
    assert_true(fabs(divided.first_loss - whole.first_loss) < 1e-5 * whole.first_loss);
}

static void test_cells_run__any_degree_goes_on_from_any_checkpoint(void **state)
{
    static const struct {
        const char *before, *workers_before, *after, *workers_after;
    } rows[] = {{BY_TWO, "4", "", "1"},
                {"", "3", BY_TWO, "2"},
                {BY_TWO, "2", BY_TWO, "4"},
                {BY_TWO_AND_ROWS, "2", BY_TWO, "2"},
                {"", "2", BY_TWO_AND_ROWS, "4"}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct story before, nothing, after;
        char name[32];
        (void)snprintf(name, sizeof(name), "degree-%zu", i);
        before = train("job", checkpoint(name), rows[i].before, rows[i].workers_before, FEW);
        expect_exported(name, &before);
        /* All steps are done: the weights are those that were read. */
        nothing = train("job", checkpoint(name), rows[i].after, rows[i].workers_after, FEW);
        expect_weights(&nothing, &before);
        after = train("job", checkpoint(name), rows[i].after, rows[i].workers_after, "70");
        assert_int_equal(after.first_step, 61);
        assert_int_equal(after.steps, 70);
        expect_exported(name, &after);
    }
}

/* A member that is killed after step 20. */
struct loss {
    const char *strategy, *workers;
    int member;
    bool agent;    /* else the trainer */
    bool has_more; /* other workers of the cell: no step is lost, without a checkpoint */
};

/* Is the job struck while it runs? In any case its weights are those of an undisturbed one. */
static bool lose(const void *context, int steps)
{
    const struct loss *loss = context;
    struct story alone = train("undisturbed", "", loss->strategy, "2", steps_text(steps)), story;
    static int count; /* a folder of its own: each job begins at step 0 */
    char training[100];
    struct run run;
    bool is_hit;

    (void)snprintf(training, sizeof(training), "    checkpoint: {path: cell-%d, everySteps: 10}\n",
                   ++count);
    start_small_job(&run, write_job("lost", loss->has_more ? "" : training, loss->strategy),
                    loss->workers, steps_text(steps));
    wait_for_step(&run, 20);
    is_hit = strike_if_running(&run, loss->member, loss->agent, SIGKILL);
    wait_for_end(&run);
    story = expect_success(&run, steps);
    expect_weights(&story, &alone);
    if (loss->has_more)
        assert_int_equal(story.lost_steps, 0);
    release(&run);
    return is_hit && story.restarts >= 1;
}

/* One worker of four, trainer or agent: another of its cell has what it had. */
static void test_cells_run__a_lost_worker_gets_its_part_from_its_cell(void **state)
{
    (void)state;
    for (int member = 0; member < 4; member++)
        strike_until_hit(lose,
                         &(struct loss){.strategy = BY_TWO,
                                        .workers = "4",
                                        .member = member,
                                        .agent = member % 2 == 0,
                                        .has_more = true},
                         few_steps);
}

/* A trainer in one cell, and an agent in the other one. */
static void test_cells_run__so_it_does_where_tokens_are_divided(void **state)
{
    (void)state;
    for (int member = 1; member < 3; member++)
        strike_until_hit(lose,
                         &(struct loss){.strategy = BY_TWO_AND_ROWS,
                                        .workers = "4",
                                        .member = member,
                                        .agent = member == 2,
                                        .has_more = true},
                         few_steps);
}

/* With one replica nobody else has what a worker had: the checkpoint is the state. */
static void test_cells_run__a_lost_cell_leaves_the_checkpoint(void **state)
{
    static const char *const strategies[] = {BY_TWO, BY_TWO_AND_ROWS};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(strategies); i++)
        strike_until_hit(lose,
                         &(struct loss){.strategy = strategies[i], .workers = "2", .member = 1},
                         few_steps);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells_run__weights_do_not_depend_on_the_replicas),
        cmocka_unit_test(test_cells_run__a_model_begins_as_on_one_worker),
        cmocka_unit_test(test_cells_run__any_degree_goes_on_from_any_checkpoint),
        cmocka_unit_test(test_cells_run__a_lost_worker_gets_its_part_from_its_cell),
        cmocka_unit_test(test_cells_run__so_it_does_where_tokens_are_divided),
        cmocka_unit_test(test_cells_run__a_lost_cell_leaves_the_checkpoint),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folder, remove_folder)
                                       : 1;
}
