/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CHECKPOINT_FIXTURE_H
#define TESTS_UNIT_CHECKPOINT_FIXTURE_H

/* A small model with its state and a temporary folder, for the tests of checkpoints. */

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"

struct fixture {
    struct program program;
    struct checkpoint_state state;
    char path[64]; /* of the checkpoints; removed at the end */
};

static inline int fixture_var(struct fixture *f, const char *name, enum program_role role, int ndim,
                              int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows, columns};

    return program_add_var(&f->program, name, PROGRAM_FP32, role, ndim, shape);
}

static inline void fixture_add_parameter(struct fixture *f, const char *name, int ndim,
                                         int64_t rows, int64_t columns)
{
    int parameter = fixture_var(f, name, PROGRAM_ROLE_PARAMETER, ndim, rows, columns);

    for (int slot = 0; slot < 2; slot++) {
        char text[64];
        int var;
        (void)snprintf(text, sizeof(text), "%s.s%d", name, slot);
        var = fixture_var(f, text, PROGRAM_ROLE_STATE, ndim, rows, columns);
        f->program.vars[var].of = parameter;
        f->program.vars[var].slot = slot;
    }
}

/* Four parameters of 8433 elements, two states each, one buffer; all values depend on `seed`,
 * gaps between tensors are zero. */
static inline void fixture_init(struct fixture *f, unsigned int seed)
{
    memset(f, 0, sizeof(*f));
    program_init(&f->program, "fixture");
    (void)fixture_var(f, "matrix", PROGRAM_ROLE_PARAMETER, 2, 70, 90);
    (void)fixture_var(f, "bias", PROGRAM_ROLE_PARAMETER, 1, 33, 0);
    for (int slot = 0; slot < 2; slot++) {
        int a = fixture_var(f, slot ? "m.s1" : "m.s0", PROGRAM_ROLE_STATE, 2, 70, 90);
        int b = fixture_var(f, slot ? "b.s1" : "b.s0", PROGRAM_ROLE_STATE, 1, 33, 0);
        f->program.vars[a].of = 0;
        f->program.vars[b].of = 1;
        f->program.vars[a].slot = f->program.vars[b].slot = slot;
    }
    fixture_add_parameter(f, "matrix.2", 2, 10, 10);
    fixture_add_parameter(f, "matrix.10", 2, 40, 50);
    (void)fixture_var(f, "running", PROGRAM_ROLE_BUFFER, 1, 21, 0);
    f->program.state_count = 2;
    program_layout(&f->program);

    checkpoint_state_init(&f->state, &f->program, NULL, NULL, NULL, NULL, NULL);
    for (int s = 0; s < f->state.space_count; s++) {
        bool is_buffers = f->state.spaces[s].is_buffers;
        int64_t count = is_buffers ? f->program.buffer_count : f->program.flat_count;
        float *data = calloc((size_t)count, sizeof(float));
        for (int v = 0; v < f->program.var_count; v++) {
            const struct program_var *var = &f->program.vars[v];
            if (var->role == (is_buffers ? PROGRAM_ROLE_BUFFER : PROGRAM_ROLE_PARAMETER))
                fleet_random_normal(fleet_random_key(seed, var->name, (uint64_t)s), 0,
                                    (size_t)program_var_elements(var), 0, 1,
                                    data + var->flat_offset);
        }
        f->state.spaces[s].data = data;
    }
    (void)snprintf(f->path, sizeof(f->path), "%s/fleetjob-checkpoint-XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(f->path))
        abort();
}

static inline void fixture_release(struct fixture *f)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'", f->path);
    if (system(command) != 0)
        abort();
    for (int s = 0; s < f->state.space_count; s++)
        free(f->state.spaces[s].data);
    program_release(&f->program);
}

static inline struct manifest fixture_about(int64_t step, int64_t counter)
{
    return (struct manifest){.step = step,
                             .updates = step / 2,
                             .samples = step * 16,
                             .generation = {1, counter},
                             .instruction_set = "plain"};
}

static inline void fixture_save(struct fixture *f, int64_t step, int64_t counter, int64_t keep)
{
    struct manifest about = fixture_about(step, counter);
    char folder[CHECKPOINT_FOLDER_MAX];
    struct fleet_error err;

    if (checkpoint_save(f->path, keep, &f->state, &about, folder, &err) != 0)
        fail_msg("save step %lld: %s", (long long)step, err.text);
}

static inline float fixture_value(const struct fixture *f, const char *name, int64_t i)
{
    return f->state.spaces[0]
        .data[f->program.vars[program_find_var(&f->program, name)].flat_offset + i];
}

static inline bool fixture_is_equal(const struct fixture *a, const struct fixture *b)
{
    for (int s = 0; s < a->state.space_count; s++) {
        int64_t count =
            a->state.spaces[s].is_buffers ? a->program.buffer_count : a->program.flat_count;
        if (memcmp(a->state.spaces[s].data, b->state.spaces[s].data, (size_t)count * 4) != 0)
            return false;
    }
    return true;
}

static inline void fixture_assert_equal(const struct fixture *a, const struct fixture *b)
{
    assert_true(fixture_is_equal(a, b));
}

/* The steps of the complete checkpoints, newest first: "4 3". */
static inline void fixture_assert_steps(const struct fixture *f, const char *expected)
{
    struct fleet_strbuf steps = {0};
    struct manifest_list list;

    assert_int_equal(manifest_scan(f->path, NULL, &list, NULL, NULL), 0);
    for (size_t i = 0; i < list.count; i++)
        fleet_strbuf_appendf(&steps, "%s%lld", i ? " " : "",
                             (long long)list.entries[i].manifest.step);
    assert_string_equal(fleet_strbuf_text(&steps), expected);
    fleet_strbuf_release(&steps);
    manifest_list_release(&list);
}

static inline int fixture_count_entries(const struct fixture *f)
{
    DIR *dir = opendir(f->path);
    struct dirent *entry;
    int count = 0;

    while ((entry = readdir(dir)))
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static inline void check_restored(const struct fixture *f, const char *path, int64_t step)
{
    struct fixture other;
    struct manifest manifest;
    struct fleet_error err = {.text = ""};
    char folder[CHECKPOINT_FOLDER_MAX];

    fixture_init(&other, 0);
    if (checkpoint_restore(path, TRAINING_RESUME_AUTO, NULL, &other.state, &manifest, folder, NULL,
                           &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(manifest.step, step);
    assert_int_equal(manifest.updates, step / 2);
    assert_int_equal(manifest.samples, step * 16);
    assert_string_equal(manifest.instruction_set, "plain");
    fixture_assert_equal(f, &other);
    manifest_release(&manifest);
    fixture_release(&other);
}

#endif
