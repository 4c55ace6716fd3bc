/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The promise that keeps everything else honest: the weights depend on the job, not on the number
 * of workers, on kills and their times (test_equality_kills.c), or on where the job was resumed.
 * Real processes, real signals; what is compared is the SHA-256 of all weights and the loss of
 * every step.
 */
#include <signal.h>
#include <stdio.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"
#include "tests/integration/equality_fixture.h"
#include "tests/support/job_killer.h"

/* ---- the back end ---------------------------------------------------------------------------- */

/* Trainers over memory that the host cannot touch (guard_backend.h) run the same kernels. */
static void test_equality__guarded_memory_gives_the_same_bits(void **state)
{
    const char *kinds[] = {"cpu", "guard"}, *before = getenv("FLEET_BACKEND");
    struct job_run runs[2];
    struct job job;

    (void)state;
    job_write(&job, 6, 8, 2, "", "");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(setenv("FLEET_BACKEND", kinds[i], 1), 0);
        run_job(&job, "2", NULL, NULL, &runs[i]);
        expect_success(&runs[i], 6);
    }
    expect_equal(&runs[1], &runs[0]);
    for (int i = 0; i < 2; i++)
        job_run_release(&runs[i]);
    job_remove(&job);
    assert_int_equal(before ? setenv("FLEET_BACKEND", before, 1) : unsetenv("FLEET_BACKEND"), 0);
}

/* ---- the number of workers ------------------------------------------------------------------- */

static void compare_steps(int steps, int batch, int micro_batch, const char *strategy,
                          int workers_max)
{
    struct job_run reference, run;
    struct job job;

    job_write(&job, steps, batch, micro_batch, strategy, "");
    run_job(&job, "1", NULL, NULL, &reference);
    expect_success(&reference, steps);
    for (int workers = is_sanitized() ? workers_max : 2; workers <= workers_max; workers++) {
        char text[16];
        (void)snprintf(text, sizeof(text), "%d", workers);
        run_job(&job, text, NULL, NULL, &run);
        expect_success(&run, steps);
        expect_equal(&run, &reference);
        job_run_release(&run);
    }
    job_run_release(&reference);
    job_remove(&job);
}

static void compare_workers(int batch, int micro_batch, const char *strategy, int workers_max)
{
    compare_steps(12, batch, micro_batch, strategy, workers_max);
}

static void test_equality__weights_do_not_depend_on_the_number_of_workers(void **state)
{
    (void)state;
    compare_workers(8, 2, "", 4);
}

static void test_equality__nor_do_they_where_the_batch_does_not_divide(void **state)
{
    (void)state;
    compare_workers(14, 2, "", 4); /* 7 micro-batches: unaligned ranges of leaves */
}

static void test_equality__nor_with_gradient_merge_and_an_incomplete_update(void **state)
{
    (void)state;
    compare_workers(6, 2,
                    "  strategy: {gradient_merge: true, gradient_merge_configs: {k_steps: 5}}\n",
                    4); /* 12 steps: two updates of 5, and 2 steps without one */
}

/* An incomplete update falls on the ranks otherwise than a complete one: in folding it, rank 2 of 4
 * would need more gradient buffers than it has for the full one; and some ranks may have nothing to
 * do. */
static void test_equality__nor_where_the_incomplete_update_is_cut_otherwise(void **state)
{
    (void)state;
    compare_steps(11, 5, 1,
                  "  strategy: {gradient_merge: true, gradient_merge_configs: {k_steps: 6}}\n", 4);
    compare_steps(6, 1, 1,
                  "  strategy: {gradient_merge: true, gradient_merge_configs: {k_steps: 5}}\n", 4);
}

/* Of 11 micro-batches some of them have one, the others two. */
static void test_equality__nor_on_six_and_eight_workers_that_divide_state(void **state)
{
    static const char *const strategies[] = {
        "",
        "  strategy: {sharding: true}\n",
        "  strategy: {sharding: true, sharding_configs: {hybrid_dp: true, sharding_group_size: "
        "2}}\n",
    };
    static const char *const workers[] = {"6", "8"};
    struct job_run reference;
    struct job job;

    (void)state;
    job_write(&job, 12, 22, 2, "", "");
    run_job(&job, "1", NULL, NULL, &reference);
    expect_success(&reference, 12);
    job_remove(&job);
    for (size_t i = 0; i < FLEET_COUNT(strategies); i++) {
        job_write(&job, 12, 22, 2, strategies[i], "");
        for (size_t j = 0; j < FLEET_COUNT(workers); j++) {
            struct job_run run;
            run_job(&job, workers[j], NULL, NULL, &run);
            expect_success(&run, 12);
            expect_equal(&run, &reference);
            job_run_release(&run);
        }
        job_remove(&job);
    }
    job_run_release(&reference);
}

