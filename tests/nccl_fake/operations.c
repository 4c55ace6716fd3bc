/* SPDX-License-Identifier: Apache-2.0 */

/* Groups and the operations in them. An operation outside of a group is a group of its own. */
#include <stdlib.h>

#include "tests/nccl_fake/fake_nccl.h"

static _Thread_local int depth; /* of groups */
static _Thread_local struct work *group, **group_end;

ncclResult_t ncclGroupStart(void)
{
    ncclResult_t result;

    pthread_mutex_lock(&fake_nccl_lock);
    result = fake_nccl_call(__func__);
    pthread_mutex_unlock(&fake_nccl_lock);
    if (depth++ == 0) {
        group = NULL;
        group_end = &group;
    }
    return result;
}

/* The lock is held. The group waits until its communicator is polled. */
static ncclResult_t close_group(void)
{
    struct work *list = group;

    group = NULL;
    if (!list)
        return ncclSuccess;
    list->comm->waiting = list;
    return fake_nccl_later(list->comm);
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result;

    pthread_mutex_lock(&fake_nccl_lock);
    if (depth == 0)
        fake_nccl_die("ncclGroupEnd without a start");
    result = fake_nccl_call(__func__);
    depth--;
    if (depth == 0 && result != ncclSuccess) {
        work_free(group);
        group = NULL;
    } else if (depth == 0) {
        result = close_group();
    }
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

/* One operation, into the open group or a group of its own. */
static ncclResult_t put(const struct work *work, const char *name)
{
    struct work *w = malloc(sizeof(*w));
    struct ncclComm *comm = work->comm;
    ncclResult_t result;

    if (!w)
        fake_nccl_die("no memory");
    *w = *work;
    pthread_mutex_lock(&fake_nccl_lock);
    fake_nccl_expect_quiet(comm, name);
    if (group && depth > 0 && (group->comm != comm || group->stream != w->stream))
        fake_nccl_die("a group of two communicators or streams");
    result = fake_nccl_call(name);
    if (result != ncclSuccess) {
        free(w);
    } else {
        w->number = fake_nccl_number(comm, w);
        if (depth == 0) {
            group = NULL;
            group_end = &group;
        }
        *group_end = w;
        group_end = &w->next;
        if (depth == 0)
            result = close_group();
    }
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return put(&(struct work){.kind = WORK_SEND,
                              .comm = comm,
                              .stream = stream,
                              .peer = peer,
                              .send = data,
                              .count = count * work_type_size(type)},
               "ncclSend");
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return put(&(struct work){.kind = WORK_RECEIVE,
                              .comm = comm,
                              .stream = stream,
                              .peer = peer,
                              .receive = data,
                              .count = count * work_type_size(type)},
               "ncclRecv");
}

/* A collective; `work` has what its kind needs beside the buffers. */
static ncclResult_t put_collective(enum collective collective, const void *send, void *receive,
                                   size_t count, ncclDataType_t type, struct work work)
{
    static const char *const names[] = {
        [ALL_REDUCE] = "ncclAllReduce",
        [REDUCE_SCATTER] = "ncclReduceScatter",
        [ALL_GATHER] = "ncclAllGather",
        [BROADCAST] = "ncclBroadcast",
    };

    work.kind = WORK_COLLECTIVE;
    work.collective = collective;
    work.send = send;
    work.receive = receive;
    work.count = count;
    work.type = type;
    work.size = work_type_size(type);
    return put(&work, names[collective]);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
    return put_collective(ALL_REDUCE, send, receive, count, type,
                          (struct work){.comm = comm, .stream = stream, .reduction = reduction});
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
    return put_collective(REDUCE_SCATTER, send, receive, count, type,
                          (struct work){.comm = comm, .stream = stream, .reduction = reduction});
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return put_collective(ALL_GATHER, send, receive, count, type,
                          (struct work){.comm = comm, .stream = stream});
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return put_collective(BROADCAST, send, receive, count, type,
                          (struct work){.comm = comm, .stream = stream, .root = root});
}
