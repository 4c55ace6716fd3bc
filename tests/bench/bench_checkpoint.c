/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a checkpoint costs the training: the state of a 124M model under AdamW (1.5 GB) saved beside
 * steps of several lengths. The visible stall is snapshot_begin() and snapshot_guard(); beside it
 * the time of a save that the training waits for, and of a plain write() of as many bytes.
 *
 *     bench_checkpoint [folder] [million parameters]     default: /tmp 124
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/checkpoint/snapshot.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/training/training.h"

static struct program program;
static struct checkpoint_state state;

/* 148 tensors of equal size, two states each. */
static void build(int64_t millions)
{
    const int64_t shape[] = {millions * 1000000 / 148};

    program_init(&program, "bench");
    for (int i = 0; i < 148; i++) {
        char name[32];
        int parameter;
        (void)snprintf(name, sizeof(name), "t%03d", i);
        parameter = program_add_var(&program, name, PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1, shape);
        for (int slot = 0; slot < 2; slot++) {
            int var;
            (void)snprintf(name, sizeof(name), "t%03d.%d", i, slot);
            var = program_add_var(&program, name, PROGRAM_FP32, PROGRAM_ROLE_STATE, 1, shape);
            program.vars[var].of = parameter;
            program.vars[var].slot = slot;
        }
    }
    program.state_count = 2;
    program_layout(&program);
    checkpoint_state_init(&state, &program, NULL, NULL, NULL, NULL, NULL);
    for (int s = 0; s < state.space_count; s++) {
        float *data;
        if (state.spaces[s].is_buffers)
            continue;
        data = malloc((size_t)program.flat_count * sizeof(float));
        fleet_assert(data != NULL);
        for (int64_t i = 0; i < program.flat_count; i++)
            data[i] = (float)(i % 4093) * 1e-3f;
        state.spaces[s].data = data;
    }
}

static struct manifest about_step(int64_t step)
{
    return (struct manifest){.step = step, .generation = {1, 1}, .instruction_set = "plain"};
}

static void must_be_good(const struct snapshot_result *result)
{
    if (result->rc == 0)
        return;
    fprintf(stderr, "bench_checkpoint: %s\n", result->err.text);
    exit(1);
}

/* Begin, compute for `step_ms`, guard: what the training sees, and how long until it is on disk. */
static void time_snapshot(const char *path, int64_t step, double step_ms)
{
    struct snapshot *snapshot = snapshot_new(path, 1, SNAPSHOT_MEMORY_MAX);
    struct manifest about = about_step(step);
    struct snapshot_result result;
    double started = fleet_monotonic_ms(), begin_ms, guard_ms;

    fleet_assert(snapshot_begin(snapshot, &state, &about, NULL) == 0);
    begin_ms = fleet_monotonic_ms() - started;
    usleep((useconds_t)(step_ms * 1e3));
    snapshot_guard(snapshot);
    guard_ms = snapshot_stall_ms(snapshot);
    fleet_assert(snapshot_take(snapshot, true, &result));
    must_be_good(&result);
    printf("step of %6.0f ms: begin %6.2f ms, guard %8.2f ms, on disk after %8.0f ms\n", step_ms,
           begin_ms, guard_ms, fleet_monotonic_ms() - started);
    printf("{\"bench\":\"checkpoint\",\"stepMs\":%.0f,\"stallMs\":%.3f,\"totalMs\":%.1f}\n",
           step_ms, begin_ms + guard_ms, fleet_monotonic_ms() - started);
    snapshot_free(snapshot);
}

static double time_save(const char *path, int64_t step)
{
    struct manifest about = about_step(step);
    struct snapshot_result result = {0};
    double started = fleet_monotonic_ms();

    result.rc = checkpoint_save(path, 1, &state, &about, result.folder, &result.err);
    must_be_good(&result);
    return fleet_monotonic_ms() - started;
}

static double time_restore(const char *path)
{
    struct manifest manifest;
    struct snapshot_result result = {0};
    double started = fleet_monotonic_ms();

    result.rc = checkpoint_restore(path, TRAINING_RESUME_AUTO, NULL, &state, &manifest,
                                   result.folder, NULL, &result.err);
    must_be_good(&result);
    manifest_release(&manifest);
    return fleet_monotonic_ms() - started;
}

static double time_plain_write(const char *path, uint64_t bytes)
{
    char name[300];
    double started = fleet_monotonic_ms();
    int fd;

    (void)snprintf(name, sizeof(name), "%s/plain", path);
    fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (uint64_t at = 0; at < bytes; at += 1 << 20)
        fleet_assert(write(fd, (char *)state.spaces[0].data + at % (64 << 20), 1 << 20) == 1 << 20);
    fleet_assert(fsync(fd) == 0 && close(fd) == 0 && unlink(name) == 0);
    return fleet_monotonic_ms() - started;
}

int main(int argc, char **argv)
{
    static const double step_ms[] = {0, 300, 3000, 10000};
    const char *folder = argc > 1 ? argv[1] : "/tmp";
    int64_t millions = argc > 2 ? atoll(argv[2]) : 124, step = 0;
    char path[256], command[300];
    uint64_t bytes;

    if (millions < 20)
        return 2;
    build(millions);
    bytes = (uint64_t)program.flat_count * 3 * sizeof(float);
    (void)snprintf(path, sizeof(path), "%s/fleetjob-bench-XXXXXX", folder);
    if (!mkdtemp(path))
        return 1;
    printf("checkpoint of %lldM parameters, %.2f GB, in %s\n", (long long)millions,
           (double)bytes / 1e9, folder);
    for (size_t i = 0; i < sizeof(step_ms) / sizeof(step_ms[0]); i++)
        time_snapshot(path, ++step, step_ms[i]);
    printf("waited for:  save %.0f ms, restore %.0f ms, plain write %.0f ms\n",
           time_save(path, ++step), time_restore(path), time_plain_write(path, bytes));
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", path);
    return system(command) != 0;
}
