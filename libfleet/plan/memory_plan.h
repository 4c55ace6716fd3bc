/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_MEMORY_PLAN_H
#define LIBFLEET_PLAN_MEMORY_PLAN_H

/*
 * Where every tensor of a rank lies: exact bytes before anything runs.
 *
 * Persistent segments are the flat spaces; activations share one arena by liveness over the
 * micro-batch section (an output may take the place of an input that dies there). No allocation
 * happens after the first step.
 *
 * If the micro-batch section sums gradients (adders.h), a bucket of gradients lies in the arena
 * from its first write to its sum. Behind that section MEMORY_GRADIENTS has what the rank holds of
 * the sums.
 *
 * If that section gathers parameters (gathers.h), a gathered range lies in the arena from the
 * gather to its last reader. MEMORY_PARAMETERS has what the rank holds of the parameters.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/program/program.h"

struct fleet_error;
struct ownership;

enum memory_segment {
    MEMORY_PARAMETERS, /* fp32, what the rank holds of them */
    MEMORY_GRADIENTS,  /* one slot of the summation tree: fp32, what the rank holds of it */
    MEMORY_STATE0,     /* optimizer state 0: fp32, what the rank holds of it */
    MEMORY_STATE1,     /* optimizer state 1 */
    MEMORY_BUFFERS,    /* running statistics, buffer_count elements */
    MEMORY_INPUTS,     /* the micro-batch */
    MEMORY_SCALARS,    /* results the host reads */
    MEMORY_ARENA,      /* activations */
    MEMORY_HOST,       /* offloaded checkpoints */
    MEMORY_SCRATCH,    /* largest scratch_bytes of any operator */
    MEMORY_SEGMENT_COUNT,
    MEMORY_NOWHERE = MEMORY_SEGMENT_COUNT, /* the place of a variable that a rank does not hold */
};

struct memory_place {
    enum memory_segment segment;
    size_t offset; /* bytes, multiple of PROGRAM_ALIGNMENT */
};

struct memory_plan {
    struct memory_place *places;        /* [program->var_count] */
    size_t bytes[MEMORY_SEGMENT_COUNT]; /* size of each segment; GRADIENTS: of the first slot */
    size_t further_slot_bytes;          /* size of each further slot */
    size_t
        live_bytes; /* of all activations that live at once, the most; the arena is at least that */
    bool is_of_host[MEMORY_SEGMENT_COUNT]; /* not memory of the device: what is offloaded */
    /* If the micro-batch section sums gradients, else NULL: */
    struct memory_place *sums;   /* [var_count] of gradients, behind that section */
    struct memory_place *ranges; /* [op_count] of operators over a range of the arena */
    int *gathers; /* gathers_of_inputs(), if that section gathers parameters, else NULL */
};

/* The place of input number `input` of operator `op` of `program`, and of another variable for the
 * operators of a section; MEMORY_NOWHERE of PROGRAM_NONE. */
struct memory_place memory_plan_input(const struct memory_plan *plan, const struct program *program,
                                      const struct program_op *op, int input);
struct memory_place memory_plan_place(const struct memory_plan *plan, enum program_section section,
                                      int var);

/*
 * Lay out `program` (verified, with flat layout) as rank `replica` of the map holds it; NULL: all
 * of it. -EOVERFLOW if a size does not fit 63 bits. The same program gives the same plan on every
 * machine.
 */
int memory_plan_build(const struct program *program, const struct ownership *map, int replica,
                      struct memory_plan *out, struct fleet_error *err);
void memory_plan_release(struct memory_plan *plan);

#endif
