/* SPDX-License-Identifier: Apache-2.0 */

/* One call of comm.h for an operator: its type, its reduction, its memory and its deadline. */
#include <errno.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/device.h"
#include "agent/runtime/executor/communication_internal.h"
#include "libfleet/base/error.h"

double communication_deadline(const struct communication_work *x)
{
    return x->c->deadline_ms(x->c->context);
}

int communication_make(const struct communication_work *x, const struct comm_call *call)
{
    return comm_device_run(x->comm, call, x->is_captured, communication_deadline(x), x->err);
}

enum comm_reduction communication_reduction(const struct program_op *op)
{
    static const enum comm_reduction reductions[] = {[OP_REDUCTION_SUM] = COMM_SUM,
                                                     [OP_REDUCTION_MAX] = COMM_MAX,
                                                     [OP_REDUCTION_MIN] = COMM_MIN,
                                                     [OP_REDUCTION_PROD] = COMM_PROD,
                                                     [OP_REDUCTION_AVG] = COMM_AVG};

    return reductions[op->attributes.reduction];
}

enum comm_type communication_type(enum program_type type)
{
    static const enum comm_type types[] = {[PROGRAM_FP32] = COMM_FP32,
                                           [PROGRAM_BF16] = COMM_BF16,
                                           [PROGRAM_FP16] = COMM_FP16,
                                           [PROGRAM_INT32] = COMM_INT32,
                                           [PROGRAM_UINT8] = COMM_UINT8};

    return types[type];
}

struct backend *communication_queue(const struct communication_work *x)
{
    return x->on_device ? x->backend : NULL;
}

/* The memory for a collective: the device's own, or the host's view of it. */
void *communication_view(const struct communication_work *x, const void *memory, size_t bytes,
                         enum backend_access access)
{
    return x->on_device ? (void *)memory : backend_map(x->backend, (void *)memory, bytes, access);
}

void communication_end_view(const struct communication_work *x, const void *memory, size_t bytes,
                            enum backend_access access, void *seen)
{
    if (!x->on_device)
        backend_unmap(x->backend, (void *)memory, bytes, access, seen);
}

static int send_or_receive(const struct communication_work *x, void *data, int64_t count,
                           enum comm_type type)
{
    struct comm_message message = {.peer = x->comm->rank + x->op->attributes.shift,
                                   .is_receive = x->op->kind == OP_RECEIVE,
                                   .data = data,
                                   .count = count,
                                   .type = type};
    struct comm_call call = {.operation = COMM_MESSAGES,
                             .messages = &message,
                             .message_count = 1,
                             .queue = communication_queue(x)};

    if (message.peer < 0 || message.peer >= x->comm->world)
        return fleet_error(x->err, -EINVAL, "place %d has no neighbour %d in a group of %d",
                           x->comm->rank, x->op->attributes.shift, x->comm->world);
    return communication_make(x, &call);
}

/* `count` elements are given, or received by RECEIVE. The two may be the same memory where
 * comm.h allows it. */
int communication_call(const struct communication_work *x, const void *send, void *receive,
                       int64_t count, enum comm_type type)
{
    static const enum comm_operation operations[OP_KIND_COUNT] = {
        [OP_ALL_REDUCE] = COMM_ALL_REDUCE, [OP_REDUCE_TO] = COMM_REDUCE,
        [OP_ALL_GATHER] = COMM_ALL_GATHER, [OP_REDUCE_SCATTER] = COMM_REDUCE_SCATTER,
        [OP_BROADCAST] = COMM_BROADCAST,   [OP_ALL_TO_ALL] = COMM_ALL_TO_ALL,
    };
    bool is_divided = x->op->kind == OP_REDUCE_SCATTER || x->op->kind == OP_ALL_TO_ALL;
    struct comm_call call = {.operation = operations[x->op->kind],
                             .type = type,
                             .reduction = communication_reduction(x->op),
                             .root = x->op->attributes.root,
                             .count = is_divided ? count / x->comm->world : count,
                             .send = send,
                             .receive = receive,
                             .queue = communication_queue(x),
                             .any_order = x->c->any_order};

    if (call.root >= x->comm->world)
        return fleet_error(x->err, -EINVAL, "there is no rank %d in a group of %d", call.root,
                           x->comm->world);
    if (x->op->kind == OP_SEND || x->op->kind == OP_RECEIVE)
        return send_or_receive(x, x->op->kind == OP_SEND ? (void *)send : receive, count, type);
    if (x->op->kind == OP_BROADCAST && receive != send && x->comm->rank == call.root)
        memcpy(receive, send, (size_t)count * comm_type_size(type));
    return communication_make(x, &call);
}
