/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The promise that keeps everything else honest: the weights depend on the job, not on the number
 * of workers, on kills and their times, or on where the job was resumed. Real processes, real
 * signals; what is compared is the SHA-256 of all weights and the loss of every step.
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
#include "libfleet/base/clock.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_killer.h"
#include "tests/support/job_run.h"

#define LIMIT_S 600.0

static bool is_variant(const char *name)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, name) == 0;
}

/* A sanitizer looks for errors of memory and threads, which the largest number of workers shows. */
static bool is_sanitized(void)
{
    return is_variant("asan") || is_variant("tsan");
}

/* A job in a folder of its own. `extra` is put below `training`, `strategy` below `spec`. */
struct job {
    char *folder, *path;
};

static void job_write_for(struct job *job, const char *worker, int steps, int batch,
                          int micro_batch, const char *strategy, const char *extra)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool is_lossy = strstr(strategy, "localsgd") || strstr(strategy, "dgc"); /* what they need */
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    job->folder = job_run_folder();
    job->path = fleet_file_join(job->folder, "job.yaml");
    fleet_strbuf_appendf(&text,
                         "apiVersion: fleetjob.dev/v1alpha1\n"
                         "kind: FleetJob\n"
                         "metadata: {name: equality}\n"
                         "spec:\n"
                         "  worker: %s\n"
                         "  runPolicy: {restart: {maxRestarts: 100}}\n"
                         "%s"
                         "  training:\n"
                         "    model: {name: gpt, layers: 2, heads: 2, width: %d, context: 32}\n"
                         "    data: {path: %s/tests/golden/torch/jobs/text.txt}\n"
                         "    optimizer: {name: %s}\n"
                         "    schedule: {name: cosine, warmupSteps: 3}\n"
                         "    globalBatchSize: %d\n"
                         "    microBatchSize: %d\n"
                         "    steps: %d\n"
                         "    seed: 7\n"
                         "%s",
                         worker, strategy, is_lossy ? 64 : 32, here,
                         is_lossy ? "momentum, learningRate: 0.02, clip: {norm: 1}"
                                  : "adamw, learningRate: 0.003, clip: {globalNorm: 1}",
                         batch, micro_batch, steps, extra);
    assert_int_equal(fleet_file_write(job->path, text.text, text.length, NULL), 0);
}

static void job_write(struct job *job, int steps, int batch, int micro_batch, const char *strategy,
                      const char *extra)
{
    job_write_for(job, "{replicas: 1}", steps, batch, micro_batch, strategy, extra);
}

static void job_remove(struct job *job)
{
    job_run_remove(job->folder);
    free(job->folder);
    free(job->path);
}

