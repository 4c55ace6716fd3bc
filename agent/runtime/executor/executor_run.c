/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A section: its operators in order. Kernels that the device can start as one piece of work run as
 * a graph; the front of EXCHANGE starts during the last micro-batch.
 */
#include <errno.h>
#include <stdatomic.h>

#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor_internal.h"
#include "agent/runtime/executor/graphs.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/gathers.h"

/* Start the communication of EXCHANGE that may run once launch `at` has ended. */
static int start_ready(struct executor *executor, int at, const struct executor_bases *bases,
                       struct fleet_error *err)
{
    int rc = 0;

    while (rc == 0 && executor->started < executor->front_end &&
           executor->launches[executor->started].ready <= at)
        rc = executor_launch_communication(executor, &executor->launches[executor->started++],
                                           bases, err);
    return rc;
}

bool executor_is_left_out(const struct launch *launch, const struct run_scalars *scalars)
{
    return scalars->evaluation && (launch->op->backward || launch->op->attributes.training);
}

/* A graph has the sizes of its launches. Those of dgc's messages differ from update to update. */
bool executor_can_capture(const struct launch *launch)
{
    return launch->kernel && launch->op->kind != OP_DGC_SELECT && launch->op->kind != OP_DGC;
}

/* The end of the part from launch `at` on that can be captured: kernels, up to the next one that
 * waits for the second queue, or the one behind which communication starts. */
static int part_end(const struct executor *executor, int at, int end, bool is_ahead,
                    const struct run_scalars *scalars)
{
    const struct launch *launches = executor->launches;
    int i = at + 1, ready = end;

    if (!executor->graphs || !executor_can_capture(&launches[at]) || scalars->absent ||
        executor_is_left_out(&launches[at], scalars))
        return i;
    if (is_ahead && executor->started < executor->front_end)
        ready = launches[executor->started].ready;
    for (; i < end && i <= ready && executor_can_capture(&launches[i]); i++)
        if (executor->queue && !executor_is_left_out(&launches[i], scalars) &&
            launches[i].waits_for > launches[at].waits_for)
            break;
    return i;
}

struct part {
    struct executor *executor;
    struct graph_key key;
    const struct run_scalars *scalars;
};

static int launch_kernels(void *context, struct fleet_error *err)
{
    const struct part *part = context;
    const struct launch *launches = part->executor->launches;
    int rc = 0;

    for (int i = part->key.first; i < part->key.end && rc == 0; i++)
        if (!executor_is_left_out(&launches[i], part->scalars))
            rc = executor_launch_kernel(part->executor, &launches[i], &part->key.bases,
                                        part->scalars, err);
    return rc;
}

/* Launches [first, end) as one; their time is that of the first. */
static int run_part(struct executor *executor, int first, int end,
                    const struct executor_bases *bases, const struct run_scalars *scalars,
                    const atomic_bool *stop, struct fleet_error *err)
{
    const struct launch *launch = &executor->launches[first];
    struct part part = {.executor = executor,
                        .key = {.first = first,
                                .end = end,
                                .bases = *bases,
                                .seed = scalars->seed,
                                .evaluation = scalars->evaluation},
                        .scalars = scalars};
    double started_ms = fleet_monotonic_ms(), waited_s = executor->times.waited_s;
    int rc = 0;

    if (atomic_load_explicit(stop, memory_order_relaxed))
        return executor_refuse_stopped(launch, err);
    if (launch->waits_for != EXECUTOR_NONE)
        rc = executor_await(executor, &executor->launches[launch->waits_for], err);
    if (rc == 0)
        rc = graphs_run(executor->graphs, &part.key, scalars,
                        &(struct graphs_part){
                            .run = launch_kernels, .capture = launch_kernels, .context = &part},
                        err);
    *executor_time_of(executor, launch->op) +=
        (fleet_monotonic_ms() - started_ms) * 1e-3 - (executor->times.waited_s - waited_s);
    return rc;
}

static int run_from(struct executor *executor, int first, int end,
                    const struct executor_bases *bases, const struct executor_bases *ahead,
                    const struct run_scalars *scalars, const atomic_bool *stop,
                    struct fleet_error *err)
{
    int rc = 0, next;

