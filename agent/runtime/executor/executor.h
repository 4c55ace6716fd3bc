/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_EXECUTOR_H
#define AGENT_RUNTIME_EXECUTOR_EXECUTOR_H

/*
 * Runs the operators of a section in order: resolves every operand to base + offset and calls the
 * kernels.
 *
 * The caller gives one base address per segment (memory_plan.h places the variables). So each
 * micro-batch can write its gradients into another slot of the summation tree without a copy: the
 * gradient segment gets another base.
 *
 * Communication operators run in a queue of their own, in program order, beside the kernels. A
 * kernel waits for every earlier communication operator that writes memory which the kernel reads
 * or writes, or that reads memory which the kernel writes. So only the order of the program decides
 * what overlaps. Without a communication (executor_bind()) this rank is alone in all groups.
 */

#include <stdatomic.h>
#include <stdbool.h>

#include "agent/runtime/backend/backend.h"
#include "libfleet/plan/memory_plan.h"

struct communication;
struct executor;

struct executor_bases {
    void *segment[MEMORY_SEGMENT_COUNT]; /* device memory; may be NULL if a section does not use
                                            the segment */
};

/*
 * Prepare `program` for `backend`: resolves kernels and operands. Nothing is allocated later, but
 * for graphs in the first two runs of a section. Two
 * kinds of operators are left out: those that read memory which this rank does not hold, because
 * another rank runs them; and an owned all_gather of the UPDATE section, which the trainer runs
 * after that section (share.h). program, plan and backend are borrowed for the executor's life.
 * -ENOTSUP: an operator that does not communicate has no kernel, or none for its types and sizes.
 * Errors of backend_prepare().
 */
int executor_new(const struct program *program, const struct memory_plan *plan,
                 struct backend *backend, struct executor **out, struct fleet_error *err);
void executor_free(struct executor *executor);

/* Use `communication` (communication.h), borrowed until the next call; NULL: this rank is alone.
 * Graphs are captured again afterwards. -EAGAIN: the system cannot create a thread for the second
 * queue. */
int executor_bind(struct executor *executor, const struct communication *communication,
                  struct fleet_error *err);

/* Run only operator number `at` of the program, and wait for its end. Returns its errors. */
int executor_launch(struct executor *executor, int at, const struct executor_bases *bases,
                    const struct run_scalars *scalars, struct fleet_error *err);

/*
 * Run all operators of `section` in order and wait for the last. On a GPU only CHECK and evaluation
 * wait; another section may still be at work when this returns, and what the device finds wrong in
 * it is an error of a later one. Checks *stop before each operator or graph and returns -ECANCELED
 * once it is set. Other errors come from the operators, with their names. A failure with
 * communication in flight aborts the communicators.
 * With scalars->evaluation the micro-batch runs without its backward operators and without those
 * that are for training only. With scalars->absent no kernel runs, and this rank communicates
 * zeros.
 */
int executor_run(struct executor *executor, enum program_section section,
                 const struct executor_bases *bases, const struct run_scalars *scalars,
                 const atomic_bool *stop, struct fleet_error *err);

/*
 * The same for the micro-batch section of an update's last micro-batch. Communication operators at
 * the front of the EXCHANGE section start during it, each as soon as its input is complete.
 * executor_run() of EXCHANGE must follow; it starts the rest and waits for all. `exchange_bases`
 * are the bases of that run.
 */
int executor_run_last(struct executor *executor, const struct executor_bases *bases,
                      const struct executor_bases *exchange_bases,
                      const struct run_scalars *scalars, const atomic_bool *stop,
                      struct fleet_error *err);

/*
 * Run one part of the micro-batch section, of a program that is a stage of a pipeline
 * (libfleet/program/passes/pipeline.h), without the messages between stages. Otherwise as
 * executor_run().
 */
struct executor_part {
    bool backward, weights;
    int chunk;
};
int executor_run_part(struct executor *executor, const struct executor_part *part,
                      const struct executor_bases *bases, const struct run_scalars *scalars,
                      const atomic_bool *stop, struct fleet_error *err);

/* Send what parts have made for other stages, and receive what parts will read: all at once. It
 * waits until all have arrived. Errors as comm_messages(). Its time is that of waits. */
struct executor_messages {
    struct executor_part part;
    bool is_receive;
    struct executor_bases bases;
};
int executor_pass_messages(struct executor *executor, const struct executor_messages *messages,
                           int count, struct fleet_error *err);

/* Give up the operators that executor_run_last() has started: abort the communicators and wait.
 * Does nothing if nothing is in flight. */
void executor_cancel(struct executor *executor);

/*
 * Run the micro-batch section as executor_run() does, but slowly and as if this rank were alone.
 * After each operator `watch` gets the memory that it has written (out[i], device memory; NULL if
 * absent). If `watch` returns false, the run ends with 0. Its time is not counted. Errors as
 * executor_run(). Gathers (gather.h) are the exception: all ranks run them together, also behind
 * that end, and with scalars->absent nothing else runs.
 */
typedef bool (*executor_watch)(void *context, const struct program_op *op, void *const *out);
int executor_inspect(struct executor *executor, const struct executor_bases *bases,
                     const struct run_scalars *scalars, const atomic_bool *stop,
                     executor_watch watch, void *context, struct fleet_error *err);

/* Seconds spent so far, for the parts of the step's time: in kernels; in waits for communication;
 * and in all communication, including the part that overlaps with kernels. */
struct executor_times {
    double forward_s, backward_s, check_s, update_s;
    double waited_s, communication_s;
};
void executor_times(const struct executor *executor, struct executor_times *out);

#endif
