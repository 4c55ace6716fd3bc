/* SPDX-License-Identifier: Apache-2.0 */

/* Starting an operation: may it run, what must the others run, which algorithm; and the operations
 * as functions. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/engine.h"
#include "libfleet/base/assert.h"

/* ---- the table ------------------------------------------------------------------------------- */

static const struct operation {
    const char *name;
    comm_algorithm *next;
    bool reduces, has_root;
} operations[COMM_OPERATIONS] = {
    [COMM_ALL_REDUCE] = {"all_reduce", comm_all_reduce_next, true, false},
    [COMM_REDUCE] = {"reduce", comm_all_reduce_next, true, true},
    [COMM_REDUCE_SCATTER] = {"reduce_scatter", comm_reduce_scatter_next, true, false},
    [COMM_ALL_GATHER] = {"all_gather", comm_all_gather_next, false, false},
    [COMM_BROADCAST] = {"broadcast", comm_broadcast_next, false, true},
    [COMM_SCATTER] = {"scatter", comm_scatter_next, false, true},
    [COMM_ALL_TO_ALL] = {"all_to_all", comm_all_to_all_next, false, false},
    [COMM_EXCHANGE] = {"exchange", comm_exchange_next, false, false},
    [COMM_MESSAGES] = {"messages", comm_messages_next, false, false},
    [COMM_BARRIER] = {"barrier", comm_barrier_next, false, false},
    [COMM_TREE_SUM] = {"tree_sum", comm_tree_sum_next, false, false},
};

const char *comm_operation_name(enum comm_operation operation)
{
    return operations[operation].name;
}

/* ---- starting -------------------------------------------------------------------------------- */

static int check_reduction(const struct comm_call *call, struct fleet_error *err)
{
    bool is_integer = call->type <= COMM_INT64;

    if (call->type >= COMM_COMPLEX64 ||
        (call->type == COMM_BOOL && call->reduction != COMM_MAX && call->reduction != COMM_MIN) ||
        (is_integer && call->reduction == COMM_AVG))
        return fleet_error(err, -EINVAL, "%s: there is no %s of %s",
                           comm_operation_name(call->operation),
                           comm_reduction_name(call->reduction), comm_type_name(call->type));
    return 0;
}

static int check_messages(const struct comm *comm, const struct comm_call *call,
                          struct fleet_error *err)
{
    for (int i = 0; i < call->message_count; i++) {
        int peer = call->messages[i].peer;
        if (peer == comm->rank)
            return fleet_error(err, -EINVAL, "message %d: rank %d cannot send to itself", i, peer);
        if (peer < 0 || peer >= comm->world)
            return fleet_error(err, -EINVAL, "message %d: rank %d is not one of %d", i, peer,
                               comm->world);
    }
    return 0;
}

int comm_check(const struct comm *comm, const struct comm_call *call, struct fleet_error *err)
{
    const struct operation *operation = &operations[call->operation];

    fleet_assert(call->operation < COMM_OPERATIONS && call->count >= 0);
    if (comm->net->is_dead)
        return fleet_error(err, -ECONNABORTED, "the communicator failed before");
    if (comm->run->is_running)
        return fleet_error(err, -EBUSY, "%s: the last operation of this communicator is in flight",
                           operation->name);
    if (operation->has_root && (call->root < 0 || call->root >= comm->world))
        return fleet_error(err, -EINVAL, "%s: root %d is not one of %d ranks", operation->name,
                           call->root, comm->world);
    if (call->queue && comm_device_check(comm, call, err) < 0)
        return -EINVAL;
    if (call->operation == COMM_MESSAGES)
        return check_messages(comm, call, err);
    return operation->reduces ? check_reduction(call, err) : 0;
}

/* What all ranks must say of the operation. */
static struct comm_signature signature_of(struct comm *comm, const struct comm_call *call)
{
    const struct operation *operation = &operations[call->operation];
    bool by_sizes = call->send_counts || call->receive_counts;

    if (call->operation == COMM_EXCHANGE) /* ranks without bytes for each other may skip it */
        return (struct comm_signature){.operation = COMM_EXCHANGE, .root = -1};
    return (struct comm_signature){.number = ++comm->run->number,
                                   .operation = (uint8_t)call->operation,
                                   .type = (uint8_t)call->type,
                                   .reduction = operation->reduces ? (uint8_t)call->reduction : 0,
                                   .is_of_device = call->queue != NULL,
                                   .root = operation->has_root ? comm->members[call->root] : -1,
                                   .parts = (int32_t)call->leaves,
                                   .count = by_sizes ? 0 : call->count};
}

int comm_start(struct comm *comm, const struct comm_call *call, double deadline_ms,
               struct comm_request **out_request, struct fleet_error *err)
{
    struct comm_request *run = comm->run;
    int rc = comm_check(comm, call, err);

