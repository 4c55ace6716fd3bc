/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_EXECUTOR_H
#define AGENT_RUNTIME_EXECUTOR_EXECUTOR_H

/*
 * Walks the operators of a section: resolves every operand to base + offset and calls the kernels.
 *
 * Memory comes from outside as one base address a segment (memory_plan.h says which variable lies
 * where), so that each micro-batch can write its gradients into another slot of the summation tree
 * by another base for the gradient segment, without a copy.
 *
 * Communication operators run in a queue of their own, in program order, beside the kernels. Before
 * a kernel runs, those in front of it have ended that write what it reads or writes, or read what
 * it writes; so the order of the program alone says what overlaps. Without a communication
 * (executor_bind()) this rank is alone in all groups.
 */

#include <stdatomic.h>
#include <stdbool.h>

#include "agent/runtime/backend/backend.h"
#include "libfleet/plan/memory_plan.h"

struct communication;
struct executor;

struct executor_bases {
    void *segment[MEMORY_SEGMENT_COUNT]; /* device memory; a segment that a section does not touch
                                            may be NULL */
};

/*
 * Prepare `program` for `backend`: resolves kernels and operands, allocates nothing later.
 * Operators that read what the rank does not hold are left out: another rank runs them; so is an
 * owned all_gather of the UPDATE section, which the trainer runs behind it (share.h).
 * program, plan and backend are borrowed for the executor's life.
 * -ENOTSUP: an operator that does not communicate has no kernel.
 */
int executor_new(const struct program *program, const struct memory_plan *plan,
                 struct backend *backend, struct executor **out, struct fleet_error *err);
void executor_free(struct executor *executor);

/* Communicate as `communication` says (communication.h), borrowed until the next call; NULL: alone.
 * -EAGAIN: the system gives no thread for the second queue. */
int executor_bind(struct executor *executor, const struct communication *communication,
                  struct fleet_error *err);

/* Run operator number `at` of the program, alone and to its end. Errors come from it. */
int executor_launch(struct executor *executor, int at, const struct executor_bases *bases,
                    const struct run_scalars *scalars, struct fleet_error *err);

/*
 * Run all operators of `section` in order and wait for the last. Looks at *stop before each
 * operator and returns -ECANCELED once it is set; other errors come from the operators, with their
 * names. A failure with communication in flight aborts the communicators.
 * With scalars->evaluation the backward operators of the micro-batch are left out, and those for
 * training alone; with scalars->absent all kernels are, and communication gives zeros.
 */
int executor_run(struct executor *executor, enum program_section section,
                 const struct executor_bases *bases, const struct run_scalars *scalars,
                 const atomic_bool *stop, struct fleet_error *err);

/*
 * The same of the micro-batch section, for the last micro-batch of an update: the communication
 * operators at the front of the EXCHANGE section start as soon as the operators of the micro-batch
 * have ended that write what they read. executor_run() of EXCHANGE, which must follow, starts the
 * rest and waits for all. `exchange_bases` is that run's bases.
 */
int executor_run_last(struct executor *executor, const struct executor_bases *bases,
                      const struct executor_bases *exchange_bases,
                      const struct run_scalars *scalars, const atomic_bool *stop,
                      struct fleet_error *err);

/* Give up what executor_run_last() has started: abort the communicators, wait. Nothing happens if
 * nothing is in flight. */
void executor_cancel(struct executor *executor);

/*
 * Run the micro-batch section as executor_run() does, slowly, and as if this rank were alone: after
 * each operator `watch` sees what it has written (out[i], device memory, NULL where absent). A
 * watch that returns false ends the run; the result is 0 then, too. Its time is not counted. Errors
 * as executor_run().
 */
typedef bool (*executor_watch)(void *context, const struct program_op *op, void *const *out);
int executor_inspect(struct executor *executor, const struct executor_bases *bases,
                     const struct run_scalars *scalars, const atomic_bool *stop,
                     executor_watch watch, void *context, struct fleet_error *err);

/* Seconds spent so far, for the step's time split: in kernels by part; waiting for communication;
 * and in communication, whether waited for or not. */
struct executor_times {
    double forward_s, backward_s, check_s, update_s;
    double waited_s, communication_s;
};
void executor_times(const struct executor *executor, struct executor_times *out);

#endif
