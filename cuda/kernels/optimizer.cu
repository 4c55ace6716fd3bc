/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One optimizer step on all parameters, in place, with the formulas and the roundings of the CPU
 * back end (optimizer.h there), so with its bits at levels with fused multiply-add.
 *
 * Floor: parameter, gradient and states read once, parameter and states written once, and two
 * bytes an element for a copy in 16 bits: AdamW 28 (30) bytes. LAMB and LARS read them once more
 * for their norms.
 * Grid: one thread a parameter for what its elements share; LAMB and LARS: a half warp a block of
 * 4096 elements for the norms, a block of threads a parameter for their tree; then 256 threads for
 * each block of 4096 elements, four elements a thread at a time.
 * Determinism: the norms are sums of fixed blocks (squares.cuh); nothing else is summed.
 *
 * Every launch looks at the vote first: without it nothing is written, also no moments. What ranks
 * have to know of a divided tensor before they vote, TRUST_SQUARES computes by the same kernels: it
 * reads the tensors once and writes two numbers each.
 */
#include "cuda/kernels/squares.cuh"

#define THREADS 256

/* What is the same for all elements of a parameter; in scratch, behind the blocks' sums. */
struct shared_numbers {
    float gradient_scale, clip_factor, clip_value, rescale;
    float l1, l2;  /* added to the gradient: l1·sign(p), l2·p */
    float shrink;  /* decoupled decay: p is multiplied by it first */
    float rate;    /* Adam: with its bias correction */
    float epsilon; /* Adam: with its bias correction */
    float momentum, beta1, beta2, one_less_beta1, one_less_beta2;
    float correct1, correct2; /* LAMB: 1/(1 - beta^t) */
    float lambda;             /* LAMB, LARS: decay inside the ratio */
    float ratio;              /* LAMB: trust ratio; LARS: local rate */
    int clips_value, nesterov;
};
static_assert(sizeof(struct shared_numbers) == GPU_SCRATCH_NUMBERS, "as the plan counts");

__host__ __device__ static __forceinline__ double *
step_squares(const struct fleet_cuda_optimizer &o)
{
    return o.scratch + o.block_count;
}

__host__ __device__ static __forceinline__ struct shared_numbers *
numbers_of(const struct fleet_cuda_optimizer &o)
{
    return reinterpret_cast<struct shared_numbers *>(o.scratch + 2 * o.block_count);
}

__device__ static __forceinline__ bool is_voted(const struct fleet_cuda_optimizer &o)
{
    return o.own_squares || o.scalars->votes == o.scalars->world;
}

/* ---- what is the same for all elements ------------------------------------------------------- */

__device__ static double power(double base, int64_t exponent)
{
    double result = 1;

    for (; exponent > 0; exponent /= 2, base *= base)
        if (exponent % 2)
            result *= base;
    return result;
}

__device__ static void set_clip(const struct fleet_cuda_optimizer &o,
                                const struct fleet_cuda_parameter &p, struct shared_numbers *n)
{
    double norm = 0, factor = 1;

    if (p.clip == OP_CLIP_VALUE) {
        n->clips_value = 1;
        n->clip_value = (float)p.clip_limit;
    }
    if (p.clip == OP_CLIP_NORM)
        norm = sqrt((double)o.norms[p.norm_index]);
    if (p.clip == OP_CLIP_GLOBAL_NORM)
        norm = (double)o.norms[o.norm_count - 1];
    if (p.clip == OP_CLIP_NORM || p.clip == OP_CLIP_GLOBAL_NORM)
        factor = norm > p.clip_limit ? p.clip_limit / norm : 1;
    n->clip_factor = p.clip_factor ? *p.clip_factor : (float)factor;
}

__device__ static void set_decay(const struct fleet_cuda_optimizer &o,
                                 const struct fleet_cuda_parameter &p, struct shared_numbers *n)
{
    n->shrink = 1;
    if (p.decay_kind == OP_DECAY_L1)
        n->l1 = (float)p.decay;
    if (p.decay_kind == OP_DECAY_L2)
        n->l2 = (float)p.decay;
    if (p.decay_kind == OP_DECAY_DECOUPLED)
        n->shrink = (float)(1 - o.scalars->learning_rate * p.decay);
}

