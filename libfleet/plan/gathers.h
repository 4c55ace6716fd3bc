/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_GATHERS_H
#define LIBFLEET_PLAN_GATHERS_H

/*
 * Divided parameters: a gather brings a range of the parameters into the arena before operators of
 * the micro-batch section read them (libfleet/program/passes/sharding_segments.h). The ranks that
 * hold a part of the range by the ownership map copy it; each other rank gets it from the owner
 * that answers for it (ownership_owner()).
 *
 * With a 16-bit `wire` a parameter that micro-batches read only through casts to that type travels
 * in it; the others travel in fp32. A cast of the rounded value gives the bits that a cast of the
 * value gives, so no result changes. The arena has the range in fp32 in both cases.
 *
 * A reader uses the newest gather of its parameter before it in the program. The memory of a gather
 * is free behind its last reader.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/program/program.h"

struct ownership;

/* The operator is a gather. */
bool gathers_is(const struct program_op *op);

/* The program has gathers: ranks hold parts of the parameters. */
bool gathers_are_used(const struct program *program);

/* list[i * OP_INPUTS_MAX + j] is the gather that input j of operator i reads, or PROGRAM_NONE if
 * that input is no gathered parameter. A heap list of op_count rows. */
int *gathers_of_inputs(const struct program *program);

/* Elements [first, end) of the parameters, which travel in one type. */
struct gathers_part {
    int64_t first, end;
    enum program_type type;
};

/* The parts of each gather of a program, in the order of the flat space; neighbours differ in
 * type. Operator i has items[starts[i]] … items[starts[i + 1] - 1]. */
struct gathers_parts {
    struct gathers_part *items;
    int *starts; /* [op_count + 1] */
};

/* Release *out; that is fine on a zeroed struct, too. */
void gathers_parts_init(const struct program *program, struct gathers_parts *out);
void gathers_parts_release(struct gathers_parts *parts);

/* Bytes of the range of gather `op` in 16 bits, where its wire has them; else 0. */
size_t gathers_halves(const struct program_op *op);

/* Bytes that `replica` sends when gather number `op` runs. */
int64_t gathers_sent(const struct ownership *map, const struct gathers_parts *parts, int op,
                     int replica);

#endif
