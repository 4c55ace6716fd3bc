/* SPDX-License-Identifier: Apache-2.0 */

/* Communicators of a device's library: made for a world, split for its groups, and used once before
 * they count as ready. What others ask of the library of a communicator. */
#include <errno.h>

#include "agent/runtime/comm/device.h"
#include "agent/runtime/comm/engine.h"
#include "libfleet/base/assert.h"

bool comm_has_device(const struct comm *comm)
{
    return comm->device != NULL;
}

void *comm_device_scratch(struct comm *comm, size_t bytes, struct fleet_error *err)
{
    return comm->library->scratch(comm->device, bytes, err);
}

int comm_device_copy(struct comm *comm, struct backend *queue, void *to, const void *from,
                     size_t bytes, struct fleet_error *err)
{
    return comm->library->copy(comm->device, queue, to, from, bytes, err);
}

int comm_device_cast(struct comm *comm, struct backend *queue, const struct comm_device_cast *cast,
                     struct fleet_error *err)
{
    return comm->library->cast(comm->device, queue, cast, err);
}

int comm_device_walk(struct comm *comm, struct backend *queue, const struct comm_device_walk *walk,
                     struct fleet_error *err)
{
    return comm->library->walk(comm->device, queue, walk, err);
}

int comm_device_run(struct comm *comm, const struct comm_call *call, bool is_captured,
                    double deadline_ms, struct fleet_error *err)
{
    return is_captured ? comm_device_capture(comm, call, deadline_ms, err)
                       : comm_run(comm, call, deadline_ms, err);
}

/* What was begun is ready on all ranks. A rank that gives up is noticed by its connections. */
static int wait_until_ready(struct comm *comm, double deadline_ms, struct fleet_error *err)
{
    const struct comm_call nothing = {.operation = COMM_BARRIER, .queue = comm->device_queue};

    return comm_run(comm, &nothing, deadline_ms, err);
}

/* Connections and modules are made by the first operation. */
static int warm_up(struct comm *comm, double deadline_ms, struct fleet_error *err)
{
    float *memory =
        comm->library->scratch(comm->device, sizeof(*memory) * (size_t)comm->world, err);
    struct comm_call call = {.operation = COMM_ALL_REDUCE,
                             .type = COMM_FP32,
                             .count = comm->world,
                             .send = memory,
                             .receive = memory,
                             .queue = comm->device_queue,
                             .any_order = true};

    return memory ? comm_run(comm, &call, deadline_ms, err) : -ENOMEM;
}

int comm_use_device(struct comm *comm, const struct comm_device_library *library,
                    const struct comm_device_id *id, struct backend *queue, double deadline_ms,
                    struct fleet_error *err)
{
    struct fleet_error own = {.text = ""};
    int rc;

    fleet_assert(!comm->device);
    comm->library = library;
    comm->device_queue = queue;
    rc = library->open(id, comm->rank, comm->world, &comm->device, &own);
    if (rc == 0)
        rc = wait_until_ready(comm, deadline_ms, &own);
    if (rc == 0)
        rc = warm_up(comm, deadline_ms, &own);
    if (rc < 0)
        comm_fail(comm->net, rc, &own);
    if (rc < 0 && err)
        *err = own;
    return rc;
}

int comm_device_split(struct comm *parent, const int *ranks, int count, struct comm *group,
                      double deadline_ms, struct fleet_error *err)
{
    int color = COMM_DEVICE_NO_COLOR, key = 0, rc;
    struct comm_device *made = NULL;

    for (int i = 0; i < count; i++)
        if (ranks[i] == parent->rank) {
            color = 0;
            key = i;
        }
    rc = parent->library->split(parent->device, color, key, &made, err);
    if (group && made) {
        group->library = parent->library;
        group->device_queue = parent->device_queue;
        group->device = made;
    }
    if (rc == 0)
        rc = wait_until_ready(parent, deadline_ms, err);
    if (rc == 0 && made)
        rc = wait_until_ready(group, deadline_ms, err);
    return rc;
}
