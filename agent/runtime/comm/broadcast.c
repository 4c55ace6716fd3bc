/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Small: the root sends to all. Large: ranks in a chain from the root on, in pieces, so that no
 * rank sends twice: in round t the p-th one passes piece t - p to its successor while it receives
 * the next one.
 */
#include "agent/runtime/comm/engine.h"
#include "libfleet/plan/runtime_traffic.h"

#define PIECE (256 << 10) /* bytes: what travels along the chain at a time */

static bool to_all(struct comm_request *run, size_t bytes)
{
    int root = run->call.root;

    if (run->round > 0)
        return false;
    if (run->comm->rank != root) {
        comm_post_receive(run, root, run->call.receive, bytes);
        return true;
    }
    for (int r = 0; r < run->comm->world; r++)
        if (r != root)
            comm_post_send(run, r, run->call.receive, bytes);
    return true;
}

static size_t piece_bytes(size_t bytes, int64_t piece)
{
    size_t first = (size_t)piece * PIECE;

    return bytes - first < PIECE ? bytes - first : PIECE;
}

static bool along_a_chain(struct comm_request *run, size_t bytes)
{
    int world = run->comm->world, rank = run->comm->rank;
    int place = (rank - run->call.root + world) % world;
    int64_t pieces = (int64_t)((bytes + PIECE - 1) / PIECE);
    int64_t out = run->round - place, in = out + 1;
    char *data = run->call.receive;

    if (run->round >= pieces + world - 2)
        return false;
    if (out >= 0 && out < pieces && place < world - 1)
        comm_post_send(run, (rank + 1) % world, data + out * PIECE, piece_bytes(bytes, out));
    if (in >= 0 && in < pieces && place > 0)
        comm_post_receive(run, (rank + world - 1) % world, data + in * PIECE,
                          piece_bytes(bytes, in));
    return true;
}

bool comm_broadcast_next(struct comm_request *run)
{
    size_t bytes = (size_t)run->call.count * comm_type_size(run->call.type);

    if (bytes <= (size_t)RUNTIME_BROADCAST_DIRECT || run->comm->world <= 2)
        return to_all(run, bytes);
    return along_a_chain(run, bytes);
}
