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
#define PARAMETERS                                                                  \
    "  strategy: {sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: " \
    "0.01}}\n"
#define HYBRID_PARAMETERS                                                         \
    "  strategy: {sharding: true, sharding_configs: {stage: 3, hybrid_dp: true, " \
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

static struct story expect_same_weights(struct run *run, int steps)
{
    struct story story = expect_success(run, steps);

    expect_undisturbed(&story, steps_text(steps));
    return story;
}

/* A job that loses some workers at once. */
struct loss {
    const char *name, *spec, *workers;
    const int *members;
    int count;
    bool has_checkpoints;
    bool is_lost; /* no other worker has what they had; else no step is lost */
};

/* The hub names the shard, as it does in a cluster's status. */
static bool is_named(const struct run *run)
{
    const char *said = fleet_strbuf_text(&run->out);

    return strstr(said, "\"event\":\"stateLost\"") && strstr(said, LOST) && strstr(said, WITH_THEM);
}

/* Kill them after step 20. Are they lost at once, while the job runs? Where this process was held
 * up between two kills, the second worker has given its state to others. */
static bool lose(const void *context, int steps)
{
    const struct loss *loss = context;
    struct story story;
    struct run run;
    char name[32];
    bool is_hit;

    (void)snprintf(name, sizeof(name), "%s-%d", loss->name, steps);
    start_small_job(&run,
                    write_job(name, loss->has_checkpoints ? checkpoints(name) : "", loss->spec),
                    loss->workers, steps_text(steps));
    wait_for_step(&run, 20);
    for (int i = 0; i < loss->count; i++)
        (void)strike_if_running(&run, loss->members[i], false, SIGKILL);
    wait_for_end(&run);
    story = expect_same_weights(&run, steps);
    if (!loss->is_lost)
        assert_int_equal(story.lost_steps, 0);
    is_hit = story.restarts >= 1 && (!loss->is_lost || is_named(&run));
    release(&run);
    return is_hit;
}

/* Their buddies, or another group, have all that they had. */
static void expect_nothing_lost(const struct loss *loss)
{
    strike_until_hit(lose, loss, few_steps);
}