__device__ static void set_rate(const struct fleet_cuda_optimizer &o,
                                const struct fleet_cuda_parameter &p, struct shared_numbers *n)
{
    double beta1 = (double)(float)p.beta1, beta2 = (double)(float)p.beta2;
    double power1 = power(beta1, o.scalars->update_1based);
    double root2 = sqrt(1 - power(beta2, o.scalars->update_1based));
    double rate = o.scalars->learning_rate;

    n->beta1 = (float)beta1;
    n->beta2 = (float)beta2;
    n->one_less_beta1 = (float)(1 - beta1);
    n->one_less_beta2 = (float)(1 - beta2);
    n->rate = (float)rate;
    n->epsilon = (float)p.epsilon;
    if (o.kind == OP_ADAM || o.kind == OP_ADAMW) {
        n->rate = (float)(rate * root2 / (1 - power1));
        n->epsilon = (float)(p.epsilon * root2);
    }
    n->correct1 = (float)(1 / (1 - power1));
    n->correct2 = (float)(1 / (root2 * root2));
}

__global__ void __launch_bounds__(THREADS) numbers_kernel(const struct fleet_cuda_optimizer o)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    struct shared_numbers n = {};

    if (i >= o.parameter_count || !is_voted(o))
        return;
    const struct fleet_cuda_parameter &p = o.parameters[i];
    n.gradient_scale = (float)o.scalars->gradient_scale;
    n.rescale = (float)p.rescale;
    n.momentum = (float)p.momentum;
    n.lambda = (float)p.lambda;
    n.nesterov = p.nesterov;
    set_clip(o, p, &n);
    set_decay(o, p, &n);
    set_rate(o, p, &n);
    numbers_of(o)[i] = n;
}

/* ---- elements -------------------------------------------------------------------------------- */

__device__ static __forceinline__ float gradient_of(const struct shared_numbers &n, float g,
                                                    float p)
{
    g = g * n.gradient_scale;
    if (n.clips_value)
        g = max_of(-n.clip_value, min_of(n.clip_value, g));
    g = (g * n.clip_factor) * n.rescale;
    if (n.l2 != 0)
        g = fmaf(n.l2, p, g);
    if (n.l1 != 0)
        g = g + (p < 0.0f ? -n.l1 : 0.0f < p ? n.l1 : 0.0f);
    return g;
}

/* m = β1·m + (1-β1)·g, v = β2·v + (1-β2)·g² */
__device__ static __forceinline__ void moments(const struct shared_numbers &n, float g, float *m,
                                               float *v)
{
    *m = fmaf(n.beta1, *m, n.one_less_beta1 * g);
    *v = fmaf(n.beta2, *v, (n.one_less_beta2 * g) * g);
}

__device__ static __forceinline__ float lamb_step(const struct shared_numbers &n, float m, float v,
                                                  float p)
{
    float step = (m * n.correct1) / (sqrtf(v * n.correct2) + n.epsilon);

    return fmaf(n.lambda, p, step);
}

/* The new parameter; the states a and b are changed. */
template <int KIND>
__device__ static __forceinline__ float step(const struct shared_numbers &n, float p, float g,
                                             float *a, float *b)
{
    if (n.shrink != 1.0f)
        p = p * n.shrink;
    if (KIND == OP_LAMB)
        return p - (n.rate * n.ratio) * lamb_step(n, *a, *b, p);
    g = gradient_of(n, g, p);
    if (KIND == OP_SGD)
        return p - n.rate * g;
    if (KIND == OP_LARS) {
        g = fmaf(n.lambda, p, g);
        *a = fmaf(n.momentum, *a, n.ratio * g);
        return p - *a;
    }
    if (KIND == OP_MOMENTUM) {
        *a = fmaf(n.momentum, *a, g);
        return p - n.rate * (n.nesterov ? fmaf(n.momentum, *a, g) : *a);
    }
    moments(n, g, a, b);
    return p - n.rate * (*a / (sqrtf(*b) + n.epsilon));
}

#define HAS_A(kind) ((kind) != OP_SGD)
#define HAS_B(kind) ((kind) == OP_ADAM || (kind) == OP_LAMB)

