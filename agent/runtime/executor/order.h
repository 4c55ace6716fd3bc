/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_ORDER_H
#define AGENT_RUNTIME_EXECUTOR_ORDER_H

/*
 * Which operators may not overlap: those of two where one writes memory that the other reads or
 * writes. Memory counts, not variables: the arena gives a place to one variable after the other.
 */

#include <stdbool.h>

#include "libfleet/plan/memory_plan.h"

/* Where the range of a communication operator begins; MEMORY_NOWHERE: it has none. */
struct memory_place order_range(const struct program_op *op);

/* One of the two has to wait for the other. */
bool order_conflict(const struct program *program, const struct memory_plan *plan,
                    const struct program_op *a, const struct program_op *b);

#endif
