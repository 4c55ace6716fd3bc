/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_BACKEND_H
#define AGENT_RUNTIME_BACKEND_BACKEND_H

/*
 * A back end: memory and a table of kernels, one per kind of operator. cpu/ computes; guard/ is
 * cpu/ over memory that the host cannot touch; cuda/ opens the library of the GPU's back end
 * (registry.h names them).
 *
 * Memory of the device is written and read by kernels, by copy_in, copy_out and clear, and through
 * backend_map(). Every other access is a defect: on a GPU it would crash, under guard/ it does.
 *
 * Queues: the slots of the CPU have ended when they return. On a GPU a slot puts work into a queue
 * and returns at once; only copy_out, narrow, widen, map, and unmap after a write wait, because the
 * host uses their result or their memory next. A handle belongs to one of two queues, and
 * backend_second() gives the handle of the other. The order between the two follows from events.
 *
 * A device that fails cannot be used again by its process. Slots that can fail return -EIO then.
 * The others end the process with a message, because their caller would go on with wrong values.
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
struct backend_event;
struct backend_graph;

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

/* The gradients that a rank holds, one behind the other. */
struct kernel_held {
    int64_t count;         /* elements */
    const int64_t *places; /* [vars] the first element of a gradient, or -1: not held */
};

/* One operator to run. Absent operands are NULL. */
struct kernel_call {
    const struct program *program;
    const struct program_op *op;
    const void *in[OP_INPUTS_MAX];
    void *out[OP_OUTPUTS_MAX]; /* UPDATE operators: out[i] == in[i] of param and states */
    void *scratch; /* op_cost's scratch_bytes, 64-byte aligned; shared by all operators */
    const struct run_scalars *scalars;
    const struct kernel_held *held; /* operators with `owned`: where in[0] has gradients */
};

typedef int (*kernel_fn)(struct backend *backend, const struct kernel_call *call,
                         struct fleet_error *err);

/* The access of the host to memory that it maps. */
enum backend_access {
    BACKEND_READ,
    BACKEND_WRITE,  /* writes all of it, without reading its content */
    BACKEND_FEED,   /* the same, for work of this handle's queue alone */
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

    /* A copy to memory of allocate_host, which has the bytes after finish(). NULL: copy_out. */
    void (*copy_out_later)(struct backend *backend, void *host, const void *device, size_t bytes);

    /* Fill with zeros. */
    void (*clear)(struct backend *backend, void *device, size_t bytes);

    /* backend_map() and backend_unmap(). */
    void *(*map)(struct backend *backend, void *device, size_t bytes, enum backend_access access);
    void (*unmap)(struct backend *backend, void *device, size_t bytes, enum backend_access access,
                  void *host);

    /* The inline functions below; all NULL: everything has ended when its slot returns, and every
     * operator with a kernel can run. */
    int (*prepare)(struct backend *backend, const struct program *program,
                   const struct program_op *op, struct fleet_error *err);
    struct backend *(*second)(struct backend *backend);
    int (*event_new)(struct backend *backend, struct backend_event **out, struct fleet_error *err);
    void (*event_free)(struct backend *backend, struct backend_event *event);
    int (*record)(struct backend *backend, struct backend_event *event, struct fleet_error *err);
    int (*await)(struct backend *backend, struct backend_event *event, struct fleet_error *err);
    int (*finish)(struct backend *backend, struct fleet_error *err);
    int (*wait)(struct backend *backend, struct fleet_error *err);

    /* The inline functions below; all NULL: no copy runs beside the two queues. */
    struct backend *(*aside)(struct backend *backend);
    int (*copy_aside)(struct backend *backend, void *host, const void *device, size_t bytes,
                      struct fleet_error *err);
    int (*event_wait)(struct backend *backend, struct backend_event *event,
                      struct fleet_error *err);