template <int KIND, int WIDTH>
__device__ static __forceinline__ void elements(const struct fleet_cuda_parameter &t,
                                                const struct shared_numbers &n, int64_t i)
{
    struct some<WIDTH> p = load_some<WIDTH>(t.param, PROGRAM_FP32, i), g = p, a = p, b = p;

    if (KIND != OP_LAMB)
        g = load_some<WIDTH>(t.gradient, PROGRAM_FP32, i);
    if (HAS_A(KIND))
        a = load_some<WIDTH>(t.state[0], PROGRAM_FP32, i);
    if (HAS_B(KIND))
        b = load_some<WIDTH>(t.state[1], PROGRAM_FP32, i);
#pragma unroll
    for (int l = 0; l < WIDTH; l++)
        p.at[l] = step<KIND>(n, p.at[l], g.at[l], &a.at[l], &b.at[l]);
    store_some<WIDTH>(t.param, PROGRAM_FP32, i, p);
    if (t.narrow)
        store_some<WIDTH>(t.narrow, t.narrow_type, i, p);
    if (HAS_A(KIND) && KIND != OP_LAMB)
        store_some<WIDTH>(t.state[0], PROGRAM_FP32, i, a);
    if (HAS_B(KIND) && KIND != OP_LAMB)
        store_some<WIDTH>(t.state[1], PROGRAM_FP32, i, b);
}

/* KIND is OP_ADAM for OP_ADAMW too. */
template <int KIND>
__global__ void __launch_bounds__(THREADS) step_kernel(const struct fleet_cuda_optimizer o)
{
    int owner;
    int64_t from, to, i;

    if (!is_voted(o))
        return;
    owner = squares_owner(o.parameters, o.parameter_count, blockIdx.x);
    const struct fleet_cuda_parameter &t = o.parameters[owner];
    const struct shared_numbers n = numbers_of(o)[owner];
    from = ((int64_t)blockIdx.x - t.first_block) * FLEET_CUDA_BLOCK;
    to = from + FLEET_CUDA_BLOCK < t.count ? from + FLEET_CUDA_BLOCK : t.count;
    for (i = from + threadIdx.x * 4; i + 4 <= to; i += THREADS * 4)
        elements<KIND, 4>(t, n, i);
    for (; i < to; i++) /* of one thread: the tensor's last three at most */
        elements<KIND, 1>(t, n, i);
}

/* ---- norms for LAMB and LARS ------------------------------------------------------------------ */

/* LAMB's moments are updated here; step_kernel then only reads them. For TRUST_SQUARES they stay. */
template <int KIND>
__global__ void __launch_bounds__(SQUARES_THREADS) norms_kernel(const struct fleet_cuda_optimizer o)
{
    int64_t block = (int64_t)blockIdx.x * SQUARES_OF_BLOCK + threadIdx.x / SQUARES_LANES;
    bool is_block = block < o.block_count;
    double param = 0, moved = 0;

    if (!is_voted(o))
        return;
    if (is_block) {
        int owner = squares_owner(o.parameters, o.parameter_count, block);
        const struct fleet_cuda_parameter &t = o.parameters[owner];
        const struct shared_numbers n = numbers_of(o)[owner];
        int64_t from = (block - t.first_block) * FLEET_CUDA_BLOCK;
        int64_t to = from + FLEET_CUDA_BLOCK < t.count ? from + FLEET_CUDA_BLOCK : t.count;
        for (int64_t i = from + threadIdx.x % SQUARES_LANES; i < to; i += SQUARES_LANES) {
            float p = t.param[i], g = gradient_of(n, t.gradient[i], p);
            if (KIND == OP_LAMB) {
                float m = t.state[0][i], v = t.state[1][i];
                moments(n, g, &m, &v);
                if (!o.own_squares) {
                    t.state[0][i] = m;
                    t.state[1][i] = v;
                }
                g = lamb_step(n, m, v, p);
            }
            param += (double)p * (double)p;
            moved += (double)g * (double)g;
        }
    }
    param = squares_sum(param);
    moved = squares_sum(moved);
    if (is_block && threadIdx.x % SQUARES_LANES == 0) {
        o.scratch[block] = param;
        step_squares(o)[block] = moved;
    }
}

/* The sums of a divided tensor: those of all ranks. */
__device__ static void join_squares(const struct fleet_cuda_optimizer &o,
                                    const struct fleet_cuda_parameter &t, double *param,
                                    double *moved)
{
    const float *squares = o.squares + 2 * (int64_t)t.norm_index;

    if (t.squares_ranks == 0)
        return;
    *param = *moved = 0;
    for (int r = 0; r < t.squares_ranks; r++) {
        *param += (double)squares[r * o.squares_stride];
        *moved += (double)squares[r * o.squares_stride + 1];
    }
}

