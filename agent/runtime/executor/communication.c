/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/communication.h"

#include <errno.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/device.h"
#include "agent/runtime/executor/divided_sum.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

/* One operator at work. */
struct exchange {
    const struct communication *c;
    struct backend *backend;
    const struct program *program;
    const struct program_op *op;
    struct comm *comm;
    bool on_device; /* collectives use the device's memory, in the queue of `backend` */
    struct fleet_error *err;
};

static double deadline_of(const struct exchange *x)
{
    return x->c->deadline_ms(x->c->context);
}

static int fail(const struct exchange *x)
{
    return fleet_error_wrap(x->err, "%s", op_definition(x->op->kind)->name);
}

static enum comm_reduction reduction_of(const struct program_op *op)
{
    static const enum comm_reduction reductions[] = {[OP_REDUCTION_SUM] = COMM_SUM,
                                                     [OP_REDUCTION_MAX] = COMM_MAX,
                                                     [OP_REDUCTION_MIN] = COMM_MIN,
                                                     [OP_REDUCTION_PROD] = COMM_PROD,
                                                     [OP_REDUCTION_AVG] = COMM_AVG};

    return reductions[op->attributes.reduction];
}

static enum comm_type type_of(enum program_type type)
{
    static const enum comm_type types[] = {[PROGRAM_FP32] = COMM_FP32,
                                           [PROGRAM_BF16] = COMM_BF16,
                                           [PROGRAM_FP16] = COMM_FP16,
                                           [PROGRAM_INT32] = COMM_INT32,
                                           [PROGRAM_UINT8] = COMM_UINT8};

    return types[type];
}

static struct backend *queue_of(const struct exchange *x)
{
    return x->on_device ? x->backend : NULL;
}

/* The memory for a collective: the device's own, or the host's view of it. */
static void *view(const struct exchange *x, const void *memory, size_t bytes,
                  enum backend_access access)
{
    return x->on_device ? (void *)memory : backend_map(x->backend, (void *)memory, bytes, access);
}

static void end_view(const struct exchange *x, const void *memory, size_t bytes,
                     enum backend_access access, void *seen)
{
    if (!x->on_device)
        backend_unmap(x->backend, (void *)memory, bytes, access, seen);
}

/* ---- one collective -------------------------------------------------------------------------- */

static int send_or_receive(const struct exchange *x, void *data, int64_t count, enum comm_type type)
{
    struct comm_message message = {.peer = x->comm->rank + x->op->attributes.shift,
                                   .is_receive = x->op->kind == OP_RECEIVE,
                                   .data = data,
                                   .count = count,
                                   .type = type};
    struct comm_call call = {
        .operation = COMM_MESSAGES, .messages = &message, .message_count = 1, .queue = queue_of(x)};

    if (message.peer < 0 || message.peer >= x->comm->world)
        return fleet_error(x->err, -EINVAL, "place %d has no neighbour %d in a group of %d",
                           x->comm->rank, x->op->attributes.shift, x->comm->world);
    return comm_run(x->comm, &call, deadline_of(x), x->err);
}

/* `count` elements are given, or received by RECEIVE. The two may be the same memory where
 * comm.h allows it. */
static int communicate(const struct exchange *x, const void *send, void *receive, int64_t count,
                       enum comm_type type)
{
    static const enum comm_operation operations[OP_KIND_COUNT] = {
        [OP_ALL_REDUCE] = COMM_ALL_REDUCE, [OP_REDUCE_TO] = COMM_REDUCE,
        [OP_ALL_GATHER] = COMM_ALL_GATHER, [OP_REDUCE_SCATTER] = COMM_REDUCE_SCATTER,
        [OP_BROADCAST] = COMM_BROADCAST,   [OP_ALL_TO_ALL] = COMM_ALL_TO_ALL,
    };
    bool is_divided = x->op->kind == OP_REDUCE_SCATTER || x->op->kind == OP_ALL_TO_ALL;
    struct comm_call call = {.operation = operations[x->op->kind],
                             .type = type,
                             .reduction = reduction_of(x->op),
                             .root = x->op->attributes.root,
                             .count = is_divided ? count / x->comm->world : count,
                             .send = send,
                             .receive = receive,
                             .queue = queue_of(x),
                             .any_order = x->c->any_order};

