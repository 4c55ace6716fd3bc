/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Kills and their times change no weight: trainers and agents are killed while a job runs, and its
 * weights and losses are those of the job that was left alone. What ranks have to themselves
 * (localsgd, dgc) is lost with them; such a job loses no step.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>

#include "libfleet/base/assert.h"
#include "tests/integration/equality_fixture.h"
#include "tests/support/job_killer.h"

struct kills {
    struct job_killer killer;
    const char *workers;  /* NULL: "4" */
    const char *strategy; /* one whose bits depend on the number of workers; NULL: none */
    bool is_lossy;        /* what a lost rank had to itself is gone: other bits */
    bool is_whole;        /* the job goes on with all its workers only */
};

#define EVERY_FEW_STEPS .every = 4, .spread = 5

/* Enough for all kills, where this reader is not much later than the job; the sanitizers make each
 * step the longer. */
static int steps_to_kill(void)
{
    return is_variant("tsan") ? 60 : is_variant("asan") ? 150 : 400;
}

/* The same job left alone; run once for so many steps. */
static const struct job_run *never_killed(const struct job *job, int steps)
{
    static struct job_run reference;

    if (reference.step_count != steps) {
        job_run_release(&reference);
        run_job(job, "2", NULL, NULL, &reference);
        expect_success(&reference, steps);
    }
    return &reference;
}

/* Bits that depend on the number of workers: the reference has as many. */
static void expect_as_left_alone(const struct job *job, int steps, const char *workers,
                                 const struct job_run *run)
{
    struct job_run reference;

    run_job(job, workers, NULL, NULL, &reference);
    expect_success(&reference, steps);
    expect_equal(run, &reference);
    job_run_release(&reference);
}

/* No step is missing, and the loss falls as it does without kills. */
static void expect_learnt(const struct job_run *run)
{
    for (int i = 0; i < run->step_count; i++)
        assert_true(isfinite(run->steps[i].loss));
    assert_true(run->steps[run->step_count - 1].loss < run->steps[0].loss);
}

/* Is the job killed before it ends? */
static bool is_hit(struct kills kills, const struct job *job, int steps)
{
    const char *workers = kills.workers ? kills.workers : "4";
    struct job_run run;
    bool hit;

    run_job(job, workers, job_killer_watch, &kills.killer, &run);
    expect_success(&run, steps);
    hit = kills.killer.sent > 0 && run.restart_count > 0;
    if (hit && kills.is_lossy)
        expect_learnt(&run);
    else if (hit && kills.strategy)
        expect_as_left_alone(job, steps, workers, &run);
    else if (hit)
        expect_equal(&run, never_killed(job, steps));
    job_run_release(&run);
    return hit;
}

static bool kill_some(const void *context, int steps)
{
    const struct kills *kills = context;
    struct job job;
    bool hit;

    job_write_for(&job, kills->is_whole ? "{replicas: 4, minReplicas: 4}" : "{replicas: 1}", steps,
                  8, 2, kills->strategy ? kills->strategy : "", "");
    hit = is_hit(*kills, &job, steps);
    job_remove(&job);
    return hit;
}

static void compare_kills(struct kills kills)
{
    if (!job_strike_until_hit(kill_some, &kills, steps_to_kill()))
        fail_msg("processes were killed, but no restart was reported");
}

static void test_equality__killed_trainers_leave_no_trace(void **state)
{
    (void)state;
    compare_kills(
        (struct kills){.killer = {.seed = 1, .rounds = 3, EVERY_FEW_STEPS, .victims = 1}});
}

static void test_equality__two_at_once_leave_no_trace(void **state)
{
    (void)state;
    compare_kills((struct kills){.killer = {.seed = 2, .rounds = 2, EVERY_FEW_STEPS, .victims = 2},
                                 .is_whole = true});
}

static void test_equality__the_first_worker_is_not_special(void **state)
{
    (void)state;
    compare_kills((struct kills){
        .killer = {.seed = 3, .rounds = 2, EVERY_FEW_STEPS, .victims = 1, .first = true}});
}

static void test_equality__a_killed_agent_leaves_no_trace(void **state)
{
    (void)state;
    compare_kills((struct kills){
        .killer = {.seed = 4, .rounds = 2, EVERY_FEW_STEPS, .victims = 1, .agents = true}});
}

/* Each rank's part is rounded: the same number of workers gives the same bits, kills or not. */
static void test_equality__kills_leave_no_trace_in_an_fp16_exchange(void **state)
{
    (void)state;
    compare_kills((struct kills){.killer = {.seed = 6, .rounds = 2, EVERY_FEW_STEPS, .victims = 1},
                                 .workers = "3",
                                 .strategy = "  strategy: {fp16_allreduce: true}\n"});
}

