/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/communication.h"

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/device.h"
#include "agent/runtime/executor/communication_internal.h"
#include "agent/runtime/executor/divided_sum.h"
#include "agent/runtime/executor/gather.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/runtime_hierarchy.h"

static int fail(const struct communication_work *x)
{
    return fleet_error_wrap(x->err, "%s", op_definition(x->op->kind)->name);
}

/* ---- operands -------------------------------------------------------------------------------- */

static const struct program_var *var_of(const struct communication_work *x, int index)
{
    return index == PROGRAM_NONE ? NULL : &x->program->vars[index];
}

static int64_t elements_of(const struct program_var *var)
{
    return var ? program_var_elements(var) : 0;
}

/* Others than the root have nothing to read: their y is zero. */
static void clear_result(const struct communication_work *x, void *out, size_t bytes)
{
    if (x->op->kind == OP_REDUCE_TO && x->comm->rank != x->op->attributes.root)
        x->backend->vtable->clear(x->backend, out, bytes);
}

static int run_halves(const struct communication_work *x, const struct program_var *given,
                      const struct program_var *got, const void *in, void *out)
{
    const struct backend_vtable *v = x->backend->vtable;
    uint16_t *sent = x->c->workspace, *received = sent + elements_of(given);
    int rc;

    if (given)
        v->narrow(x->backend, sent, in, 1.0f, elements_of(given));
    rc = communication_call(x, sent, received, elements_of(given ? given : got), COMM_FP16);
    if (rc == 0 && got)
        v->widen(x->backend, out, received, 1.0f, elements_of(got));
    return rc;
}

static int run_operands(const struct communication_work *x, const void *in, void *out)
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
        send = given ? communication_view(x, in, in_bytes, BACKEND_READ) : NULL;
        receive = got ? communication_view(x, out, out_bytes, BACKEND_WRITE) : NULL;
        rc = communication_call(x, send, receive, elements_of(given ? given : got),
                                communication_type((given ? given : got)->type));
        if (got)
            communication_end_view(x, out, out_bytes, BACKEND_WRITE, receive);
        if (given)
            communication_end_view(x, in, in_bytes, BACKEND_READ, send);
    }
    if (rc == 0 && got)
        clear_result(x, out, out_bytes);
    return rc;
}

/* A group of this rank alone: what it gives is what it gets. */
static void run_alone(const struct communication_work *x, const void *in, void *out)
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

/* Messages of dgc lie in the host's memory. So do a broadcast that is also a copy, and halves, but
 * those of the gradient. */
bool communication_uses_device(const struct comm *comm, const struct program_op *op)
{
    bool is_other_half = op->attributes.wire == OP_WIRE_FP16 && !communication_is_sum_of_halves(op);
    bool is_copy = op->kind == OP_BROADCAST && op->attributes.space == OP_SPACE_NONE;

    return comm_has_device(comm) && !is_other_half && !is_copy && op->kind != OP_DGC_GATHER;
}

/* All replicas take part; the map says which of them send. */
static int run_gather(const struct communication_work *x, const float *held, float *out)
{
    if (!x->c->gather) {
        gather_copy(x->backend, x->op, held, out);
        return 0;
    }
    x->c->gather->is_captured = x->is_captured;
    return gather_run(x->c->gather, x->c->groups[OP_GROUP_REPLICAS], x->backend, x->op, held, out,
                      communication_deadline(x), x->err);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Nothing in the dense phase. */
static int gather_messages(const struct communication_work *x)
{
    const struct run_messages *m = &x->c->messages;

    if (!m->all)
        return 0;
    if (backend_wait(x->backend, x->err) < 0) /* our own message */
        return x->err->code;
    return comm_all_gather(x->comm, m->all + m->rank * m->words, (size_t)m->words * sizeof(*m->all),
                           m->all, communication_deadline(x), x->err);
}

static int run_work(struct communication_work *x, const void *in, void *out)
{
    const struct communication *c = x->c;
    const struct program_op *op = x->op;
    bool is_sum =
        op->section == PROGRAM_SECTION_EXCHANGE && op->attributes.space == OP_SPACE_GRADIENTS;
    int rc;

    if (op->kind == OP_TREE_SUM && op->attributes.owned)
        return communication_run_divided(x, out) < 0 ? fail(x) : 0;
    if (gathers_is(op))
        return run_gather(x, in, out) < 0 ? fail(x) : 0;
    if (is_sum)
        communication_fold(x);
    if (op->attributes.phase == OP_PHASE_DENSE && c->messages.all) {
        (void)communication_add_nodes(x); /* messages take the place of the sum over ranks */
        return 0;
    }
    if (!x->comm || x->comm->world == 1) {
        run_alone(x, in, out);
        return 0;
    }
    x->on_device = communication_uses_device(x->comm, op);
    if (op->kind == OP_DGC_GATHER)
        rc = gather_messages(x);
    else if (is_sum)
        rc = communication_run_gradients(x);
    else if (op->attributes.space != OP_SPACE_NONE)
        rc = communication_run_range(x, out);
    else
        rc = run_operands(x, in, out);
    return rc < 0 ? fail(x) : 0;
}

static struct communication_work work_of(const struct communication *c, struct backend *backend,
                                         const struct program *program, const struct program_op *op,
                                         struct fleet_error *err)
{
    return (struct communication_work){.c = c,
                                       .backend = backend,
                                       .program = program,
                                       .op = op,
                                       .comm = c->groups[op->attributes.group],
                                       .err = err};
}

int communication_run(const struct communication *c, struct backend *backend,
                      const struct program *program, const struct program_op *op, const void *in,
                      void *out, struct fleet_error *err)
{
    struct communication_work x = work_of(c, backend, program, op, err);

    return run_work(&x, in, out);
}

int communication_capture(const struct communication *c, struct backend *backend,
                          const struct program *program, const struct program_op *op,
                          const void *in, void *out, struct fleet_error *err)
{
    struct communication_work x = work_of(c, backend, program, op, err);

    x.is_captured = true;
    return run_work(&x, in, out);
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
            .type = communication_type(var->type)};
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

        if (!op_definition(op->kind)->is_communication || gathers_is(op))
            continue;
        if (op->kind == OP_TREE_SUM && op->attributes.owned) {
            if (c->divided && op->section == PROGRAM_SECTION_MICRO_BATCH)
                bytes = divided_sum_workspace(c->divided, communication_range(op));
            most = bytes > most ? bytes : most;
            continue;
        }
        if (!(comm = c->groups[op->attributes.group]) || comm->world == 1)
            continue;
        if (op->kind == OP_TREE_SUM && communication_has_two_levels(c, op))
            bytes = hierarchy_workspace(&c->hierarchy, c->leaves, op->attributes.flat_count);
        else if (op->kind == OP_TREE_SUM)
            bytes = tree_sum_workspace(c->leaves, comm->world, op->attributes.flat_count);
        else if (communication_has_two_levels(c, op))
            bytes = runtime_hierarchy_halves_bytes(c->hierarchy.block->world,
                                                   op->attributes.flat_count);
        else if (op->attributes.wire == OP_WIRE_FP16)
            bytes = sizeof(uint16_t) * (size_t)op_payload(program, op) *
                    (op->attributes.space != OP_SPACE_NONE ? 1 : 1 + (size_t)comm->world);
        most = bytes > most ? bytes : most;
    }
    return most;
}
