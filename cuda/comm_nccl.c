/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/comm_nccl.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/device.h"
#include "cuda/comm_work.h"
#include "cuda/graph.h"
#include "cuda/nccl_ending.h"
#include "cuda/nccl_library.h"
#include "libfleet/base/error.h"

struct comm_device {
    struct comm_work work;    /* first */
    ncclComm_t comm;          /* NULL once it is aborted */
    bool is_ready;            /* it has been made */
    bool is_ending;           /* an abort is under way, or was */
    struct comm_device *next; /* in `left` */
};

static const struct nccl_library *nccl; /* set once, by the first comm_nccl_library() */

/* Freed by the program while NCCL still ended them. */
static struct comm_device *left;
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- errors ---------------------------------------------------------------------------------- */

/* A rank that is gone, or a connection to it: a new communicator may do, and the state is kept. */
static bool is_of_others(ncclResult_t result)
{
    return result == ncclRemoteError || result == ncclSystemError;
}

static int fail(const struct comm_device *d, ncclResult_t result, const char *what,
                struct fleet_error *err)
{
    const char *more = d && d->comm ? nccl->ncclGetLastError(d->comm) : NULL;

    return fleet_error(err, is_of_others(result) ? -ECONNRESET : -EIO, "NCCL: %s: %s%s%s", what,
                       nccl->ncclGetErrorString(result), more && more[0] ? ": " : "",
                       more ? more : "");
}

