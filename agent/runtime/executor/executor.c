/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Kernels, the segment and offset of each operand, and the communication that each operator must
 * not overtake, are resolved once. A run adds base addresses and calls the kernels; it allocates
 * nothing. Where the back end captures graphs, kernels that follow each other run as one
 * (graphs.h).
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor_internal.h"
#include "agent/runtime/executor/graphs.h"
#include "agent/runtime/executor/order.h"
#include "agent/runtime/executor/queue.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/gathers.h"

/* It looks at the gradients that this rank holds, which begin at the segment's start. */
static bool looks_at_own(const struct program_op *op)
{
    return op->attributes.owned && !op_definition(op->kind)->is_communication;
}

bool executor_is_message(const struct program_op *op)
{
    return (op->kind == OP_SEND || op->kind == OP_RECEIVE) &&
           op->section == PROGRAM_SECTION_MICRO_BATCH && op->attributes.group == OP_GROUP_PIPELINE;
}

/* Another rank runs it: it reads a state that this one lacks. Or it follows the updates, and
 * the trainer runs it (agent/runtime/step/share.h). */
static bool is_elsewhere(const struct program *program, const struct memory_plan *plan,
                         const struct program_op *op)
{
    if (op->section == PROGRAM_SECTION_UPDATE && op->attributes.owned)
        return true;
    if (order_is_held(op) && order_range(program, plan, op).segment == MEMORY_NOWHERE)
        return true;
    for (int i = 0; i < op->input_count && !looks_at_own(op); i++)
        if (op->inputs[i] != PROGRAM_NONE &&
            memory_plan_input(plan, program, op, i).segment == MEMORY_NOWHERE)
            return true;
    return false;
}

static int resolve(struct executor *executor, const struct memory_plan *plan,
                   const struct program_op *op, struct fleet_error *err)
{
    struct launch *launch = &executor->launches[executor->count++];
    bool communicates = op_definition(op->kind)->is_communication;
    int rc;

    *launch = (struct launch){
        .op = op, .waits_for = EXECUTOR_NONE, .ready = EXECUTOR_NONE, .executor = executor};
    if (!communicates)
        launch->kernel = executor->backend->vtable->kernel(executor->backend, op->kind);
    if (!communicates && !launch->kernel)
        return fleet_error(err, -ENOTSUP, "back end %s has no kernel for %s",
                           executor->backend->vtable->name, op_definition(op->kind)->name);
    if (!communicates)
        rc = backend_prepare(executor->backend, executor->program, op, err);
    else if ((rc = backend_event_new(executor->backend, &launch->before, err)) == 0)
        rc = backend_event_new(executor->backend, &launch->after, err);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", op_definition(op->kind)->name);
    executor->communications += communicates;
    executor->message_count += executor_is_message(op);
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        launch->in[i] = i < op->input_count ? memory_plan_input(plan, executor->program, op, i)
                                            : (struct memory_place){MEMORY_NOWHERE, 0};
    for (int i = 0; i < OP_OUTPUTS_MAX; i++)
        launch->out[i] = memory_plan_place(plan, op->section,
                                           i < op->output_count ? op->outputs[i] : PROGRAM_NONE);
    if (op->attributes.space != OP_SPACE_NONE)
        launch->in[0] = launch->out[0] = order_range(executor->program, plan, op);
    if (looks_at_own(op))
        launch->in[0] = (struct memory_place){MEMORY_GRADIENTS, 0};
    if (gathers_is(op))
        launch->in[0] = (struct memory_place){MEMORY_PARAMETERS, 0};
    return 0;
}

/* The last communication before launch `at` of its section that it must not overtake. */
static int find_wait(const struct executor *executor, const struct memory_plan *plan, int at)
{
    const struct launch *launches = executor->launches;

    if (!launches[at].kernel)
        return EXECUTOR_NONE; /* the queue keeps the order */
    for (int i = at - 1; i >= executor->first[launches[at].op->section]; i--)
        if (!launches[i].kernel && !executor_is_message(launches[i].op) &&
            order_conflict(executor->program, plan, launches[i].op, launches[at].op))
            return i;
    return EXECUTOR_NONE;
}

/* The launch of the micro-batch after which communication `at` may start. It is never before that
 * of the previous communication, because all ranks start them in the same order. */