    /* The inline functions below; all NULL: nothing can be captured. */
    bool (*captures)(struct backend *backend);
    int (*capture_begin)(struct backend *backend, struct fleet_error *err);
    int (*capture_end)(struct backend *backend, struct backend_graph **out,
                       struct fleet_error *err);
    int (*replay)(struct backend *backend, struct backend_graph *graph,
                  const struct run_scalars *scalars, struct fleet_error *err);
    void (*graph_free)(struct backend *backend, struct backend_graph *graph);

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
 * was written. After BACKEND_FEED that copy is work of the handle's queue. No kernel may use the
 * range meanwhile. Any thread may call, and several ranges may
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

/* Bytes for the host, which has them after backend_finish(). `host` is memory of allocate_host. */
static inline void backend_copy_out_later(struct backend *backend, void *host, const void *device,
                                          size_t bytes)
{
    const struct backend_vtable *v = backend->vtable;

    (v->copy_out_later ? v->copy_out_later : v->copy_out)(backend, host, device, bytes);
}

/*
 * Say before the first step that `op` will run: the back end allocates what its kernel needs beside
 * the operands. -ENOTSUP: the kernel does not have these types or sizes. -ENOMEM.
 */
static inline int backend_prepare(struct backend *backend, const struct program *program,
                                  const struct program_op *op, struct fleet_error *err)
{
    return backend->vtable->prepare ? backend->vtable->prepare(backend, program, op, err) : 0;
}

/* The handle of the second queue, for one other thread; freed with `backend`. */
static inline struct backend *backend_second(struct backend *backend)
{
    return backend->vtable->second ? backend->vtable->second(backend) : backend;
}

/* An event. 0 with *out = NULL where there are no queues; the others do nothing for NULL. -EIO,
 * -ENOMEM. */
static inline int backend_event_new(struct backend *backend, struct backend_event **out,
                                    struct fleet_error *err)
{
    *out = NULL;
    return backend->vtable->event_new ? backend->vtable->event_new(backend, out, err) : 0;
}

static inline void backend_event_free(struct backend *backend, struct backend_event *event)
{
    if (event)
        backend->vtable->event_free(backend, event);
}

/* The event happens when all that is in this handle's queue now has ended. -EIO. */
static inline int backend_record(struct backend *backend, struct backend_event *event,
                                 struct fleet_error *err)
{
    return event ? backend->vtable->record(backend, event, err) : 0;
}

/* What is put into this handle's queue from now on starts after the event's newest record. The host
 * does not wait. -EIO. */
static inline int backend_await(struct backend *backend, struct backend_event *event,
                                struct fleet_error *err)
{
    return event ? backend->vtable->await(backend, event, err) : 0;
}

/* Wait until all of both queues has ended. -EIO: the device has failed. -EINVAL: a kernel has found
 * an id or a target out of range since the last call. */
static inline int backend_finish(struct backend *backend, struct fleet_error *err)
{
    return backend->vtable->finish ? backend->vtable->finish(backend, err) : 0;
}

/* Wait until all of this handle's queue has ended, so that the host may use memory of
 * allocate_host() that its kernels have written. Any thread. -EIO. */
static inline int backend_wait(struct backend *backend, struct fleet_error *err)
{
    return backend->vtable->wait ? backend->vtable->wait(backend, err) : 0;
}

/*
 * Copies to the host that run beside both queues, in a third one that finish() does not wait for:
 *
 *     backend_aside()        the handle of the third queue; NULL: this back end has none, and the
 *                            two functions below must not be called. Freed with `backend`. Events
 *                            order it with the others.
 *     backend_copy_aside()   put a copy into the queue of a handle. `host` is memory of
 *                            allocate_host, and has the bytes when a later event has happened.
 *                            -EIO, -ENOMEM
 *     backend_event_wait()   the host waits until the event has happened; any thread. -EIO
 */
static inline struct backend *backend_aside(struct backend *backend)
{
    return backend->vtable->aside ? backend->vtable->aside(backend) : NULL;
}

static inline int backend_copy_aside(struct backend *backend, void *host, const void *device,
                                     size_t bytes, struct fleet_error *err)
{
    return backend->vtable->copy_aside(backend, host, device, bytes, err);
}

static inline int backend_event_wait(struct backend *backend, struct backend_event *event,
                                     struct fleet_error *err)
{
    return backend->vtable->event_wait(backend, event, err);
}

/*
 * A graph is a row of kernels that the device starts as one piece of work:
 *
 *     backend_capture_begin()    from here on, kernels of this handle's queue are not run but
 *                                captured; the thread does nothing else with the back end
 *     backend_capture_end()      the graph, or with `out` NULL: give up what was captured
 *     backend_replay()           put the graph into the queue, any number of times
 *
 * A graph holds the operands' addresses, and seed and evaluation of run_scalars. The other scalars
 * are those of each replay. Graphs are freed before the back end.
 */

/* False: the functions below must not be called. */
static inline bool backend_captures(struct backend *backend)
{
    return backend->vtable->captures && backend->vtable->captures(backend);
}

/* -EIO: the device has failed. -ENOTSUP, of each of the two and of a kernel in between: this cannot
 * be captured, so it has to run as it is. After an error of a kernel, capture_end() must follow. */
static inline int backend_capture_begin(struct backend *backend, struct fleet_error *err)
{
    return backend->vtable->capture_begin(backend, err);
}

static inline int backend_capture_end(struct backend *backend, struct backend_graph **out,
                                      struct fleet_error *err)
{
    return backend->vtable->capture_end(backend, out, err);
}

/* -EIO. -ESTALE: kernels now use other memory beside their operands; the graph is of no use. */
static inline int backend_replay(struct backend *backend, struct backend_graph *graph,
                                 const struct run_scalars *scalars, struct fleet_error *err)
{
    return backend->vtable->replay(backend, graph, scalars, err);
}

/* Waits until the graph has run. */
static inline void backend_graph_free(struct backend *backend, struct backend_graph *graph)
{
    if (graph)
        backend->vtable->graph_free(backend, graph);
}

#endif
