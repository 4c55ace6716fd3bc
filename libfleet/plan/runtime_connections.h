/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_RUNTIME_CONNECTIONS_H
#define LIBFLEET_PLAN_RUNTIME_CONNECTIONS_H

/*
 * Memory of the connections between ranks. agent/runtime/comm allocates by these numbers, and the
 * plan counts them.
 */

#include <stdbool.h>
#include <stddef.h>

/* A connection that is encrypted: bytes of a record's text; bytes of a record. It has a buffer of
 * one record for each direction. */
#define RUNTIME_SEAL_TEXT   ((size_t)32 << 10)
#define RUNTIME_SEAL_RECORD (RUNTIME_SEAL_TEXT + 4 + 16)

/* Shared memory: bytes that a ring holds, and bytes of a ring with its counters. A rank that shares
 * memory with another one has a ring for each rank of the communicator. Only the counters of a ring
 * that no rank uses are ever touched. */
#define RUNTIME_RING_TEXT  ((size_t)64 << 10)
#define RUNTIME_RING_HEAD  ((size_t)4096)
#define RUNTIME_RING_BYTES (RUNTIME_RING_TEXT + RUNTIME_RING_HEAD)

/* The board (agent/runtime/comm/board.h) is a part of the same memory: a slot of this size for each
 * rank of the communicator. Only a communicator whose ranks are all on one machine touches it. */
#define RUNTIME_BOARD_SLOT ((size_t)256 << 10)

/* A communicator as one of its ranks sees it. */
struct runtime_connections {
    int ranks;      /* of the communicator, with this one */
    int neighbours; /* of these: those that share memory with this one, with this one; >= 1 */
    int channels;   /* connections to each other rank */
    bool encrypts;
};

/* Bytes that this rank's side of the connections takes at most. */
size_t runtime_connections_bytes(const struct runtime_connections *c);

#endif
