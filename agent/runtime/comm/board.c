/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/comm/board.h"

#include "libfleet/base/assert.h"

char *board_slot(const struct comm *comm, int reader)
{
    fleet_assert(comm->has_board);
    return shm_slot(comm, comm->own_segment, reader);
}

static const char *slot_of(const struct comm *comm, int peer, int reader)
{
    return shm_slot(comm, comm->pairs[peer].segment_in, reader);
}

void board_send(struct comm_request *run, int peer, size_t bytes)
{
    frame_start_on_board(run, peer, true, NULL, NULL, bytes);
}

const void *board_receive(struct comm_request *run, int peer, size_t bytes)
{
    frame_start_on_board(run, peer, false, NULL, NULL, bytes);
    return slot_of(run->comm, peer, run->comm->rank);
}

void board_receive_copy(struct comm_request *run, int peer, void *data, size_t bytes)
{
    frame_start_on_board(run, peer, false, slot_of(run->comm, peer, peer), data, bytes);
}