    for (int i = first; i < end && rc == 0; i = next) {
        next = part_end(executor, i, end, ahead != NULL, scalars);
        if (next > i + 1)
            rc = run_part(executor, i, next, bases, scalars, stop, err);
        else if (!executor_is_left_out(&executor->launches[i], scalars))
            rc = executor_launch_one(executor, i, bases, scalars, stop, err);
        if (rc == 0 && ahead)
            rc = start_ready(executor, next - 1, ahead, err);
    }
    return rc;
}

static int run_last(struct executor *executor, const struct executor_whole *whole,
                    struct fleet_error *err)
{
    const int *first = &executor->first[PROGRAM_SECTION_MICRO_BATCH];
    int rc = run_from(executor, first[0], first[1], whole->bases,
                      executor->queue ? whole->ahead : NULL, whole->scalars, whole->stop, err);

    if (rc == 0 && executor->last_put != EXECUTOR_NONE) {
        rc = executor_await(executor, &executor->launches[executor->last_put], err);
        executor->last_put = EXECUTOR_NONE;
    }
    if (rc < 0)
        executor_cancel(executor);
    return rc;
}

static int run_section(struct executor *executor, const struct executor_whole *whole,
                       struct fleet_error *err)
{
    enum program_section section = whole->section;
    bool is_exchange = section == PROGRAM_SECTION_EXCHANGE;
    int first = is_exchange ? executor->started : executor->first[section];
    int rc = run_from(executor, first, executor->first[section + 1], whole->bases, NULL,
                      whole->scalars, whole->stop, err);

    if (rc < 0) {
        executor_cancel(executor);
        return rc;
    }
    return is_exchange || executor->last_put != EXECUTOR_NONE ? executor_await_all(executor, err)
                                                              : 0;
}

int executor_run(struct executor *executor, enum program_section section,
                 const struct executor_bases *bases, const struct run_scalars *scalars,
                 const atomic_bool *stop, struct fleet_error *err)
{
    const struct executor_whole whole = {
        .section = section, .bases = bases, .scalars = scalars, .stop = stop, .run = run_section};
    int rc = executor_run_whole(executor, &whole, err);

    if (rc == 0 && (section == PROGRAM_SECTION_CHECK || scalars->evaluation))
        rc = backend_finish(executor->backend, err);
    return rc;
}

int executor_run_last(struct executor *executor, const struct executor_bases *bases,
                      const struct executor_bases *exchange_bases,
                      const struct run_scalars *scalars, const atomic_bool *stop,
                      struct fleet_error *err)
{
    const struct executor_whole whole = {.section = PROGRAM_SECTION_MICRO_BATCH,
                                         .bases = bases,
                                         .ahead = exchange_bases,
                                         .scalars = scalars,
                                         .stop = stop,
                                         .run = run_last};

    return executor_run_whole(executor, &whole, err);
}

int executor_inspect(struct executor *executor, const struct executor_bases *bases,
                     const struct run_scalars *scalars, const atomic_bool *stop,
                     executor_watch watch, void *context, struct fleet_error *err)
{
    static const struct communication alone;
    const int *first = &executor->first[PROGRAM_SECTION_MICRO_BATCH];
    bool is_over = scalars->absent;

    for (int i = first[0]; i < first[1]; i++) {
        const struct launch *launch = &executor->launches[i];
        bool is_gather = gathers_is(launch->op);
        void *out[OP_OUTPUTS_MAX];
        int rc;
        if (is_over && !is_gather)
            continue;
        if (atomic_load_explicit(stop, memory_order_relaxed))
            return executor_refuse_stopped(launch, err);
        rc = is_gather ? executor_launch(executor, (int)(launch->op - executor->program->ops),
                                         bases, scalars, err)
             : launch->kernel
                 ? executor_launch_kernel(executor, launch, bases, scalars, err)
                 : communication_run(&alone, executor->backend, executor->program, launch->op,
                                     executor_address(bases, launch->in[0]),
                                     executor_address(bases, launch->out[0]), err);
        if (rc < 0)
            return rc;
        for (int o = 0; o < OP_OUTPUTS_MAX; o++)
            out[o] = executor_address(bases, launch->out[o]);
        is_over = is_over || is_gather ? is_over : !watch(context, launch->op, out);
    }
    return 0;
}
