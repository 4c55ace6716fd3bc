/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_PLAN_CONNECTIONS_H
#define LIBFLEET_PLAN_PLAN_CONNECTIONS_H

#include <stddef.h>

struct plan;

/*
 * Bytes of the connections of rank 0 to all others, over all communicators that a trainer makes
 * (agent/runtime/exchange.c): the world, the groups of the program's operators, the replicas of a
 * cell, the cells of a replica, and the blocks of the sum in two levels. It needs the program,
 * topology, machine_ranks and encrypts of the plan. 0 without a program.
 */
size_t plan_connections_bytes(const struct plan *plan);

#endif
