/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Rotary positions: elements i and i + D/2 of a head are turned by position · base^(-2i/D); turning
 * back is the gradient. The angles are made as in the CPU back end: in turns, in double, by series
 * of our own, so the bits are the same.
 *
 * Floor: x and y moved once; the table is context·D/2 pairs in the L2.
 * Grid: a thread an angle; then a block of 128 threads a position of a sample.
 * Determinism: no sums of other elements.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 128

/* e^x for x <= 0: 2^n · series of the rest. */
__device__ static double rope_exp(double x)
{
    double n = -floor(-x * 1.4426950408889634 + 0.5), r, sum = 1, term = 1;

    r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    for (int i = 1; i < 18; i++) {
        term *= r / i;
        sum += term;
    }
    return ldexp(sum, (int)n);
}

/* ln x for x > 1: 2·artanh((m - 1)/(m + 1)) and the exponent. */
static double rope_log(double x)
{
    int exponent;
    double m = frexp(x, &exponent), s, square, sum = 0;

    s = (m - 1) / (m + 1); /* m in [0.5, 1): |s| <= 1/3 */
    square = s * s;
    for (int i = 39; i >= 1; i -= 2)
        sum = sum * square + 1.0 / i;
    return 2 * s * sum + exponent * 0.693147180559945309417;
}

__device__ static void rope_turn(double turns, float *cosine, float *sine)
{
    double rest = turns - floor(turns + 0.5); /* [-1/2, 1/2) */
    double quarter = floor(4 * rest + 0.5), a = (rest - quarter / 4) * 6.283185307179586, z = a * a;
    double s = a * (1 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z / 362880))));
    double c = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z / 3628800))));

    switch ((int)quarter & 3) {
    case 0:
        *cosine = (float)c, *sine = (float)s;
        return;
    case 1:
        *cosine = (float)-s, *sine = (float)c;
        return;
    case 2:
        *cosine = (float)-c, *sine = (float)-s;
        return;
    default:
        *cosine = (float)s, *sine = (float)-c;
        return;
    }
}

/* Cosines [context][half], then sines. */
__global__ void __launch_bounds__(THREADS)
    rope_table_kernel(float *table, int64_t context, int64_t half, double log_base, int inverse)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, position = at / half, i = at % half;
    double turns;
    float cosine, sine;

    if (at >= context * half)
        return;
    turns = rope_exp(-log_base * (double)i / (double)half) / 6.283185307179586;
    rope_turn((double)position * turns, &cosine, &sine);
    table[at] = cosine;
    table[context * half + at] = inverse ? -sine : sine;
}

__global__ void __launch_bounds__(THREADS) rope_kernel(const struct fleet_cuda_rope r)
{
    int64_t row = blockIdx.x, at = row * r.width;
    int half = (int)r.head_dim / 2, turned = (int)r.heads * half, width = (int)r.width;
    const float *cosines = r.scratch + row % r.context * half;
    const float *sines = cosines + r.context * half;

    for (int j = (int)threadIdx.x; j < turned; j += THREADS) {
        int i = j % half;
        int64_t first = at + j / half * r.head_dim + i;
        float a = load(r.x, r.x_type, first), b = load(r.x, r.x_type, first + half);
        store(r.y, r.y_type, first, a * cosines[i] - b * sines[i]);
        store(r.y, r.y_type, first + half, b * cosines[i] + a * sines[i]);
    }
    for (int j = 2 * turned + (int)threadIdx.x; j < width && r.x != r.y; j += THREADS)
        store(r.y, r.y_type, at + j, load(r.x, r.x_type, at + j));
}

cudaError_t fleet_cuda_rope(cudaStream_t stream, const struct fleet_cuda_rope *r)
{
    int64_t half = r->head_dim / 2, rows = r->batch * r->context;
    cudaError_t status;

    if (r->batch < 0 || r->context < 0 || r->head_dim < 2 || r->head_dim % 2 != 0 || r->heads < 0 ||
        r->heads * r->head_dim > r->width || !(r->base > 1) || !is_float(r->x_type) ||
        !is_float(r->y_type) || rows > INT32_MAX || r->width > INT32_MAX - THREADS)
        return cudaErrorInvalidValue;
    if (rows == 0)
        return cudaSuccess;
    status =
        CUDA_LAUNCH(rope_table_kernel, dim3(blocks_for(r->context * half, THREADS)), dim3(THREADS),
                    0, stream, r->scratch, r->context, half, rope_log(r->base), r->inverse ? 1 : 0);
    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(rope_kernel, dim3((unsigned)rows), dim3(THREADS), 0, stream, *r);
}