static void run_job(const struct job *job, const char *workers, job_run_watch watch, void *context,
                    struct job_run *out)
{
    const char *arguments[] = {"--workers", workers, job->path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
}

static void expect_success(const struct job_run *run, int steps)
{
    if (run->exit_code != 0 || run->problem[0])
        fail_msg("exit %d, problem \"%s\", after %d steps: %s", run->exit_code, run->problem,
                 run->step_count, run->errors);
    assert_string_equal(run->state, "Succeeded");
    assert_int_equal(run->step_count, steps);
    assert_int_equal(run->steps[0].step, 1);
}

/* Weights and every loss of `run` are those of `reference`, to the last bit. */
static void expect_equal(const struct job_run *run, const struct job_run *reference)
{
    assert_int_equal(run->step_count, reference->step_count);
    for (int i = 0; i < run->step_count; i++)
        if (run->steps[i].loss != reference->steps[i].loss)
            fail_msg("step %d: loss %.9g, expected %.9g", i + 1, run->steps[i].loss,
                     reference->steps[i].loss);
    assert_string_equal(run->sha256, reference->sha256);
}

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

/* ---- kills ----------------------------------------------------------------------------------- */

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

/* A job that was killed, or one that had ended before: this reader was too late. */
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

static void compare_kills(struct kills kills)
{
    bool hit = false;

    for (int steps = steps_to_kill(), most = 32 * steps; !hit && steps <= most; steps *= 2) {
        struct job job;
        job_write_for(&job, kills.is_whole ? "{replicas: 4, minReplicas: 4}" : "{replicas: 1}",
                      steps, 8, 2, kills.strategy ? kills.strategy : "", "");
        hit = is_hit(kills, &job, steps);
        job_remove(&job);
    }
    if (!hit)
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

static void test_equality__all_at_once_start_again(void **state)
{
    (void)state;
    job_run_may_lose_state = true;
    compare_kills(
        (struct kills){.killer = {.seed = 5, .rounds = 1, EVERY_FEW_STEPS, .victims = 4}});
    job_run_may_lose_state = false;
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
        (void)kill(run->pid, interruption->signal);
        interruption->signal = 0;
    }
}

/* So many that a job is not over before it has been interrupted; a sanitizer makes each step the
 * longer. */
static int steps_to_interrupt(void)
{
    return is_variant("tsan") ? 80 : is_variant("asan") ? 150 : 400;
}

/* The same job without an interruption; run once. */
static const struct job_run *never_interrupted(void)
{
    static struct job_run reference;
    struct job job;

    if (reference.step_count == 0) {
        job_write(&job, steps_to_interrupt(), 8, 2, "", "");
        run_job(&job, "2", NULL, NULL, &reference);
        expect_success(&reference, steps_to_interrupt());
        job_remove(&job);
    }
    return &reference;
}

/* Interrupt a job of 3 workers by `signal`, resume it on 2: the same weights as never
 * interrupted. */
static void compare_resume(int signal, int exit_code)
{
    struct interruption interruption = {.signal = signal};
    int steps = steps_to_interrupt();
    struct job_run first, second;
    struct job job;

    job_write(&job, steps, 8, 2, "", "    checkpoint: {path: checkpoints, everySteps: 5}\n");
    run_job(&job, "3", interrupt_once, &interruption, &first);
    assert_int_equal(first.exit_code, exit_code);
    assert_true(first.step_count >= 17 && first.step_count < steps);
    assert_int_equal(interruption.agent_count, 3);
    assert_int_equal(job_run_left(interruption.agents, 3, LIMIT_S), 0);

    run_job(&job, "2", NULL, NULL, &second);
    if (second.exit_code != 0)
        fail_msg("resume: exit %d: %s", second.exit_code, second.errors);
    assert_in_range(second.step_count, 1, steps - 1);
    assert_true(second.steps[0].step > interruption.saved);
    assert_int_equal(second.steps[second.step_count - 1].step, steps);
    assert_string_equal(second.sha256, never_interrupted()->sha256);
    job_run_release(&first);
    job_run_release(&second);
    job_remove(&job);
}

static void test_equality__resume_after_ctrl_c_on_fewer_workers(void **state)
{
    (void)state;
    compare_resume(SIGINT, 130);
}

static void test_equality__resume_after_fleetjob_itself_was_killed(void **state)
{
    (void)state;
    compare_resume(SIGKILL, 128 + SIGKILL);
}

/* The strategy in which each rank has values of its own, 3 ranks: Ctrl-C in the middle and a resume
 * on 3 give the bits of a job that nothing interrupted. */
static void compare_private_resume(const char *strategy)
{
    struct interruption interruption = {.signal = SIGINT};
    int steps = steps_to_interrupt();
    struct job_run first, second, reference;
    struct job job, plain;

    job_write(&job, steps, 8, 2, strategy, "    checkpoint: {path: checkpoints, everySteps: 8}\n");
    job_write(&plain, steps, 8, 2, strategy, "");
    run_job(&job, "3", interrupt_once, &interruption, &first);
    assert_int_equal(first.exit_code, 130);
    assert_true(first.step_count >= 17 && first.step_count < steps);
    run_job(&job, "3", NULL, NULL, &second);
    run_job(&plain, "3", NULL, NULL, &reference);
    expect_success(&reference, steps);
    if (second.exit_code != 0)
        fail_msg("resume: exit %d: %s", second.exit_code, second.errors);
    assert_int_equal(second.steps[0].step, first.step_count + 1);
    if (strcmp(second.sha256, reference.sha256) != 0)
        fail_msg("%sinterrupted after step %d: weights %s, expected %s", strategy, first.step_count,
                 second.sha256, reference.sha256);
    job_run_release(&first);
    job_run_release(&second);
    job_run_release(&reference);
    job_remove(&job);
    job_remove(&plain);
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

/* On 2 ranks, what the third one had not sent is gone, and a line says so. */
static void test_equality__a_resume_on_fewer_says_what_is_gone(void **state)
{
    struct interruption interruption = {.signal = SIGINT};
    int steps = steps_to_interrupt();
    struct job_run first, second;
    struct job job;

    (void)state;
    job_write(&job, steps, 8, 2,
              "  strategy: {dgc: true, dgc_configs: {rampup_begin_step: 3, sparsity: [0.9]}}\n",
              "    checkpoint: {path: checkpoints, everySteps: 8}\n");
    run_job(&job, "3", interrupt_once, &interruption, &first);
    assert_int_equal(first.exit_code, 130);
    run_job(&job, "2", NULL, NULL, &second);
    if (second.exit_code != 0 || !strstr(second.errors, "and there are 2: that of 1 is gone"))
        fail_msg("resume: exit %d: %s", second.exit_code, second.errors);
    assert_int_equal(second.steps[0].step, first.step_count + 1);
    job_run_release(&first);
    job_run_release(&second);
    job_remove(&job);
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
        cmocka_unit_test(test_equality__killed_trainers_leave_no_trace),
        cmocka_unit_test(test_equality__two_at_once_leave_no_trace),
        cmocka_unit_test(test_equality__the_first_worker_is_not_special),
        cmocka_unit_test(test_equality__a_killed_agent_leaves_no_trace),
        cmocka_unit_test(test_equality__kills_leave_no_trace_in_an_fp16_exchange),
        cmocka_unit_test(test_equality__kills_cost_local_sgd_and_dgc_no_step),
        cmocka_unit_test(test_equality__a_rank_dies_inside_an_average_and_a_sparse_exchange),
        cmocka_unit_test(test_equality__all_at_once_start_again),
        cmocka_unit_test(test_equality__resume_after_ctrl_c_on_fewer_workers),
        cmocka_unit_test(test_equality__resume_after_fleetjob_itself_was_killed),
        cmocka_unit_test(test_equality__a_resume_has_what_each_rank_had_for_itself),
        cmocka_unit_test(test_equality__a_resume_on_fewer_says_what_is_gone),
    };
    return cmocka_run_group_tests_name("equality", tests, NULL, NULL);
}
