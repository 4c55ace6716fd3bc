/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Kernels, the segment and offset of each operand, and the communication that each operator must
 * not overtake, are resolved once. A run adds base addresses and calls the kernels; it allocates
 * nothing. Where the back end captures graphs, kernels that follow each other run as one
 * (graphs.h).
 */
#include "agent/runtime/executor/executor.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/graphs.h"
#include "agent/runtime/executor/order.h"
#include "agent/runtime/executor/queue.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

#define NONE (-1)

struct launch {
    const struct program_op *op;
    kernel_fn kernel; /* NULL: it communicates */
    struct memory_place in[OP_INPUTS_MAX], out[OP_OUTPUTS_MAX];
    int waits_for; /* the last communication of the section that must end first, or NONE */
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
    int last_put;                           /* of the section at work, or NONE */
    struct communication_message *messages; /* [message_count] of one exchange between stages */
    struct comm_message *posts;             /* [message_count] */
    int message_count;
    struct kernel_held held;
    int64_t *places;       /* [vars] of `held` */
    struct graphs *graphs; /* NULL: each kernel is launched by itself */
    struct executor_times times;
};

/* ---- preparing ------------------------------------------------------------------------------- */

/* It looks at the gradients that this rank holds, which begin at the segment's start. */
static bool looks_at_own(const struct program_op *op)
{
    return op->attributes.owned && !op_definition(op->kind)->is_communication;
}

/* Another rank runs it: it reads a state that this one lacks. Or it follows the updates, and
 * the trainer runs it (agent/runtime/share.h). */
/* A message between stages of a pipeline. */
static bool is_message(const struct program_op *op)
{
    return (op->kind == OP_SEND || op->kind == OP_RECEIVE) &&
           op->section == PROGRAM_SECTION_MICRO_BATCH && op->attributes.group == OP_GROUP_PIPELINE;
}

static bool is_elsewhere(const struct memory_plan *plan, const struct program_op *op)
{
    if (op->section == PROGRAM_SECTION_UPDATE && op->attributes.owned)
        return true;
    for (int i = 0; i < op->input_count && !looks_at_own(op); i++)
        if (op->inputs[i] != PROGRAM_NONE &&
            memory_plan_place(plan, op->section, op->inputs[i]).segment == MEMORY_NOWHERE)
            return true;
    return false;
}

static int resolve(struct executor *executor, const struct memory_plan *plan,
                   const struct program_op *op, struct fleet_error *err)
{
    struct launch *launch = &executor->launches[executor->count++];
    bool communicates = op_definition(op->kind)->is_communication;
    int rc;

    *launch = (struct launch){.op = op, .waits_for = NONE, .ready = NONE, .executor = executor};
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
    executor->message_count += is_message(op);
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        launch->in[i] = memory_plan_place(plan, op->section,
                                          i < op->input_count ? op->inputs[i] : PROGRAM_NONE);
    for (int i = 0; i < OP_OUTPUTS_MAX; i++)
        launch->out[i] = memory_plan_place(plan, op->section,
                                           i < op->output_count ? op->outputs[i] : PROGRAM_NONE);
    if (op->attributes.space != OP_SPACE_NONE)
        launch->in[0] = launch->out[0] = order_range(executor->program, plan, op);
    if (looks_at_own(op))
        launch->in[0] = (struct memory_place){MEMORY_GRADIENTS, 0};
    return 0;
}

/* The last communication before launch `at` of its section that it must not overtake. */
static int find_wait(const struct executor *executor, const struct memory_plan *plan, int at)
{
    const struct launch *launches = executor->launches;

    if (!launches[at].kernel)
        return NONE; /* the queue keeps the order */
    for (int i = at - 1; i >= executor->first[launches[at].op->section]; i--)
        if (!launches[i].kernel && !is_message(launches[i].op) &&
            order_conflict(executor->program, plan, launches[i].op, launches[at].op))
            return i;
    return NONE;
}

/* The launch of the micro-batch after which communication `at` may start. It is never before that
 * of the previous communication, because all ranks start them in the same order. */
