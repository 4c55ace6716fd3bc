/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_CPU_INTERNAL_H
#define AGENT_RUNTIME_BACKEND_CPU_CPU_INTERNAL_H

/*
 * Declarations that the kernels of the CPU back end share: threads, buffers for packed matrices,
 * and one table of kernels per instruction-set level (`enum fleet_isa`).
 *
 * A kernel cuts its work by shape into tasks and gives them to cpu_parallel(). Only one kernel of a
 * back end runs at a time, so it may use all buffers. backend_vtable's add, narrow and widen use
 * neither threads nor buffers, so any thread may call them.
 */

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/backend/cpu/thread_pool.h"
#include "libfleet/plan/runtime_memory.h"

/* Packed blocks of one matrix product, gemm.h. */
#define CPU_PACKED_A_BYTES RUNTIME_PACKED_A_BYTES
#define CPU_PACKED_B_BYTES RUNTIME_PACKED_B_BYTES

/* Working memory of one thread: tiles of attention. */
#define CPU_THREAD_BYTES RUNTIME_THREAD_BYTES

struct cpu_backend;

/* The kernels of one instruction-set level. backend.h describes add, narrow and widen. */
struct cpu_kernels {
    kernel_fn of[OP_KIND_COUNT]; /* by kind of operator; NULL: no kernel */
    void (*add)(float *accumulator, const float *addend, int64_t count);
    void (*narrow)(uint16_t *halves, const float *from, float scale, int64_t count);
    void (*widen)(float *to, const uint16_t *halves, float scale, int64_t count);
};

extern const struct cpu_kernels cpu_kernels_plain;
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
extern const struct cpu_kernels cpu_kernels_avx512bf16;

struct cpu_backend {
    struct backend base;
    enum fleet_isa level;
    const struct cpu_kernels *kernels;
    struct thread_pool *pool;
    int threads;               /* of `pool` */
    void *packed_a, *packed_b; /* CPU_PACKED_…_BYTES, 64-byte aligned */
    char *thread_buffers;      /* CPU_THREAD_BYTES for each thread */
    int clearing_threads;      /* threads that clear new memory; 0 = the caller does */
};

/* A cast: kernels in this folder are called with a struct cpu_backend only. */
static inline struct cpu_backend *cpu_backend(struct backend *backend)
{
    return (struct cpu_backend *)backend;
}

/* Run task(context, 0 … count-1, thread), see thread_pool.h. */
static inline void cpu_parallel(struct cpu_backend *cpu, int64_t count, thread_pool_task task,
                                void *context)
{
    thread_pool_run(cpu->pool, count, task, context);
}

/* The working memory of the thread that runs a task: CPU_THREAD_BYTES. `thread` is the number that
 * the task was called with. */
static inline void *cpu_thread_buffer(const struct cpu_backend *cpu, int thread)
{
    return cpu->thread_buffers + (size_t)thread * CPU_THREAD_BYTES;
}

#endif
