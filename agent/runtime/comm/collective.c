/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Collectives as exchanges, over any transport. All are one round of everybody with everybody,
 * which is what small messages want and what loses nothing for large ones where every rank needs
 * different bytes; only a large broadcast goes along a chain of ranks in pieces, so that no rank
 * sends twice.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

#define BROADCAST_DIRECT_MAX 65536       /* bytes: one round, the root sends to all */
#define BROADCAST_PIECE      (256 << 10) /* bytes: what travels along the chain at a time */

int comm_exchange(struct comm *comm, const void *const *send, const size_t *send_bytes,
                  void *const *receive, const size_t *receive_bytes, double deadline_ms,
                  struct fleet_error *err)
{
    int own = comm->rank, rc;

    if (comm->is_dead)
        return fleet_error(err, -ECONNABORTED, "the communicator failed before");
    fleet_assert(send_bytes[own] == receive_bytes[own]);
    rc = comm->vtable->exchange(comm, send, send_bytes, receive, receive_bytes, deadline_ms, err);
    if (rc < 0) {
        comm->is_dead = true;
        return rc;
    }
    if (send_bytes[own] && send[own] != receive[own])
        memmove(receive[own], send[own], send_bytes[own]);
    for (int r = 0; r < comm->world; r++)
        if (r != own) {
            comm->bytes_sent += send_bytes[r];
            comm->bytes_received += receive_bytes[r];
        }
    return 0;
}

void comm_abort(struct comm *comm)
{
    comm->vtable->abort(comm);
}

void comm_free(struct comm *comm)
{
    if (!comm)
        return;
    free(comm->lists);
    comm->vtable->free(comm);
}

/* ---- the four lists of an exchange ----------------------------------------------------------- */

struct lists {
    const void **send;
    size_t *send_bytes;
    void **receive;
    size_t *receive_bytes;
};

/* All empty. They are kept for the communicator's life: rule (4) lets no two collectives run. */
static void lists_init(struct lists *lists, struct comm *comm)
{
    size_t n = (size_t)comm->world;
    char *p = comm->lists;

    if (!p)
        comm->lists = p = malloc(n * (2 * sizeof(void *) + 2 * sizeof(size_t)));
    fleet_assert(p != NULL);
    memset(p, 0, n * (2 * sizeof(void *) + 2 * sizeof(size_t)));
    lists->send = (const void **)(void *)p;
    lists->receive = (void **)(void *)(p + n * sizeof(void *));
    lists->send_bytes = (size_t *)(void *)(p + 2 * n * sizeof(void *));
    lists->receive_bytes = lists->send_bytes + n;
}

static int exchange_lists(struct comm *comm, const struct lists *lists, double deadline_ms,
                          struct fleet_error *err)
{
    return comm_exchange(comm, lists->send, lists->send_bytes, lists->receive, lists->receive_bytes,
                         deadline_ms, err);
}

/* ---- collectives ----------------------------------------------------------------------------- */

int comm_all_gather(struct comm *comm, const void *mine, size_t bytes, void *all,
                    double deadline_ms, struct fleet_error *err)
{
    struct lists lists;

    lists_init(&lists, comm);
    for (int r = 0; r < comm->world; r++) {
        lists.send[r] = mine;
        lists.receive[r] = (char *)all + (size_t)r * bytes;
        lists.send_bytes[r] = lists.receive_bytes[r] = bytes;
    }
    return exchange_lists(comm, &lists, deadline_ms, err);
}

int comm_all_gather_varying(struct comm *comm, const void *mine, const size_t *bytes, void *all,
                            double deadline_ms, struct fleet_error *err)
{
    struct lists lists;
    char *to = all;

    lists_init(&lists, comm);
    for (int r = 0; r < comm->world; r++) {
        lists.send[r] = mine;
        lists.send_bytes[r] = bytes[comm->rank];
        lists.receive[r] = to;
        lists.receive_bytes[r] = bytes[r];
        to += bytes[r];
    }
    return exchange_lists(comm, &lists, deadline_ms, err);
}