/* Ranks hold parameters, or residuals, of their own. The ranks that stay go on. */
static void test_equality__kills_cost_local_sgd_and_dgc_no_step(void **state)
{
    static const char *const strategies[] = {
        "  strategy: {localsgd: true, localsgd_configs: {k_steps: 3}}\n",
        "  strategy: {adaptive_localsgd: true, adaptive_localsgd_configs: {init_k_steps: 4}}\n",
        "  strategy: {dgc: true, dgc_configs: {rampup_begin_step: 3, sparsity: [0.9]}}\n"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(strategies); i++)
        compare_kills(
            (struct kills){.killer = {.seed = 7, .rounds = 2, EVERY_FEW_STEPS, .victims = 1},
                           .workers = "3",
                           .strategy = strategies[i],
                           .is_lossy = true});
}

/* Kills, one after the other, until the survivors lose the peer inside `place`, as their logs say.
 * Each update averages, or exchanges residuals. A rank that dies in an average has voted. */
static void kill_inside(const char *strategy, const char *place)
{
    bool is_hit = false;

    for (unsigned int seed = 1; seed <= 40 && !is_hit; seed++) {
        struct job_killer killer = {.seed = seed, .rounds = 4, EVERY_FEW_STEPS, .victims = 1};
        int steps = steps_to_kill();
        struct job_run run;
        struct job job;
        const char *arguments[] = {"--workers", "3", "--verbose", NULL, NULL};
        job_write_for(&job, "{replicas: 3, minReplicas: 3}", steps, 8, 2, strategy, "");
        arguments[3] = job.path;
        job_run(arguments, LIMIT_S, job_killer_watch, &killer, &run);
        expect_success(&run, steps);
        expect_learnt(&run);
        for (const char *at = run.errors; (at = strstr(at, "Lost a peer")) && !is_hit; at++)
            is_hit = strcspn(at, "\n") > 0 && strstr(at, place) &&
                     strstr(at, place) < at + strcspn(at, "\n");
        job_run_release(&run);
        job_remove(&job);
    }
    if (!is_hit)
        fail_msg("no rank died inside: %s", place);
}

static void test_equality__a_rank_dies_inside_an_average_and_a_sparse_exchange(void **state)
{
    (void)state;
    kill_inside("  strategy: {localsgd: true, localsgd_configs: {k_steps: 1}}\n",
                "average the parameters");
    kill_inside("  strategy: {dgc: true, dgc_configs: {rampup_begin_step: 1, sparsity: [0.5]}}\n",
                "sum the gradients");
}

/* Agents of an elastic job: the survivors go on at once. Did a generation have workers that are not
 * several groups, as a log says? */
static bool break_groups_up(const void *context, int steps)
{
    struct job_killer killer = {
        .seed = 8, .rounds = 3, EVERY_FEW_STEPS, .victims = 1, .agents = true};
    struct job_run run;
    struct job job;
    const char *arguments[] = {"--verbose", NULL, NULL};
    bool hit;

    job_write_for(&job, "{replicas: 4, minReplicas: 1}", steps, 8, 2, context, "");
    arguments[1] = job.path;
    job_run(arguments, LIMIT_S, job_killer_watch, &killer, &run);
    expect_success(&run, steps);
    hit = strstr(run.errors, "so they are one sharding group") != NULL;
    if (hit)
        expect_equal(&run, never_killed(&job, steps));
    job_run_release(&run);
    job_remove(&job);
    return hit;
}

static void test_equality__survivors_that_are_not_several_groups_go_on_as_one(void **state)
{
    static const char strategy[] = "  strategy: {sharding: true, sharding_configs: {hybrid_dp: "
                                   "true, sharding_group_size: 2}}\n";

    (void)state;
    assert_true(job_strike_until_hit(break_groups_up, strategy, steps_to_kill()));
}

static void test_equality__all_at_once_start_again(void **state)
{
    (void)state;
    job_run_may_lose_state = true;
    compare_kills(
        (struct kills){.killer = {.seed = 5, .rounds = 1, EVERY_FEW_STEPS, .victims = 4}});
    job_run_may_lose_state = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equality__killed_trainers_leave_no_trace),
        cmocka_unit_test(test_equality__two_at_once_leave_no_trace),
        cmocka_unit_test(test_equality__the_first_worker_is_not_special),
        cmocka_unit_test(test_equality__a_killed_agent_leaves_no_trace),
        cmocka_unit_test(test_equality__kills_leave_no_trace_in_an_fp16_exchange),
        cmocka_unit_test(test_equality__kills_cost_local_sgd_and_dgc_no_step),
        cmocka_unit_test(test_equality__a_rank_dies_inside_an_average_and_a_sparse_exchange),
        cmocka_unit_test(test_equality__survivors_that_are_not_several_groups_go_on_as_one),
        cmocka_unit_test(test_equality__all_at_once_start_again),
    };
    return cmocka_run_group_tests_name("equality, kills", tests, NULL, NULL);
}
