/* SPDX-License-Identifier: Apache-2.0 */

/* The operations of fleet.h: arguments are checked here, agent/runtime/comm runs them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/distributed.h"

_Static_assert((int)FLEET_COMPLEX128 == (int)COMM_COMPLEX128, "types have the same numbers");
_Static_assert((int)FLEET_AVG == (int)COMM_AVG, "reductions have the same numbers");

struct fleet_task {
    struct fleet_group *group; /* NULL: done or given up, see `result` */
    struct comm_request *run;
    void *lists; /* of the call, owned */
    struct fleet_error error;
    int result;
};

/* ---- tasks ----------------------------------------------------------------------------------- */

static void task_end(struct fleet_task *task, int result)
{
    task->result = result;
    task->group->task = NULL;
    task->group = NULL;
}

void task_give_up(struct fleet_task *task)
{
    task_end(task,
             fleet_error(&task->error, -ECANCELED, "the group was freed before the task ended"));
}

/* The result of an ended task. */
static int task_result(const struct fleet_task *task, struct fleet_error *err)
{
    if (task->result < 0 && err)
        *err = task->error;
    return task->result;
}

int fleet_task_wait(struct fleet_task *task, struct fleet_error *err)
{
    if (argument_check(task, "fleet_task_wait", "task", err) < 0)
        return -EINVAL;
    if (task->group)
        task_end(task, comm_wait(task->run, &task->error));
    return task_result(task, err);
}

int fleet_task_done(struct fleet_task *task, struct fleet_error *err)
{
    if (argument_check(task, "fleet_task_done", "task", err) < 0)
        return -EINVAL;
    if (task->group) {
        int rc = comm_test(task->run, &task->error);
        if (rc == 0)
            return 0;
        task_end(task, rc < 0 ? rc : 0);
    }
    return task->result < 0 ? task_result(task, err) : 1;
}

void fleet_task_free(struct fleet_task *task)
{
    if (!task)
        return;
    if (task->group)
        (void)fleet_task_wait(task, NULL);
    free(task->lists);
    free(task);
}