static int broadcast_direct(struct comm *comm, void *data, size_t bytes, int root,
                            double deadline_ms, struct fleet_error *err)
{
    struct lists lists;

    lists_init(&lists, comm);
    for (int r = 0; r < comm->world && comm->rank == root; r++)
        if (r != root) {
            lists.send[r] = data;
            lists.send_bytes[r] = bytes;
        }
    if (comm->rank != root) {
        lists.receive[root] = data;
        lists.receive_bytes[root] = bytes;
    }
    return exchange_lists(comm, &lists, deadline_ms, err);
}

static size_t piece_bytes(size_t bytes, int64_t piece)
{
    size_t first = (size_t)piece * BROADCAST_PIECE;

    return bytes - first < BROADCAST_PIECE ? bytes - first : BROADCAST_PIECE;
}

/* Ranks in a chain from the root on: in round t the p-th one passes piece t - p to its successor
 * while it receives the next one. */
static int broadcast_chain(struct comm *comm, char *data, size_t bytes, int root,
                           double deadline_ms, struct fleet_error *err)
{
    int world = comm->world, place = (comm->rank - root + world) % world;
    int before = (comm->rank + world - 1) % world, after = (comm->rank + 1) % world;
    int64_t pieces = (int64_t)((bytes + BROADCAST_PIECE - 1) / BROADCAST_PIECE);
    struct lists lists;

    lists_init(&lists, comm);
    for (int64_t t = 0; t < pieces + world - 2; t++) {
        int64_t out = t - place, in = out + 1;
        int rc;
        lists.send_bytes[after] = lists.receive_bytes[before] = 0;
        if (out >= 0 && out < pieces && place < world - 1) {
            lists.send[after] = data + out * BROADCAST_PIECE;
            lists.send_bytes[after] = piece_bytes(bytes, out);
        }
        if (in >= 0 && in < pieces && place > 0) {
            lists.receive[before] = data + in * BROADCAST_PIECE;
            lists.receive_bytes[before] = piece_bytes(bytes, in);
        }
        rc = exchange_lists(comm, &lists, deadline_ms, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, double deadline_ms,
                   struct fleet_error *err)
{
    fleet_assert(root >= 0 && root < comm->world);
    if (bytes <= BROADCAST_DIRECT_MAX || comm->world <= 2)
        return broadcast_direct(comm, data, bytes, root, deadline_ms, err);
    return broadcast_chain(comm, data, bytes, root, deadline_ms, err);
}

int comm_all_to_all(struct comm *comm, const void *send, size_t bytes, void *receive,
                    double deadline_ms, struct fleet_error *err)
{
    struct lists lists;

    lists_init(&lists, comm);
    for (int r = 0; r < comm->world; r++) {
        lists.send[r] = (const char *)send + (size_t)r * bytes;
        lists.receive[r] = (char *)receive + (size_t)r * bytes;
        lists.send_bytes[r] = lists.receive_bytes[r] = bytes;
    }
    return exchange_lists(comm, &lists, deadline_ms, err);
}

int comm_barrier(struct comm *comm, double deadline_ms, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *all = malloc((size_t)comm->world);
    char mine = 1;

    fleet_assert(all != NULL);
    return comm_all_gather(comm, &mine, sizeof(mine), all, deadline_ms, err);
}

int comm_send(struct comm *comm, int to, const void *data, size_t bytes, double deadline_ms,
              struct fleet_error *err)
{
    struct lists lists;

    fleet_assert(to >= 0 && to < comm->world && to != comm->rank);
    lists_init(&lists, comm);
    lists.send[to] = data;
    lists.send_bytes[to] = bytes;
    return exchange_lists(comm, &lists, deadline_ms, err);
}

int comm_receive(struct comm *comm, int from, void *data, size_t bytes, double deadline_ms,
                 struct fleet_error *err)
{
    struct lists lists;

    fleet_assert(from >= 0 && from < comm->world && from != comm->rank);
    lists_init(&lists, comm);
    lists.receive[from] = data;
    lists.receive_bytes[from] = bytes;
    return exchange_lists(comm, &lists, deadline_ms, err);
}
