/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_PROGRAM_TRAFFIC_H
#define LIBFLEET_PLAN_PROGRAM_TRAFFIC_H

#include "libfleet/plan/plan.h"

/* The rank that sends most: one with the most partial sums. */
#define PROGRAM_TRAFFIC_HEAVIEST (-1)

/*
 * Append what replica `replica` of the plan sends for one update by the communication operators of
 * its program, those of one kind together. Bytes are those that the communicators count
 * (runtime_traffic.h), without votes and the other small messages between trainers.
 */
void program_traffic(const struct plan *plan, int replica, struct plan_traffic *traffic);

/* Bytes that a rank sends in one execution of operator `op` of the plan's program, if ranks that
 * share tensors or sequences run it inside a micro-batch; else 0. */
double program_traffic_in_cell(const struct plan *plan, int op);

/* What the ranks that share tensors or sequences send each other in one micro-batch. The plan has a
 * program of all layers. */
void program_traffic_of_cells(const struct plan *plan, struct plan_cell_traffic *out);

/* Append a transfer, unless its group is one rank. */
void program_traffic_add(struct plan_traffic *traffic, const struct plan_transfer *transfer);

#endif
