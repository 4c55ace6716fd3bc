/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_BOARD_H
#define AGENT_RUNTIME_COMM_BOARD_H

/*
 * Memory of each rank that all ranks of its communicator read in place. It exists only if all of
 * them share memory (comm->has_board). It has a slot of RUNTIME_BOARD_SLOT bytes for each rank:
 * slot p of rank r has what only p reads, slot r what all read. Sums of large ranges go through it:
 * a rank copies each part to the slot of the rank that adds it. That rank adds what it finds in the
 * slots of the others. A byte is copied once, by memcpy(); process_vm_readv() would cost two to
 * three times as much.
 *
 * (1) A message says that a slot is filled; its payload stays there.
 * (2) A rank fills a slot again when it has received, from each reader of the slot, a message that
 *     the reader sent after it had read. The operations arrange their rounds so.
 * (3) An operation ends after all ranks have read the slots that only they read. The slot that all
 *     read is filled again in the second round of an operation at the earliest.
 * (4) After a failure a rank fills no slot any more. So another rank that is still adding reads
 *     what it was sent.
 */

#include "agent/runtime/comm/engine.h"

/* Our slot that rank `reader` reads; `reader` is ourselves: the slot that all read. */
char *board_slot(const struct comm *comm, int reader);

/* In this round: send `peer` `bytes` bytes that lie in the slot that it reads, or in the slot that
 * all read. bytes may be 0. */
void board_send(struct comm_request *run, int peer, size_t bytes);

/* In this round: receive what lies in the peer's slot for us. Returns the place. */
const void *board_receive(struct comm_request *run, int peer, size_t bytes);

/* In this round: receive what lies in the peer's slot for all, and copy it to data[0 … bytes). */
void board_receive_copy(struct comm_request *run, int peer, void *data, size_t bytes);

#endif
