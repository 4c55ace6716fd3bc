/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A process killed at any system call of a save: for every k, a child saves step 2 beside step 1
 * (keep 1) under ptrace and is killed when it enters, and again when it leaves, its k-th call. What is
 * left must restore to exactly step 1 or exactly step 2, and the next save must leave nothing behind.
 * The same where two ranks write a shard each, for the death of either.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "agent/runtime/checkpoint/shards.h"
#include "libfleet/base/error.h"
#include "libfleet/program/training.h"
#include "tests/unit/checkpoint_fixture.h"

#define STOPS_MAX 5000 /* a save makes far fewer */

#define PATIENCE_MS 120000.0

static char shared_folder[CHECKPOINT_FOLDER_MAX]; /* of step 2, where two write it */

/* Step 2 has other values than step 1. */
static void save_step_2(struct fixture *f)
{
    struct manifest about = fixture_about(2, 1);
    char folder[CHECKPOINT_FOLDER_MAX];

    (void)checkpoint_save(f->path, 1, &f->state, &about, folder, NULL);
}

static void save_shard_2_of_2(struct fixture *f)
{
    struct checkpoint_shard shard;
    struct fleet_error err;
    int rc = checkpoint_write_shard(f->path, shared_folder, &f->state, 1, 2, &shard, &err);

    (void)shards_tell(f->path, shared_folder, 1, 2, rc, rc < 0 ? err.text : "", &shard, &err);
}

static void save_shard_1_of_2(struct fixture *f)
{
    static const atomic_bool is_over = true; /* the other one has ended, well or not */
    struct manifest about = fixture_about(2, 1);
    struct checkpoint_shard shards[2];
    struct fleet_error err;

    if (checkpoint_write_shard(f->path, shared_folder, &f->state, 0, 2, &shards[0], &err) < 0 ||
        shards_await(f->path, shared_folder, 2, &is_over, &is_over, PATIENCE_MS, shards, &err) < 0)
        checkpoint_discard(f->path, shared_folder);
    else if (checkpoint_commit(f->path, shared_folder, 1, NULL, &about, shards, 2, &err) == 0)
        shards_forget(f->path, shared_folder, 2);
}

static void begin_step_2(struct fixture *f)
{
    struct manifest about = fixture_about(2, 1);

    assert_int_equal(checkpoint_begin(f->path, &about, shared_folder, NULL), 0);
}

/* What is done before the child that is killed runs, in it, and after it. NULL = nothing. */
struct plan {
    void (*before)(struct fixture *f);
    void (*in_child)(struct fixture *f);
    void (*after)(struct fixture *f);
};

static void begin_and_save_second(struct fixture *f)
{
    begin_step_2(f);
    save_shard_2_of_2(f);
}

enum outcome {
    KILLED,
    FINISHED,
    NOT_ALLOWED
};

/* Save in a child that is killed at its `stop`-th entry or exit of a system call. */
static enum outcome save_until(struct fixture *f, void (*save)(struct fixture *f), int stop)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(3);
        (void)raise(SIGSTOP);
        save(f);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status))
        return NOT_ALLOWED;
    for (int i = 0; i < stop; i++) {
        assert_int_equal(ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status))
            return FINISHED;
        assert_true(WIFSTOPPED(status));
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return KILLED;
}

/* The step that a restore finds; its values must be those of that step. */
static int64_t check_what_is_left(const struct fixture *f, int stop)
{
    struct fixture back;
    struct manifest manifest;
    struct fleet_errors warnings = {0};
    struct fleet_error err;
    char folder[CHECKPOINT_FOLDER_MAX];
    int64_t step;

    fixture_init(&back, 0);
    if (checkpoint_restore(f->path, TRAINING_RESUME_AUTO, NULL, &back.state, &manifest, folder,
                           &warnings, &err) != 0)
        fail_msg("killed at stop %d: %s", stop, err.text);
    step = manifest.step;
    assert_int_equal(warnings.count, 0); /* torn ones are normal */
    if (step == 2)
        back.state.spaces[0].data[0] -= 1;
    if (step < 1 || step > 2 || manifest.samples != step * 16 || !fixture_is_equal(f, &back))
        fail_msg("killed at stop %d: step %lld with other values", stop, (long long)step);
    manifest_release(&manifest);
    fixture_release(&back);
    return step;
}

static void kill_at_every_call(const struct plan *plan)
{
    enum outcome outcome = KILLED;
    int64_t last = 1;
    int stop, changes = 0;

    for (stop = 1; outcome == KILLED && stop < STOPS_MAX; stop++) {
        struct fixture f;
        int64_t step;
        fixture_init(&f, 1);
        f.state.spaces[0].data[0] = 1; /* so that + 1 - 1 is exact */
        fixture_save(&f, 1, 1, 1);
        f.state.spaces[0].data[0] += 1;
        if (plan->before)
            plan->before(&f);
        outcome = save_until(&f, plan->in_child, stop);
        if (outcome == NOT_ALLOWED) {
            fixture_release(&f);
            skip(); /* no ptrace here */
        }
        if (plan->after)
            plan->after(&f);
        f.state.spaces[0].data[0] -= 1;
        step = check_what_is_left(&f, stop);
        changes += step != last;
        last = step;
        fixture_save(&f, 3, 1, 1);
        fixture_assert_steps(&f, "3");
        assert_int_equal(fixture_count_entries(&f), 1); /* no litter */
        fixture_release(&f);
    }
    assert_int_equal(outcome, FINISHED);
    assert_int_equal(last, 2);
    assert_int_equal(changes, 1); /* one call, the rename, makes step 2 the newest */
    assert_true(stop > 40);       /* it was really traced */
}

static void test_checkpoint__a_save_killed_at_any_system_call_loses_nothing(void **state)
{
    (void)state;
    kill_at_every_call(&(struct plan){.in_child = save_step_2});
}

static void test_checkpoint__the_writer_of_a_shard_killed_anywhere_loses_nothing(void **state)
{
    (void)state;
    kill_at_every_call(&(struct plan){
        .before = begin_step_2, .in_child = save_shard_2_of_2, .after = save_shard_1_of_2});
}

static void test_checkpoint__the_first_of_several_killed_anywhere_loses_nothing(void **state)
{
    (void)state;
    kill_at_every_call(
        &(struct plan){.before = begin_and_save_second, .in_child = save_shard_1_of_2});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint__a_save_killed_at_any_system_call_loses_nothing),
        cmocka_unit_test(test_checkpoint__the_writer_of_a_shard_killed_anywhere_loses_nothing),
        cmocka_unit_test(test_checkpoint__the_first_of_several_killed_anywhere_loses_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
