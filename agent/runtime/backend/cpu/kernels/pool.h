/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_POOL_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_POOL_H

/*
 * Pools over image planes; a task is a plane. Backward, a plane is cleared and the windows are
 * walked in row order, so that overlapping windows add up in one order.
 */

#include "agent/runtime/backend/cpu/kernels/conv2d.h"
#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct pool {
    const void *from; /* x, or d_y */
    void *to;         /* y, or d_x */
    int32_t *indices; /* max: place of each maximum in its plane; NULL: not kept */
    enum program_type from_type, to_type;
    int64_t planes, h, w, out_h, out_w; /* of x and y */
    int64_t window[2], stride[2], padding[2];
    bool exclude_padding;
};

struct pool_range {
    int64_t from, to;
};

/* The part inside the image of window i along an axis. */
static inline struct pool_range pool_range(const struct pool *p, int axis, int64_t i)
{
    int64_t size = axis ? p->w : p->h, from = i * p->stride[axis] - p->padding[axis];
    int64_t to = from + p->window[axis];

    return (struct pool_range){from < 0 ? 0 : from, to > size ? size : to};
}

/* Elements of window i along an axis that a mean is taken over: with the padding, which ends with
 * it. */
static inline int64_t pool_count(const struct pool *p, int axis, int64_t i)
{
    int64_t end = (axis ? p->w : p->h) + p->padding[axis];
    int64_t from = i * p->stride[axis] - p->padding[axis], to = from + p->window[axis];
    struct pool_range inside = pool_range(p, axis, i);

    return p->exclude_padding ? inside.to - inside.from : (to > end ? end : to) - from;
}

/* The range of the adaptive pool: ⌊i·in/out⌋ … ⌈(i+1)·in/out⌉. */
static inline struct pool_range pool_adaptive_range(const struct pool *p, int axis, int64_t i)
{
    int64_t in = axis ? p->w : p->h, out = axis ? p->out_w : p->out_h;

    return (struct pool_range){i * in / out, ((i + 1) * in + out - 1) / out};
}

static inline void pool_put(const struct pool *p, int64_t at, float value)
{
    typed_store_n(p->to, p->to_type, at, 1, v_set(value));
}

static void max_pool2d_task(void *context, int64_t plane, int thread)
{
    const struct pool *p = context;

    (void)thread;
    for (int64_t o = 0; o < p->out_h * p->out_w; o++) {
        struct pool_range rows = pool_range(p, 0, o / p->out_w);
        struct pool_range columns = pool_range(p, 1, o % p->out_w);
        float best = -INFINITY;
        int64_t place = rows.from * p->w + columns.from;
        for (int64_t y = rows.from; y < rows.to; y++)
            for (int64_t x = columns.from; x < columns.to; x++) {
                float value = conv2d_at(p->from, p->from_type, (plane * p->h + y) * p->w + x);
                if (value > best || (value != value && best == best)) { /* the first NaN stays */
                    best = value;
                    place = y * p->w + x;
                }
            }
        pool_put(p, plane * p->out_h * p->out_w + o, best);
        if (p->indices)
            p->indices[plane * p->out_h * p->out_w + o] = (int32_t)place;
    }
}

static void average_window(const struct pool *p, int64_t plane, int64_t o, struct pool_range rows,
                           struct pool_range columns, int64_t count)
{
    float sum = 0;

    for (int64_t y = rows.from; y < rows.to; y++)
        for (int64_t x = columns.from; x < columns.to; x++)
            sum += conv2d_at(p->from, p->from_type, (plane * p->h + y) * p->w + x);
    pool_put(p, plane * p->out_h * p->out_w + o, sum / (float)count);
}

static void avg_pool2d_task(void *context, int64_t plane, int thread)
{
    const struct pool *p = context;

    (void)thread;
    for (int64_t o = 0; o < p->out_h * p->out_w; o++)
        average_window(p, plane, o, pool_range(p, 0, o / p->out_w), pool_range(p, 1, o % p->out_w),
                       pool_count(p, 0, o / p->out_w) * pool_count(p, 1, o % p->out_w));
}

static void adaptive_avg_pool2d_task(void *context, int64_t plane, int thread)
{
    const struct pool *p = context;

    (void)thread;
    for (int64_t o = 0; o < p->out_h * p->out_w; o++) {
        struct pool_range rows = pool_adaptive_range(p, 0, o / p->out_w);
        struct pool_range columns = pool_adaptive_range(p, 1, o % p->out_w);
        average_window(p, plane, o, rows, columns,
                       (rows.to - rows.from) * (columns.to - columns.from));
    }
}