    if (rc < 0)
        return rc;
    run->call = *call;
    if (call->operation != COMM_MESSAGES)
        run->signature = signature_of(comm, call);
    run->next = call->queue ? comm_device_next : operations[call->operation].next;
    run->round = 0;
    run->pending = 0;
    run->deadline_ms = deadline_ms;
    run->rc = 0;
    run->device =
        (struct device_rounds){.lists = run->device.lists, .lists_bytes = run->device.lists_bytes};
    run->is_running = run->next(run);
    *out_request = run;
    comm_move_on(comm->net); /* what can be sent at once; and an abort that came before */
    return 0;
}

int comm_run(struct comm *comm, const struct comm_call *call, double deadline_ms,
             struct fleet_error *err)
{
    struct comm_request *run;
    int rc = comm_start(comm, call, deadline_ms, &run, err);

    return rc < 0 ? rc : comm_wait(run, err);
}

/* ---- as functions ---------------------------------------------------------------------------- */

int comm_all_reduce(struct comm *comm, void *data, int64_t count, enum comm_type type,
                    enum comm_reduction reduction, double deadline_ms, struct fleet_error *err)
{
    struct comm_call call = {.operation = COMM_ALL_REDUCE,
                             .type = type,
                             .reduction = reduction,
                             .count = count,
                             .send = data,
                             .receive = data};

    return comm_run(comm, &call, deadline_ms, err);
}

int comm_all_gather(struct comm *comm, const void *mine, size_t bytes, void *all,
                    double deadline_ms, struct fleet_error *err)
{
    struct comm_call call = {
        .operation = COMM_ALL_GATHER, .count = (int64_t)bytes, .send = mine, .receive = all};

    return comm_run(comm, &call, deadline_ms, err);
}

int comm_all_gather_varying(struct comm *comm, const void *mine, const size_t *bytes, void *all,
                            double deadline_ms, struct fleet_error *err)
{
    struct comm_call call = {.operation = COMM_ALL_GATHER,
                             .send = mine,
                             .receive = all,
                             .receive_counts = (const int64_t *)bytes};

    static_assert(sizeof(size_t) == sizeof(int64_t), "sizes are counts of bytes");
    return comm_run(comm, &call, deadline_ms, err);
}

int comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, double deadline_ms,
                   struct fleet_error *err)
{
    struct comm_call call = {
        .operation = COMM_BROADCAST, .count = (int64_t)bytes, .receive = data, .root = root};

    return comm_run(comm, &call, deadline_ms, err);
}

int comm_all_to_all(struct comm *comm, const void *send, size_t bytes, void *receive,
                    double deadline_ms, struct fleet_error *err)
{
    struct comm_call call = {
        .operation = COMM_ALL_TO_ALL, .count = (int64_t)bytes, .send = send, .receive = receive};

    return comm_run(comm, &call, deadline_ms, err);
}

int comm_exchange(struct comm *comm, const void *const *send, const size_t *send_bytes,
                  void *const *receive, const size_t *receive_bytes, double deadline_ms,
                  struct fleet_error *err)
{
    struct comm_call call = {.operation = COMM_EXCHANGE,
                             .sends = send,
                             .send_bytes = send_bytes,
                             .receives = receive,
                             .receive_bytes = receive_bytes};

    return comm_run(comm, &call, deadline_ms, err);
}

int comm_barrier(struct comm *comm, double deadline_ms, struct fleet_error *err)
{
    struct comm_call call = {.operation = COMM_BARRIER};

    return comm_run(comm, &call, deadline_ms, err);
}

int comm_messages(struct comm *comm, const struct comm_message *messages, int count,
                  double deadline_ms, struct fleet_error *err)
{
    struct comm_call call = {
        .operation = COMM_MESSAGES, .messages = messages, .message_count = count};

    return comm_run(comm, &call, deadline_ms, err);
}

int comm_send(struct comm *comm, int to, const void *data, size_t bytes, double deadline_ms,
              struct fleet_error *err)
{
    const struct comm_message message = {.peer = to, .data = (void *)data, .count = (int64_t)bytes};

    return comm_messages(comm, &message, 1, deadline_ms, err);
}

int comm_receive(struct comm *comm, int from, void *data, size_t bytes, double deadline_ms,
                 struct fleet_error *err)
{
    const struct comm_message message = {
        .peer = from, .is_receive = true, .data = data, .count = (int64_t)bytes};

    return comm_messages(comm, &message, 1, deadline_ms, err);
}

int comm_tree_sum(struct comm *comm, int64_t leaves, float *const *slots, int64_t count,
                  void *workspace, double deadline_ms, struct fleet_error *err)
{
    struct comm_call call = {.operation = COMM_TREE_SUM,
                             .type = COMM_FP32,
                             .count = count,
                             .leaves = leaves,
                             .slots = slots,
                             .workspace = workspace};

    return comm_run(comm, &call, deadline_ms, err);
}
