/* SPDX-License-Identifier: Apache-2.0 */

/* A world of one: what is sent to ourselves is copied by comm_exchange(). */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

struct local {
    struct comm comm;
    atomic_bool aborted;
};

static int local_exchange(struct comm *comm, const void *const *send, const size_t *send_bytes,
                          void *const *receive, const size_t *receive_bytes, double deadline_ms,
                          struct fleet_error *err)
{
    struct local *local = (struct local *)comm;

    (void)send, (void)send_bytes, (void)receive, (void)receive_bytes, (void)deadline_ms;
    if (atomic_load(&local->aborted))
        return fleet_error(err, -ECANCELED, "the communicator was aborted");
    return 0;
}

static void local_abort(struct comm *comm)
{
    atomic_store(&((struct local *)comm)->aborted, true);
}

static void local_free(struct comm *comm)
{
    free(comm);
}

static const struct comm_vtable vtable = {
    .name = "local",
    .exchange = local_exchange,
    .abort = local_abort,
    .free = local_free,
};

struct comm *comm_local_new(void)
{
    struct local *local = calloc(1, sizeof(*local));

    fleet_assert(local != NULL);
    local->comm = (struct comm){.vtable = &vtable, .world = 1, .failed_rank = -1};
    return &local->comm;
}
