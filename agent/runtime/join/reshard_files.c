/* SPDX-License-Identifier: Apache-2.0 */

/* From a checkpoint: the first rank reads each rank's part and sends it. */
#include <stdlib.h>

#include "agent/runtime/join/reshard_internal.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

/* Bytes of a space that rank r holds. */
static size_t held_bytes(const struct trainer *trainer, const struct ownership *map, int slot,
                         int r)
{
    const struct program *program = &trainer->job.plan.program;

    if (slot != RESHARD_VALUES && slot >= program->state_count)
        return 0;
    return (size_t)ownership_elements(map, reshard_spaces[slot], program->flat_count, r) *
           sizeof(float);
}

/* One rank's part from the first rank, which has read it into `read`, to its own memory. */
static int hand_out(struct trainer *trainer, const struct reshard_side *to, int r,
                    float *const *read, struct fleet_error *err)
{
    struct backend *backend = trainer->state.backend;
    int own = trainer->generation.place.replica, rc, count = 0;
    struct comm_message messages[RESHARD_SLOTS];
    void *hosts[RESHARD_SLOTS] = {NULL};

    for (int slot = 0; slot < reshard_slots(trainer) && (own == 0 || own == r) && r > 0; slot++) {
        size_t bytes = held_bytes(trainer, to->map, slot, r);
        if (own == r)
            hosts[slot] = backend_map(backend, to->states[slot], bytes, BACKEND_WRITE);
        messages[count++] = (struct comm_message){.peer = own == r ? 0 : r,
                                                  .is_receive = own == r,
                                                  .data = own == r ? hosts[slot] : read[slot],
                                                  .count = (int64_t)bytes,
                                                  .type = COMM_UINT8};
    }
    rc = comm_messages(trainer->net.cell, messages, count, fleet_monotonic_ms() + RESHARD_READ_MS,
                       err);
    for (int slot = 0; slot < RESHARD_SLOTS; slot++)
        if (hosts[slot])
            backend_unmap(backend, to->states[slot], held_bytes(trainer, to->map, slot, r),
                          BACKEND_WRITE, hosts[slot]);
    return rc;
}

/* On the first rank: rank r's part from the files, into its own memory or into `read`. */
static int read_part(struct trainer *trainer, const struct reshard_side *to, int r,
                     float *const *read, struct fleet_error *err)
{
    if (trainer->generation.place.replica != 0)
        return 0;
    return save_read_divided(trainer, to->map, r, r == 0 ? trainer->state.backend : NULL,
                             r == 0 ? to->states : read, err);
}

int reshard_read_files(struct trainer *trainer, const struct reshard_side *to,
                       struct fleet_error *err)
{
    int heaviest = ownership_heaviest(to->map), rc = 0;
    float *read[RESHARD_SLOTS] = {NULL};

    for (int slot = 0; slot < reshard_slots(trainer) && trainer->generation.place.replica == 0;
         slot++) {
        read[slot] = malloc(held_bytes(trainer, to->map, slot, heaviest) + 1);
        fleet_assert(read[slot] != NULL);
    }
    for (int r = 0; r < trainer->generation.replicas && rc == 0; r++) {
        rc = read_part(trainer, to, r, read, err);
        if (rc == 0)
            rc = hand_out(trainer, to, r, read, err);
    }
    for (int slot = 0; slot < RESHARD_SLOTS; slot++)
        free(read[slot]);
    return rc < 0 ? fleet_error_wrap(err, "read the divided state") : 0;
}
