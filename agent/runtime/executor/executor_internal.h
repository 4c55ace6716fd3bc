/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_EXECUTOR_INTERNAL_H
#define AGENT_RUNTIME_EXECUTOR_EXECUTOR_INTERNAL_H

/*
 * What the files of executor.h share, for them alone: executor.c (what is prepared once),
 * executor_launch.c (one operator), executor_run.c (a section), executor_whole.c (a section as one
 * graph), executor_stages.c (the parts of a stage of a pipeline, and its messages).
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/executor/executor.h"
#include "libfleet/plan/memory_plan.h"

struct comm_message;
struct communication;
struct communication_message;
struct graphs;
struct queue;

#define EXECUTOR_NONE (-1) /* no launch */

struct launch {
    const struct program_op *op;
    kernel_fn kernel; /* NULL: it communicates */
    struct memory_place in[OP_INPUTS_MAX], out[OP_OUTPUTS_MAX];
    int waits_for; /* the last communication of the section that must end first, or EXECUTOR_NONE */
    int ready;     /* at the front of EXCHANGE: the launch of the micro-batch behind which it may
                      start */

    /* of a communication that has been put into the queue */
    struct executor *executor;
    uint64_t ticket;
    void *input, *output;
    struct backend_event *before, *after; /* its operands are complete; its work has ended */
};

struct executor {
    const struct program *program;
    struct backend *backend, *second; /* of the kernels' queue, and of the second one */
    struct backend_event *joined;     /* all that has run in the second queue */
    struct launch *launches;          /* [count] in program order */
    int count;
    int first[PROGRAM_SECTION_COUNT + 1]; /* launches of section s: [first[s], first[s + 1]) */
    int communications;                   /* how many of them communicate */
    const struct communication *bound;
    struct queue *queue;                    /* NULL: communication runs where it stands */
    int front_end;                          /* launches of EXCHANGE before this one communicate */
    int started;                            /* of the front: those before it have been put */
    int last_put;                           /* of the section at work, or EXECUTOR_NONE */
    struct communication_message *messages; /* [message_count] of one exchange between stages */
    struct comm_message *posts;             /* [message_count] */
    int message_count;
    struct kernel_held held;
    int64_t *places;       /* [vars] of `held` */
    struct graphs *graphs; /* NULL: each kernel is launched by itself */
    struct executor_times times;
};

/* ---- executor.c ------------------------------------------------------------------------------ */

/* A message between stages of a pipeline. */
bool executor_is_message(const struct program_op *op);

/* ---- executor_run.c -------------------------------------------------------------------------- */

/* Not in this run: an evaluation has no backward part. */
bool executor_is_left_out(const struct launch *launch, const struct run_scalars *scalars);

/* Can the kernel of `launch` be part of a graph? */
bool executor_can_capture(const struct launch *launch);

/* ---- executor_whole.c ------------------------------------------------------------------------ */

/* A section, with the exchange that starts in it. */
struct executor_whole {
    enum program_section section;
    const struct executor_bases *bases, *ahead; /* `ahead`: of EXCHANGE; NULL: it does not start */
    const struct run_scalars *scalars;
    const atomic_bool *stop;
    int (*run)(struct executor *executor, const struct executor_whole *whole,
               struct fleet_error *err); /* operator by operator, or in parts */
};

/* Run the section: as one graph with its communication, if that can be; else by `run`. */
int executor_run_whole(struct executor *executor, const struct executor_whole *whole,
                       struct fleet_error *err);

/* ---- executor_launch.c ----------------------------------------------------------------------- */

/* The memory at `place`; NULL: this rank has none. */
void *executor_address(const struct executor_bases *bases, struct memory_place place);

/* Call the kernel of `launch`. Errors of the kernel, with the operator's name. */
int executor_launch_kernel(struct executor *executor, const struct launch *launch,
                           const struct executor_bases *bases, const struct run_scalars *scalars,
                           struct fleet_error *err);

/* Start the communication of `launch`: in the second queue, or here if there is none. */
int executor_launch_communication(struct executor *executor, struct launch *launch,
                                  const struct executor_bases *bases, struct fleet_error *err);

/* Launch number `at`, of any kind, once all that it must not overtake has ended. The wait is no
 * part of the operator's time. -ECANCELED: *stop is set. */
int executor_launch_one(struct executor *executor, int at, const struct executor_bases *bases,
                        const struct run_scalars *scalars, const atomic_bool *stop,
                        struct fleet_error *err);

/* Wait for one communication; for all of the section at work. */
int executor_await(struct executor *executor, const struct launch *launch, struct fleet_error *err);
int executor_await_all(struct executor *executor, struct fleet_error *err);

/* The error of a run that was stopped before `launch`. */
int executor_refuse_stopped(const struct launch *launch, struct fleet_error *err);

/* The sum of seconds that the operator's time belongs to. */
double *executor_time_of(struct executor *executor, const struct program_op *op);

#endif