/* Run `call`, or start it if `out` is not NULL. Takes `lists`, to which the call points. */
static int run_lists(const char *what, struct fleet_group *group, const struct comm_call *call,
                     void *lists, struct fleet_task **out, struct fleet_error *err)
{
    struct fleet_task *task = calloc(1, sizeof(*task));
    int rc;

    if (!task) {
        free(lists);
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    }
    task->lists = lists;
    rc = comm_start(group->comm, call, group_deadline(group), &task->run, err);
    if (rc == 0) {
        task->group = group;
        group->task = task;
        if (out) {
            *out = task;
            return 0;
        }
        rc = fleet_task_wait(task, err);
    }
    fleet_task_free(task);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

static int run(const char *what, struct fleet_group *group, const struct comm_call *call,
               struct fleet_task **out, struct fleet_error *err)
{
    return run_lists(what, group, call, NULL, out, err);
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* The number of elements. */
static int tensor_check(const char *what, const char *name, const struct fleet_tensor *tensor,
                        int64_t *out, struct fleet_error *err)
{
    int64_t count = 1;

    if (!tensor)
        return fleet_error(err, -EINVAL, "%s: %s is NULL", what, name);
    if ((int)tensor->type < 0 || (int)tensor->type >= COMM_TYPES)
        return fleet_error(err, -EINVAL, "%s: %s->type is %d, allowed: 0 to %d", what, name,
                           (int)tensor->type, COMM_TYPES - 1);
    if (tensor->dimensions < 0 || tensor->dimensions > FLEET_DIMENSIONS_MAX)
        return fleet_error(err, -EINVAL, "%s: %s->dimensions is %d, allowed: 0 to %d", what, name,
                           tensor->dimensions, FLEET_DIMENSIONS_MAX);
    for (int i = 0; i < tensor->dimensions; i++) {
        if (tensor->shape[i] < 0)
            return fleet_error(err, -EINVAL, "%s: %s->shape[%d] is %lld", what, name, i,
                               (long long)tensor->shape[i]);
        if (__builtin_mul_overflow(count, tensor->shape[i], &count) || count > INT64_MAX / 16)
            return fleet_error(err, -EINVAL, "%s: %s->shape: too many elements", what, name);
    }
    if (!tensor->data && count > 0)
        return fleet_error(err, -EINVAL, "%s: %s->data is NULL", what, name);
    *out = count;
    return 0;
}

/* `large` has `parts` times the elements of `small`, and its type. */
static int parts_check(const char *what, const char *large_name, const struct fleet_tensor *large,
                       const char *small_name, const struct fleet_tensor *small, int parts,
                       int64_t *out_small, struct fleet_error *err)
{
    int64_t all;
    int rc = tensor_check(what, small_name, small, out_small, err);

    if (rc == 0)
        rc = tensor_check(what, large_name, large, &all, err);
    if (rc < 0)
        return rc;
    if (large->type != small->type)
        return fleet_error(err, -EINVAL, "%s: %s is %s, %s is %s: one type is needed", what,
                           large_name, comm_type_name((enum comm_type)large->type), small_name,
                           comm_type_name((enum comm_type)small->type));
    if (all / parts != *out_small || all % parts != 0)
        return fleet_error(err, -EINVAL, "%s: %s has %lld elements, needed: %d ranks × %lld of %s",
                           what, large_name, (long long)all, parts, (long long)*out_small,
                           small_name);
    return 0;
}

static int op_check(const char *what, enum fleet_reduce_op op, struct fleet_error *err)
{
    if ((int)op >= 0 && (int)op < COMM_REDUCTIONS)
        return 0;
    return fleet_error(err, -EINVAL, "%s: op is %d, allowed: 0 to %d", what, (int)op,
                       COMM_REDUCTIONS - 1);
}

static struct comm_call call_of(enum comm_operation operation, const struct fleet_tensor *tensor,
                                int64_t count)
{
    return (struct comm_call){
        .operation = operation, .type = (enum comm_type)tensor->type, .count = count};
}

/* ---- collectives ----------------------------------------------------------------------------- */

int fleet_all_reduce(const struct fleet_tensor *tensor, enum fleet_reduce_op op,
                     struct fleet_group *group, struct fleet_task **task, struct fleet_error *err)
{
    const char *what = "fleet_all_reduce";
    struct comm_call call;
    int64_t count;
    int rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = tensor_check(what, "tensor", tensor, &count, err);
    if (rc == 0)
        rc = op_check(what, op, err);
    if (rc < 0)
        return rc;
    call = call_of(COMM_ALL_REDUCE, tensor, count);
    call.reduction = (enum comm_reduction)op;
    call.send = call.receive = tensor->data;
    return run(what, group, &call, task, err);
}

int fleet_reduce(const struct fleet_tensor *tensor, int dst, enum fleet_reduce_op op,
                 struct fleet_group *group, struct fleet_task **task, struct fleet_error *err)
{
    const char *what = "fleet_reduce";
    struct comm_call call;
    int64_t count;
    int root, rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = tensor_check(what, "tensor", tensor, &count, err);
    if (rc == 0)
        rc = op_check(what, op, err);
    if (rc == 0)
        rc = group_place(what, group, dst, &root, err);
    if (rc < 0)
        return rc;
    call = call_of(COMM_REDUCE, tensor, count);
    call.reduction = (enum comm_reduction)op;
    call.root = root;
    call.send = call.receive = tensor->data;
    return run(what, group, &call, task, err);
}

int fleet_all_gather(const struct fleet_tensor *out, const struct fleet_tensor *in,
                     struct fleet_group *group, struct fleet_task **task, struct fleet_error *err)
{
    const char *what = "fleet_all_gather";
    struct comm_call call;
    int64_t count;
    int rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = parts_check(what, "out", out, "in", in, group->count, &count, err);
    if (rc < 0)
        return rc;
    call = call_of(COMM_ALL_GATHER, in, count);
    call.send = in->data;
    call.receive = out->data;
    return run(what, group, &call, task, err);
}

int fleet_reduce_scatter(const struct fleet_tensor *out, const struct fleet_tensor *in,
                         enum fleet_reduce_op op, struct fleet_group *group,
                         struct fleet_task **task, struct fleet_error *err)
{
    const char *what = "fleet_reduce_scatter";
    struct comm_call call;
    int64_t count;
    int rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = parts_check(what, "in", in, "out", out, group->count, &count, err);
    if (rc == 0)
        rc = op_check(what, op, err);
    if (rc < 0)
        return rc;
    call = call_of(COMM_REDUCE_SCATTER, out, count);
    call.reduction = (enum comm_reduction)op;
    call.send = in->data;
    call.receive = out->data;
    return run(what, group, &call, task, err);
}

int fleet_broadcast(const struct fleet_tensor *tensor, int src, struct fleet_group *group,
                    struct fleet_task **task, struct fleet_error *err)
{
    const char *what = "fleet_broadcast";
    struct comm_call call;
    int64_t count;
    int root, rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = tensor_check(what, "tensor", tensor, &count, err);
    if (rc == 0)
        rc = group_place(what, group, src, &root, err);
    if (rc < 0)
        return rc;
    call = call_of(COMM_BROADCAST, tensor, count);
    call.root = root;
    call.receive = tensor->data;
    return run(what, group, &call, task, err);
}

int fleet_scatter(const struct fleet_tensor *out, const struct fleet_tensor *in, int src,
                  struct fleet_group *group, struct fleet_task **task, struct fleet_error *err)
{
    const char *what = "fleet_scatter";
    struct comm_call call;
    int64_t count;
    int root, rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = group_place(what, group, src, &root, err);
    if (rc == 0 && root == group->comm->rank)
        rc = parts_check(what, "in", in, "out", out, group->count, &count, err);
    else if (rc == 0)
        rc = tensor_check(what, "out", out, &count, err);
    if (rc < 0)
        return rc;
    call = call_of(COMM_SCATTER, out, count);
    call.root = root;
    call.send = root == group->comm->rank ? in->data : NULL;
    call.receive = out->data;
    return run(what, group, &call, task, err);
}

int fleet_all_to_all(const struct fleet_tensor *out, const struct fleet_tensor *in,
                     struct fleet_group *group, struct fleet_task **task, struct fleet_error *err)
{
    const char *what = "fleet_all_to_all";
    struct comm_call call;
    int64_t count;
    int rc = group_ready(what, group, &group, err);

    if (rc == 0)
        rc = parts_check(what, "out", out, "in", in, 1, &count, err);
    if (rc == 0 && count % group->count != 0)
        rc = fleet_error(err, -EINVAL, "%s: %lld elements do not divide by %d ranks", what,
                         (long long)count, group->count);
    if (rc < 0)
        return rc;
    call = call_of(COMM_ALL_TO_ALL, in, count / group->count);
    call.send = in->data;
    call.receive = out->data;
    return run(what, group, &call, task, err);
}

/* rows[0 … parts) of `tensor` as numbers of elements. They must add up to its first dimension. */
static int rows_check(const char *what, const char *name, const struct fleet_tensor *tensor,
                      const int64_t *rows, int parts, int64_t *counts, struct fleet_error *err)
{
    int64_t all, sum = 0, width;
    int rc = tensor_check(what, name, tensor, &all, err);

    if (rc < 0)
        return rc;
    if (!rows || tensor->dimensions < 1)
        return fleet_error(err, -EINVAL, "%s: %s needs at least one dimension and its rows", what,
                           name);
    width = tensor->shape[0] > 0 ? all / tensor->shape[0] : 0;
    for (int i = 0; i < parts; i++) {
        if (rows[i] < 0 || __builtin_add_overflow(sum, rows[i], &sum))
            return fleet_error(err, -EINVAL, "%s: %s_rows[%d] is %lld", what, name, i,
                               (long long)rows[i]);
        if (sum > tensor->shape[0])
            break;
        counts[i] = rows[i] * width;
    }
    if (sum != tensor->shape[0])
        return fleet_error(err, -EINVAL, "%s: %s_rows do not add up to %lld, the first dimension",
                           what, name, (long long)tensor->shape[0]);
    return 0;
}

int fleet_all_to_all_v(const struct fleet_tensor *out, const int64_t *out_rows,
                       const struct fleet_tensor *in, const int64_t *in_rows,
                       struct fleet_group *group, struct fleet_task **task, struct fleet_error *err)
{
    const char *what = "fleet_all_to_all_v";
    struct comm_call call;
    int64_t *counts;
    int rc = group_ready(what, group, &group, err);

    if (rc < 0)
        return rc;
    counts = calloc(2 * (size_t)group->count, sizeof(*counts));
    if (!counts)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    rc = rows_check(what, "in", in, in_rows, group->count, counts, err);
    if (rc == 0)
        rc = rows_check(what, "out", out, out_rows, group->count, counts + group->count, err);
    if (rc == 0 && in->type != out->type)
        rc = fleet_error(err, -EINVAL, "%s: in and out have different types", what);
    if (rc < 0) {
        free(counts);
        return rc;
    }
    call = call_of(COMM_ALL_TO_ALL, in, 0);
    call.send = in->data;
    call.receive = out->data;
    call.send_counts = counts;
    call.receive_counts = counts + group->count;
    return run_lists(what, group, &call, counts, task, err);
}

int fleet_barrier(struct fleet_group *group, struct fleet_error *err)
{
    const struct comm_call call = {.operation = COMM_BARRIER};
    int rc = group_ready("fleet_barrier", group, &group, err);

    return rc < 0 ? rc : run("fleet_barrier", group, &call, NULL, err);
}

/* ---- messages -------------------------------------------------------------------------------- */

static int post(const char *what, const struct fleet_p2p *list, int count,
                struct fleet_group *group, struct fleet_task **task, struct fleet_error *err)
{
    struct comm_message *messages;
    struct comm_call call = {.operation = COMM_MESSAGES, .message_count = count};
    int rc = group_ready(what, group, &group, err);

    if (rc < 0)
        return rc;
    if (!list || count < 1)
        return fleet_error(err, -EINVAL, "%s: no messages", what);
    messages = calloc((size_t)count, sizeof(*messages));
    if (!messages)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    for (int i = 0; i < count && rc == 0; i++) {
        const struct fleet_tensor *tensor = &list[i].tensor;
        rc = tensor_check(what, "tensor", tensor, &messages[i].count, err);
        if (rc == 0)
            rc = group_place(what, group, list[i].peer, &messages[i].peer, err);
        messages[i].is_receive = list[i].is_receive;
        messages[i].data = tensor->data;
        messages[i].type = (enum comm_type)tensor->type;
    }
    if (rc < 0) {
        free(messages);
        return rc;
    }
    call.messages = messages;
    return run_lists(what, group, &call, messages, task, err);
}

int fleet_send(const struct fleet_tensor *tensor, int dst, struct fleet_group *group,
               struct fleet_task **task, struct fleet_error *err)
{
    struct fleet_p2p one = {.peer = dst};

    if (!tensor)
        return fleet_error(err, -EINVAL, "fleet_send: tensor is NULL");
    one.tensor = *tensor;
    return post("fleet_send", &one, 1, group, task, err);
}

int fleet_recv(const struct fleet_tensor *tensor, int src, struct fleet_group *group,
               struct fleet_task **task, struct fleet_error *err)
{
    struct fleet_p2p one = {.is_receive = true, .peer = src};

    if (!tensor)
        return fleet_error(err, -EINVAL, "fleet_recv: tensor is NULL");
    one.tensor = *tensor;
    return post("fleet_recv", &one, 1, group, task, err);
}

int fleet_batch_p2p(const struct fleet_p2p *list, int count, struct fleet_group *group,
                    struct fleet_task **task, struct fleet_error *err)
{
    return post("fleet_batch_p2p", list, count, group, task, err);
}
