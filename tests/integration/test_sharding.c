/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Divided optimizer state and lost workers: what one rank alone has got is with its buddy or with
 * the other group; where both are lost, the last checkpoint is the state, and a line says so. The
 * weights are those of an undisturbed job on one worker that divides nothing.
 */
#include "tests/integration/run_fixture.h"

#define SHARDED "  strategy: {sharding: true}\n"
#define HYBRID \
    "  strategy: {sharding: true, sharding_configs: {hybrid_dp: true, sharding_group_size: 2}}\n"
#define GRADIENTS "  strategy: {sharding: true, sharding_configs: {stage: 2}}\n"
#define HYBRID_GRADIENTS                                                          \
    "  strategy: {sharding: true, sharding_configs: {stage: 2, hybrid_dp: true, " \
    "sharding_group_size: 2}}\n"
#define ALONE      "  runPolicy: {elastic: {replicas: 0}}\n"
#define OFTEN      "    checkpoint: {path: %s, everySteps: 10}\n"
#define LOST       " of the optimizer state of step "
#define WITH_THEM  " is lost with the workers that held it"
#define MANY_KILLS "  runPolicy: {restart: {maxRestarts: 100}}\n"

/* A line for spec.training: checkpoints every 10 steps below `name`. */
static const char *checkpoints(const char *name)
{
    static char line[200];

    (void)snprintf(line, sizeof(line), OFTEN, name);
    return line;
}

/* Kill each of them at once after step 20; false if the job was over before. */
static void kill_after_step(struct run *run, const int *members, int count)
{
    wait_for_step(run, 20);
    for (int i = 0; i < count; i++)
        strike(run, members[i], false, SIGKILL);
    wait_for_end(run);
}

static struct story expect_same_weights(struct run *run, const char *steps)
{
    struct story story = expect_success(run, atoi(steps));

    expect_undisturbed(&story, steps);
    return story;
}

/* No checkpoint is there to go back to: the buddy has the lost shard. */
static void test_sharding__the_buddy_has_what_one_lost_worker_had(void **state)
{
    static const struct {
        const char *spec;
        int member; /* the one with rank 0, too */
    } rows[] = {{SHARDED, 0}, {SHARDED, 1}, {SHARDED, 2}, {GRADIENTS, 0}, {GRADIENTS, 1}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct run run;
        struct story story;
        start_small_job(&run, write_job("buddy", "", rows[i].spec), "3", few_steps);
        kill_after_step(&run, &rows[i].member, 1);
        story = expect_same_weights(&run, few_steps);
        assert_true(story.restarts >= 1);
        assert_int_equal(story.lost_steps, 0);
        release(&run);
    }
}

/* The buddy of the last rank is the first one; some ranks have two micro-batches, others one. */
static void test_sharding__so_it_has_on_six_and_eight_workers(void **state)
{
    static const struct {
        const char *workers, *spec;
        int member;
    } rows[] = {{"6", SHARDED, 5},
                {"8", SHARDED, 0},
                {"8", SHARDED, 4},
                {"6", GRADIENTS, 2},
                {"8", GRADIENTS, 7}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct run run;
        struct story story;
        start_small_job(&run, write_job("many", "", rows[i].spec), rows[i].workers, few_steps);
        kill_after_step(&run, &rows[i].member, 1);
        story = expect_same_weights(&run, few_steps);
        assert_true(story.restarts >= 1);
        assert_int_equal(story.lost_steps, 0);
        release(&run);
    }
}

/* Two groups: the other one has it, and there are no buddies. */
static void test_sharding__the_other_group_has_what_one_lost_worker_had(void **state)
{
    static const int one[] = {1}, both_of_a_group[] = {0, 1};
    static const struct {
        const char *spec;
        const int *members;
        int count;
    } rows[] = {{HYBRID, one, 1}, {HYBRID, both_of_a_group, 2}, {HYBRID_GRADIENTS, one, 1}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct run run;
        struct story story;
        start_small_job(&run, write_job("group", "", rows[i].spec), "4", few_steps);
        kill_after_step(&run, rows[i].members, rows[i].count);
        story = expect_same_weights(&run, few_steps);
        assert_int_equal(story.lost_steps, 0);
        release(&run);
    }
}

/* The hub names the shard, as it does in a cluster's status. */
static void expect_named(const struct run *run)
{
    expect_words(&run->out, "\"event\":\"stateLost\"");
    expect_words(&run->out, LOST);
    expect_words(&run->out, WITH_THEM);
}

/* All holders of a shard at once: an event names it, and the checkpoint is read. */
static void expect_lost(const char *name, const char *spec, const char *workers, const int *members,
                        int count)
{
    struct run run;
    struct story story;

    start_small_job(&run, write_job(name, checkpoints(name), spec), workers, few_steps);
    kill_after_step(&run, members, count);
    story = expect_same_weights(&run, few_steps);
    assert_true(story.restarts >= 1);
    expect_named(&run);
    release(&run);
}