static int find_ready(const struct executor *executor, const struct memory_plan *plan, int at)
{
    const int *first = executor->first;
    int ready = at > first[PROGRAM_SECTION_EXCHANGE] ? executor->launches[at - 1].ready : NONE;

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
    executor->last_put = NONE;
    executor->launches = calloc((size_t)program->op_count + 1, sizeof(*executor->launches));
    fleet_assert(executor->launches != NULL);
    rc = backend_event_new(backend, &executor->joined, err);
    for (int i = 0, section = 0; i < program->op_count && rc == 0; i++) {
        while (section < (int)program->ops[i].section)
            executor->first[++section] = executor->count;
        if (!is_elsewhere(plan, &program->ops[i]))
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

    executor->bound = communication;
    if (communication)
        graphs_forget(executor->graphs);
    if (!wants_queue && executor->queue) {
        queue_free(executor->queue);
        executor->queue = NULL;
    }
    if (wants_queue && !executor->queue)
        return queue_new(executor->communications, &executor->queue, err);
    return 0;
}

/* ---- one launch ------------------------------------------------------------------------------ */

static void *address(const struct executor_bases *bases, struct memory_place place)
{
    return place.segment == MEMORY_NOWHERE ? NULL
                                           : (char *)bases->segment[place.segment] + place.offset;
}

static int launch_kernel(struct executor *executor, const struct launch *launch,
                         const struct executor_bases *bases, const struct run_scalars *scalars,
                         struct fleet_error *err)
{
    struct kernel_call call = {.program = executor->program,
                               .op = launch->op,
                               .scratch = bases->segment[MEMORY_SCRATCH],
                               .scalars = scalars,
                               .held = &executor->held};

    for (int i = 0; i < launch->op->input_count; i++)
        call.in[i] = address(bases, launch->in[i]);
    for (int i = 0; i < launch->op->output_count; i++)
        call.out[i] = address(bases, launch->out[i]);
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

static int launch_communication(struct executor *executor, struct launch *launch,
                                const struct executor_bases *bases, struct fleet_error *err)
{
    launch->input = address(bases, launch->in[0]);
    launch->output = address(bases, launch->out[0]);
    if (!executor->queue)
        return communicate_here(executor, launch, err);
    if (backend_record(executor->backend, launch->before, err) < 0)
        return -EIO;
    launch->ticket = queue_put(executor->queue, communicate, launch);
    return 0;
}

static int await(struct executor *executor, const struct launch *launch, struct fleet_error *err)
{
    double started_ms = fleet_monotonic_ms();
    int rc = executor->queue ? queue_wait(executor->queue, launch->ticket, err) : 0;

    if (rc == 0 && executor->queue)
        rc = backend_await(executor->backend, launch->after, err);
    executor->times.waited_s += (fleet_monotonic_ms() - started_ms) * 1e-3;
    return rc;
}

static int await_all(struct executor *executor, struct fleet_error *err)
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
    executor->last_put = NONE;
    return rc;
}

void executor_cancel(struct executor *executor)
{
    if (executor->queue && executor->bound && executor->bound->world &&
        (executor->last_put != NONE ||
         executor->started > executor->first[PROGRAM_SECTION_EXCHANGE]))
        comm_abort(executor->bound->world);
    (void)await_all(executor, NULL);
}

/* ---- a section ------------------------------------------------------------------------------- */

static int refuse_stopped(const struct launch *launch, struct fleet_error *err)
{
    return fleet_error(err, -ECANCELED, "stopped before %s", op_definition(launch->op->kind)->name);
}

static double *time_of(struct executor *executor, const struct program_op *op)
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
    int rc = executor->last_put == NONE
                 ? 0
                 : await(executor, &executor->launches[executor->last_put], err);

    if (rc == 0 && launch->op->input_count > 0)
        v->clear(executor->backend, address(bases, launch->in[0]),
                 program_var_bytes(&executor->program->vars[launch->op->inputs[0]]));
    return rc;
}

/* Launch number `at`; what it waits for is no time of its own. */
static int launch_one(struct executor *executor, int at, const struct executor_bases *bases,
                      const struct run_scalars *scalars, const atomic_bool *stop,
                      struct fleet_error *err)
{
    struct launch *launch = &executor->launches[at];
    double started_ms = fleet_monotonic_ms(), waited_s = executor->times.waited_s;
    int rc = 0;

    if (atomic_load_explicit(stop, memory_order_relaxed))
        return refuse_stopped(launch, err);
    if (!launch->kernel) {
        if (scalars->absent)
            rc = give_nothing(executor, launch, bases, err);
        executor->last_put = at;
        if (rc == 0)
            rc = launch_communication(executor, launch, bases, err);
    } else if (scalars->absent) {
        rc = 0;
    } else if (launch->waits_for == NONE ||
               (rc = await(executor, &executor->launches[launch->waits_for], err)) == 0) {
        rc = launch_kernel(executor, launch, bases, scalars, err);
    }
    *time_of(executor, launch->op) +=
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
    launch->input = address(bases, launch->in[0]);
    launch->output = address(bases, launch->out[0]);
    rc = launch->kernel ? launch_kernel(executor, launch, bases, scalars, err)
                        : communicate_here(executor, launch, err);
    *time_of(executor, op) +=
        (fleet_monotonic_ms() - started_ms) * 1e-3 - (executor->times.waited_s - waited_s);
    return rc;
}

/* Start the communication of EXCHANGE that may run once launch `at` has ended. */
static int start_ready(struct executor *executor, int at, const struct executor_bases *bases,
                       struct fleet_error *err)
{
    int rc = 0;

    while (rc == 0 && executor->started < executor->front_end &&
           executor->launches[executor->started].ready <= at)
        rc = launch_communication(executor, &executor->launches[executor->started++], bases, err);
    return rc;
}

static bool is_left_out(const struct launch *launch, const struct run_scalars *scalars)
{
    return scalars->evaluation && (launch->op->backward || launch->op->attributes.training);
}

/* The end of the part from launch `at` on that can be captured: kernels, up to the next one that
 * waits for the second queue, or the one behind which communication starts. */