    if (call.root >= x->comm->world)
        return fleet_error(x->err, -EINVAL, "there is no rank %d in a group of %d", call.root,
                           x->comm->world);
    if (x->op->kind == OP_SEND || x->op->kind == OP_RECEIVE)
        return send_or_receive(x, x->op->kind == OP_SEND ? (void *)send : receive, count, type);
    if (x->op->kind == OP_BROADCAST && receive != send && x->comm->rank == call.root)
        memcpy(receive, send, (size_t)count * comm_type_size(type));
    return comm_run(x->comm, &call, deadline_of(x), x->err);
}

/* ---- operands -------------------------------------------------------------------------------- */

static const struct program_var *var_of(const struct exchange *x, int index)
{
    return index == PROGRAM_NONE ? NULL : &x->program->vars[index];
}

static int64_t elements_of(const struct program_var *var)
{
    return var ? program_var_elements(var) : 0;
}

/* Others than the root have nothing to read: their y is zero. */
static void clear_result(const struct exchange *x, void *out, size_t bytes)
{
    if (x->op->kind == OP_REDUCE_TO && x->comm->rank != x->op->attributes.root)
        x->backend->vtable->clear(x->backend, out, bytes);
}

static int run_halves(const struct exchange *x, const struct program_var *given,
                      const struct program_var *got, const void *in, void *out)
{
    const struct backend_vtable *v = x->backend->vtable;
    uint16_t *sent = x->c->workspace, *received = sent + elements_of(given);
    int rc;

    if (given)
        v->narrow(x->backend, sent, in, 1.0f, elements_of(given));
    rc = communicate(x, sent, received, elements_of(given ? given : got), COMM_FP16);
    if (rc == 0 && got)
        v->widen(x->backend, out, received, 1.0f, elements_of(got));
    return rc;
}

static int run_operands(const struct exchange *x, const void *in, void *out)
{
    const struct program_op *op = x->op;
    const struct program_var *given = op->kind == OP_RECEIVE ? NULL : var_of(x, op->inputs[0]);
    const struct program_var *got = op->kind == OP_SEND ? NULL : var_of(x, op->outputs[0]);
    size_t in_bytes = given ? program_var_bytes(given) : 0;
    size_t out_bytes = got ? program_var_bytes(got) : 0;
    void *send, *receive;
    int rc;

    if (op->attributes.wire == OP_WIRE_FP16) {
        rc = run_halves(x, given, got, in, out);
    } else {
        send = given ? view(x, in, in_bytes, BACKEND_READ) : NULL;
        receive = got ? view(x, out, out_bytes, BACKEND_WRITE) : NULL;
        rc = communicate(x, send, receive, elements_of(given ? given : got),
                         type_of((given ? given : got)->type));
        if (got)
            end_view(x, out, out_bytes, BACKEND_WRITE, receive);
        if (given)
            end_view(x, in, in_bytes, BACKEND_READ, send);
    }
    if (rc == 0 && got)
        clear_result(x, out, out_bytes);
    return rc;
}

/* A group of this rank alone: what it gives is what it gets. */
static void run_alone(const struct exchange *x, const void *in, void *out)
{
    const struct program_op *op = x->op;
    const struct backend_vtable *v = x->backend->vtable;
    size_t bytes;

    if (op->attributes.space != OP_SPACE_NONE || op->kind == OP_SEND || op->kind == OP_RECEIVE ||
        op->kind == OP_DGC_GATHER)
        return;
    bytes = program_var_bytes(&x->program->vars[op->inputs[0]]);
    if (in != out) {
        void *to = backend_map(x->backend, out, bytes, BACKEND_WRITE);
        v->copy_out(x->backend, to, in, bytes);
        backend_unmap(x->backend, out, bytes, BACKEND_WRITE, to);
    }
}

/* ---- the gradient ---------------------------------------------------------------------------- */