static int find_ready(const struct executor *executor, const struct memory_plan *plan, int at)
{
    const int *first = executor->first;
    int ready =
        at > first[PROGRAM_SECTION_EXCHANGE] ? executor->launches[at - 1].ready : EXECUTOR_NONE;

    for (int i = first[PROGRAM_SECTION_MICRO_BATCH + 1] - 1; i > ready; i--)
        if (order_conflict(executor->program, plan, executor->launches[i].op,
                           executor->launches[at].op))
            return i;
    return ready;
}

static void find_order(struct executor *executor, const struct memory_plan *plan)
{
    int at = executor->first[PROGRAM_SECTION_EXCHANGE];

    if (executor->communications == 0)
        return;
    for (int i = 0; i < executor->count; i++)
        executor->launches[i].waits_for = find_wait(executor, plan, i);
    for (; at < executor->first[PROGRAM_SECTION_EXCHANGE + 1] && !executor->launches[at].kernel;
         at++)
        executor->launches[at].ready = find_ready(executor, plan, at);
    executor->front_end = at;
}

/* Where the sums of gradients lie; operators with `owned` ask. */
static void find_held(struct executor *executor, const struct memory_plan *plan)
{
    const struct program *program = executor->program;

    executor->places = calloc((size_t)program->var_count + 1, sizeof(*executor->places));
    fleet_assert(executor->places != NULL);
    for (int v = 0; v < program->var_count; v++) {
        struct memory_place place = memory_plan_place(plan, PROGRAM_SECTION_CHECK, v);
        executor->places[v] =
            place.segment == MEMORY_GRADIENTS ? (int64_t)(place.offset / sizeof(float)) : -1;
    }
    executor->held =
        (struct kernel_held){.count = (int64_t)(plan->bytes[MEMORY_GRADIENTS] / sizeof(float)),
                             .places = executor->places};
}

int executor_new(const struct program *program, const struct memory_plan *plan,
                 struct backend *backend, struct executor **out, struct fleet_error *err)
{
    struct executor *executor = calloc(1, sizeof(*executor));
    int rc;

    fleet_assert(executor != NULL);
    executor->program = program;
    executor->backend = backend;
    executor->second = backend_second(backend);
    executor->last_put = EXECUTOR_NONE;
    executor->launches = calloc((size_t)program->op_count + 1, sizeof(*executor->launches));
    fleet_assert(executor->launches != NULL);
    rc = backend_event_new(backend, &executor->joined, err);
    for (int i = 0, section = 0; i < program->op_count && rc == 0; i++) {
        while (section < (int)program->ops[i].section)
            executor->first[++section] = executor->count;
        if (!is_elsewhere(program, plan, &program->ops[i]))
            rc = resolve(executor, plan, &program->ops[i], err);
        for (int s = section + 1; s <= PROGRAM_SECTION_COUNT; s++)
            executor->first[s] = executor->count;
    }
    if (rc < 0) {
        executor_free(executor);
        return rc;
    }
    executor->started = executor->first[PROGRAM_SECTION_EXCHANGE];
    executor->messages = calloc((size_t)executor->message_count + 1, sizeof(*executor->messages));
    executor->posts = calloc((size_t)executor->message_count + 1, sizeof(*executor->posts));
    fleet_assert(executor->messages != NULL && executor->posts != NULL);
    find_order(executor, plan);
    find_held(executor, plan);
    executor->graphs = graphs_new(backend);
    *out = executor;
    return 0;
}

void executor_free(struct executor *executor)
{
    if (!executor)
        return;
    queue_free(executor->queue);
    graphs_free(executor->graphs);
    for (int i = 0; i < executor->count; i++) {
        backend_event_free(executor->backend, executor->launches[i].before);
        backend_event_free(executor->backend, executor->launches[i].after);
    }
    backend_event_free(executor->backend, executor->joined);
    free(executor->messages);
    free(executor->posts);
    free(executor->launches);
    free(executor->places);
    free(executor);
}

int executor_bind(struct executor *executor, const struct communication *communication,
                  struct fleet_error *err)
{
    bool wants_queue =
        communication && !communication->in_compute_queue && executor->communications > 0;

    graphs_forget(executor->graphs); /* before a communicator that is in them may be freed */
    executor->bound = communication;
    if (!wants_queue && executor->queue) {
        queue_free(executor->queue);
        executor->queue = NULL;
    }
    if (wants_queue && !executor->queue)
        return queue_new(executor->communications, &executor->queue, err);
    return 0;
}

void executor_times(const struct executor *executor, struct executor_times *out)
{
    struct queue_times queued = {0};

    *out = executor->times;
    if (executor->queue)
        queue_times(executor->queue, &queued);
    out->communication_s += queued.busy_s;
}