/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_ELEMENTWISE_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_ELEMENTWISE_H

/*
 * Operators whose element i of the output needs element i of the inputs only. One loop for all: a
 * function on sixteen lanes, up to three inputs, up to two outputs, any float type.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct elementwise {
    const void *in[3]; /* absent: NULL, lanes are 0 */
    void *out[2];
    enum program_type in_type[3], out_type[2];
    int64_t count;
    int64_t period; /* in[1] repeats after this many elements; 0: it does not */
    float number;   /* scale, value */
    bool exact;     /* gelu by erf */
    bool relu;      /* add: of the sum */
};

struct elementwise_lanes {
    v16 out[2];
};

V_INLINE v16 elementwise_second(const struct elementwise *e, enum program_type type, int64_t i,
                                int64_t n)
{
    float lanes[V_LANES];
    int64_t at;

    if (e->period == 0)
        return typed_load_n(e->in[1], type, i, n);
    at = i % e->period;
    if (at + kernel_least(n, V_LANES) <= e->period)
        return typed_load_n(e->in[1], type, at, n);
    for (int64_t l = 0; l < V_LANES; l++)
        lanes[l] = l < n ? kernel_lane(typed_load_n(e->in[1], type, (i + l) % e->period, 1)) : 0;
    return v_load(lanes);
}

/* The loop of one task: `apply` turns lanes a, b, c into e's outputs. */
#define ELEMENTWISE_LOOP(e, from, to, t0, t1, t2, o0, o1, apply)              \
    for (int64_t i = (from); i < (to); i += V_LANES) {                        \
        int64_t n = (to)-i;                                                   \
        v16 a = (e)->in[0] ? typed_load_n((e)->in[0], (t0), i, n) : v_zero(); \
        v16 b = (e)->in[1] ? elementwise_second((e), (t1), i, n) : v_zero();  \
        v16 c = (e)->in[2] ? typed_load_n((e)->in[2], (t2), i, n) : v_zero(); \
        struct elementwise_lanes r = apply((e), a, b, c);                     \
        typed_store_n((e)->out[0], (o0), i, n, r.out[0]);                     \
        if ((e)->out[1])                                                      \
            typed_store_n((e)->out[1], (o1), i, n, r.out[1]);                 \
    }

static inline bool elementwise_is_fp32(const struct elementwise *e)
{
    return e->in_type[0] == PROGRAM_FP32 && e->in_type[1] == PROGRAM_FP32 &&
           e->in_type[2] == PROGRAM_FP32 && e->out_type[0] == PROGRAM_FP32 &&
           e->out_type[1] == PROGRAM_FP32;
}

/* Operands of `call` by position; the size is that of output 0. */
static struct elementwise elementwise_of(const struct kernel_call *call)
{
    struct elementwise e = {.count = program_var_elements(kernel_out(call, 0)),
                            .number = (float)call->op->attributes.scale,
                            .exact = call->op->attributes.exact,
                            .relu = call->op->attributes.activation == OP_ACTIVATION_RELU};

    for (int i = 0; i < 3; i++) {
        e.in[i] = call->in[i];
        e.in_type[i] = kernel_in_type(call, i);
    }
    for (int i = 0; i < 2; i++) {
        e.out[i] = call->out[i];
        e.out_type[i] = kernel_out_type(call, i);
    }
    return e;
}