/* No checkpoint is there to go back to: the buddy has the lost shard. */
static void test_sharding__the_buddy_has_what_one_lost_worker_had(void **state)
{
    static const struct {
        const char *spec;
        int member; /* the one with rank 0, too */
    } rows[] = {{SHARDED, 0},   {SHARDED, 1},    {SHARDED, 2},   {GRADIENTS, 0},
                {GRADIENTS, 1}, {PARAMETERS, 0}, {PARAMETERS, 2}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        expect_nothing_lost(&(struct loss){.name = "buddy",
                                           .spec = rows[i].spec,
                                           .workers = "3",
                                           .members = &rows[i].member,
                                           .count = 1});
}

/* The buddy of the last rank is the first one; some ranks have two micro-batches, others one. */
static void test_sharding__so_it_has_on_six_and_eight_workers(void **state)
{
    static const struct {
        const char *workers, *spec;
        int member;
    } rows[] = {{"6", SHARDED, 5},   {"8", SHARDED, 0},    {"8", SHARDED, 4},   {"6", GRADIENTS, 2},
                {"8", GRADIENTS, 7}, {"6", PARAMETERS, 5}, {"8", PARAMETERS, 0}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        expect_nothing_lost(&(struct loss){.name = "many",
                                           .spec = rows[i].spec,
                                           .workers = rows[i].workers,
                                           .members = &rows[i].member,
                                           .count = 1});
}

/* Two groups: the other one has it, and there are no buddies. */
static void test_sharding__the_other_group_has_what_one_lost_worker_had(void **state)
{
    static const int one[] = {1}, both_of_a_group[] = {0, 1};
    static const struct {
        const char *spec;
        const int *members;
        int count;
    } rows[] = {{HYBRID, one, 1},
                {HYBRID, both_of_a_group, 2},
                {HYBRID_GRADIENTS, one, 1},
                {HYBRID_PARAMETERS, both_of_a_group, 2}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        expect_nothing_lost(&(struct loss){.name = "group",
                                           .spec = rows[i].spec,
                                           .workers = "4",
                                           .members = rows[i].members,
                                           .count = rows[i].count});
}

/* All holders of a shard at once: an event names it, and the checkpoint is read. */
static void expect_lost(const char *name, const char *spec, const char *workers, const int *members,
                        int count)
{
    struct loss loss = {.name = name,
                        .spec = spec,
                        .workers = workers,
                        .members = members,
                        .count = count,
                        .has_checkpoints = true,
                        .is_lost = true};

    strike_until_hit(lose, &loss, few_steps);
}

static void test_sharding__owner_and_buddy_lost_leave_the_checkpoint(void **state)
{
    static const int neighbours[] = {0, 1}, with_the_last[] = {2, 0};

    (void)state;
    expect_lost("neighbours", SHARDED, "3", neighbours, 2);
    expect_lost("with-the-last", SHARDED, "3", with_the_last, 2);
    expect_lost("of-gradients", GRADIENTS, "3", neighbours, 2);
    expect_lost("of-parameters", PARAMETERS, "3", with_the_last, 2);
}

static void test_sharding__without_buddies_one_lost_worker_leaves_the_checkpoint(void **state)
{
    static const int one[] = {1}, opposite[] = {1, 3};

    (void)state;
    expect_lost("alone", SHARDED ALONE, "3", one, 1);
    expect_lost("opposite", HYBRID, "4", opposite, 2); /* shard 1 of both groups */
    expect_lost("alone-parameters", PARAMETERS ALONE, "3", one, 1);
}

/* Where there is no checkpoint, either, survivors begin again as if they had never trained. */
static void test_sharding__without_any_copy_training_begins_again(void **state)
{
    static const char *const specs[] = {SHARDED ALONE, PARAMETERS ALONE};
    static const int one[] = {2};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(specs); i++) {
        struct loss loss = {.name = "again",
                            .spec = specs[i],
                            .workers = "3",
                            .members = one,
                            .count = 1,
                            .is_lost = true};
        strike_until_hit(lose, &loss, few_steps);
    }
}

/* Kills at moments that the seed chooses, also while state is being moved. */
static void test_sharding__kills_at_random_moments_change_nothing(void **state)
{
    static const char *const specs[] = {SHARDED MANY_KILLS, GRADIENTS MANY_KILLS,
                                        PARAMETERS MANY_KILLS};
    unsigned int seed = (unsigned int)time(NULL);
    const char *spec = specs[seed % FLEET_COUNT(specs)];
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
    (void)expect_same_weights(&run, atoi(many_steps));
    release(&run);
}

/* ---- from one division to another ------------------------------------------------------------ */

/* Two divisions: a job that is interrupted, and the one that goes on from its checkpoint. */
struct divisions {
    const char *before, *workers_before, *after, *workers_after;
};

/* Ctrl-C after some steps: all save together behind the update at work. False: it was over. */
static bool interrupt(const char *path, const char *workers, int steps)
{
    struct run run;
    bool is_hit;

    start_small_job(&run, path, workers, steps_text(steps));
    wait_for_step(&run, 15);
    assert_int_equal(kill(run.process.pid, SIGINT), 0);
    wait_for_end(&run);
    expect_words(&run.out, "\"event\":\"checkpoint\"");
    is_hit = read_story(&run).steps < steps;
    release(&run);
    return is_hit;
}

static void expect_rest(const char *path, const char *workers, int steps)
{
    struct run run;
    struct story story;

    start_small_job(&run, path, workers, steps_text(steps));
    wait_for_end(&run);
    expect_exit(&run, 0);
    story = read_story(&run);
    assert_true(story.first_step > 15); /* nothing that was done is done again */
    assert_int_equal(story.steps, steps);
    expect_undisturbed(&story, steps_text(steps));
    release(&run);
}

static bool divide_again(const void *context, int steps)
{
    const struct divisions *row = context;
    static int count;
    char line[200];

    (void)snprintf(line, sizeof(line), "    checkpoint: {path: division-%d}\n", ++count);
    if (!interrupt(write_job("before", line, row->before), row->workers_before, steps))
        return false;
    expect_rest(write_job("after", line, row->after), row->workers_after, steps);
    return true;
}

static void test_sharding__checkpoints_go_from_any_division_to_any(void **state)
{
    static const struct divisions rows[] = {
        {SHARDED, "4", "", "1"},
        {"", "2", SHARDED, "3"},
        {SHARDED, "2", HYBRID, "4"},
        {HYBRID, "4", "  strategyOptions: {partition: greedy}\n" SHARDED, "3"},
        {GRADIENTS, "3", "", "2"},
        {SHARDED, "2", GRADIENTS, "4"},
        {PARAMETERS, "3", "", "1"},
        {"", "2", PARAMETERS, "4"},
        {PARAMETERS, "4", HYBRID_PARAMETERS, "4"},
        {GRADIENTS, "2", PARAMETERS, "3"},
        {PARAMETERS, "1", PARAMETERS ALONE, "2"}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        strike_until_hit(divide_again, &rows[i], few_steps);
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
