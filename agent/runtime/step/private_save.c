/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/private_save.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/step/average.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/program/passes/localsgd.h"

#define SPACES_MAX 3
#define READ_MS    3600e3 /* a disk may be slow; a rank that dies breaks the connection */

struct private_space {
    const char *suffix;
    enum memory_segment segment;
    int slot;
};

static const struct private_space every_space[SPACES_MAX] = {
    {"", MEMORY_PARAMETERS, -1}, {".state0", MEMORY_STATE0, 0}, {".state1", MEMORY_STATE1, 1}};

bool private_is_saved(const struct trainer *trainer)
{
    int64_t begin = trainer->job.rules.strategy->dgc_configs.rampup_begin_step;

    if (trainer->generation.world == 1 || trainer->placement.map.shards > 1)
        return false;
    return average_is_on(trainer) ||
           (trainer->job.message_words > 0 && trainer->progress.committed > begin);
}

/* The spaces of the job's setting; returns how many. */
static int list_spaces(const struct trainer *trainer, bool with_parameters,
                       struct private_space out[SPACES_MAX])
{
    const struct program *program = &trainer->job.plan.program;
    int snapshot = average_is_on(trainer) ? localsgd_snapshot_slot(program) : -1, count = 0;

    for (int i = 0; i < SPACES_MAX; i++) {
        const struct private_space *space = &every_space[i];
        bool is_averaged = space->slot < 0 || space->slot == snapshot;
        if (space->slot < program->state_count && (!is_averaged || with_parameters))
            out[count++] = *space;
    }
    return count;
}

void private_add_spaces(const struct trainer *trainer, struct checkpoint_state *state)
{
    struct private_space list[SPACES_MAX];
    int count = list_spaces(trainer, !average_is_common(trainer), list);

    for (int i = 0; i < state->space_count; i++)
        state->spaces[i].is_of_first = state->spaces[i].slot >= 0;
    for (int i = 0; i < count; i++) {
        fleet_assert(state->space_count < CHECKPOINT_SPACES_MAX);
        state->spaces[state->space_count++] =
            (struct checkpoint_space){.suffix = list[i].suffix,
                                      .data = trainer->state.bases.segment[list[i].segment],
                                      .is_private = true,
                                      .slot = list[i].slot};
    }
}

/* ---- back ------------------------------------------------------------------------------------ */

struct reading {
    struct trainer *trainer;
    struct private_space spaces[SPACES_MAX]; /* [count] */
    int count;
    size_t bytes[SPACES_MAX];
    float *scratch[SPACES_MAX]; /* rank 0: another rank's values */
    char *folder;               /* rank 0 */
    struct manifest manifest;   /* rank 0; with folder */
};

static void reading_init(struct reading *reading, struct trainer *trainer, bool with_parameters)
{
    *reading = (struct reading){.trainer = trainer};
    reading->count = list_spaces(trainer, with_parameters, reading->spaces);
    for (int i = 0; i < reading->count; i++)
        reading->bytes[i] = trainer->state.memory->bytes[reading->spaces[i].segment];
}

static void reading_release(struct reading *reading)
{
    for (int i = 0; i < SPACES_MAX; i++)
        free(reading->scratch[i]);
    if (reading->folder)
        manifest_release(&reading->manifest);
    free(reading->folder);
}

/* On rank 0: the number of ranks that have written, 0 where there is no checkpoint. */
static int open_checkpoint(struct reading *reading, int *out_saved, struct fleet_error *err)
{
    struct trainer *trainer = reading->trainer;
    char *folder;

    *out_saved = 0;
    if (!trainer->save.restored[0] || reading->count == 0)
        return 0;
    if (save_restored_folder(trainer, &folder, err) < 0)
        return err->code;
    if (manifest_read(folder, &reading->manifest, err) < 0) {
        free(folder);
        return err->code;
    }
    reading->folder = folder;
    *out_saved = checkpoint_private_ranks(&reading->manifest);
    for (int i = 0; i<reading->count && * out_saved> 0; i++) {
        reading->scratch[i] = malloc(reading->bytes[i] + 1);
        fleet_assert(reading->scratch[i] != NULL);
    }
    return 0;
}