/* ---- resuming -------------------------------------------------------------------------------- */

struct interruption {
    int signal;    /* 0 = was sent */
    int64_t saved; /* step of the last checkpoint that was reported before */
    pid_t agents[32];
    int agent_count; /* that ran then */
};

/* Once there are some steps, and two checkpoints, which take their time on a slow disk. */
static void interrupt_once(void *context, struct job_run *run, const cJSON *event)
{
    struct interruption *interruption = context;
    const char *name = "";

    (void)fleet_json_opt_string(event, "event", &name, NULL);
    if (strcmp(name, "checkpoint") == 0 && interruption->signal)
        (void)fleet_json_opt_int(event, "step", &interruption->saved, NULL);
    if (interruption->signal && run->step_count >= 17 && run->checkpoint_count >= 2) {
        interruption->agent_count = job_run_agents(run->pid, interruption->agents, 32);
        if (interruption->agent_count < 3) /* a busy machine has lost one, and another one comes */
            return;
        (void)kill(run->pid, interruption->signal);
        interruption->signal = 0;
    }
}

/* So many that a job is mostly not over before it has been interrupted; a sanitizer makes each step
 * the longer. If it is, job_strike_until_hit() tries more. */
static int steps_to_interrupt(void)
{
    return is_variant("tsan") ? 80 : is_variant("asan") ? 150 : 400;
}

/* The weights of the same job without an interruption, in `sha256`. */
static void train_uninterrupted(const char *workers, int steps, const char *strategy,
                                char sha256[65])
{
    struct job_run run;
    struct job job;

    job_write(&job, steps, 8, 2, strategy, "");
    run_job(&job, workers, NULL, NULL, &run);
    expect_success(&run, steps);
    (void)snprintf(sha256, 65, "%s", run.sha256);
    job_run_release(&run);
    job_remove(&job);
}

/* False: the job was over before it was interrupted. */
static bool interrupt_job(const struct job *job, int signal, int steps,
                          struct interruption *interruption, struct job_run *run)
{
    *interruption = (struct interruption){.signal = signal};
    run_job(job, "3", interrupt_once, interruption, run);
    if (run->step_count == steps)
        return false;
    assert_int_equal(run->exit_code, signal == SIGKILL ? 128 + SIGKILL : 130);
    assert_true(run->step_count >= 17);
    return true;
}

/* False: no step was left to be made. A job may have made the last one before the signal came. */
static bool go_on(const struct job *job, const char *workers, int steps, struct job_run *run)
{
    run_job(job, workers, NULL, NULL, run);
    if (run->exit_code != 0)
        fail_msg("resume: exit %d: %s", run->exit_code, run->errors);
    if (run->step_count == 0)
        return false;
    assert_in_range(run->step_count, 1, steps - 1);
    assert_int_equal(run->steps[run->step_count - 1].step, steps);
    return true;
}

/* Interrupt a job of 3 workers by the signal, resume it on 2: the same weights as never
 * interrupted. */
static bool resume_on_fewer(const void *context, int steps)
{
    struct interruption interruption;
    struct job_run first, second;
    char sha256[65];
    struct job job;
    bool is_hit;

    job_write(&job, steps, 8, 2, "", "    checkpoint: {path: checkpoints, everySteps: 5}\n");
    is_hit = interrupt_job(&job, *(const int *)context, steps, &interruption, &first);
    if (is_hit) {
        assert_true(interruption.agent_count >= 3);
        assert_int_equal(job_run_left(interruption.agents, interruption.agent_count, LIMIT_S), 0);
        is_hit = go_on(&job, "2", steps, &second);
        if (is_hit) {
            assert_true(second.steps[0].step > interruption.saved);
            train_uninterrupted("2", steps, "", sha256);
            assert_string_equal(second.sha256, sha256);
        }
        job_run_release(&second);
    }
    job_run_release(&first);
    job_remove(&job);
    return is_hit;
}

