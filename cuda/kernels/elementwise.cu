/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operators whose element i of the output needs element i of the inputs only.
 *
 * Floor: each operand moved once, `count` elements each; 40 FLOP an element at most (GELU's slope).
 * Grid: 256 threads a block, four elements a thread, eight where each operand has 16 bits: one
 * access of 16 or 8 bytes an operand. The last count mod 4 (or 8) elements go one by one to the
 * first threads of block 0.
 * Determinism: no sums; the bits are those of the CPU back end at levels with fused
 * multiply-add.
 */
#include "cuda/kernels/eight.cuh"

#define THREADS 256

struct lanes {
    float out[2];
};

/* One struct an operator: what it makes of elements a, b, c. */
#define OPERATOR(name, expression)                                               \
    struct name {                                                                \
        __device__ static __forceinline__ struct lanes                           \
        apply(const struct fleet_cuda_elementwise &e, float a, float b, float c) \
        {                                                                        \
            (void)e, (void)a, (void)b, (void)c;                                  \
            struct lanes r = {{(expression), 0.0f}};                             \
            return r;                                                            \
        }                                                                        \
    };

/* inputs of …_grad are d_y (a) and x (b) */
OPERATOR(add_operator, e.relu ? max_of(0.0f, a + b) : a + b)
OPERATOR(subtract_operator, a - b)
OPERATOR(scale_operator, a *e.number)
OPERATOR(cast_operator, a)
OPERATOR(fill_operator, e.number)
OPERATOR(gelu_operator, e.exact ? a *normal_below(a) : gelu(a))
OPERATOR(gelu_grad_operator, a *(e.exact ? gelu_exact_slope(b) : gelu_slope(b)))
OPERATOR(relu_operator, max_of(0.0f, a)) /* NaN stays */
OPERATOR(relu_grad_operator, 0.0f < b ? a : 0.0f)
OPERATOR(silu_operator, a *sigmoid(a))
OPERATOR(silu_grad_operator, a *silu_slope(b))
OPERATOR(swiglu_operator, (a * sigmoid(a)) * b)

/* d_y (a), gate (b), up (c) */
struct swiglu_grad_operator {
    __device__ static __forceinline__ struct lanes apply(const struct fleet_cuda_elementwise &,
                                                         float a, float b, float c)
    {
        struct lanes r = {{(a * c) * silu_slope(b), a * (b * sigmoid(b))}};
        return r;
    }
};

template <typename Operator>
__device__ static __forceinline__ void one(const struct fleet_cuda_elementwise &e, int64_t i)
{
    float a = e.in[0] ? load(e.in[0], e.in_type[0], i) : 0.0f;
    float b = e.in[1] ? load(e.in[1], e.in_type[1], e.period ? i % e.period : i) : 0.0f;
    float c = e.in[2] ? load(e.in[2], e.in_type[2], i) : 0.0f;
    struct lanes r = Operator::apply(e, a, b, c);

    store(e.out[0], e.out_type[0], i, r.out[0]);
    if (e.out[1])
        store(e.out[1], e.out_type[1], i, r.out[1]);
}

/* Elements i … i+3 of the second operand, which may repeat. */
__device__ static __forceinline__ struct four second(const struct fleet_cuda_elementwise &e,
                                                     int64_t i)
{
    struct four b;

    if (e.period == 0)
        return load_four(e.in[1], e.in_type[1], i);
    if (e.period % 4 == 0)
        return load_four(e.in[1], e.in_type[1], i % e.period);
    for (int l = 0; l < 4; l++)
        b.at[l] = load(e.in[1], e.in_type[1], (i + l) % e.period);
    return b;
}

template <typename Operator>
__global__ void __launch_bounds__(THREADS) elementwise_kernel(const struct fleet_cuda_elementwise e)
{
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = thread * 4;
    struct four a = {{0, 0, 0, 0}}, b = a, c = a, first = a, other = a;

    if (thread < e.count % 4)
        one<Operator>(e, e.count / 4 * 4 + thread);
    if (i + 4 > e.count)
        return;
    if (e.in[0])
        a = load_four(e.in[0], e.in_type[0], i);
    if (e.in[1])
        b = second(e, i);
    if (e.in[2])
        c = load_four(e.in[2], e.in_type[2], i);
#pragma unroll
    for (int l = 0; l < 4; l++) {
        struct lanes r = Operator::apply(e, a.at[l], b.at[l], c.at[l]);
        first.at[l] = r.out[0];
        other.at[l] = r.out[1];
    }
    store_four(e.out[0], e.out_type[0], i, first);
    if (e.out[1])
        store_four(e.out[1], e.out_type[1], i, other);
}

/* Operands of 16 bits; the period is a multiple of 8. */
template <typename Operator>
__global__ void __launch_bounds__(THREADS) eights_kernel(const struct fleet_cuda_elementwise e)
{
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = thread * EIGHT;
    struct raw_eight raw[3] = {};
    struct eight in[3], first, other;

    if (thread < e.count % EIGHT)
        one<Operator>(e, e.count / EIGHT * EIGHT + thread);
    if (i + EIGHT > e.count)
        return;
#pragma unroll
    for (int o = 0; o < 3; o++)
        if (e.in[o])
            raw[o] = load_eight(e.in[o], e.in_type[o], o == 1 && e.period ? i % e.period : i);
#pragma unroll
    for (int o = 0; o < 3; o++)
        in[o] = widen_eight(raw[o], e.in_type[o]);
#pragma unroll
    for (int l = 0; l < EIGHT; l++) {
        struct lanes r = Operator::apply(e, in[0].at[l], in[1].at[l], in[2].at[l]);
        first.at[l] = r.out[0];
        other.at[l] = r.out[1];
    }
    store_eight(e.out[0], e.out_type[0], i, first);
    if (e.out[1])
        store_eight(e.out[1], e.out_type[1], i, other);
}

static bool are_halves(const struct fleet_cuda_elementwise *e, int inputs, int outputs)
{
    bool halves = e->period % EIGHT == 0;

    for (int i = 0; i < inputs; i++)
        halves = halves && e->in_type[i] != PROGRAM_FP32;
    for (int i = 0; i < outputs; i++)
        halves = halves && e->out_type[i] != PROGRAM_FP32;
    return halves;
}

template <typename Operator>
static cudaError_t run(cudaStream_t stream, const struct fleet_cuda_elementwise *e, int inputs,
                       int outputs)
{
    bool halves = are_halves(e, inputs, outputs);
    auto *kernel = halves ? eights_kernel<Operator> : elementwise_kernel<Operator>;
    int each = halves ? EIGHT : 4;

    if (e->count < 0 || e->period < 0)
        return cudaErrorInvalidValue;
    for (int i = 0; i < inputs; i++)
        if (!e->in[i] || !is_float(e->in_type[i]))
            return cudaErrorInvalidValue;
    for (int i = 0; i < outputs; i++)
        if (!e->out[i] || !is_float(e->out_type[i]))
            return cudaErrorInvalidValue;
    if (e->count == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(kernel, dim3(blocks_for(e->count, (int64_t)each * THREADS)), dim3(THREADS),
                       0, stream, *e);
}

/* Operands beyond those of the operator are not looked at. */
#define ELEMENTWISE(name, inputs, outputs)                                                     \
    cudaError_t fleet_cuda_##name(cudaStream_t stream, const struct fleet_cuda_elementwise *e) \
    {                                                                                          \
        struct fleet_cuda_elementwise own = *e;                                                \
        for (int i = inputs; i < 3; i++)                                                       \
            own.in[i] = NULL;                                                                  \
        for (int i = outputs; i < 2; i++)                                                      \
            own.out[i] = NULL;                                                                 \
        return run<name##_operator>(stream, &own, inputs, outputs);                            \
    }

ELEMENTWISE(add, 2, 1)
ELEMENTWISE(subtract, 2, 1)
ELEMENTWISE(scale, 1, 1)
ELEMENTWISE(cast, 1, 1)
ELEMENTWISE(fill, 0, 1)
ELEMENTWISE(gelu, 1, 1)
ELEMENTWISE(gelu_grad, 2, 1)
ELEMENTWISE(relu, 1, 1)
ELEMENTWISE(relu_grad, 2, 1)
ELEMENTWISE(silu, 1, 1)
ELEMENTWISE(silu_grad, 2, 1)
ELEMENTWISE(swiglu, 2, 1)
ELEMENTWISE(swiglu_grad, 3, 2)
