/* SPDX-License-Identifier: Apache-2.0 */

/* A checkpoint written beside the training holds the state of its step, for all that happens after
 * the guard, and with any bound on memory. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/checkpoint/snapshot.h"
#include "libfleet/base/file.h"
#include "libfleet/training/training.h"
#include "tests/unit/checkpoint_fixture.h"

/* A model of 12 MB of weights and 24 MB of states: dozens of chunks. */
static void large_fixture_init(struct fixture *f)
{
    const int64_t shapes[3] = {1000003, 1999999, 17};
    static const char *const names[3] = {"a", "b", "c"};

    memset(f, 0, sizeof(*f));
    program_init(&f->program, "large");
    for (int i = 0; i < 3; i++)
        fixture_add_parameter(f, names[i], 1, shapes[i], 0);
    f->program.state_count = 2;
    program_layout(&f->program);
    checkpoint_state_init(&f->state, &f->program, NULL, NULL, NULL, NULL, NULL);
    for (int s = 0; s < f->state.space_count; s++)
        f->state.spaces[s].data = calloc((size_t)f->program.flat_count, sizeof(float));
    free(f->state.spaces[1].data); /* no buffers */
    f->state.spaces[1].data = NULL;
    (void)snprintf(f->path, sizeof(f->path), "/tmp/fleetjob-snapshot-XXXXXX");
    assert_non_null(mkdtemp(f->path));
}

/* Every element of the state = value + its index, gaps stay zero. */
static void fill(struct fixture *f, float value)
{
    for (int s = 0; s < f->state.space_count; s++)
        for (int v = 0; v < f->program.var_count && f->state.spaces[s].data; v++) {
            const struct program_var *var = &f->program.vars[v];
            if (var->role == PROGRAM_ROLE_PARAMETER)
                for (int64_t i = 0; i < program_var_elements(var); i++)
                    f->state.spaces[s].data[var->flat_offset + i] = value + (float)(i % 1000);
        }
}

/* The thread sanitizer looks at every element: as many steps as it takes that one follows
 * another. */
static int64_t last_step(void)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, "tsan") == 0 ? 2 : 3;
}

/* Steps follow each other at once: begin, (work), guard, change. All saves must hold their step. */
static void check_steps(size_t memory_max, useconds_t work_us)
{
    struct fixture f, back;
    struct snapshot *snapshot;
    struct snapshot_result result;

    large_fixture_init(&f);
    large_fixture_init(&back);
    snapshot = snapshot_new(f.path, 1, memory_max);
    for (int64_t step = 1; step <= last_step(); step++) {
        struct manifest about = fixture_about(step, 1), manifest;
        char folder[CHECKPOINT_FOLDER_MAX];
        struct fleet_error err;
        fill(&f, (float)step);
        assert_int_equal(snapshot_begin(snapshot, &f.state, &about, &err), 0);
        assert_int_equal(snapshot_begin(snapshot, &f.state, &about, &err), -EBUSY);
        usleep(work_us);
        snapshot_guard(snapshot);
        fill(&f, -1); /* the next update */
        snapshot_guard(snapshot);
        assert_true(snapshot_take(snapshot, true, &result));
        if (result.rc != 0)
            fail_msg("%s", result.err.text);
        assert_int_equal(result.step, step);
        assert_false(snapshot_take(snapshot, true, &result));
        assert_int_equal(checkpoint_restore(f.path, TRAINING_RESUME_AUTO, NULL, &back.state,
                                            &manifest, folder, NULL, &err),
                         0);
        assert_int_equal(manifest.step, step);
        manifest_release(&manifest);
        fill(&f, (float)step);
        for (int s = 0; s < f.state.space_count; s++)
            if (f.state.spaces[s].data)
                assert_memory_equal(f.state.spaces[s].data, back.state.spaces[s].data,
                                    (size_t)f.program.flat_count * 4);
    }
    snapshot_free(snapshot);
    fixture_release(&f);
    fixture_release(&back);
}

static void test_snapshot__holds_its_step_whenever_the_state_changes(void **state)
{
    (void)state;
    check_steps(SIZE_MAX, 0);      /* the guard copies nearly all */
    check_steps(SIZE_MAX, 10000);  /* it copies what is left */
    check_steps(4 << 20, 0);       /* it waits, then copies 4 MB at most */
    check_steps(0, 0);             /* it only waits */
    check_steps(SIZE_MAX, 400000); /* the writer has finished */
}

static void test_snapshot__a_failure_is_reported_and_training_goes_on(void **state)
{
    struct manifest about = fixture_about(2, 1);
    struct snapshot_result result;
    struct snapshot *snapshot;
    struct fixture f;
    char path[128];

    (void)state;
    fixture_init(&f, 1);
    (void)snprintf(path, sizeof(path), "%s/file", f.path);
    assert_int_equal(fleet_file_write(path, "x", 1, NULL), 0);
    snapshot = snapshot_new(path, 1, 0);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(snapshot_begin(snapshot, &f.state, &about, NULL), 0);
        snapshot_guard(snapshot); /* must not wait for bytes that no writer will read */
        assert_true(snapshot_take(snapshot, true, &result));
        assert_int_equal(result.rc, -ENOTDIR);
        assert_non_null(strstr(result.err.text, path));
    }
    snapshot_free(snapshot);
    fixture_release(&f);
}

static void test_snapshot__free_ends_a_save_in_progress(void **state)
{
    struct manifest about = fixture_about(5, 1);
    struct snapshot *snapshot;
    struct fixture f;

    (void)state;
    fixture_init(&f, 1);
    snapshot = snapshot_new(f.path, 1, SNAPSHOT_MEMORY_MAX);
    assert_int_equal(snapshot_begin(snapshot, &f.state, &about, NULL), 0);
    snapshot_free(snapshot);
    fixture_assert_steps(&f, "5");
    fixture_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snapshot__holds_its_step_whenever_the_state_changes),
        cmocka_unit_test(test_snapshot__a_failure_is_reported_and_training_goes_on),
        cmocka_unit_test(test_snapshot__free_ends_a_save_in_progress),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