static int part_end(const struct executor *executor, int at, int end, bool is_ahead,
                    const struct run_scalars *scalars)
{
    const struct launch *launches = executor->launches;
    int i = at + 1, ready = end;

    if (!executor->graphs || !launches[at].kernel || scalars->absent ||
        is_left_out(&launches[at], scalars))
        return i;
    if (is_ahead && executor->started < executor->front_end)
        ready = launches[executor->started].ready;
    for (; i < end && i <= ready && launches[i].kernel; i++)
        if (executor->queue && !is_left_out(&launches[i], scalars) &&
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
        if (!is_left_out(&launches[i], part->scalars))
            rc = launch_kernel(part->executor, &launches[i], &part->key.bases, part->scalars, err);
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
        return refuse_stopped(launch, err);
    if (launch->waits_for != NONE)
        rc = await(executor, &executor->launches[launch->waits_for], err);
    if (rc == 0)
        rc = graphs_run(executor->graphs, &part.key, scalars, launch_kernels, &part, err);
    *time_of(executor, launch->op) +=
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
        else if (!is_left_out(&executor->launches[i], scalars))
            rc = launch_one(executor, i, bases, scalars, stop, err);
        if (rc == 0 && ahead)
            rc = start_ready(executor, next - 1, ahead, err);
    }
    return rc;
}

int executor_run(struct executor *executor, enum program_section section,
                 const struct executor_bases *bases, const struct run_scalars *scalars,
                 const atomic_bool *stop, struct fleet_error *err)
{
    bool is_exchange = section == PROGRAM_SECTION_EXCHANGE;
    int first = is_exchange ? executor->started : executor->first[section];
    int rc =
        run_from(executor, first, executor->first[section + 1], bases, NULL, scalars, stop, err);

    if (rc < 0) {
        executor_cancel(executor);
        return rc;
    }
    if (is_exchange || executor->last_put != NONE)
        rc = await_all(executor, err);
    if (rc == 0 && (section == PROGRAM_SECTION_CHECK || scalars->evaluation))
        rc = backend_finish(executor->backend, err);
    return rc;
}

/* ---- stages of a pipeline -------------------------------------------------------------------- */

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

        if (is_in_part(op, part) && !is_message(op) &&
            !(scalars->evaluation && op->attributes.training))
            rc = launch_one(executor, i, bases, scalars, stop, err);
    }
    if (rc < 0) {
        executor_cancel(executor);
        return rc;
    }
    return executor->last_put != NONE ? await_all(executor, err) : 0;
}

/* The operators of one group of messages, behind the first `count` of the list. */
static int list_messages(struct executor *executor, const struct executor_messages *group,
                         int count)
{
    const int *first = &executor->first[PROGRAM_SECTION_MICRO_BATCH];

    for (int i = first[0]; i < first[1]; i++) {
        const struct launch *launch = &executor->launches[i];
        bool is_receive = launch->op->kind == OP_RECEIVE;

        if (!is_message(launch->op) || !is_in_part(launch->op, &group->part) ||
            is_receive != group->is_receive)
            continue;
        fleet_assert(count < executor->message_count);
        executor->messages[count++] = (struct communication_message){
            launch->op, address(&group->bases, is_receive ? launch->out[0] : launch->in[0])};
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

/* ---- the last micro-batch of an update ------------------------------------------------------- */

int executor_run_last(struct executor *executor, const struct executor_bases *bases,
                      const struct executor_bases *exchange_bases,
                      const struct run_scalars *scalars, const atomic_bool *stop,
                      struct fleet_error *err)
{
    const int *first = &executor->first[PROGRAM_SECTION_MICRO_BATCH];
    int rc = run_from(executor, first[0], first[1], bases, executor->queue ? exchange_bases : NULL,
                      scalars, stop, err);

    if (rc == 0 && executor->last_put != NONE) {
        rc = await(executor, &executor->launches[executor->last_put], err);
        executor->last_put = NONE;
    }
    if (rc < 0)
        executor_cancel(executor);
    return rc;
}

int executor_inspect(struct executor *executor, const struct executor_bases *bases,
                     const struct run_scalars *scalars, const atomic_bool *stop,
                     executor_watch watch, void *context, struct fleet_error *err)
{
    static const struct communication alone;
    const int *first = &executor->first[PROGRAM_SECTION_MICRO_BATCH];

    for (int i = first[0]; i < first[1]; i++) {
        const struct launch *launch = &executor->launches[i];
        void *out[OP_OUTPUTS_MAX];
        int rc;
        if (atomic_load_explicit(stop, memory_order_relaxed))
            return refuse_stopped(launch, err);
        rc = launch->kernel ? launch_kernel(executor, launch, bases, scalars, err)
                            : communication_run(&alone, executor->backend, executor->program,
                                                launch->op, address(bases, launch->in[0]),
                                                address(bases, launch->out[0]), err);
        if (rc < 0)
            return rc;
        for (int o = 0; o < OP_OUTPUTS_MAX; o++)
            out[o] = address(bases, launch->out[o]);
        if (!watch(context, launch->op, out))
            break;
    }
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
