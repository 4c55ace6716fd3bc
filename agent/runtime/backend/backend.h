/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_BACKEND_H
#define AGENT_RUNTIME_BACKEND_BACKEND_H

/*
 * A back end: memory and a table of kernels, one per kind of operator. cpu/ computes; guard/ is
 * cpu/ over memory that the host cannot touch (registry.h names them).
 *
 * Memory of the device is written and read by kernels, by copy_in, copy_out and clear, and through
 * backend_map(). Every other access is a defect: on a GPU it would crash, under guard/ it does.
 *
 * Determinism: at one instruction-set level the bits of a kernel's result depend only on its
 * operands: not on the number of threads, not on addresses, not on earlier work. Reductions use a
 * fixed number of virtual lanes, and blocks that depend only on the shape.
 *
 * Headers that CUDA sources include stay valid C++.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/program/program.h"

struct fleet_error;
struct backend;

/* The messages that dgc sends and has received (libfleet/program/dgc.h). */
struct run_messages {
    double ratio;  /* the share of elements that is sent; 0 = dense phase */
    int ranks;     /* number of ranks that exchange; 0 counts as 1 */
    int rank;      /* our own place among them */
    int64_t words; /* of a rank's message */
    uint32_t *all; /* [ranks][words], host memory for kernels; NULL in the dense phase */
};

/* The values that change from run to run; everything else is in the operator. */
struct run_scalars {
    uint64_t seed;         /* of the job */
    int64_t step;          /* batch, from 0 */
    int64_t first_sample;  /* index of the micro-batch's first sample within the step */
    double gradient_scale; /* factor for the tree's sum: 1 / leaves */
    double learning_rate;  /* of this update */
    int64_t update_1based; /* number of the update, for bias corrections; >= 1 */
    bool absent;           /* this rank has no micro-batch; it communicates zeros */
    bool evaluation;       /* of held-out data: batch_norm uses its running statistics and leaves no
                              new ones, dropout copies */
    struct run_messages messages;
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

/* The access of the host to memory that it maps. */
enum backend_access {
    BACKEND_READ,
    BACKEND_WRITE,  /* writes all of it, without reading its content */
    BACKEND_CHANGE, /* reads and writes */
};

struct backend_vtable {
    const char *name; /* "cpu", "guard", "cuda" */

    /* 64-byte aligned zeroed memory of the device; NULL and *err if there is none. */
    void *(*allocate)(struct backend *backend, size_t bytes, struct fleet_error *err);
    void (*deallocate)(struct backend *backend, void *memory);

    /* The same for memory of the host, which kernels and transports can also read and write. */
    void *(*allocate_host)(struct backend *backend, size_t bytes, struct fleet_error *err);
    void (*deallocate_host)(struct backend *backend, void *memory);

    /* The kernel of a kind, or NULL if this back end has none (EXCHANGE operators). */
    kernel_fn (*kernel)(struct backend *backend, enum op_kind kind);

    /* accumulator[i] += addend[i], fp32: the only arithmetic of the summation tree. */
    void (*add)(struct backend *backend, float *accumulator, const float *addend, int64_t count);

    /* Conversions for sending in fp16: halves[i] = scale · from[i], rounded to the nearest, ties to
     * even; and back: to[i] = scale · halves[i]. `halves` is host memory, the other device memory.
     */
    void (*narrow)(struct backend *backend, uint16_t *halves, const float *from, float scale,
                   int64_t count);
    void (*widen)(struct backend *backend, float *to, const uint16_t *halves, float scale,
                  int64_t count);

    /* Copies between host and device; memcpy on the CPU. */
    void (*copy_in)(struct backend *backend, void *device, const void *host, size_t bytes);
    void (*copy_out)(struct backend *backend, void *host, const void *device, size_t bytes);

    /* Fill with zeros. */
    void (*clear)(struct backend *backend, void *device, size_t bytes);

    /* backend_map() and backend_unmap(). */
    void *(*map)(struct backend *backend, void *device, size_t bytes, enum backend_access access);
    void (*unmap)(struct backend *backend, void *device, size_t bytes, enum backend_access access,
                  void *host);

    void (*free)(struct backend *backend);
};

struct backend {
    const struct backend_vtable *vtable;
};

/* Free the back end. All its memory must be deallocated before. NULL is fine. */
static inline void backend_free(struct backend *backend)
{
    if (backend)
        backend->vtable->free(backend);
}

/*
 * Host memory that stands for device[0 … bytes) until it is unmapped with the same arguments. It is
 * the memory itself if the host can access it; else it is a copy, and unmap copies it back if it
 * was written. No kernel may use the range meanwhile. Any thread may call, and several ranges may
 * be mapped at once. Without a back end (NULL) the memory is the host's own.
 */
static inline void *backend_map(struct backend *backend, void *device, size_t bytes,
                                enum backend_access access)
{
    return backend ? backend->vtable->map(backend, device, bytes, access) : device;
}

static inline void backend_unmap(struct backend *backend, void *device, size_t bytes,
                                 enum backend_access access, void *host)
{
    if (backend)
        backend->vtable->unmap(backend, device, bytes, access, host);
}

#endif
