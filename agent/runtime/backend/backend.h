/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_BACKEND_H
#define AGENT_RUNTIME_BACKEND_BACKEND_H

/*
 * A back end: memory and a table of kernels, one per kind of operator. cpu/ is the one there is.
 *
 * Determinism (design.md 9): for one instruction-set level a kernel's bits depend on its operands
 * alone: not on the number of threads, not on addresses, not on what ran before. Reductions use a
 * fixed number of virtual lanes and blocks cut by shape.
 *
 * Headers that CUDA sources include stay valid C++.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/program/program.h"

struct fleet_error;
struct backend;

/* What changes from run to run; everything else is in the operator. */
struct run_scalars {
    uint64_t seed;         /* of the job */
    int64_t step;          /* batch, from 0 */
    int64_t first_sample;  /* index of the micro-batch's first sample within the step */
    double gradient_scale; /* what the tree's sum is multiplied by: 1 / leaves */
    double learning_rate;  /* of this update */
    int64_t update_1based; /* number of the update, for bias corrections; >= 1 */
    bool evaluation;       /* of held-out data: batch_norm uses its running statistics and leaves no
                              new ones, dropout copies */
};

/* One operator to run. Absent operands are NULL. */
struct kernel_call {
    const struct program *program;
    const struct program_op *op;
    const void *in[OP_INPUTS_MAX];
    void *out[OP_OUTPUTS_MAX]; /* UPDATE operators: out[i] == in[i] of param and states */
    void *scratch; /* op_cost's scratch_bytes, 64-byte aligned; shared by all operators */
    const struct run_scalars *scalars;
};

typedef int (*kernel_fn)(struct backend *backend, const struct kernel_call *call,
                         struct fleet_error *err);

struct backend_vtable {
    const char *name; /* "cpu", "cuda" */

    /* 64-byte aligned zeroed memory of the device; NULL and *err when there is none. */
    void *(*allocate)(struct backend *backend, size_t bytes, struct fleet_error *err);
    void (*deallocate)(struct backend *backend, void *memory);

    /* The kernel of a kind, or NULL if this back end has none (EXCHANGE operators). */
    kernel_fn (*kernel)(struct backend *backend, enum op_kind kind);

    /* accumulator[i] += addend[i], fp32: the only arithmetic of the summation tree. */
    void (*add)(struct backend *backend, float *accumulator, const float *addend, int64_t count);

    /* Copies between host and device; memcpy on the CPU. */
    void (*copy_in)(struct backend *backend, void *device, const void *host, size_t bytes);
    void (*copy_out)(struct backend *backend, void *host, const void *device, size_t bytes);

    void (*free)(struct backend *backend);
};

struct backend {
    const struct backend_vtable *vtable;
};

/* All its memory must have been given back. NULL is fine. */
static inline void backend_free(struct backend *backend)
{
    if (backend)
        backend->vtable->free(backend);
}

#endif
