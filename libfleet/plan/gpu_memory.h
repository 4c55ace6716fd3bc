/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_GPU_MEMORY_H
#define LIBFLEET_PLAN_GPU_MEMORY_H

/*
 * The memory of a rank that trains on a GPU. The back end (cuda/) allocates all of it before or
 * in the first step.
 *
 * Not counted: what CUDA's context, its graphs and NCCL allocate for themselves.
 */

#include "libfleet/plan/plan.h"

struct gpu_memory {
    size_t bytes[PLAN_BYTES_COUNT]; /* of the GPU, by kind; HOST is 0 */
    size_t host;                    /* of the host: pinned, and touched before the first step */
};

/* Of the rank that needs most. `plan` has a program. With cuBLASLt. More than one rank exchange by
 * NCCL, or through memory that they share (plan_request.shares_gpus). */
void gpu_memory_plan(const struct plan *plan, struct gpu_memory *out);

/* The sum of out->bytes. */
size_t gpu_memory_total(const struct gpu_memory *memory);

#endif
