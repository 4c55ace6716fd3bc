/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_BACKEND_CUDA_INTERNAL_H
#define CUDA_BACKEND_CUDA_INTERNAL_H

/*
 * What the files of backend_cuda.h share, for them alone: the handle, and the functions of the
 * back end's table (agent/runtime/backend/backend.h) that are not in backend_cuda.c.
 */

#include "agent/runtime/backend/backend.h"
#include "cuda/device.h"

struct handle {
    struct backend base;
    struct cuda_device *device;
    cudaStream_t stream;
    struct handle *second; /* of the other queue; NULL in that handle itself */
    struct handle *aside;  /* of copies beside the queues; NULL in the other two */
};

static inline struct handle *handle_of(struct backend *backend)
{
    return (struct handle *)backend;
}

/* ---- backend_cuda_memory.c ------------------------------------------------------------------- */

void *cuda_allocate(struct backend *backend, size_t bytes, struct fleet_error *err);
void cuda_deallocate(struct backend *backend, void *memory);
void *cuda_allocate_host(struct backend *backend, size_t bytes, struct fleet_error *err);
void cuda_deallocate_host(struct backend *backend, void *memory);
void cuda_copy_in(struct backend *backend, void *device, const void *host, size_t bytes);
void cuda_copy_out(struct backend *backend, void *host, const void *device, size_t bytes);
void cuda_copy_out_later(struct backend *backend, void *host, const void *device, size_t bytes);
int cuda_copy_aside(struct backend *backend, void *host, const void *device, size_t bytes,
                    struct fleet_error *err);
void cuda_clear(struct backend *backend, void *device, size_t bytes);
void *cuda_map(struct backend *backend, void *device, size_t bytes, enum backend_access access);
void cuda_unmap(struct backend *backend, void *device, size_t bytes, enum backend_access access,
                void *host);
void cuda_add(struct backend *backend, float *accumulator, const float *addend, int64_t count);
void cuda_narrow(struct backend *backend, uint16_t *halves, const float *from, float scale,
                 int64_t count);
void cuda_widen(struct backend *backend, float *to, const uint16_t *halves, float scale,
                int64_t count);

/* ---- backend_cuda_operators.c ---------------------------------------------------------------- */

int cuda_prepare(struct backend *backend, const struct program *program,
                 const struct program_op *op, struct fleet_error *err);
kernel_fn cuda_kernel(struct backend *backend, enum op_kind kind);

/* Write what differs from run to run, once for all kernels of the run; for a graph before its
 * launch. */
cudaError_t cuda_bring_scalars(struct handle *h, const struct run_scalars *s);

#endif