/* Defines the task NAME_task and the kernel NAME_kernel. */
#define ELEMENTWISE_KERNEL(name, apply)                                                           \
    static void name##_task(void *context, int64_t task, int thread)                              \
    {                                                                                             \
        const struct elementwise *e = context;                                                    \
        int64_t from = task * KERNEL_TASK_ELEMENTS;                                               \
        int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, e->count);                         \
                                                                                                  \
        (void)thread;                                                                             \
        if (elementwise_is_fp32(e))                                                               \
            ELEMENTWISE_LOOP(e, from, to, PROGRAM_FP32, PROGRAM_FP32, PROGRAM_FP32, PROGRAM_FP32, \
                             PROGRAM_FP32, apply)                                                 \
        else                                                                                      \
            ELEMENTWISE_LOOP(e, from, to, e->in_type[0], e->in_type[1], e->in_type[2],            \
                             e->out_type[0], e->out_type[1], apply)                               \
    }                                                                                             \
    static int name##_kernel(struct backend *backend, const struct kernel_call *call,             \
                             struct fleet_error *err)                                             \
    {                                                                                             \
        struct elementwise e = elementwise_of(call);                                              \
                                                                                                  \
        (void)err;                                                                                \
        if (e.in[1] && program_var_elements(kernel_in(call, 1)) != e.count)                       \
            e.period = program_var_elements(kernel_in(call, 1));                                  \
        cpu_parallel(cpu_backend(backend), kernel_pieces(e.count, KERNEL_TASK_ELEMENTS),          \
                     name##_task, &e);                                                            \
        return 0;                                                                                 \
    }

#define ELEMENTWISE_APPLY(name, expression)                                                   \
    V_INLINE struct elementwise_lanes name##_apply(const struct elementwise *e, v16 a, v16 b, \
                                                   v16 c)                                     \
    {                                                                                         \
        (void)e, (void)a, (void)b, (void)c;                                                   \
        return (struct elementwise_lanes){{(expression), v_zero()}};                          \
    }                                                                                         \
    ELEMENTWISE_KERNEL(name, name##_apply)

/* silu = x·s, its slope s·(1 + x·(1 - s)), with s = sigmoid(x). */
V_INLINE v16 elementwise_silu_slope(v16 x)
{
    v16 s = v_sigmoid(x);

    return v_mul(s, v_fma(x, v_sub(v_set(1.0f), s), v_set(1.0f)));
}

/* inputs of …_grad are d_y (a) and x (b) */
ELEMENTWISE_APPLY(add, e->relu ? v_max(v_zero(), v_add(a, b)) : v_add(a, b))
ELEMENTWISE_APPLY(subtract, v_sub(a, b))
ELEMENTWISE_APPLY(scale, v_mul(a, v_set(e->number)))
ELEMENTWISE_APPLY(cast, a)
ELEMENTWISE_APPLY(fill, v_set(e->number))
ELEMENTWISE_APPLY(gelu, e->exact ? v_gelu_exact(a) : v_gelu(a))
ELEMENTWISE_APPLY(gelu_grad, v_mul(a, e->exact ? v_gelu_exact_slope(b) : v_gelu_slope(b)))
ELEMENTWISE_APPLY(relu, v_max(v_zero(), a)) /* NaN stays */
ELEMENTWISE_APPLY(relu_grad, v_select(v_less(v_zero(), b), a, v_zero()))
ELEMENTWISE_APPLY(silu, v_mul(a, v_sigmoid(a)))
ELEMENTWISE_APPLY(silu_grad, v_mul(a, elementwise_silu_slope(b)))
ELEMENTWISE_APPLY(swiglu, v_mul(v_mul(a, v_sigmoid(a)), b))

/* d_y (a), gate (b), up (c) */
V_INLINE struct elementwise_lanes swiglu_grad_apply(const struct elementwise *e, v16 a, v16 b,
                                                    v16 c)
{
    (void)e;
    return (struct elementwise_lanes){
        {v_mul(v_mul(a, c), elementwise_silu_slope(b)), v_mul(a, v_mul(b, v_sigmoid(b)))}};
}
ELEMENTWISE_KERNEL(swiglu_grad, swiglu_grad_apply)

/* The same bytes under another shape. */
static int reshape_kernel(struct backend *backend, const struct kernel_call *call,
                          struct fleet_error *err)
{
    (void)backend, (void)err;
    if (call->out[0] != call->in[0])
        memcpy(call->out[0], call->in[0], program_var_bytes(kernel_out(call, 0)));
    return 0;
}

/* The part at this rank's place. */
static int own_rows_kernel(struct backend *backend, const struct kernel_call *call,
                           struct fleet_error *err)
{
    size_t bytes = program_var_bytes(kernel_out(call, 0));

    (void)backend, (void)err;
    memcpy(call->out[0], (const char *)call->in[0] + bytes * (size_t)call->op->attributes.place,
           bytes);
    return 0;
}

/* accumulator += addend, elements in any order: there is one sum each. */
static void add_into(float *accumulator, const float *addend, int64_t count)
{
    for (int64_t i = 0; i < count; i += V_LANES)
        v_store_n(accumulator + i, count - i,
                  v_add(v_load_n(accumulator + i, count - i), v_load_n(addend + i, count - i)));
}

static void narrow_into(uint16_t *halves, const float *from, float scale, int64_t count)
{
    v16 factor = v_set(scale);

    for (int64_t i = 0; i < count; i += V_LANES)
        typed_store_n(halves, PROGRAM_FP16, i, count - i,
                      v_mul(factor, v_load_n(from + i, count - i)));
}

static void widen_into(float *to, const uint16_t *halves, float scale, int64_t count)
{
    v16 factor = v_set(scale);

    for (int64_t i = 0; i < count; i += V_LANES)
        v_store_n(to + i, count - i,
                  v_mul(factor, typed_load_n(halves, PROGRAM_FP16, i, count - i)));
}

#endif
