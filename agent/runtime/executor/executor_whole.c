/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A section as one graph, with the communication in it. Kernels are captured in the first queue,
 * communication in the second one; events order them as in a run without a graph. All ranks of the
 * groups run the same sections in the same order, so they capture in the same run; they agree that
 * all of them have captured, and each replay ends with a message to all: so a lost rank is noticed.
 */
#include <errno.h>
#include <stdatomic.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor_internal.h"
#include "agent/runtime/executor/graphs.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

struct work {
    struct executor *executor;
    const struct executor_whole *whole;
    communication_groups groups; /* that communicate in it */
    int next;                    /* the launch of EXCHANGE that starts next */
    bool is_plain;               /* it ran without a graph */
};

/* Replicas have different numbers of samples to evaluate, so they do not run the same sections. */
static bool can_capture_communication(const struct executor *executor, const struct program_op *op,
                                      const struct run_scalars *scalars)
{
    if (executor_is_message(op) ||
        (scalars->evaluation && op->attributes.group & OP_GROUP_REPLICAS))
        return false;
    return communication_can_capture(executor->bound, op);
}

/* Can all launches of [first, end) be captured? Adds the groups that communicate. */
static bool can_capture(const struct executor *executor, int first, int end,
                        const struct run_scalars *scalars, communication_groups *groups)
{
    for (int i = first; i < end; i++) {
        const struct launch *launch = &executor->launches[i];
        if (executor_is_left_out(launch, scalars))
            continue;
        if (launch->kernel ? !executor_can_capture(launch)
                           : !can_capture_communication(executor, launch->op, scalars))
            return false;
        if (!launch->kernel)
            *groups |= communication_groups_of(launch->op);
    }
    return true;
}

/* Without communication, parts of the section are graphs. */
static bool is_whole(const struct executor *executor, const struct executor_whole *whole,
                     communication_groups *groups)
{
    const int *first = executor->first;
    int section = whole->section, exchange = PROGRAM_SECTION_EXCHANGE;

    if (!executor->graphs || !executor->queue || !executor->bound->captures ||
        whole->scalars->absent || section == exchange)
        return false;
    if (whole->ahead && executor->front_end != first[exchange + 1])
        return false;
    return can_capture(executor, first[section], first[section + 1], whole->scalars, groups) &&
           (!whole->ahead ||
            can_capture(executor, first[exchange], first[exchange + 1], whole->scalars, groups)) &&
           *groups != 0;
}

/* ---- capturing ------------------------------------------------------------------------------- */

static int capture_communication(struct executor *executor, const struct launch *launch,
                                 const struct executor_bases *bases, struct fleet_error *err)
{
    int rc = backend_record(executor->backend, launch->before, err);

    if (rc == 0)
        rc = backend_await(executor->second, launch->before, err);
    if (rc == 0)
        rc = communication_capture(executor->bound, executor->second, executor->program, launch->op,
                                   executor_address(bases, launch->in[0]),
                                   executor_address(bases, launch->out[0]), err);
    return rc < 0 ? rc : backend_record(executor->second, launch->after, err);
}

static int capture_launch(const struct work *w, const struct launch *launch,
                          struct fleet_error *err)
{
    struct executor *executor = w->executor;
    const struct executor_bases *bases = w->whole->bases;
    int rc = 0;

    if (!launch->kernel)
        return capture_communication(executor, launch, bases, err);
    if (launch->waits_for != EXECUTOR_NONE &&
        !executor_is_left_out(&executor->launches[launch->waits_for], w->whole->scalars))
        rc = backend_await(executor->backend, executor->launches[launch->waits_for].after, err);
    return rc < 0 ? rc : executor_launch_kernel(executor, launch, bases, w->whole->scalars, err);
}

/* Of EXCHANGE what may start behind launch `at`. */
static int capture_exchange(struct work *w, int at, struct fleet_error *err)
{
    struct executor *executor = w->executor;
    int end = executor->first[PROGRAM_SECTION_EXCHANGE + 1], rc = 0;

    while (rc == 0 && w->whole->ahead && w->next < end && executor->launches[w->next].ready <= at)
        rc = capture_communication(executor, &executor->launches[w->next++], w->whole->ahead, err);
    return rc;
}

/* The first queue waits for the second one at the end. */
static int capture(void *context, struct fleet_error *err)
{
    struct work *w = context;
    struct executor *executor = w->executor;
    const int *first = &executor->first[w->whole->section];
    int rc = 0;

    w->next = executor->first[PROGRAM_SECTION_EXCHANGE];
    for (int i = first[0]; i < first[1] && rc == 0; i++) {
        const struct launch *launch = &executor->launches[i];
        if (!executor_is_left_out(launch, w->whole->scalars))
            rc = capture_launch(w, launch, err);
        if (rc == 0)
            rc = capture_exchange(w, i, err);
    }
    if (rc == 0)
        rc = backend_record(executor->second, executor->joined, err);
    return rc < 0 ? rc : backend_await(executor->backend, executor->joined, err);
}

/* ---- running --------------------------------------------------------------------------------- */

static int run_plain(void *context, struct fleet_error *err)
{
    struct work *w = context;

    w->is_plain = true;
    return w->whole->run(w->executor, w->whole, err);
}

static int agree(void *context, bool is_ready, bool *out, struct fleet_error *err)
{
    const struct work *w = context;

    return communication_agree(w->executor->bound, w->groups, is_ready, out, err);
}

static int replay(struct work *w, struct fleet_error *err)
{
    struct executor *executor = w->executor;
    const struct executor_whole *whole = w->whole;
    const struct graph_key key = {
        .first = executor->first[whole->section],
        .end = executor->first[(whole->ahead ? PROGRAM_SECTION_EXCHANGE : whole->section) + 1],
        .bases = *whole->bases,
        .ahead = whole->ahead ? *whole->ahead : (struct executor_bases){{NULL}},
        .round = communication_round(executor->bound),
        .seed = whole->scalars->seed,
        .evaluation = whole->scalars->evaluation};
    const struct graphs_part part = {run_plain, capture, agree, w};
    double started_ms;
    int rc = graphs_run(executor->graphs, &key, whole->scalars, &part, err);

    if (rc < 0 || w->is_plain)
        return rc;
    started_ms = fleet_monotonic_ms();
    rc = communication_await(executor->bound, w->groups, executor->backend, err);
    executor->times.waited_s += (fleet_monotonic_ms() - started_ms) * 1e-3;
    if (rc == 0 && whole->ahead)
        executor->started = executor->first[PROGRAM_SECTION_EXCHANGE + 1];
    return rc;
}

/* After a failure the other ranks must not wait for this one. */
int executor_run_whole(struct executor *executor, const struct executor_whole *whole,
                       struct fleet_error *err)
{
    struct work w = {.executor = executor, .whole = whole};
    const struct launch *launch = &executor->launches[executor->first[whole->section]];
    double started_ms = fleet_monotonic_ms(), waited_s = executor->times.waited_s;
    int rc;

    if (!is_whole(executor, whole, &w.groups))
        return whole->run(executor, whole, err);
    if (atomic_load_explicit(whole->stop, memory_order_relaxed))
        return executor_refuse_stopped(launch, err);
    rc = replay(&w, err);
    if (w.is_plain)
        return rc;
    if (rc < 0 && executor->bound->world)
        comm_abort(executor->bound->world);
    if (rc < 0)
        (void)executor_await_all(executor, NULL);
    *executor_time_of(executor, launch->op) +=
        (fleet_monotonic_ms() - started_ms) * 1e-3 - (executor->times.waited_s - waited_s);
    return rc;
}
