/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_TENSOR_CORE_CUH
#define CUDA_KERNELS_TENSOR_CORE_CUH

/*
 * What kernels on tensor cores are made of: products of fragments, loads of fragments from shared
 * memory, asynchronous copies. sm_80 has all of it, and so have later devices.
 *
 * All 32 lanes of a warp call the functions of fragments together. Let g = lane / 4, t = lane % 4.
 * A register holds two neighbours of 16 bits, the first one in the lower half.
 *
 *   a, 16 rows × 16:   a[0] row g, columns 2t, 2t+1;  a[1] row g+8;  a[2], a[3] 8 columns further
 *   b, 16 × 8 columns: b0 rows 2t, 2t+1 of column g;  b1 8 rows further
 *   d, 16 rows × 8:    d[0], d[1] row g, columns 2t, 2t+1;  d[2], d[3] row g+8
 *
 * So the sums of two neighbouring products are, rounded, one operand a of the next product.
 *
 * Within a product of 16 columns a device chooses the order of the sum: equal on each device of one
 * kind, but not the emulator's, which rounds once.
 *
 * The emulator has its own macros of these names (tests/cuda_emulator/include/emulator_tensor.h).
 */
#include "cuda/kernels/device.cuh"

#ifndef CUDA_MMA_BF16

#define CUDA_MMA_OF(type, d, a, b0, b1)                                   \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "    \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])          \
        : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"(b0), "r"(b1))
/* d += a·b: 16×8 += 16×16 · 16×8, fp32 sums */
#define CUDA_MMA_BF16(d, a, b0, b1) CUDA_MMA_OF("bf16", d, a, b0, b1)
#define CUDA_MMA_FP16(d, a, b0, b1) CUDA_MMA_OF("f16", d, a, b0, b1)

#define CUDA_SHARED_ADDRESS(p) static_cast<unsigned>(__cvta_generic_to_shared(p))
#define CUDA_LDMATRIX_OF(how, r, row)                                                      \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"((r)[0]), "=r"((r)[1]), "=r"((r)[2]), "=r"((r)[3])                  \
                 : "r"(CUDA_SHARED_ADDRESS(row))                                           \
                 : "memory")
/* Four matrices of 8 rows of 16 bytes in shared memory; lane l gives the address of row l % 8 of
 * matrix l / 8. r[i] is columns 2t, 2t+1 of row g of matrix i; turned: rows 2t, 2t+1 of column g.
 */
#define CUDA_LDMATRIX(r, row)        CUDA_LDMATRIX_OF("", r, row)
#define CUDA_LDMATRIX_TURNED(r, row) CUDA_LDMATRIX_OF(".trans", r, row)

/* Start a copy of 16 (or 4) bytes from device to shared memory, both addresses multiples of that.
 * If `exists` is false, zeros are written instead, and `from` is not read. */
#define CUDA_COPY_16(to, from, exists)                                                           \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(CUDA_SHARED_ADDRESS(to)), \
                 "l"(__cvta_generic_to_global(from)), "r"((exists) ? 16 : 0)                     \
                 : "memory")
#define CUDA_COPY_4(to, from, exists)                                                           \
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(CUDA_SHARED_ADDRESS(to)), \
                 "l"(__cvta_generic_to_global(from)), "r"((exists) ? 4 : 0)                     \
                 : "memory")
/* The copies that this thread started since the last commit are one group. */
#define CUDA_COPY_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
/* Wait for this thread's groups but for the last `but_for`; a barrier makes them visible to others.
 */
#define CUDA_COPY_WAIT(but_for) asm volatile("cp.async.wait_group %0;" ::"n"(but_for) : "memory")

/* 2^x by the special function unit, off by two units in the last place; subnormals become 0. */
__device__ static __forceinline__ float cuda_exp2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define CUDA_EXP2(x) cuda_exp2(x)

/* The compiler takes x for changed: what depends on it is not kept in registers over a loop. */
#define CUDA_FORGET(x) asm volatile("" : "+r"(x))

/* Two rounded numbers, the first in the lower half. */
template <bool BF16> __device__ static __forceinline__ unsigned pack_two(float low, float high)
{
    unsigned both;

    if (BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

#else

template <bool BF16> __device__ static __forceinline__ unsigned pack_two(float low, float high)
{
    const enum program_type type = BF16 ? PROGRAM_BF16 : PROGRAM_FP16;

    return narrow(low, type) | (unsigned)narrow(high, type) << 16;
}

#endif

template <bool BF16>
__device__ static __forceinline__ void mma(float d[4], const unsigned a[4], unsigned b0,
                                           unsigned b1)
{
    if (BF16)
        CUDA_MMA_BF16(d, a, b0, b1);
    else
        CUDA_MMA_FP16(d, a, b0, b1);
}

/* ---- tiles in shared memory ------------------------------------------------------------------ */

/*
 * A tile has rows of D elements of 16 bits, D a multiple of 64. A row is cut into pieces of 16
 * bytes; piece p of row r lies at p ^ (r % 8). So eight rows of one column of pieces lie in
 * different banks: loads and stores of fragments have no conflicts.
 */
template <int D> __device__ static __forceinline__ int piece_at(int row, int piece)
{
    return row * D + ((piece ^ (row & 7)) << 3);
}

/* The lane's own part of a fragment's place, see below: of operands a and b, of turned ones. */
template <int D> __device__ static __forceinline__ int lane_offset()
{
    int lane = (int)threadIdx.x % WARP;

    return piece_at<D>(lane % 16, lane / 16);
}

template <int D> __device__ static __forceinline__ int lane_offset_turned()
{
    int lane = (int)threadIdx.x % WARP;

    return piece_at<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/* Operand a: rows first_row … +15, columns 16·k … +15; first_row is a multiple of 8, as below. */
template <int D>
__device__ static __forceinline__ void fragment_a(unsigned a[4], const unsigned short *tile,
                                                  int offset, int first_row, int k)
{
    CUDA_LDMATRIX(a, tile + first_row * D + (offset ^ 16 * k));
}

/* Two operands b, turned: their columns are rows first_row … +15 of the tile, their rows its
 * columns 16·k … +15. b[0], b[1] is the first one. */
template <int D>
__device__ static __forceinline__ void fragments_b_turned(unsigned b[4], const unsigned short *tile,
                                                          int offset, int first_row, int k)
{
    CUDA_LDMATRIX(b, tile + first_row * D + (offset ^ 16 * k));
}

/* Two operands b: rows first_row … +15, columns 16·pair … +7 and +8 … +15. */
template <int D>
__device__ static __forceinline__ void fragments_b(unsigned b[4], const unsigned short *tile,
                                                   int offset, int first_row, int pair)
{
    CUDA_LDMATRIX_TURNED(b, tile + first_row * D + (offset ^ 16 * pair));
}

#endif
