/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/comm_work.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/backend_cuda.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

_Static_assert(COMM_DEVICE_WALK_NODES <= FLEET_CUDA_TREE_NODES &&
                   COMM_DEVICE_WALK_DEPTH <= FLEET_CUDA_TREE_DEPTH,
               "the kernel makes each walk");

/* Those before the newest one are kept for graphs. */
struct comm_scratch {
    struct comm_scratch *older;
    void *memory;
    size_t bytes;
};

/* It is the first member. */
static struct comm_work *work_of(struct comm_device *device)
{
    return (struct comm_work *)device;
}

static int open_work(struct comm_work *work, struct fleet_error *err)
{
    cudaError_t status;
    int rc = device_open(&work->device, err);

    if (rc < 0)
        return rc;
    status = cudaEventCreateWithFlags(&work->done, cudaEventDisableTiming);
    if (status == cudaSuccess)
        return 0;
    rc = device_fail(work->device, status, "make an event", err);
    device_close(work->device);
    return rc;
}

int comm_work_new(size_t bytes, struct comm_device **out, struct fleet_error *err)
{
    struct comm_device *made = calloc(1, bytes);
    int rc;

    fleet_assert(made != NULL);
    rc = open_work(work_of(made), err);
    if (rc < 0)
        free(made);
    else
        *out = made;
    return rc;
}

static void free_scratch(struct comm_work *work)
{
    while (work->scratch) {
        struct comm_scratch *older = work->scratch->older;
        (void)cudaFree(work->scratch->memory); /* waits for what still uses it */
        free(work->scratch);
        work->scratch = older;
    }
}

void comm_work_free(struct comm_device *device)
{
    struct comm_work *work = work_of(device);

    (void)cudaEventDestroy(work->done);
    free_scratch(work);
    device_close(work->device);
    free(device);
}

cudaStream_t comm_work_use(struct comm_work *work, struct backend *queue)
{
    work->stream = cuda_backend_stream(queue);
    work->is_recorded = false;
    work->is_captured |= work->device->is_capturing;
    return work->stream;
}

int comm_work_has_ended(struct comm_work *work, struct fleet_error *err)
{
    cudaError_t status = cudaSuccess;

    if (!work->stream)
        return 1;
    if (!work->is_recorded)
        status = cudaEventRecord(work->done, work->stream);
    work->is_recorded = status == cudaSuccess;
    if (status == cudaSuccess)
        status = cudaEventQuery(work->done);
    if (status == cudaErrorNotReady)
        return 0;
    return status == cudaSuccess ? 1 : device_fail(work->device, status, "look at an event", err);
}

void comm_work_follow(struct comm_device *device, struct backend *queue)
{
    (void)comm_work_use(work_of(device), queue);
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *comm_work_scratch(struct comm_device *device, size_t bytes, struct fleet_error *err)
{
    struct comm_work *work = work_of(device);
    struct comm_scratch *made;
    void *memory;

    if (work->scratch && bytes <= work->scratch->bytes)
        return work->scratch->memory;
    if (!work->is_captured)
        free_scratch(work);
    if (device_allocate(work->device, work->device->streams[DEVICE_QUEUES - 1], bytes, &memory,
                        err) < 0)
        return NULL;
    if (cudaStreamSynchronize(work->device->streams[DEVICE_QUEUES - 1]) != cudaSuccess) {
        (void)cudaFree(memory);
        (void)fleet_error(err, -EIO, "GPU: wait for new memory");
        return NULL;
    }
    made = malloc(sizeof(*made));
    fleet_assert(made != NULL);
    *made = (struct comm_scratch){work->scratch, memory, bytes};
    work->scratch = made;
    return memory;
}

/* ---- into a queue ---------------------------------------------------------------------------- */

static int check(struct comm_work *work, cudaError_t status, const char *what,
                 struct fleet_error *err)
{
    return status == cudaSuccess ? 0 : device_fail(work->device, status, what, err);
}

int comm_work_copy(struct comm_device *device, struct backend *queue, void *to, const void *from,
                   size_t bytes, struct fleet_error *err)
{
    return check(work_of(device),
                 cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                 comm_work_use(work_of(device), queue)),
                 "copy", err);
}

int comm_work_cast(struct comm_device *device, struct backend *queue,
                   const struct comm_device_cast *cast, struct fleet_error *err)
{
    static const enum program_type types[COMM_TYPES] = {
        [COMM_FP32] = PROGRAM_FP32, [COMM_FP16] = PROGRAM_FP16, [COMM_BF16] = PROGRAM_BF16};

    return check(work_of(device),
                 fleet_cuda_convert(comm_work_use(work_of(device), queue), cast->to,
                                    types[cast->to_type], cast->from, types[cast->from_type],
                                    cast->scale, cast->count),
                 "convert", err);
}

int comm_work_fold(struct comm_device *device, struct backend *queue,
                   const struct comm_device_fold *fold, struct fleet_error *err)
{
    const struct fleet_cuda_fold f = {.type = (int)fold->type,
                                      .reduction = (int)fold->reduction,
                                      .inputs = fold->inputs,
                                      .own_input = fold->own_input,
                                      .stride = fold->stride,
                                      .own = fold->own,
                                      .input_count = fold->input_count,
                                      .count = fold->count,
                                      .to = fold->to};

    return check(work_of(device), fleet_cuda_fold(comm_work_use(work_of(device), queue), &f),
                 "add the parts of the ranks", err);
}

int comm_work_walk(struct comm_device *device, struct backend *queue,
                   const struct comm_device_walk *walk, struct fleet_error *err)
{
    struct fleet_cuda_tree_sum t = {
        .walk_count = walk->walk_count, .to = walk->to, .count = walk->count};

    if (walk->node_count > FLEET_CUDA_TREE_NODES)
        return fleet_error(err, -ENOTSUP, "the ranks have %d partial sums, a GPU adds at most %d",
                           walk->node_count, FLEET_CUDA_TREE_NODES);
    memcpy(t.nodes, walk->nodes, (size_t)walk->node_count * sizeof(*t.nodes));
    for (int w = 0; w < walk->walk_count; w++)
        t.walk[w] = (int16_t)walk->walk[w];
    return check(work_of(device), fleet_cuda_tree_sum(comm_work_use(work_of(device), queue), &t),
                 "add partial sums", err);
}