static void test_sharding__owner_and_buddy_lost_leave_the_checkpoint(void **state)
{
    static const int neighbours[] = {0, 1}, with_the_last[] = {2, 0};

    (void)state;
    expect_lost("neighbours", SHARDED, "3", neighbours, 2);
    expect_lost("with-the-last", SHARDED, "3", with_the_last, 2);
    expect_lost("of-gradients", GRADIENTS, "3", neighbours, 2);
}

static void test_sharding__without_buddies_one_lost_worker_leaves_the_checkpoint(void **state)
{
    static const int one[] = {1}, opposite[] = {1, 3};

    (void)state;
    expect_lost("alone", SHARDED ALONE, "3", one, 1);
    expect_lost("opposite", HYBRID, "4", opposite, 2); /* shard 1 of both groups */
}

/* Where there is no checkpoint, either, survivors begin again as if they had never trained. */
static void test_sharding__without_any_copy_training_begins_again(void **state)
{
    static const int one[] = {2};
    struct run run;

    (void)state;
    start_small_job(&run, write_job("again", "", SHARDED ALONE), "3", few_steps);
    kill_after_step(&run, one, 1);
    (void)expect_same_weights(&run, few_steps);
    expect_named(&run);
    release(&run);
}

/* Kills at moments that the seed chooses, also while state is being moved. */
static void test_sharding__kills_at_random_moments_change_nothing(void **state)
{
    unsigned int seed = (unsigned int)time(NULL);
    const char *spec = seed & 1 ? GRADIENTS MANY_KILLS : SHARDED MANY_KILLS;
    struct run run;

    (void)state;
    (void)printf("seed %u\n", seed);
    start_small_job(&run, write_job("storm", checkpoints("storm"), spec), "3", many_steps);
    wait_for_step(&run, 5);
    for (int i = 0; i < 8 && run.process.out_fd >= 0; i++) {
        double until_ms = fleet_monotonic_ms() + (double)(rand_r(&seed) % 400);
        if (!strike_if_running(&run, (int)(rand_r(&seed) % 3), rand_r(&seed) % 4 == 0, SIGKILL))
            break;
        while (fleet_monotonic_ms() < until_ms)
            listen_to(&run, 10);
    }
    wait_for_end(&run);
    (void)expect_same_weights(&run, many_steps);
    release(&run);
}

/* ---- from one division to another ------------------------------------------------------------ */

/* Ctrl-C after some steps: all save together behind the update at work. */
static void interrupt(const char *path, const char *workers)
{
    struct run run;

    start_small_job(&run, path, workers, few_steps);
    wait_for_step(&run, 15);
    assert_int_equal(kill(run.process.pid, SIGINT), 0);
    wait_for_end(&run);
    assert_int_equal(strstr(fleet_strbuf_text(&run.out), "\"event\":\"checkpoint\"") != NULL, 1);
    release(&run);
}

static void expect_rest(const char *path, const char *workers)
{
    struct run run;
    struct story story;

    start_small_job(&run, path, workers, few_steps);
    wait_for_end(&run);
    expect_exit(&run, 0);
    story = read_story(&run);
    assert_true(story.first_step > 15); /* nothing that was done is done again */
    assert_int_equal(story.steps, atoi(few_steps));
    expect_undisturbed(&story, few_steps);
    release(&run);
}

static void test_sharding__checkpoints_go_from_any_division_to_any(void **state)
{
    static const struct {
        const char *before, *workers_before, *after, *workers_after;
    } rows[] = {{SHARDED, "4", "", "1"},
                {"", "2", SHARDED, "3"},
                {SHARDED, "2", HYBRID, "4"},
                {HYBRID, "4", "  strategyOptions: {partition: greedy}\n" SHARDED, "3"},
                {GRADIENTS, "3", "", "2"},
                {SHARDED, "2", GRADIENTS, "4"}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        char name[32], line[200];
        (void)snprintf(name, sizeof(name), "division-%zu", i);
        (void)snprintf(line, sizeof(line), "    checkpoint: {path: %s}\n", name);
        interrupt(write_job("before", line, rows[i].before), rows[i].workers_before);
        expect_rest(write_job("after", line, rows[i].after), rows[i].workers_after);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharding__the_buddy_has_what_one_lost_worker_had),
        cmocka_unit_test(test_sharding__so_it_has_on_six_and_eight_workers),
        cmocka_unit_test(test_sharding__the_other_group_has_what_one_lost_worker_had),
        cmocka_unit_test(test_sharding__owner_and_buddy_lost_leave_the_checkpoint),
        cmocka_unit_test(test_sharding__without_buddies_one_lost_worker_leaves_the_checkpoint),
        cmocka_unit_test(test_sharding__without_any_copy_training_begins_again),
        cmocka_unit_test(test_sharding__kills_at_random_moments_change_nothing),
        cmocka_unit_test(test_sharding__checkpoints_go_from_any_division_to_any),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folder, remove_folder)
                                       : 1;
}