__global__ void __launch_bounds__(SQUARES_THREADS) ratio_kernel(const struct fleet_cuda_optimizer o)
{
    const struct fleet_cuda_parameter &t = o.parameters[blockIdx.x];
    int64_t count = (t.count + FLEET_CUDA_BLOCK - 1) / FLEET_CUDA_BLOCK;
    double param, moved, ratio = 1;

    if (!is_voted(o) || count == 0)
        return;
    squares_tree(o.scratch + t.first_block, count);
    squares_tree(step_squares(o) + t.first_block, count);
    if (threadIdx.x != 0)
        return;
    param = o.scratch[t.first_block];
    moved = step_squares(o)[t.first_block];
    if (o.own_squares) {
        o.own_squares[2 * (int64_t)t.norm_index] = (float)param;
        o.own_squares[2 * (int64_t)t.norm_index + 1] = (float)moved;
        return;
    }
    join_squares(o, t, &param, &moved);
    param = sqrt(param);
    moved = sqrt(moved);
    if (o.kind == OP_LAMB) {
        if (param > 0 && moved > 0 && (t.lambda != 0 || t.always_adapt))
            ratio = param / moved;
        numbers_of(o)[blockIdx.x].ratio = (float)ratio;
        return;
    }
    if (t.lambda > 0 && param > 0 && moved > 0)
        ratio = t.coefficient * param / (moved + t.lambda * param + t.epsilon);
    numbers_of(o)[blockIdx.x].ratio = (float)(o.scalars->learning_rate * ratio);
}

/* Also the numbers that all elements share. */
static cudaError_t begin(cudaStream_t stream, const struct fleet_cuda_optimizer *o)
{
    auto *kernel = o->kind == OP_LAMB ? norms_kernel<OP_LAMB> : norms_kernel<OP_LARS>;
    cudaError_t status;

    status = CUDA_LAUNCH(numbers_kernel, dim3(blocks_for(o->parameter_count, THREADS)),
                         dim3(THREADS), 0, stream, *o);
    if (status != cudaSuccess || (o->kind != OP_LAMB && o->kind != OP_LARS))
        return status;
    status = CUDA_LAUNCH(kernel, dim3(blocks_for(o->block_count, SQUARES_OF_BLOCK)),
                         dim3(SQUARES_THREADS), 0, stream, *o);
    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(ratio_kernel, dim3((unsigned)o->parameter_count), dim3(SQUARES_THREADS), 0,
                       stream, *o);
}

static bool is_possible(const struct fleet_cuda_optimizer *o)
{
    return o->parameter_count >= 0 && o->block_count >= 0 && o->block_count <= INT32_MAX;
}

cudaError_t fleet_cuda_trust_squares(cudaStream_t stream, const struct fleet_cuda_optimizer *o)
{
    if (!is_possible(o) || !o->own_squares || (o->kind != OP_LAMB && o->kind != OP_LARS))
        return cudaErrorInvalidValue;
    return o->parameter_count == 0 || o->block_count == 0 ? cudaSuccess : begin(stream, o);
}

cudaError_t fleet_cuda_optimizer(cudaStream_t stream, const struct fleet_cuda_optimizer *o)
{
    void (*kernel)(struct fleet_cuda_optimizer) = NULL;
    cudaError_t status;

    switch (o->kind) {
    case OP_SGD:
        kernel = step_kernel<OP_SGD>;
        break;
    case OP_MOMENTUM:
        kernel = step_kernel<OP_MOMENTUM>;
        break;
    case OP_ADAM:
    case OP_ADAMW:
        kernel = step_kernel<OP_ADAM>;
        break;
    case OP_LAMB:
        kernel = step_kernel<OP_LAMB>;
        break;
    case OP_LARS:
        kernel = step_kernel<OP_LARS>;
        break;
    default:
        return cudaErrorInvalidValue;
    }
    if (!is_possible(o) || o->own_squares)
        return cudaErrorInvalidValue;
    if (o->parameter_count == 0 || o->block_count == 0)
        return cudaSuccess;
    status = begin(stream, o);
    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(kernel, dim3((unsigned)o->block_count), dim3(THREADS), 0, stream, *o);
}
