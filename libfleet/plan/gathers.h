/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_GATHERS_H
#define LIBFLEET_PLAN_GATHERS_H

/*
 * Divided parameters: a gather brings a range of the parameters into the arena before operators of
 * the micro-batch section read them (libfleet/program/passes/sharding_segments.h). The ranks that
 * hold a part of the range by the ownership map copy it; each other rank gets it from the owner
 * that answers for it (ownership_owner()).
 *
 * A reader uses the newest gather of its parameter before it in the program. The memory of a gather
 * is free behind its last reader.
 */

#include <stdbool.h>
#include <stdint.h>

struct ownership;
struct program;
struct program_op;

/* The operator is a gather. */
bool gathers_is(const struct program_op *op);

/* The program has gathers: ranks hold parts of the parameters. */
bool gathers_are_used(const struct program *program);

/* list[i * OP_INPUTS_MAX + j] is the gather that input j of operator i reads, or PROGRAM_NONE if
 * that input is no gathered parameter. A heap list of op_count rows. */
int *gathers_of_inputs(const struct program *program);

/* Elements that `replica` sends in one gather of the parameters [first, end). */
int64_t gathers_sent(const struct ownership *map, int replica, int64_t first, int64_t end);

#endif