/* ---- backward: `from` is d_y, `to` is d_x ---------------------------------------------------- */

static inline void pool_clear(const struct pool *p, int64_t plane)
{
    size_t bytes = (size_t)(p->h * p->w) * program_type_size(p->to_type);

    memset((char *)p->to + (size_t)plane * bytes, 0, bytes);
}

static inline void pool_give(const struct pool *p, int64_t at, float value)
{
    pool_put(p, at, conv2d_at(p->to, p->to_type, at) + value);
}

static void max_pool2d_grad_task(void *context, int64_t plane, int thread)
{
    const struct pool *p = context;

    (void)thread;
    pool_clear(p, plane);
    for (int64_t o = plane * p->out_h * p->out_w; o < (plane + 1) * p->out_h * p->out_w; o++)
        pool_give(p, plane * p->h * p->w + p->indices[o], conv2d_at(p->from, p->from_type, o));
}

static void average_window_grad(const struct pool *p, int64_t plane, int64_t o,
                                struct pool_range rows, struct pool_range columns, int64_t count)
{
    float share = conv2d_at(p->from, p->from_type, plane * p->out_h * p->out_w + o) / (float)count;

    for (int64_t y = rows.from; y < rows.to; y++)
        for (int64_t x = columns.from; x < columns.to; x++)
            pool_give(p, (plane * p->h + y) * p->w + x, share);
}

static void avg_pool2d_grad_task(void *context, int64_t plane, int thread)
{
    const struct pool *p = context;

    (void)thread;
    pool_clear(p, plane);
    for (int64_t o = 0; o < p->out_h * p->out_w; o++)
        average_window_grad(p, plane, o, pool_range(p, 0, o / p->out_w),
                            pool_range(p, 1, o % p->out_w),
                            pool_count(p, 0, o / p->out_w) * pool_count(p, 1, o % p->out_w));
}

static void adaptive_avg_pool2d_grad_task(void *context, int64_t plane, int thread)
{
    const struct pool *p = context;

    (void)thread;
    pool_clear(p, plane);
    for (int64_t o = 0; o < p->out_h * p->out_w; o++) {
        struct pool_range rows = pool_adaptive_range(p, 0, o / p->out_w);
        struct pool_range columns = pool_adaptive_range(p, 1, o % p->out_w);
        average_window_grad(p, plane, o, rows, columns,
                            (rows.to - rows.from) * (columns.to - columns.from));
    }
}

/* x and y are the variables with the shapes of the two sides. */
static int pool_run(struct backend *backend, const struct kernel_call *call,
                    const struct program_var *x, const struct program_var *y, const void *indices,
                    thread_pool_task task)
{
    const struct op_attributes *a = &call->op->attributes;
    struct pool p = {.from = call->in[0],
                     .to = call->out[0],
                     .indices = (int32_t *)(uintptr_t)indices, /* backward reads only */
                     .from_type = kernel_in_type(call, 0),
                     .to_type = kernel_out_type(call, 0),
                     .planes = x->shape[0] * x->shape[1],
                     .h = x->shape[2],
                     .w = x->shape[3],
                     .out_h = y->shape[2],
                     .out_w = y->shape[3],
                     .window = {a->kernel[0], a->kernel[1]},
                     .stride = {a->stride[0], a->stride[1]},
                     .padding = {a->padding[0], a->padding[1]},
                     .exclude_padding = a->exclude_padding};

    cpu_parallel(cpu_backend(backend), p.planes, task, &p);
    return 0;
}

#define POOL_FORWARD(name)                                                                    \
    static int name##_kernel(struct backend *backend, const struct kernel_call *call,         \
                             struct fleet_error *err)                                         \
    {                                                                                         \
        (void)err;                                                                            \
        return pool_run(backend, call, kernel_in(call, 0), kernel_out(call, 0), call->out[1], \
                        name##_task);                                                         \
    }
#define POOL_BACKWARD(name)                                                                  \
    static int name##_kernel(struct backend *backend, const struct kernel_call *call,        \
                             struct fleet_error *err)                                        \
    {                                                                                        \
        (void)err;                                                                           \
        return pool_run(backend, call, kernel_out(call, 0), kernel_in(call, 0), call->in[2], \
                        name##_task);                                                        \
    }

POOL_FORWARD(max_pool2d)
POOL_FORWARD(avg_pool2d)
POOL_FORWARD(adaptive_avg_pool2d)
POOL_BACKWARD(max_pool2d_grad)
POOL_BACKWARD(avg_pool2d_grad)
POOL_BACKWARD(adaptive_avg_pool2d_grad)

#endif