/* On rank 0: the values of rank `rank` into `scratch`. */
static int read_rank(struct reading *reading, int rank, struct fleet_error *err)
{
    struct checkpoint_state state = {.program = &reading->trainer->job.plan.program};

    for (int i = 0; i < reading->count; i++) {
        memset(reading->scratch[i], 0, reading->bytes[i]);
        state.spaces[state.space_count++] =
            (struct checkpoint_space){.suffix = reading->spaces[i].suffix,
                                      .data = reading->scratch[i],
                                      .is_private = true,
                                      .slot = reading->spaces[i].slot};
    }
    return checkpoint_load_private(reading->folder, &reading->manifest, rank, &state, err);
}

/* The values in rank 0's scratch become those of rank `rank`. */
static int hand_out(struct reading *reading, int rank, struct fleet_error *err)
{
    struct trainer *trainer = reading->trainer;
    struct backend *backend = trainer->state.backend;
    struct comm_message messages[SPACES_MAX];
    int own = trainer->generation.rank, count = 0, rc;
    void *hosts[SPACES_MAX] = {NULL};

    for (int i = 0; i < reading->count; i++) {
        void *place = trainer->state.bases.segment[reading->spaces[i].segment];
        if (own == rank)
            hosts[i] = backend_map(backend, place, reading->bytes[i], BACKEND_WRITE);
        if (own == rank && rank == 0)
            memcpy(hosts[i], reading->scratch[i], reading->bytes[i]);
        else if (own == rank || own == 0)
            messages[count++] =
                (struct comm_message){.peer = own == rank ? 0 : rank,
                                      .is_receive = own == rank,
                                      .data = own == rank ? hosts[i] : reading->scratch[i],
                                      .count = (int64_t)reading->bytes[i],
                                      .type = COMM_UINT8};
    }
    rc = rank == 0 ? 0
                   : comm_messages(trainer->net.comm, messages, count,
                                   fleet_monotonic_ms() + READ_MS, err);
    for (int i = 0; i < reading->count; i++)
        if (hosts[i])
            backend_unmap(backend, trainer->state.bases.segment[reading->spaces[i].segment],
                          reading->bytes[i], BACKEND_WRITE, hosts[i]);
    return rc;
}

/* Files of another setting do not fit. They are of no use here, which is no error. */
static int check_fit(struct reading *reading, int *saved, struct fleet_error *err)
{
    int rc = *saved > 0 ? read_rank(reading, 0, err) : 0;

    if (rc != -EINVAL)
        return rc;
    *saved = 0;
    return 0;
}

static int read_ranks(struct reading *reading, int saved, struct fleet_error *err)
{
    const struct trainer *trainer = reading->trainer;
    int ranks = saved < trainer->generation.world ? saved : trainer->generation.world;

    if (average_is_on(trainer) && saved != trainer->generation.world)
        return 0;
    for (int r = 0; r < ranks; r++)
        if ((trainer->generation.rank == 0 && read_rank(reading, r, err) < 0) ||
            hand_out(reading, r, err) < 0)
            return err->code;
    return 0;
}

int private_read(struct trainer *trainer, bool with_parameters, int *out_saved,
                 struct fleet_error *err)
{
    struct reading reading;
    int32_t saved = 0;
    int rc = 0;

    reading_init(&reading, trainer, with_parameters);
    *out_saved = 0;
    if (trainer->generation.rank == 0) {
        rc = open_checkpoint(&reading, &saved, err);
        rc = rc < 0 ? rc : check_fit(&reading, &saved, err);
    }
    if (rc == 0)
        rc = comm_broadcast(trainer->net.comm, &saved, sizeof(saved), 0,
                            fleet_monotonic_ms() + READ_MS, err);
    if (rc == 0)
        rc = read_ranks(&reading, saved, err);
    reading_release(&reading);
    *out_saved = rc == 0 ? saved : 0;
    return rc < 0 ? fleet_error_wrap(err, "read what each worker has for itself") : 0;
}
