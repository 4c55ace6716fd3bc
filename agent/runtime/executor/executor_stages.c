/* SPDX-License-Identifier: Apache-2.0 */

/* A stage of a pipeline: parts of the micro-batch section, and the messages between them. */
#include "agent/runtime/comm/comm.h"
#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor_internal.h"
#include "agent/runtime/executor/queue.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"

static bool is_in_part(const struct program_op *op, const struct executor_part *part)
{
    return op->section == PROGRAM_SECTION_MICRO_BATCH && op->backward == part->backward &&
           op->weights == part->weights && op->chunk == part->chunk;
}

int executor_run_part(struct executor *executor, const struct executor_part *part,
                      const struct executor_bases *bases, const struct run_scalars *scalars,
                      const atomic_bool *stop, struct fleet_error *err)
{
    const int *first = &executor->first[PROGRAM_SECTION_MICRO_BATCH];
    int rc = 0;

    for (int i = first[0]; i < first[1] && rc == 0; i++) {
        const struct program_op *op = executor->launches[i].op;

        if (is_in_part(op, part) && !executor_is_message(op) &&
            !(scalars->evaluation && op->attributes.training))
            rc = executor_launch_one(executor, i, bases, scalars, stop, err);
    }
    if (rc < 0) {
        executor_cancel(executor);
        return rc;
    }
    return executor->last_put != EXECUTOR_NONE ? executor_await_all(executor, err) : 0;
}

/* The operators of one group of messages, behind the first `count` of the list. */
static int list_messages(struct executor *executor, const struct executor_messages *group,
                         int count)
{
    const int *first = &executor->first[PROGRAM_SECTION_MICRO_BATCH];

    for (int i = first[0]; i < first[1]; i++) {
        const struct launch *launch = &executor->launches[i];
        bool is_receive = launch->op->kind == OP_RECEIVE;

        if (!executor_is_message(launch->op) || !is_in_part(launch->op, &group->part) ||
            is_receive != group->is_receive)
            continue;
        fleet_assert(count < executor->message_count);
        executor->messages[count++] = (struct communication_message){
            launch->op,
            executor_address(&group->bases, is_receive ? launch->out[0] : launch->in[0])};
    }
    return count;
}

/* An item of the queue. */
struct posted {
    struct executor *executor;
    int count;
};

static int post(void *context, struct fleet_error *err)
{
    const struct posted *posted = context;
    struct executor *executor = posted->executor;

    return communication_pass(executor->bound, executor->second, executor->program,
                              executor->messages, executor->posts, posted->count, err);
}

int executor_pass_messages(struct executor *executor, const struct executor_messages *messages,
                           int count, struct fleet_error *err)
{
    struct posted posted = {.executor = executor};
    double started_ms = fleet_monotonic_ms();
    int rc = backend_finish(executor->backend, err);

    for (int i = 0; i < count; i++)
        posted.count = list_messages(executor, &messages[i], posted.count);
    fleet_assert(executor->bound != NULL);
    if (rc == 0 && executor->queue) {
        (void)queue_put(executor->queue, post, &posted);
        rc = queue_finish(executor->queue, err);
    } else if (rc == 0) {
        rc = post(&posted, err);
    }
    executor->times.waited_s += (fleet_monotonic_ms() - started_ms) * 1e-3;
    if (rc < 0 && executor->bound->world)
        comm_abort(executor->bound->world);
    return rc;
}
