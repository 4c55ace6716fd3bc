/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_EXECUTOR_H
#define AGENT_RUNTIME_EXECUTOR_EXECUTOR_H

/*
 * Walks the operators of a section: resolves every operand to base + offset and calls the kernels.
 *
 * Memory comes from outside as one base address a segment (memory_plan.h says which variable lies
 * where), so that each micro-batch can write its gradients into another slot of the summation tree
 * by another base for the gradient segment, without a copy.
 */

#include <stdatomic.h>
#include <stdbool.h>

#include "agent/runtime/backend/backend.h"
#include "libfleet/plan/memory_plan.h"

struct executor;

struct executor_bases {
    void *segment[MEMORY_SEGMENT_COUNT]; /* device memory; a segment that a section does not touch
                                            may be NULL */
};

/*
 * Prepare `program` for `backend`: resolves kernels and operands, allocates nothing later.
 * Operators that read what the rank does not hold are left out: another rank runs them.
 * program, plan and backend are borrowed for the executor's life.
 * -ENOTSUP: an operator of the sections MICRO_BATCH, CHECK or UPDATE has no kernel.
 */
int executor_new(const struct program *program, const struct memory_plan *plan,
                 struct backend *backend, struct executor **out, struct fleet_error *err);
void executor_free(struct executor *executor);

/*
 * Run all operators of `section` (not EXCHANGE) in order. Looks at *stop before each operator and
 * returns -ECANCELED once it is set; other errors come from the kernels, with the operator's name.
 * With scalars->evaluation the backward operators of the micro-batch are left out.
 */
int executor_run(struct executor *executor, enum program_section section,
                 const struct executor_bases *bases, const struct run_scalars *scalars,
                 const atomic_bool *stop, struct fleet_error *err);

/*
 * Run the micro-batch section as executor_run() does, slowly: after each operator `watch` sees what
 * it has written (out[i], device memory, NULL where absent). A watch that returns false ends the
 * run; the result is 0 then, too. Its time is not counted. Errors as executor_run().
 */
typedef bool (*executor_watch)(void *context, const struct program_op *op, void *const *out);
int executor_inspect(struct executor *executor, const struct executor_bases *bases,
                     const struct run_scalars *scalars, const atomic_bool *stop,
                     executor_watch watch, void *context, struct fleet_error *err);

/* Seconds spent so far in forward, backward, check, update: for the step's time split. */
struct executor_times {
    double forward_s, backward_s, check_s, update_s;
};
void executor_times(const struct executor *executor, struct executor_times *out);

#endif
