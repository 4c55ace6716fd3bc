/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_RUNTIME_CONNECTIONS_H
#define LIBFLEET_PLAN_RUNTIME_CONNECTIONS_H

/*
 * Memory of the connections between ranks. agent/runtime/comm allocates by these numbers, and the
 * plan counts them.
 */

#include <stddef.h>

/* A connection that is encrypted: bytes of a record's text; bytes of a record. It has a buffer of
 * one record for each direction. */
#define RUNTIME_SEAL_TEXT   ((size_t)32 << 10)
#define RUNTIME_SEAL_RECORD (RUNTIME_SEAL_TEXT + 4 + 16)

/* Shared memory: bytes that a ring holds, and bytes of a ring with its counters. A rank has one
 * ring for each rank of the world; that to itself is not used. */
#define RUNTIME_RING_TEXT  ((size_t)64 << 10)
#define RUNTIME_RING_BYTES (RUNTIME_RING_TEXT + 4096)

#endif