static void test_equality__resume_after_ctrl_c_on_fewer_workers(void **state)
{
    const int signal = SIGINT;

    (void)state;
    assert_true(job_strike_until_hit(resume_on_fewer, &signal, steps_to_interrupt()));
}

static void test_equality__resume_after_fleetjob_itself_was_killed(void **state)
{
    const int signal = SIGKILL;

    (void)state;
    assert_true(job_strike_until_hit(resume_on_fewer, &signal, steps_to_interrupt()));
}

/* The strategy in which each rank has values of its own, 3 ranks: Ctrl-C in the middle and a resume
 * on 3 give the bits of a job that nothing interrupted. */
static bool resume_private(const void *strategy, int steps)
{
    struct interruption interruption;
    struct job_run first, second;
    char sha256[65];
    struct job job;
    bool is_hit;

    job_write(&job, steps, 8, 2, strategy, "    checkpoint: {path: checkpoints, everySteps: 8}\n");
    is_hit = interrupt_job(&job, SIGINT, steps, &interruption, &first);
    if (is_hit) {
        assert_true(go_on(&job, "3", steps, &second));
        assert_int_equal(second.steps[0].step, first.step_count + 1);
        train_uninterrupted("3", steps, strategy, sha256);
        if (strcmp(second.sha256, sha256) != 0)
            fail_msg("%sinterrupted after step %d: weights %s, expected %s", (const char *)strategy,
                     first.step_count, second.sha256, sha256);
        job_run_release(&second);
    }
    job_run_release(&first);
    job_remove(&job);
    return is_hit;
}

static void compare_private_resume(const char *strategy)
{
    assert_true(job_strike_until_hit(resume_private, strategy, steps_to_interrupt()));
}

static void test_equality__a_resume_has_what_each_rank_had_for_itself(void **state)
{
    (void)state;
    compare_private_resume("  strategy: {dgc: true, dgc_configs: {rampup_begin_step: 3, sparsity: "
                           "[0.9]}}\n");
    compare_private_resume("  strategy: {localsgd: true, localsgd_configs: {k_steps: 7}}\n");
    if (!is_sanitized())
        compare_private_resume("  strategy: {adaptive_localsgd: true, adaptive_localsgd_configs: "
                               "{init_k_steps: 9}}\n");
}

static bool resume_without_one(const void *context, int steps)
{
    struct interruption interruption;
    struct job_run first, second;
    struct job job;
    bool is_hit;

    (void)context;
    job_write(&job, steps, 8, 2,
              "  strategy: {dgc: true, dgc_configs: {rampup_begin_step: 3, sparsity: [0.9]}}\n",
              "    checkpoint: {path: checkpoints, everySteps: 8}\n");
    is_hit = interrupt_job(&job, SIGINT, steps, &interruption, &first);
    if (is_hit) {
        assert_true(go_on(&job, "2", steps, &second));
        if (!strstr(second.errors, "and there are 2: that of 1 is gone"))
            fail_msg("resume: %s", second.errors);
        assert_int_equal(second.steps[0].step, first.step_count + 1);
        job_run_release(&second);
    }
    job_run_release(&first);
    job_remove(&job);
    return is_hit;
}

/* On 2 ranks, what the third one had not sent is gone, and a line says so. */
static void test_equality__a_resume_on_fewer_says_what_is_gone(void **state)
{
    (void)state;
    assert_true(job_strike_until_hit(resume_without_one, NULL, steps_to_interrupt()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equality__guarded_memory_gives_the_same_bits),
        cmocka_unit_test(test_equality__weights_do_not_depend_on_the_number_of_workers),
        cmocka_unit_test(test_equality__nor_do_they_where_the_batch_does_not_divide),
        cmocka_unit_test(test_equality__nor_with_gradient_merge_and_an_incomplete_update),
        cmocka_unit_test(test_equality__nor_where_the_incomplete_update_is_cut_otherwise),
        cmocka_unit_test(test_equality__nor_on_six_and_eight_workers_that_divide_state),
        cmocka_unit_test(test_equality__resume_after_ctrl_c_on_fewer_workers),
        cmocka_unit_test(test_equality__resume_after_fleetjob_itself_was_killed),
        cmocka_unit_test(test_equality__a_resume_has_what_each_rank_had_for_itself),
        cmocka_unit_test(test_equality__a_resume_on_fewer_says_what_is_gone),
    };
    return cmocka_run_group_tests_name("equality", tests, NULL, NULL);
}
