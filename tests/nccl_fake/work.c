/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What runs in a stream. A send makes a file and ends when its receiver has removed it. A rank of a
 * collective makes a file of its input, and waits for the files of all. It removes the file of the
 * collective before the last one: all ranks have read that, since they have begun the last one.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/nccl_fake/fake_nccl.h"

struct launch {
    struct ncclComm *comm;
    struct work *list;
};

size_t work_type_size(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclFloat32:
        return 4;
    default:
        return 8;
    }
}

void work_free(struct work *list)
{
    while (list) {
        struct work *next = list->next;
        free(list);
        list = next;
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static void message_path(const struct work *w, char path[PATH_SIZE])
{
    int from = w->kind == WORK_SEND ? w->comm->rank : w->peer;
    int to = w->kind == WORK_SEND ? w->peer : w->comm->rank;

    meeting_path(w->comm, path, "m-%d-%d-%llu", from, to, (unsigned long long)w->number);
}

static void advance_message(struct work *w)
{
    char path[PATH_SIZE];

    message_path(w, path);
    if (w->kind == WORK_RECEIVE) {
        w->is_done = meeting_read(path, w->receive, w->count);
        if (w->is_done)
            (void)unlink(path);
    } else if (!w->is_published) {
        meeting_publish(path, w->send, w->count);
        w->is_published = true;
    } else {
        w->is_done = !meeting_exists(path);
    }
}

/* ---- collectives ----------------------------------------------------------------------------- */

static double get(const void *data, ncclDataType_t type, size_t i)
{
    uint32_t bits;
    float single;

    switch (type) {
    case ncclInt8:
        return ((const int8_t *)data)[i];
    case ncclUint8:
        return ((const uint8_t *)data)[i];
    case ncclInt32:
        return ((const int32_t *)data)[i];
    case ncclInt64:
        return (double)((const int64_t *)data)[i];
    case ncclFloat16:
        return (double)((const _Float16 *)data)[i];
    case ncclBfloat16:
        bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        memcpy(&single, &bits, sizeof(single));
        return single;
    case ncclFloat32:
        return ((const float *)data)[i];
    default:
        return ((const double *)data)[i];
    }
}

static void set(void *data, ncclDataType_t type, size_t i, double x)
{
    float single = (float)x;
    uint32_t bits;

    switch (type) {
    case ncclInt8:
        ((int8_t *)data)[i] = (int8_t)x;
        return;
    case ncclUint8:
        ((uint8_t *)data)[i] = (uint8_t)x;
        return;
    case ncclInt32:
        ((int32_t *)data)[i] = (int32_t)x;
        return;
    case ncclInt64:
        ((int64_t *)data)[i] = (int64_t)x;
        return;
    case ncclFloat16:
        ((_Float16 *)data)[i] = (_Float16)single;
        return;
    case ncclBfloat16:
        memcpy(&bits, &single, sizeof(bits));
        ((uint16_t *)data)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        return;
    case ncclFloat32:
        ((float *)data)[i] = single;
        return;
    default:
        ((double *)data)[i] = x;
        return;
    }
}

/* The last rank comes first: no program may rely on the order. */
static void reduce(const struct work *w, char *const *inputs, size_t first)
{
    int ranks = w->comm->ranks;

    for (size_t i = 0; i < w->count; i++) {
        double sum = get(inputs[ranks - 1], w->type, first + i);
        for (int r = ranks - 2; r >= 0; r--) {
            double x = get(inputs[r], w->type, first + i);
            if (w->reduction == ncclMax)
                sum = x > sum ? x : sum;
            else if (w->reduction == ncclMin)
                sum = x < sum ? x : sum;
            else if (w->reduction == ncclProd)
                sum *= x;
            else
                sum += x;
            if (w->type == ncclFloat32) /* each addition rounds */
                sum = (float)sum;
        }
        set(w->receive, w->type, i, w->reduction == ncclAvg ? sum / ranks : sum);
    }
}

static void collective_path(const struct work *w, char path[PATH_SIZE], int rank, uint64_t number)
{
    meeting_path(w->comm, path, "c-%llu-%d", (unsigned long long)number, rank);
}

static size_t input_bytes(const struct work *w)
{
    return w->count * w->size *
           (w->collective == REDUCE_SCATTER ? (size_t)w->comm->ranks : (size_t)1);
}

static bool have_all(const struct work *w)
{
    char path[PATH_SIZE];

    for (int r = 0; r < w->comm->ranks; r++) {
        collective_path(w, path, r, w->number);
        if (!meeting_exists(path))
            return false;
    }
    return true;
}

static void finish(struct work *w)
{
    int ranks = w->comm->ranks;
    size_t bytes = input_bytes(w);
    char *inputs[RANKS_MAX];
    char path[PATH_SIZE];

    for (int r = 0; r < ranks; r++) {
        inputs[r] = malloc(bytes + 1);
        collective_path(w, path, r, w->number);
        if (!meeting_read(path, inputs[r], bytes))
            fake_nccl_die("%s is gone", path);
    }
    if (w->collective == BROADCAST)
        memcpy(w->receive, inputs[w->root], bytes);
    else if (w->collective != ALL_GATHER)
        reduce(w, inputs, w->collective == REDUCE_SCATTER ? (size_t)w->comm->rank * w->count : 0);
    for (int r = 0; r < ranks; r++) {
        if (w->collective == ALL_GATHER)
            memcpy((char *)w->receive + (size_t)r * bytes, inputs[r], bytes);
        free(inputs[r]);
    }
    w->is_done = true;
}

static void advance_collective(struct work *w)
{
    char path[PATH_SIZE];

    if (!w->is_published) {
        if (w->number > 1) {
            collective_path(w, path, w->comm->rank, w->number - 2);
            (void)unlink(path);
        }
        collective_path(w, path, w->comm->rank, w->number);
        meeting_publish(path, w->send, input_bytes(w));
        w->is_published = true;
    } else if (have_all(w)) {
        finish(w);
    }
}

/* ---- in the stream --------------------------------------------------------------------------- */

static void drop(struct launch *launch)
{
    struct ncclComm *comm = launch->comm;

    work_free(launch->list);
    free(launch);
    fake_nccl_drop(comm);
}

/* True: all have ended, or the communicator was aborted. */
static bool advance(void *context)
{
    struct launch *launch = context;
    bool are_done = true, is_aborted = fake_nccl_is_aborted(launch->comm);

    for (struct work *w = launch->list; w && !is_aborted; w = w->next) {
        if (!w->is_done && w->kind == WORK_COLLECTIVE)
            advance_collective(w);
        else if (!w->is_done)
            advance_message(w);
        are_done &= w->is_done;
    }
    if (!are_done && !is_aborted)
        return false;
    drop(launch);
    return true;
}

/* ---- in a graph ------------------------------------------------------------------------------ */

/* A launch of the graph takes the next numbers, as if the operations were put now. */
static void *again(void *context)
{
    const struct launch *captured = context;
    struct launch *launch = calloc(1, sizeof(*launch));
    struct work **end;

    if (!launch)
        fake_nccl_die("no memory");
    launch->comm = captured->comm;
    end = &launch->list;
    for (const struct work *from = captured->list; from; from = from->next) {
        struct work *w = malloc(sizeof(*w));
        if (!w)
            fake_nccl_die("no memory");
        *w = *from;
        w->next = NULL;
        *end = w;
        end = &w->next;
    }
    fake_nccl_launch_again(launch->comm, launch->list);
    return launch;
}

static void drop_captured(void *context)
{
    struct launch *launch = context;

    fake_nccl_leave_graph(launch->comm);
    drop(launch);
}

void work_launch(struct ncclComm *comm, struct work *list)
{
    static const struct external_work work = {advance, again, drop_captured};
    struct launch *launch = calloc(1, sizeof(*launch));
    struct external_stream *stream = (struct external_stream *)(void *)list->stream;

    if (!launch)
        fake_nccl_die("no memory");
    *launch = (struct launch){comm, list};
    if (stream->is_captured(list->stream))
        fake_nccl_join_graph(comm, list);
    stream->put(list->stream, &work, launch);
}