static int64_t first_of(const struct exchange *x)
{
    return x->op->attributes.flat_first;
}

/* Complete the partial sums of this rank in the operator's range. */
static void fold(const struct exchange *x)
{
    const struct communication *c = x->c;

    for (int64_t i = 0; i < c->fold_count; i++)
        x->backend->vtable->add(x->backend, c->slots[c->folds[i].into] + first_of(x),
                                c->slots[c->folds[i].slot] + first_of(x),
                                x->op->attributes.flat_count);
}

static bool is_in_two_levels(const struct communication *c, const struct program_op *op)
{
    return c->hierarchy.block && op->attributes.group == OP_GROUP_REPLICAS;
}

/* The partial sums of all ranks complete the tree: the bits do not depend on the ranks. */
static int sum_in_tree(const struct exchange *x)
{
    const struct communication *c = x->c;
    int count = c->nodes > 0 ? c->nodes : 1; /* the sum arrives in the first */
    size_t bytes = (size_t)x->op->attributes.flat_count * sizeof(float);
    float *slots[TREE_NODES_MAX];
    const struct comm_call call = {.operation = COMM_TREE_SUM,
                                   .type = COMM_FP32,
                                   .count = x->op->attributes.flat_count,
                                   .leaves = c->leaves,
                                   .slots = slots,
                                   .workspace = c->workspace,
                                   .queue = queue_of(x)};
    int rc;

    for (int n = 0; n < count; n++)
        slots[n] = view(x, c->slots[n] + first_of(x), bytes, BACKEND_CHANGE);
    if (!x->on_device && is_in_two_levels(c, x->op))
        rc = hierarchy_tree_sum(&(struct hierarchy_sum){.hierarchy = &c->hierarchy,
                                                        .leaves = c->leaves,
                                                        .slots = slots,
                                                        .nodes = c->nodes,
                                                        .count = x->op->attributes.flat_count,
                                                        .workspace = c->workspace,
                                                        .deadline_ms = deadline_of(x)},
                                x->err);
    else
        rc = comm_run(x->comm, &call, deadline_of(x), x->err);
    for (int n = 0; n < count; n++)
        end_view(x, c->slots[n] + first_of(x), bytes, BACKEND_CHANGE, slots[n]);
    return rc;
}

/* All partial sums of this rank in slot 0. */
static float *add_nodes(const struct exchange *x)
{
    const struct communication *c = x->c;
    int64_t count = x->op->attributes.flat_count;
    float *sum = c->slots[0] + first_of(x);

    if (c->nodes == 0)
        x->backend->vtable->clear(x->backend, sum, (size_t)count * sizeof(*sum));
    for (int n = 1; n < c->nodes; n++)
        x->backend->vtable->add(x->backend, sum, c->slots[n] + first_of(x), count);
    return sum;
}

static struct divided_range range_of(const struct program_op *op)
{
    return (struct divided_range){op->attributes.flat_first, op->attributes.flat_count};
}

