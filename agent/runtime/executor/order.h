/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_ORDER_H
#define AGENT_RUNTIME_EXECUTOR_ORDER_H

/*
 * Decides which operators may not overlap: two operators conflict if one writes memory that the
 * other reads or writes. The check uses memory, not variables, because the arena gives the same
 * place to several variables in turn.
 */

#include <stdbool.h>

#include "libfleet/plan/memory_plan.h"

/* The beginning of a communication operator's range; MEMORY_NOWHERE: it has none. `op` is one of
 * the program. */
struct memory_place order_range(const struct program *program, const struct memory_plan *plan,
                                const struct program_op *op);

/* True if only ranks run `op` that hold the sum of its range: of a gradient that two stages of a
 * pipeline have, where ranks hold parts of the sums. Without the sum order_range() is
 * MEMORY_NOWHERE. */
bool order_is_held(const struct program_op *op);

/* True if one of the two has to wait for the other. */
bool order_conflict(const struct program *program, const struct memory_plan *plan,
                    const struct program_op *a, const struct program_op *b);

#endif
