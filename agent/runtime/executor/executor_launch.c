/* SPDX-License-Identifier: Apache-2.0 */

/* One operator: the call of its kernel, or its communication, and what waits for that. */
#include <errno.h>
#include <stdatomic.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor_internal.h"
#include "agent/runtime/executor/queue.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

void *executor_address(const struct executor_bases *bases, struct memory_place place)
{
    return place.segment == MEMORY_NOWHERE ? NULL
                                           : (char *)bases->segment[place.segment] + place.offset;
}

int executor_launch_kernel(struct executor *executor, const struct launch *launch,
                           const struct executor_bases *bases, const struct run_scalars *scalars,
                           struct fleet_error *err)
{
    struct kernel_call call = {.program = executor->program,
                               .op = launch->op,
                               .scratch = bases->segment[MEMORY_SCRATCH],
                               .scalars = scalars,
                               .held = &executor->held};

    for (int i = 0; i < launch->op->input_count; i++)
        call.in[i] = executor_address(bases, launch->in[i]);
    for (int i = 0; i < launch->op->output_count; i++)
        call.out[i] = executor_address(bases, launch->out[i]);
    if (launch->kernel(executor->backend, &call, err) < 0)
        return fleet_error_wrap(err, "%s", op_definition(launch->op->kind)->name);
    return 0;
}

/* An item of the queue. */
static int communicate(void *context, struct fleet_error *err)
{
    const struct launch *launch = context;
    struct executor *executor = launch->executor;
    int rc = backend_await(executor->second, launch->before, err);

    if (rc == 0)
        rc = communication_run(executor->bound, executor->second, executor->program, launch->op,
                               launch->input, launch->output, err);
    return rc < 0 ? rc : backend_record(executor->second, launch->after, err);
}

static int communicate_here(struct executor *executor, struct launch *launch,
                            struct fleet_error *err)
{
    static const struct communication alone;
    double started_ms = fleet_monotonic_ms(), took_s;
    int rc = communication_run(executor->bound ? executor->bound : &alone, executor->backend,
                               executor->program, launch->op, launch->input, launch->output, err);

    took_s = (fleet_monotonic_ms() - started_ms) * 1e-3;
    executor->times.waited_s += took_s;
    executor->times.communication_s += took_s;
    return rc;
}

int executor_launch_communication(struct executor *executor, struct launch *launch,
                                  const struct executor_bases *bases, struct fleet_error *err)
{
    launch->input = executor_address(bases, launch->in[0]);
    launch->output = executor_address(bases, launch->out[0]);
    if (!executor->queue)
        return communicate_here(executor, launch, err);
    if (backend_record(executor->backend, launch->before, err) < 0)
        return -EIO;
    launch->ticket = queue_put(executor->queue, communicate, launch);
    return 0;
}

int executor_await(struct executor *executor, const struct launch *launch, struct fleet_error *err)
{
    double started_ms = fleet_monotonic_ms();
    int rc = executor->queue ? queue_wait(executor->queue, launch->ticket, err) : 0;

    if (rc == 0 && executor->queue)
        rc = backend_await(executor->backend, launch->after, err);
    executor->times.waited_s += (fleet_monotonic_ms() - started_ms) * 1e-3;
    return rc;
}

int executor_await_all(struct executor *executor, struct fleet_error *err)
{
    double started_ms = fleet_monotonic_ms();
    int rc = executor->queue ? queue_finish(executor->queue, err) : 0;

    if (executor->queue) { /* after a failure, too: work of the second queue may still run */
        struct fleet_error *first = rc == 0 ? err : NULL;
        int joined = backend_record(executor->second, executor->joined, first);
        if (joined == 0)
            joined = backend_await(executor->backend, executor->joined, first);
        rc = rc == 0 ? joined : rc;
    }
    executor->times.waited_s += (fleet_monotonic_ms() - started_ms) * 1e-3;
    executor->started = executor->first[PROGRAM_SECTION_EXCHANGE];
    executor->last_put = EXECUTOR_NONE;
    return rc;
}

void executor_cancel(struct executor *executor)
{
    if (executor->queue && executor->bound && executor->bound->world &&
        (executor->last_put != EXECUTOR_NONE ||
         executor->started > executor->first[PROGRAM_SECTION_EXCHANGE]))
        comm_abort(executor->bound->world);
    (void)executor_await_all(executor, NULL);
}

int executor_refuse_stopped(const struct launch *launch, struct fleet_error *err)
{
    return fleet_error(err, -ECANCELED, "stopped before %s", op_definition(launch->op->kind)->name);
}

double *executor_time_of(struct executor *executor, const struct program_op *op)
{
    switch (op->section) {
    case PROGRAM_SECTION_MICRO_BATCH:
        return op->backward ? &executor->times.backward_s : &executor->times.forward_s;
    case PROGRAM_SECTION_CHECK:
        return &executor->times.check_s;
    default:
        return &executor->times.update_s;
    }
}

/* A rank without a micro-batch gives zeros, once nothing in flight uses their memory. */
static int give_nothing(struct executor *executor, const struct launch *launch,
                        const struct executor_bases *bases, struct fleet_error *err)
{
    const struct backend_vtable *v = executor->backend->vtable;
    int rc = executor->last_put == EXECUTOR_NONE
                 ? 0
                 : executor_await(executor, &executor->launches[executor->last_put], err);

    if (rc == 0 && launch->op->input_count > 0)
        v->clear(executor->backend, executor_address(bases, launch->in[0]),
                 program_var_bytes(&executor->program->vars[launch->op->inputs[0]]));
    return rc;
}

/* Launch number `at`; what it waits for is no time of its own. */
int executor_launch_one(struct executor *executor, int at, const struct executor_bases *bases,
                        const struct run_scalars *scalars, const atomic_bool *stop,
                        struct fleet_error *err)
{
    struct launch *launch = &executor->launches[at];
    double started_ms = fleet_monotonic_ms(), waited_s = executor->times.waited_s;
    int rc = 0;

    if (atomic_load_explicit(stop, memory_order_relaxed))
        return executor_refuse_stopped(launch, err);
    if (!launch->kernel) {
        if (scalars->absent)
            rc = give_nothing(executor, launch, bases, err);
        executor->last_put = at;
        if (rc == 0)
            rc = executor_launch_communication(executor, launch, bases, err);
    } else if (scalars->absent) {
        rc = 0;
    } else if (launch->waits_for == EXECUTOR_NONE ||
               (rc = executor_await(executor, &executor->launches[launch->waits_for], err)) == 0) {
        rc = executor_launch_kernel(executor, launch, bases, scalars, err);
    }
    *executor_time_of(executor, launch->op) +=
        (fleet_monotonic_ms() - started_ms) * 1e-3 - (executor->times.waited_s - waited_s);
    return rc;
}

int executor_launch(struct executor *executor, int at, const struct executor_bases *bases,
                    const struct run_scalars *scalars, struct fleet_error *err)
{
    const struct program_op *op = &executor->program->ops[at];
    double started_ms = fleet_monotonic_ms(), waited_s = executor->times.waited_s;
    struct launch *launch = executor->launches;
    int rc;

    while (launch->op != op)
        launch++;
    launch->input = executor_address(bases, launch->in[0]);
    launch->output = executor_address(bases, launch->out[0]);
    rc = launch->kernel ? executor_launch_kernel(executor, launch, bases, scalars, err)
                        : communicate_here(executor, launch, err);
    *executor_time_of(executor, op) +=
        (fleet_monotonic_ms() - started_ms) * 1e-3 - (executor->times.waited_s - waited_s);
    return rc;
}
