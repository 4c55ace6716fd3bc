/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A process killed at any system call of a save: for every k, a child saves step 2 beside step 1
 * (keep 1) under ptrace and is killed when it enters, and again when it leaves, its k-th call. What
 * is left must restore to exactly step 1 or exactly step 2, and the next save must leave nothing
 * behind. The same where two, three or four ranks write a shard each and more than one checkpoint
 * is kept: all of them go from call to call in turn, and at every k any one of them, or all, are
 * killed, while the others end as they do when a rank is gone.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "agent/runtime/checkpoint/shards.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/training/training.h"
#include "tests/support/child_process.h"
#include "tests/unit/checkpoint_fixture.h"

#define STOPS_MAX 5000 /* a save makes far fewer */

/* Step 2 has other values than step 1. */
static void save_step_2(struct fixture *f)
{
    struct manifest about = fixture_about(2, 1);
    char folder[CHECKPOINT_FOLDER_MAX];

    (void)checkpoint_save(f->path, 1, &f->state, &about, folder, NULL);
}

/* ---- one writer ------------------------------------------------------------------------------ */

enum outcome {
    KILLED,
    FINISHED,
    NOT_ALLOWED
};

/* Save in a child that is killed at its `stop`-th entry or exit of a system call. */
static enum outcome save_until(struct fixture *f, int stop)
{
    int status;
    pid_t child = child_process_fork();

    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(3);
        (void)raise(SIGSTOP);
        save_step_2(f);
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
    (void)child_process_kill(child);
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

static void test_checkpoint__a_save_killed_at_any_system_call_loses_nothing(void **state)
{
    enum outcome outcome = KILLED;
    int64_t last = 1;
    int stop, changes = 0;

    (void)state;
    for (stop = 1; outcome == KILLED && stop < STOPS_MAX; stop++) {
        struct fixture f;
        int64_t step;
        fixture_init(&f, 1);
        f.state.spaces[0].data[0] = 1; /* so that + 1 - 1 is exact */
        fixture_save(&f, 1, 1, 1);
        f.state.spaces[0].data[0] += 1;
        outcome = save_until(&f, stop);
        if (outcome == NOT_ALLOWED) {
            fixture_release(&f);
            skip(); /* no ptrace here */
        }
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
    /* One call, the rename, makes step 2 the newest. Its number may differ by a few from save to
     * save, because the allocator of a sanitizer makes calls of its own. */
    assert_int_equal(last, 2);
    assert_in_range(changes, 1, 9);
    assert_true(stop > 40); /* it was really traced */
}

/* ---- several writers ------------------------------------------------------------------------- */

#define WRITERS_MAX 4
#define PATIENCE_MS 120000.0
#define ALL         -1
#define HEAD_START  24 /* calls that the others are ahead, so that the first finds their notes */

struct joint {
    int writers, keep;
    int victim; /* writer that is killed, or ALL */
};

/* The writers and what they write; each kill finds what the last one and the save after it left. */
struct team {
    struct joint joint;
    struct fixture f;    /* its first value is the step */
    struct fixture back; /* what is read */
    int64_t step;        /* of the newest complete checkpoint before the kill */
    int64_t counter;     /* of the generation that is killed */
    char folder[CHECKPOINT_FOLDER_MAX];
    atomic_bool *is_over;    /* shared by all: a rank is gone, and the others know it */
    pid_t pids[WRITERS_MAX]; /* 0 = has ended */
};

static void write_other(struct team *team, int shard)
{
    struct fixture *f = &team->f;
    int shards = team->joint.writers, rc;
    struct checkpoint_shard written;
    struct fleet_error err;

    rc = checkpoint_write_shard(f->path, team->folder, &f->state, shard, shards, &written, &err);
    (void)shards_report(f->path, team->folder, shard, shards, rc, rc < 0 ? err.text : "", &written,
                        &err);
}

static void write_first(struct team *team)
{
    struct fixture *f = &team->f;
    struct manifest about = fixture_about(team->step + 1, team->counter);
    struct checkpoint_shard shards[WRITERS_MAX];
    struct fleet_error err;
    int count = team->joint.writers;

    if (checkpoint_write_shard(f->path, team->folder, &f->state, 0, count, &shards[0], &err) < 0 ||
        shards_await(f->path, team->folder, count, team->is_over, team->is_over, PATIENCE_MS,
                     shards, &err) < 0)
        checkpoint_discard(f->path, team->folder);
    else if (checkpoint_commit(f->path, team->folder, team->joint.keep, NULL, &about, shards, count,
                               &err) == 0)
        shards_forget(f->path, team->folder, count);
}

/* All writers are stopped before their first call. False: no ptrace here. */
static bool team_start(struct team *team)
{
    bool is_allowed = true;

    for (int i = 0; i < team->joint.writers; i++) {
        int status;
        pid_t pid = child_process_fork();
        if (pid == 0) {
            if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
                _exit(3);
            (void)raise(SIGSTOP);
            if (i == 0)
                write_first(team);
            else
                write_other(team, i);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        team->pids[i] = WIFSTOPPED(status) ? pid : 0;
        is_allowed &= WIFSTOPPED(status);
    }
    return is_allowed;
}

/* Each that still runs goes on to its next entry or exit of a system call, one after the other. */
static void team_turn(struct team *team, int turn)
{
    for (int i = 0; i < team->joint.writers; i++) {
        int status;
        if (!team->pids[i] || (i == 0 && turn < HEAD_START))
            continue;
        assert_int_equal(ptrace(PTRACE_SYSCALL, team->pids[i], NULL, NULL), 0);
        assert_int_equal(waitpid(team->pids[i], &status, 0), team->pids[i]);
        assert_true(WIFEXITED(status) || WIFSTOPPED(status));
        if (WIFEXITED(status))
            team->pids[i] = 0;
    }
}

/* Kill the ranks of the plan; the others learn of it and end by themselves. False: all of those
 * had ended before. */
static bool team_kill(struct team *team)
{
    int victim = team->joint.victim;
    bool was_running = false;

    for (int i = 0; i < team->joint.writers; i++)
        if (team->pids[i] && (victim == ALL || victim == i)) {
            (void)child_process_kill(team->pids[i]);
            team->pids[i] = 0;
            was_running = true;
        }
    atomic_store(team->is_over, was_running);
    for (int i = 0; i < team->joint.writers; i++)
        if (team->pids[i])
            assert_int_equal(ptrace(PTRACE_DETACH, team->pids[i], NULL, NULL), 0);
    for (int i = 0; i < team->joint.writers; i++)
        if (team->pids[i])
            assert_int_equal(child_process_wait(team->pids[i]), 0);
    return was_running;
}

static void save_alone(struct team *team, int64_t step)
{
    team->f.state.spaces[0].data[0] = (float)step;
    fixture_save(&team->f, step, team->counter, team->joint.keep);
}

/* Every complete checkpoint verifies; the older ones are all there until the new one is complete,
 * and then as many as are kept. */
static void check_complete(const struct team *team, int stop)
{
    struct manifest_list list;
    struct fleet_errors warnings = {0};
    size_t keep = (size_t)team->joint.keep;

    assert_int_equal(manifest_scan(team->f.path, NULL, &list, &warnings, NULL), 0);
    assert_int_equal(warnings.count, 0);
    assert_true(list.count >= keep && list.count <= keep + 1);
    for (size_t i = 0; i < list.count; i++) {
        FLEET_AUTO_FREE char *place = fleet_file_join(team->f.path, list.entries[i].folder);
        struct fleet_error err;
        assert_int_equal(list.entries[i].manifest.step, list.entries[0].manifest.step - (int64_t)i);
        if (manifest_verify(place, &list.entries[i].manifest, &err) < 0)
            fail_msg("killed %d at stop %d: %s", team->joint.victim, stop, err.text);
    }
    manifest_list_release(&list);
}

/* The newest one is read as it was written. Returns its step. */
static int64_t check_newest(struct team *team, int stop)
{
    struct manifest manifest;
    struct fleet_errors warnings = {0};
    struct fleet_error err;
    char folder[CHECKPOINT_FOLDER_MAX];
    int64_t step;

    if (checkpoint_restore(team->f.path, TRAINING_RESUME_AUTO, NULL, &team->back.state, &manifest,
                           folder, &warnings, &err) != 0)
        fail_msg("killed %d at stop %d: %s", team->joint.victim, stop, err.text);
    assert_int_equal(warnings.count, 0);
    step = manifest.step;
    assert_true(step == team->step || step == team->step + 1);
    team->f.state.spaces[0].data[0] = (float)step;
    if (manifest.samples != step * 16 || !fixture_is_equal(&team->f, &team->back))
        fail_msg("killed %d at stop %d: step %lld with other values", team->joint.victim, stop,
                 (long long)step);
    manifest_release(&manifest);
    return step;
}

/* False: no rank was left to kill, or none may be killed. */
static bool kill_at(struct team *team, int stop)
{
    struct manifest about = fixture_about(team->step + 1, team->counter);
    bool is_allowed, was_killed;
    int64_t newest;

    atomic_store(team->is_over, false);
    team->f.state.spaces[0].data[0] = (float)(team->step + 1);
    assert_int_equal(checkpoint_begin(team->f.path, &about, team->folder, NULL), 0);
    is_allowed = team_start(team);
    for (int turn = 0; is_allowed && turn < stop; turn++)
        team_turn(team, turn);
    was_killed = team_kill(team);
    if (!is_allowed)
        return false;
    check_complete(team, stop);
    newest = check_newest(team, stop);
    assert_true(was_killed || newest == team->step + 1);
    team->counter++;
    team->step = newest + 1;
    save_alone(team, team->step); /* the next generation's, after which nothing torn is left */
    assert_int_equal(fixture_count_entries(&team->f), team->joint.keep);
    return was_killed;
}

/* A process under a sanitizer takes long to fork; there some calls are enough. */
static int stride(void)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, "release") != 0 ? 11 : 1;
}

static void kill_at_every_call(int writers, int keep, int victim)
{
    struct team team = {
        .joint = {.writers = writers, .keep = keep, .victim = victim}, .step = keep, .counter = 1};
    int stop = 1;

    team.is_over = mmap(NULL, sizeof(*team.is_over), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(team.is_over != MAP_FAILED);
    fixture_init(&team.f, 1);
    fixture_init(&team.back, 0);
    for (int64_t step = 1; step <= keep; step++)
        save_alone(&team, step);
    while (stop < STOPS_MAX && kill_at(&team, stop))
        stop += stride();
    fixture_release(&team.f);
    fixture_release(&team.back);
    (void)munmap(team.is_over, sizeof(*team.is_over));
    if (stop == 1)
        skip(); /* no ptrace here */
    assert_true(stop > 30 && stop < STOPS_MAX);
}

static void test_checkpoint__any_of_several_writers_killed_anywhere_loses_nothing(void **state)
{
    (void)state;
    kill_at_every_call(2, 1, 1);
    for (int victim = 1; victim < 3; victim++)
        kill_at_every_call(3, 3, victim);
    for (int victim = 1; victim < 4; victim++)
        kill_at_every_call(4, 2, victim);
}

static void test_checkpoint__the_first_of_several_killed_anywhere_loses_nothing(void **state)
{
    (void)state;
    kill_at_every_call(2, 1, 0);
    kill_at_every_call(3, 3, 0);
    kill_at_every_call(4, 2, 0);
}

static void test_checkpoint__all_writers_killed_anywhere_lose_nothing(void **state)
{
    (void)state;
    kill_at_every_call(2, 1, ALL);
    kill_at_every_call(3, 3, ALL);
    kill_at_every_call(4, 2, ALL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint__a_save_killed_at_any_system_call_loses_nothing),
        cmocka_unit_test(test_checkpoint__any_of_several_writers_killed_anywhere_loses_nothing),
        cmocka_unit_test(test_checkpoint__the_first_of_several_killed_anywhere_loses_nothing),
        cmocka_unit_test(test_checkpoint__all_writers_killed_anywhere_lose_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