static bool is_fine(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

static int ended(struct fleet_error *err)
{
    return fleet_error(err, -ECANCELED, "NCCL: the communicator was aborted");
}

/* ---- making and ending ----------------------------------------------------------------------- */

static ncclConfig_t config(void)
{
    return (ncclConfig_t){.size = sizeof(ncclConfig_t),
                          .magic = NCCL_API_MAGIC,
                          .version = NCCL_CONFIG_VERSION,
                          .blocking = 0,
                          .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
                          .minCTAs = NCCL_CONFIG_UNDEF_INT,
                          .maxCTAs = NCCL_CONFIG_UNDEF_INT,
                          .splitShare = NCCL_CONFIG_UNDEF_INT};
}

static int make_id(struct comm_device_id *out, struct fleet_error *err)
{
    ncclUniqueId id;
    ncclResult_t result = nccl->ncclGetUniqueId(&id);

    if (result != ncclSuccess)
        return fail(NULL, result, "make a unique id", err);
    memcpy(out->bytes, id.internal, sizeof(out->bytes));
    return 0;
}

static void nccl_settle(void)
{
    struct comm_device *next, *all;

    nccl_ending_wait();
    pthread_mutex_lock(&left_lock);
    all = left;
    left = NULL;
    pthread_mutex_unlock(&left_lock);
    for (struct comm_device *d = all; d; d = next) {
        next = d->next;
        comm_work_free(d);
    }
}

/* One that is still being made is part of its parent, so it ends here, before the parent. */
static void nccl_abort(struct comm_device *d)
{
    if (!d->comm)
        return;
    d->is_ending = d->is_ready && nccl_ending_start(nccl, d->comm);
    if (!d->is_ending)
        (void)nccl->ncclCommAbort(d->comm);
    d->comm = NULL;
}

static void nccl_free(struct comm_device *d)
{
    if (!d)
        return;
    if (!d->is_ending) {
        if (d->comm)
            (void)nccl->ncclCommAbort(d->comm);
        comm_work_free(d);
        return;
    }
    pthread_mutex_lock(&left_lock);
    d->next = left;
    left = d;
    pthread_mutex_unlock(&left_lock);
}

static int nccl_open(const struct comm_device_id *id, int rank, int world, struct comm_device **out,
                     struct fleet_error *err)
{
    ncclConfig_t non_blocking = config();
    ncclUniqueId unique;
    ncclResult_t result;
    int rc = comm_work_new(sizeof(**out), out, err);

    if (rc < 0)
        return rc;
    memcpy(unique.internal, id->bytes, sizeof(unique.internal));
    result = nccl->ncclCommInitRankConfig(&(*out)->comm, world, unique, rank, &non_blocking);
    if (is_fine(result))
        return 0;
    rc = fail(*out, result, "make a communicator", err);
    nccl_free(*out);
    *out = NULL;
    return rc;
}

static int nccl_split(struct comm_device *parent, int color, int key, struct comm_device **out,
                      struct fleet_error *err)
{
    bool is_in = color != COMM_DEVICE_NO_COLOR;
    ncclConfig_t non_blocking = config();
    ncclComm_t unused = NULL;
    ncclResult_t result;
    int rc = 0;

    *out = NULL;
    if (!parent->comm)
        return ended(err);
    if (is_in && (rc = comm_work_new(sizeof(**out), out, err)) < 0)
        return rc;
    result = nccl->ncclCommSplit(parent->comm, is_in ? color : NCCL_SPLIT_NOCOLOR, key,
                                 is_in ? &(*out)->comm : &unused, &non_blocking);
    if (is_fine(result))
        return 0;
    rc = fail(parent, result, "split a communicator", err);
    nccl_free(*out);
    *out = NULL;
    return rc;
}

/* ---- looking --------------------------------------------------------------------------------- */

/* 1: all calls so far have put their work into their streams. */
static int has_begun(struct comm_device *d, struct fleet_error *err)
{
    ncclResult_t state = ncclInProgress, result;

    if (!d->comm)
        return ended(err);
    result = nccl->ncclCommGetAsyncError(d->comm, &state);
    if (result != ncclSuccess)
        return fail(d, result, "look at a communicator", err);
    if (!is_fine(state))
        return fail(d, state, "a communicator", err);
    d->is_ready = d->is_ready || state == ncclSuccess;
    return state == ncclSuccess;
}

static int nccl_test(struct comm_device *d, enum comm_device_stage stage, struct fleet_error *err)
{
    int rc = has_begun(d, err);

    return rc <= 0 || stage == COMM_DEVICE_BEGUN ? rc : comm_work_has_ended(&d->work, err);
}

static enum comm_device_captures nccl_captures(void)
{
    int version = 0;

    if (nccl->ncclGetVersion(&version) != ncclSuccess || version < NCCL_CAPTURES)
        return COMM_DEVICE_CAPTURES_NONE;
    return graph_wants_communication();
}

/* ---- work ------------------------------------------------------------------------------------ */

static int nccl_exchange(struct comm_device *d, struct backend *queue,
                         const struct comm_device_part *parts, int count, struct fleet_error *err)
{
    cudaStream_t stream = comm_work_use(&d->work, queue);
    ncclResult_t result, closed;

    if (!d->comm)
        return ended(err);
    result = nccl->ncclGroupStart();
    for (int i = 0; i < count && is_fine(result); i++) {
        const struct comm_device_part *p = &parts[i];
        result = p->is_receive
                     ? nccl->ncclRecv(p->data, p->bytes, ncclUint8, p->peer, d->comm, stream)
                     : nccl->ncclSend(p->data, p->bytes, ncclUint8, p->peer, d->comm, stream);
    }
    closed = nccl->ncclGroupEnd(); /* a group that is open would swallow all later calls */
    if (is_fine(result))
        result = closed;
    return is_fine(result) ? 0 : fail(d, result, "send and receive", err);
}

/* ---- NCCL's own algorithms ------------------------------------------------------------------- */

static bool type_of(enum comm_type type, ncclDataType_t *out)
{
    static const ncclDataType_t types[COMM_TYPES] = {
        [COMM_UINT8] = ncclUint8,  [COMM_INT8] = ncclInt8,    [COMM_INT32] = ncclInt32,
        [COMM_INT64] = ncclInt64,  [COMM_FP16] = ncclFloat16, [COMM_BF16] = ncclBfloat16,
        [COMM_FP32] = ncclFloat32, [COMM_FP64] = ncclFloat64, [COMM_BOOL] = ncclUint8};

    *out = types[type];
    return type < COMM_COMPLEX64;
}

static int nccl_collective(struct comm_device *d, struct backend *queue,
                           const struct comm_call *call, struct fleet_error *err)
{
    static const ncclRedOp_t reductions[COMM_REDUCTIONS] = {[COMM_SUM] = ncclSum,
                                                            [COMM_MAX] = ncclMax,
                                                            [COMM_MIN] = ncclMin,
                                                            [COMM_PROD] = ncclProd,
                                                            [COMM_AVG] = ncclAvg};
    cudaStream_t stream;
    ncclDataType_t type;
    size_t count = (size_t)call->count;
    ncclResult_t result;

    if (!d->comm)
        return ended(err);
    if (!type_of(call->type, &type))
        return -ENOTSUP;
    stream = comm_work_use(&d->work, queue);
    if (call->operation == COMM_ALL_REDUCE)
        result = nccl->ncclAllReduce(call->send, call->receive, count, type,
                                     reductions[call->reduction], d->comm, stream);
    else if (call->operation == COMM_REDUCE_SCATTER)
        result = nccl->ncclReduceScatter(call->send, call->receive, count, type,
                                         reductions[call->reduction], d->comm, stream);
    else if (call->operation == COMM_ALL_GATHER)
        result = nccl->ncclAllGather(call->send, call->receive, count, type, d->comm, stream);
    else
        result = nccl->ncclBroadcast(call->receive, call->receive, count, type, call->root, d->comm,
                                     stream);
    return is_fine(result) ? 0 : fail(d, result, "start a collective", err);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static const struct comm_device_library library = {
    .name = "nccl",
    .make_id = make_id,
    .open = nccl_open,
    .split = nccl_split,
    .test = nccl_test,
    .scratch = comm_work_scratch,
    .exchange = nccl_exchange,
    .copy = comm_work_copy,
    .cast = comm_work_cast,
    .fold = comm_work_fold,
    .walk = comm_work_walk,
    .collective = nccl_collective,
    .captures = nccl_captures,
    .follow = comm_work_follow,
    .abort = nccl_abort,
    .settle = nccl_settle,
    .free = nccl_free,
};

int comm_nccl_library(const struct comm_device_library **out, struct fleet_error *err)
{
    static atomic_bool is_registered;
    int rc = nccl_library_open(&nccl, err);

    if (rc < 0)
        return rc;
    if (!atomic_exchange(&is_registered, true))
        (void)atexit(nccl_settle); /* NCCL's threads must not outlive the process's data */
    *out = &library;
    return 0;
}