/* Each rank has the sums of some elements only. */
static int run_divided(const struct exchange *x, float *bucket)
{
    struct divided_sum *sum = x->c->divided;

    if (!sum) /* a rank that only looks at its own micro-batch */
        return 0;
    if (x->op->section == PROGRAM_SECTION_MICRO_BATCH)
        return divided_sum_add(sum, x->comm, x->backend, range_of(x->op), bucket, x->c->workspace,
                               deadline_of(x), x->err);
    return divided_sum_share(sum, x->comm, x->backend, deadline_of(x), x->err);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static int run_range(const struct exchange *x, float *range);

/*
 * A rank's part, divided as the mean over all leaves is, in fp16. The sum is multiplied back, since
 * the update divides: the factor 1/N comes before the cast.
 */
static int run_range_in_halves(const struct exchange *x, float *range, float divisor)
{
    const struct backend_vtable *v = x->backend->vtable;
    int64_t count = x->op->attributes.flat_count;
    uint16_t *halves = x->c->workspace;
    bool is_result = x->op->kind != OP_REDUCE_TO || x->comm->rank == x->op->attributes.root;
    int rc;

    v->narrow(x->backend, halves, range, 1.0f / divisor, count);
    rc = communicate(x, halves, halves, count, COMM_FP16);
    if (rc == 0 && is_result)
        v->widen(x->backend, range, halves, divisor, count);
    return rc;
}

/* In the library's own order: fewer bytes, and other bits for another number of ranks. */
static int sum_in_any_order(const struct exchange *x)
{
    float *sum = add_nodes(x);
    const struct comm_call call = {.operation = COMM_ALL_REDUCE,
                                   .type = COMM_FP32,
                                   .reduction = COMM_SUM,
                                   .count = x->op->attributes.flat_count,
                                   .send = sum,
                                   .receive = sum,
                                   .queue = x->backend,
                                   .any_order = true};

    return comm_run(x->comm, &call, deadline_of(x), x->err);
}

static int run_gradients(const struct exchange *x)
{
    if (x->op->kind == OP_TREE_SUM)
        return x->on_device && x->c->any_order ? sum_in_any_order(x) : sum_in_tree(x);
    if (x->op->attributes.wire == OP_WIRE_FP16)
        return run_range_in_halves(x, add_nodes(x), (float)x->c->averaged);
    return run_range(x, add_nodes(x));
}

/* Each rank's own part: all to all of them, or reduced to each in turn. */
static int run_owned(const struct exchange *x, float *seen)
{
    int rc = 0;

    fleet_assert(x->c->owned != NULL);
    for (int place = 0; place < x->comm->world && rc == 0; place++) {
        struct comm_call call = {.operation = COMM_BROADCAST,
                                 .type = COMM_FP32,
                                 .reduction = reduction_of(x->op),
                                 .root = place,
                                 .queue = queue_of(x),
                                 .any_order = x->c->any_order};
        int64_t first;
        float *part;

        x->c->owned(x->c->context, x->op, place, &first, &call.count);
        part = seen + (first - first_of(x));
        call.receive = part;
        if (x->op->kind == OP_REDUCE_SCATTER) {
            call.operation = COMM_REDUCE;
            call.send = part;
        }
        if (call.count > 0)
            rc = comm_run(x->comm, &call, deadline_of(x), x->err);
    }
    return rc;
}

static int run_range(const struct exchange *x, float *range)
{
    bool is_by_owner = x->op->kind == OP_ALL_GATHER || x->op->kind == OP_REDUCE_SCATTER;
    size_t bytes = (size_t)x->op->attributes.flat_count * sizeof(float);
    float *seen;
    int rc;

    if (x->op->attributes.wire == OP_WIRE_FP16 && !is_by_owner)
        return run_range_in_halves(x, range, 1.0f);
    seen = view(x, range, bytes, BACKEND_CHANGE);
    rc = is_by_owner ? run_owned(x, seen)
                     : communicate(x, seen, seen, x->op->attributes.flat_count, COMM_FP32);
    end_view(x, range, bytes, BACKEND_CHANGE, seen);
    return rc;
}

/* Nothing in the dense phase. */
static int gather_messages(const struct exchange *x)
{
    const struct run_messages *m = &x->c->messages;

    if (!m->all)
        return 0;
    return comm_all_gather(x->comm, m->all + m->rank * m->words, (size_t)m->words * sizeof(*m->all),
                           m->all, deadline_of(x), x->err);
}

/* Halves and messages of dgc lie in the host's memory; so does a broadcast that is also a copy. */
static bool can_use_device(const struct exchange *x)
{
    bool is_halves = x->op->attributes.wire == OP_WIRE_FP16;
    bool is_copy = x->op->kind == OP_BROADCAST && x->op->attributes.space == OP_SPACE_NONE;

    return comm_has_device(x->comm) && !is_halves && !is_copy && x->op->kind != OP_DGC_GATHER;
}

/* ---- the whole ------------------------------------------------------------------------------- */

int communication_run(const struct communication *c, struct backend *backend,
                      const struct program *program, const struct program_op *op, const void *in,
                      void *out, struct fleet_error *err)
{
    struct exchange x = {.c = c,
                         .backend = backend,
                         .program = program,
                         .op = op,
                         .comm = c->groups[op->attributes.group],
                         .err = err};
    bool is_sum =
        op->section == PROGRAM_SECTION_EXCHANGE && op->attributes.space == OP_SPACE_GRADIENTS;
    int rc;

    if (op->kind == OP_TREE_SUM && op->attributes.owned)
        return run_divided(&x, out) < 0 ? fail(&x) : 0;
    if (is_sum)
        fold(&x);
    if (op->attributes.phase == OP_PHASE_DENSE && c->messages.all) {
        (void)add_nodes(&x); /* messages take the place of the sum over ranks */
        return 0;
    }
    if (!x.comm || x.comm->world == 1) {
        run_alone(&x, in, out);
        return 0;
    }
    x.on_device = can_use_device(&x);
    if (op->kind == OP_DGC_GATHER)
        rc = gather_messages(&x);
    else if (is_sum)
        rc = run_gradients(&x);
    else if (op->attributes.space != OP_SPACE_NONE)
        rc = run_range(&x, out);
    else
        rc = run_operands(&x, in, out);
    return rc < 0 ? fail(&x) : 0;
}

static const struct program_var *operand_of(const struct program *program,
                                            const struct program_op *op)
{
    return &program->vars[op->kind == OP_SEND ? op->inputs[0] : op->outputs[0]];
}

int communication_pass(const struct communication *c, struct backend *backend,
                       const struct program *program, const struct communication_message *messages,
                       struct comm_message *posts, int count, struct fleet_error *err)
{
    struct comm *comm = c->groups[OP_GROUP_PIPELINE];
    int rc;

    if (count == 0)
        return 0;
    fleet_assert(comm != NULL);
    for (int i = 0; i < count; i++) {
        const struct program_op *op = messages[i].op;
        const struct program_var *var = operand_of(program, op);
        bool is_receive = op->kind == OP_RECEIVE;

        posts[i] = (struct comm_message){
            .peer = comm->rank + op->attributes.shift,
            .is_receive = is_receive,
            .data = backend_map(backend, messages[i].data, program_var_bytes(var),
                                is_receive ? BACKEND_WRITE : BACKEND_READ),
            .count = elements_of(var),
            .type = type_of(var->type)};
    }
    rc = comm_messages(comm, posts, count, c->deadline_ms(c->context), err);
    for (int i = 0; i < count; i++)
        backend_unmap(backend, messages[i].data,
                      program_var_bytes(operand_of(program, messages[i].op)),
                      posts[i].is_receive ? BACKEND_WRITE : BACKEND_READ, posts[i].data);
    return rc < 0 ? fleet_error_wrap(err, "messages between stages") : 0;
}

size_t communication_workspace(const struct communication *c, const struct program *program)
{
    size_t most = 0;

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        const struct comm *comm;
        size_t bytes = 0;

        if (!op_definition(op->kind)->is_communication)
            continue;
        if (op->kind == OP_TREE_SUM && op->attributes.owned) {
            if (c->divided && op->section == PROGRAM_SECTION_MICRO_BATCH)
                bytes = divided_sum_workspace(c->divided, range_of(op));
            most = bytes > most ? bytes : most;
            continue;
        }
        if (!(comm = c->groups[op->attributes.group]) || comm->world == 1)
            continue;
        if (op->kind == OP_TREE_SUM && is_in_two_levels(c, op))
            bytes = hierarchy_workspace(&c->hierarchy, c->leaves, op->attributes.flat_count);
        else if (op->kind == OP_TREE_SUM)
            bytes = tree_sum_workspace(c->leaves, comm->world, op->attributes.flat_count);
        else if (op->attributes.wire == OP_WIRE_FP16)
            bytes = sizeof(uint16_t) * (size_t)op_payload(program, op) *
                    (op->attributes.space != OP_SPACE_NONE ? 1 : 1 + (size_t)comm->world);
        most = bytes > most ? bytes : most;
    }
    return most;
}
