/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_GPU_SCRATCH_H
#define LIBFLEET_PLAN_GPU_SCRATCH_H

/*
 * Working memory of the GPU's kernels (cuda/kernels), in bytes. Plan and kernels both use these
 * functions, so the plan counts what the back end allocates. CUDA sources include this header, so
 * it stays valid C++.
 */

#include <stddef.h>
#include <stdint.h>

struct program;
struct program_op;

#define GPU_SCRATCH_COLUMN_ROWS 64   /* rows of a partial sum of column_sum.cu */
#define GPU_SCRATCH_NORM_ROWS   32   /* of norm.cu's gradient */
#define GPU_SCRATCH_BLOCK       4096 /* elements of a block of an update, or of a norm */
#define GPU_SCRATCH_NUMBERS     80   /* bytes that an update computes once for a parameter */
#define GPU_SCRATCH_LOSS_FRONT  16   /* floats in front of the losses of rows */
#define GPU_SCRATCH_FP8         64   /* bytes of scales; factors begin at multiples of it */
#define GPU_SCRATCH_DGC_NUMBERS 64   /* bytes that dgc computes once for a tensor */
#define GPU_SCRATCH_DGC_BINS    2048 /* of its histogram of magnitudes */

/* Rows whose logits LINEAR_CROSS_ENTROPY has at a time. The same everywhere, because results of
 * cuBLASLt may depend on it. A multiple of 8, so that each chunk begins at 16 bytes. Only tests of
 * the kernels on the emulator have another number. */
#ifndef GPU_CLASSIFIER_ROWS
#define GPU_CLASSIFIER_ROWS 2048
#endif

/* Besides: what kernels read beside their operands, at most; a row of it for each tensor of the
 * gradient, if norms are computed; and the workspace of cuBLASLt. */
#define GPU_SCRATCH_TABLES   512
#define GPU_SCRATCH_ROW      24
#define GPU_SCRATCH_PRODUCTS ((size_t)32 << 20)

static inline int64_t gpu_scratch_parts(int64_t count, int64_t part)
{
    return (count + part - 1) / part;
}

/* Sums over the rows of an array of rows × columns. */
static inline size_t gpu_scratch_column_sum(int64_t rows, int64_t columns)
{
    return (size_t)(gpu_scratch_parts(rows, GPU_SCRATCH_COLUMN_ROWS) * columns) * sizeof(float);
}

/* Factors of a product in fp8, in one or two orders; in front of them the scales of all. */
static inline size_t gpu_scratch_fp8(int64_t count, int orders)
{
    return ((size_t)count + GPU_SCRATCH_FP8 - 1) / GPU_SCRATCH_FP8 * GPU_SCRATCH_FP8 *
           (size_t)orders;
}

static inline size_t gpu_scratch_norm_grad(int64_t rows, int64_t columns)
{
    return (size_t)(gpu_scratch_parts(rows, GPU_SCRATCH_NORM_ROWS) * 2 * columns) * sizeof(float);
}

/* Ids sorted by the rows of the table. */
static inline size_t gpu_scratch_embedding_grad(int64_t batch, int64_t context, int64_t rows)
{
    return (size_t)(2 * rows + 1 + 2 * batch * context) * sizeof(int);
}

/* Cosines and sines. */
static inline size_t gpu_scratch_rope(int64_t context, int64_t head_dim)
{
    return (size_t)(2 * context * (head_dim / 2)) * sizeof(float);
}

static inline size_t gpu_scratch_attention_grad(int64_t batch, int64_t heads, int64_t context)
{
    return (size_t)(batch * heads * context) * sizeof(float);
}

static inline size_t gpu_scratch_optimizer(int parameter_count, int64_t block_count)
{
    return (size_t)block_count * 2 * sizeof(double) + (size_t)parameter_count * GPU_SCRATCH_NUMBERS;
}

/* Squares and two counts for each block of elements. */
static inline size_t gpu_scratch_dgc(int64_t count)
{
    return GPU_SCRATCH_DGC_NUMBERS + GPU_SCRATCH_DGC_BINS * sizeof(uint32_t) +
           (size_t)gpu_scratch_parts(count, GPU_SCRATCH_BLOCK) *
               (sizeof(double) + 2 * sizeof(uint32_t));
}

/* In front of the logits of a chunk of LINEAR_CROSS_ENTROPY: the losses of all rows, and two
 * numbers for each row of the chunk. */
static inline size_t gpu_scratch_before_logits(int64_t rows)
{
    size_t floats = (size_t)(GPU_SCRATCH_LOSS_FRONT + rows + 2 * GPU_CLASSIFIER_ROWS);

    return (floats * sizeof(float) + 63) / 64 * 64;
}

/* Where the factors in fp8 begin in the working memory of LINEAR or LINEAR_GRAD. */
#ifdef __cplusplus
extern "C"
#endif
    size_t
    gpu_scratch_before_fp8(const struct program *program, const struct program_op *op);

/* What the launches of an operator of a laid out program need. 0 for one that runs elsewhere. */
#ifdef __cplusplus
extern "C"
#endif
    size_t
    gpu_scratch_bytes(const struct program *program, const struct program_op *op);

#endif
