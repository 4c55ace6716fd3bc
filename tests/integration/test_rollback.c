/* SPDX-License-Identifier: Apache-2.0 */

/*
 * lossSpike: rollback goes back to the checkpoint that was scheduled last, also if the worker that
 * was to write it died. Real trainers; the one that dies does so at one place of its program
 * (tests/preload/die_saving.c), so the tests do not depend on speed.
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

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"
#include "tests/support/job_run.h"

#define PRELOADED "build/release/tests/preload/die_saving.so"
#define LIMIT_S   600.0
#define STEPS     28
#define JUMP      21 /* the step whose loss jumps; a checkpoint is due after step 18 */

/* Ten batches of one text, two of noise, eight of the text: a batch is 8 samples of 16 bytes. */
static void write_job(const char *format, const char *strategy)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf job = {0};
    char text[16 * 8 * 32 + 1];

    for (size_t i = 0; i < sizeof(text); i++) {
        bool is_noise = i / 128 >= JUMP - 1 && i / 128 < JUMP + 1;
        text[i] = (char)(is_noise ? 128 + (i * 7919 >> 3) % 127 : (unsigned)"abcdefgh"[i % 8]);
    }
    write_file("text", text, sizeof(text));
    fleet_strbuf_appendf(
        &job,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: rollback}\n"
        "spec: {worker: {replicas: 1}, training: {model: {name: gpt, layers: 1, heads: 2, width: "
        "16, context: 16, dropout: 0.1}, data: {path: text, shuffle: false}, optimizer: {name: "
        "adamw, learningRate: 0.02}, globalBatchSize: 8, microBatchSize: 2, steps: %d, health: "
        "{lossSpike: rollback, window: 8, factor: 5}, log: {everySteps: 1}, checkpoint: {path: "
        "checkpoints, everySteps: 6, resume: never, format: %s}}, strategy: {%s}}\n",
        STEPS, format, strategy);
    write_file("job.yaml", job.text, job.length);
}

/* `problem`: what job_run() is to find odd; "" = nothing. */
static void run_job(const char *workers, const char *problem, struct job_run *out)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {"--workers", workers, path, NULL};

    job_run(arguments, LIMIT_S, NULL, NULL, out);
    if (out->exit_code != 0 || strcmp(out->problem, problem) != 0 ||
        strcmp(out->state, "Succeeded") != 0)
        fail_msg("exit %d, problem \"%s\", after %d steps: %s", out->exit_code, out->problem,
                 out->step_count, out->errors);
    if (!isnan(out->steps[JUMP - 1].learning_rate))
        fail_msg("step %d (loss %g) was applied", JUMP, out->steps[JUMP - 1].loss);
}

/* The same, with trainers that meet what die_saving.c does: `variable` is "DIE_MARK", the file of
 * that name, or "DIE_REFUSE". */
static void run_with_fault(const char *workers, const char *variable, const char *problem,
                           struct job_run *out)
{
    FLEET_AUTO_FREE char *mark = fleet_file_join(folder, "mark");
    FLEET_AUTO_STRBUF struct fleet_strbuf library = {0};
    char here[4096];

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(&library, "%s/%s", here, PRELOADED);
    assert_int_equal(setenv("LD_PRELOAD", library.text, 1), 0);
    assert_int_equal(setenv("DIE_BEHIND", "18", 1), 0);
    assert_int_equal(setenv(variable, mark, 1), 0);
    job_run_may_lose_state = true; /* it is given up, to be made again */
    run_job(workers, problem, out);
    job_run_may_lose_state = false;
    (void)unsetenv("LD_PRELOAD");
    (void)unsetenv("DIE_BEHIND");
    (void)unsetenv(variable);
}

static void expect_words(const struct job_run *run, const char *words)
{
    if (!strstr(run->errors, words))
        fail_msg("expected \"%s\" in:\n%s", words, run->errors);
}

static void expect_equal(const struct job_run *found, const struct job_run *wanted)
{
    for (int i = 0; i < STEPS; i++)
        if (found->steps[i].loss != wanted->steps[i].loss)
            fail_msg("step %d: loss %.9g, expected %.9g, after:\n%s", i + 1, found->steps[i].loss,
                     wanted->steps[i].loss, found->errors);
    assert_string_equal(found->sha256, wanted->sha256);
}

static void expect_same_after_death(const char *format, const char *strategy)
{
    struct job_run one, three;

    write_job(format, "");
    run_job("1", "", &one);
    expect_words(&one, "those of step 18 again");
    write_job(format, strategy);
    run_with_fault("3", "DIE_MARK", "", &three);
    expect_words(&three, "the checkpoint of step 18 is missing");
    expect_words(&three, "those of step 18 again");
    assert_true(three.restart_count >= 2); /* the death, and what was done again */
    expect_equal(&three, &one);
    job_run_release(&one);
    job_run_release(&three);
}

static void test_rollback__makes_again_what_a_dead_worker_did_not_write(void **state)
{
    (void)state;
    expect_same_after_death("single", "");
}

static void test_rollback__makes_again_what_all_were_writing(void **state)
{
    (void)state;
    expect_same_after_death("sharded", "");
}

/* No rank has all of the state: all take part in each save. */
static void test_rollback__makes_again_what_ranks_have_divided(void **state)
{
    (void)state;
    expect_same_after_death("sharded", "sharding: true, sharding_configs: {sharding_degree: 3}");
}

/* Parameters, too. */
static void test_rollback__makes_again_divided_parameters(void **state)
{
    (void)state;
    expect_same_after_death("sharded", "sharding: true, sharding_configs: {stage: 3, "
                                       "fuse_broadcast_MB: 0.001}");
}

/* The older checkpoint, said in the warning. How many restarts did it cost? */
static int refuse_save(void)
{
    FLEET_AUTO_FREE char *checkpoints = fleet_file_join(folder, "checkpoints");
    struct job_run run;
    int restarts;

    job_run_remove(checkpoints); /* of an earlier try */
    write_job("single", "");
    run_with_fault("2", "DIE_REFUSE", "unknown event checkpointFailed", &run);
    expect_words(&run, "checkpoint of step 18 failed");
    expect_words(&run, "weights and optimizer are those of step 12 again; a checkpoint was due "
                       "after step 18, but it cannot be read");
    restarts = run.restart_count;
    job_run_release(&run);
    return restarts;
}

/* None: trying again would fail again. On a busy machine the hub may miss a worker, but not each
 * time. */
static void test_rollback__takes_an_older_checkpoint_if_a_save_has_failed(void **state)
{
    int tries = 1;

    (void)state;
    while (refuse_save() > 0)
        assert_true(tries++ < 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rollback__makes_again_what_a_dead_worker_did_not_write,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_rollback__makes_again_what_all_were_writing,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_rollback__makes_again_what_ranks_have_divided,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_rollback__makes_again_divided_parameters,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(
            test_rollback__takes_an_older_checkpoint_if_a_save_has_failed, job_folder_make,
            job_folder_remove),
    };
    const char *variant = getenv("FLEET_TEST_VARIANT");

    if (variant && strcmp(variant, "release") != 0) {
        (void)puts("[  SKIPPED ] sanitizers want to be loaded before all others");
        return 77;
    }
    return cmocka_run_group_tests_name("rollback", tests, NULL, NULL);
}
