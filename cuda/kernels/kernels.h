/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_KERNELS_H
#define CUDA_KERNELS_KERNELS_H

/*
 * The kernels of the CUDA back end: a struct of operands and sizes a family, a function a launch.
 * libfleet/program/op.h says what each operator means; kernels of the CPU back end are the
 * reference (agent/runtime/backend/cpu/kernels).
 *
 * Rules for all of them:
 *  (1) Pointers are the device's, the struct itself is the host's and is read before the function
 *      returns. Every tensor is aligned to 16 bytes.
 *  (2) A launch is asynchronous on `stream`, allocates nothing and waits for nothing, so all of
 *      them can be captured into a graph. What changes from step to step is read on the device
 *      (struct fleet_cuda_scalars).
 *  (3) The result is cudaSuccess, cudaErrorInvalidValue for sizes or types that the kernel does not
 *      have, or the error of the launch.
 *  (4) The bits of a result depend on the operands alone: sums are cut by shape and added in a
 *      fixed order, never by floating-point atomics. docs/cuda-kernels.md names the kernels whose
 *      bits are those of the CPU back end.
 *  (5) Types are PROGRAM_FP32, _BF16, _FP16 unless noted. Arithmetic is fp32; a result is rounded
 *      once, when it is stored.
 *  (6) Counts of 0 are fine: nothing is launched.
 *
 * kernels_update.h has what happens to a complete gradient, under the same rules.
 *
 * Bad ids and targets do not stop a launch: they set `*fault` (below), which the host reads with
 * the loss. Such an element is taken for 0 and reads nothing out of range.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "libfleet/plan/gpu_scratch.h"
#include "libfleet/program/fp8.h"
#include "libfleet/program/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What changes from step to step, in device memory; the host writes it before the step. */
struct fleet_cuda_scalars {
    int64_t step, first_sample; /* run_scalars */
    int64_t update_1based;
    double gradient_scale;
    double learning_rate;
    /* Optimizers write only if votes == world. The host, or the vote's kernel, writes them. */
    uint32_t votes, world;
};

/* ---- elementwise.cu -------------------------------------------------------------------------- */

struct fleet_cuda_elementwise {
    const void *in[3]; /* by the operator's position; NULL where absent */
    void *out[2];
    enum program_type in_type[3], out_type[2];
    int64_t count;
    int64_t period; /* ADD: in[1] repeats after this many elements (a bias); 0: it does not */
    float number;   /* SCALE, FILL */
    bool exact;     /* GELU: by the error function */
    bool relu;      /* ADD: of the sum */
};

/* One function an operator; output 0 may lie over input 0. RELU_GRAD takes y or the activation's
 * input: both are > 0 at the same places. */
cudaError_t fleet_cuda_add(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_subtract(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_scale(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_cast(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_fill(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_gelu(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_gelu_grad(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_relu(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_relu_grad(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_silu(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_silu_grad(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_swiglu(cudaStream_t stream, const struct fleet_cuda_elementwise *e);
cudaError_t fleet_cuda_swiglu_grad(cudaStream_t stream, const struct fleet_cuda_elementwise *e);

/* ---- dropout.cu ------------------------------------------------------------------------------ */

struct fleet_cuda_dropout {
    const void *x;
    void *y;
    enum program_type x_type, y_type;
    int64_t count, per_sample;                /* elements: of x, of one whole sample */
    int64_t first;                            /* element 0 of x, in the whole micro-batch */
    uint32_t key[2];                          /* fleet_random_key(seed, "dropout", stream) */
    double rate;                              /* 0: a copy, as in an evaluation */
    const struct fleet_cuda_scalars *scalars; /* step, first_sample */
};
cudaError_t fleet_cuda_dropout(cudaStream_t stream, const struct fleet_cuda_dropout *d);

/* ---- round.cu: CAST at random ---------------------------------------------------------------- */

struct fleet_cuda_round {
    const float *x;
    uint16_t *y; /* bf16 */
    int64_t count;
    uint32_t key[2];                          /* fleet_random_key(seed, "rounding", stream) */
    const struct fleet_cuda_scalars *scalars; /* step */
};
cudaError_t fleet_cuda_round(cudaStream_t stream, const struct fleet_cuda_round *r);

/* ---- norm.cu --------------------------------------------------------------------------------- */

/* LAYER_NORM, and RMS_NORM where mean and shift are NULL. With a residual the norm is of
 * x + residual, which goes to `sum`, rounded to sum_type before it is used. */
struct fleet_cuda_norm {
    const void *x, *residual;
    void *sum, *y;
    enum program_type x_type, residual_type, sum_type, y_type;
    const float *scale, *shift;
    float *mean, *rstd; /* [rows] */
    float epsilon;
    int64_t rows, columns;
};
cudaError_t fleet_cuda_norm(cudaStream_t stream, const struct fleet_cuda_norm *n);

/* d_x, d_scale, d_shift may be NULL; d_x may lie over d_y. */
struct fleet_cuda_norm_grad {
    const void *d_y, *x;
    enum program_type d_type, x_type, out_type;
    const float *scale, *mean, *rstd; /* mean NULL: RMS_NORM */
    void *d_x;
    float *d_scale, *d_shift;
    int64_t rows, columns;
    float *scratch; /* gpu_scratch_norm_grad() */
};
cudaError_t fleet_cuda_norm_grad(cudaStream_t stream, const struct fleet_cuda_norm_grad *n);

/* ---- column_sum.cu: ADD_GRAD_B and the bias of LINEAR_GRAD ----------------------------------- */

struct fleet_cuda_column_sum {
    const void *x;
    void *out;
    enum program_type x_type, out_type;
    int64_t rows, columns;
    float *scratch; /* gpu_scratch_column_sum() */
};
cudaError_t fleet_cuda_column_sum(cudaStream_t stream, const struct fleet_cuda_column_sum *s);

/* ---- embedding.cu ---------------------------------------------------------------------------- */

/* A bad id or target: the least index that has one, plus 1; 0 if there is none. The host clears it
 * before the step. */
struct fleet_cuda_embedding {
    const int32_t *ids;           /* [batch, context] */
    const void *table, *position; /* position NULL: none */
    void *out;
    enum program_type table_type, out_type;
    int64_t batch, context, columns, rows;
    uint64_t *fault;
    bool divided;       /* the table has words first_word … of more; others give zeros */
    int64_t first_word; /* 0 if it is not divided */
};
cudaError_t fleet_cuda_embedding(cudaStream_t stream, const struct fleet_cuda_embedding *e);

struct fleet_cuda_embedding_grad {
    const int32_t *ids;
    const void *d_out;
    enum program_type d_type;
    float *d_table;    /* [rows, columns], NULL: not wanted; overwritten */
    float *d_position; /* [positions, columns], NULL: not wanted; overwritten */
    int64_t batch, context, columns, rows, positions;
    int32_t *scratch;   /* gpu_scratch_embedding_grad(); may be NULL without d_table */
    int64_t first_word; /* of d_table; other words count for no row */
};
cudaError_t fleet_cuda_embedding_grad(cudaStream_t stream,
                                      const struct fleet_cuda_embedding_grad *e);

/* ---- cross_entropy.cu ------------------------------------------------------------------------ */

/*
 * A whole CROSS_ENTROPY is count, rows, loss; its gradient is grad, after count. Rows and grad work
 * on any range of rows: pointers to the range and its number of rows. So a classifier can be made
 * chunk by chunk, without the logits of all rows: product, rows, grad, products, next chunk.
 * Where a row begins, modulo 16 bytes, is part of the order of its sum.
 *
 * If ranks divide the vocabulary, each makes `sums` of its words, and all get those of all: then
 * join takes the place of rows. The gradient is that of this rank's words.
 */
struct fleet_cuda_cross_entropy {
    const void *logits;     /* [rows, columns] */
    const int32_t *targets; /* [rows] */
    float *lse;             /* [rows, 2]: greatest, log of the sum */
    float *row_loss;        /* [rows]; 0 for ignored rows */
    float *loss;            /* [1] */
    int64_t *counted;       /* [1]: rows that are not ignored, of the whole micro-batch */
    void *d_logits;         /* may lie over logits */
    const float *d_loss;    /* [1]; NULL: 1 */
    enum program_type type, d_type;
    int64_t rows, columns, ignore_index;
    uint64_t *fault;
    bool divided; /* the logits are words first_word … of more; else first_word is 0 */
    int64_t first_word;
    float *sums;           /* [rows, 3]: greatest, Σ exp(logit - it), the target's logit or 0 */
    const float *all_sums; /* [parts, rows, 3]: `sums` of all ranks */
    int parts;
};
cudaError_t fleet_cuda_cross_entropy_count(cudaStream_t stream,
                                           const struct fleet_cuda_cross_entropy *c);
cudaError_t fleet_cuda_cross_entropy_rows(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c);
cudaError_t fleet_cuda_cross_entropy_sums(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c);
cudaError_t fleet_cuda_cross_entropy_join(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c);
cudaError_t fleet_cuda_cross_entropy_loss(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c);
cudaError_t fleet_cuda_cross_entropy_grad(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c);

/* ---- softmax.cu ------------------------------------------------------------------------------ */

struct fleet_cuda_softmax {
    const void *x;   /* SOFTMAX_GRAD: y */
    const void *d_y; /* SOFTMAX: NULL */
    void *out;       /* may lie over x or d_y */
    enum program_type x_type, d_type, out_type;
    int64_t rows, columns;
};
cudaError_t fleet_cuda_softmax(cudaStream_t stream, const struct fleet_cuda_softmax *s);
cudaError_t fleet_cuda_softmax_grad(cudaStream_t stream, const struct fleet_cuda_softmax *s);

/* ---- rope.cu --------------------------------------------------------------------------------- */

struct fleet_cuda_rope {
    const void *x;
    void *y; /* may be x */
    enum program_type x_type, y_type;
    int64_t batch, context, width, heads, head_dim;
    double base;
    bool inverse;
    float *scratch; /* gpu_scratch_rope(): cosines and sines, made by every launch */
};
cudaError_t fleet_cuda_rope(cudaStream_t stream, const struct fleet_cuda_rope *r);

/* ---- transpose.cu, concat.cu, reduce.cu: any type -------------------------------------------- */

struct fleet_cuda_transpose {
    const void *x;
    void *y;
    enum program_type type;
    int64_t shape[4];  /* of y, ones in front */
    int64_t stride[4]; /* elements of x for a step along y's dimension */
};
cudaError_t fleet_cuda_transpose(cudaStream_t stream, const struct fleet_cuda_transpose *t);

struct fleet_cuda_concat {
    void *whole; /* [rows, columns of all parts] */
    enum program_type whole_type;
    struct {
        void *data; /* [rows, columns] */
        enum program_type type;
        int64_t columns;
    } parts[OP_INPUTS_MAX];
    int part_count;
    int64_t rows;
};
cudaError_t fleet_cuda_concat(cudaStream_t stream, const struct fleet_cuda_concat *c);
cudaError_t fleet_cuda_split(cudaStream_t stream, const struct fleet_cuda_concat *c);

struct fleet_cuda_reduce {
    const void *x; /* REDUCE: [rows, columns]; REDUCE_GRAD: [rows] */
    void *out;
    enum program_type x_type, out_type;
    int64_t rows, columns;
    bool mean;
};
cudaError_t fleet_cuda_reduce(cudaStream_t stream, const struct fleet_cuda_reduce *r);
cudaError_t fleet_cuda_reduce_grad(cudaStream_t stream, const struct fleet_cuda_reduce *r);

/* ---- fp8.cu ---------------------------------------------------------------------------------- */

/* In device memory, of a tensor in fp8, at a multiple of 16 bytes: cuBLASLt 12.9 and later refuse a
 * scale elsewhere when the product starts. */
struct fleet_cuda_fp8_scale {
    float down;        /* a code times this is the rounded element */
    uint32_t greatest; /* bits of the greatest finite magnitude */
    uint32_t unused[2];
};

#define FLEET_CUDA_FP8_TENSORS 3

/* Codes of up to three matrices, each with its scale (libfleet/program/fp8.h), in two orders. Three
 * launches make all of them. */
struct fleet_cuda_fp8 {
    struct {
        const void *x; /* [rows, columns] */
        enum program_type x_type;
        int64_t rows, columns;
        enum fp8_type type;
        uint8_t *straight, *turned; /* [rows, columns], [columns, rows]; NULL: not wanted */
        struct fleet_cuda_fp8_scale *scale;
    } tensors[FLEET_CUDA_FP8_TENSORS];
    int count;
};
cudaError_t fleet_cuda_fp8(cudaStream_t stream, const struct fleet_cuda_fp8 *f);

/* ---- gemm.cu: where cuBLASLt is not used ----------------------------------------------------- */

/* A matrix: element (i, j) of number b is data[b·batch + i·row + j·column], in elements. Both
 * factors of a product are in fp8, or none; their type is UINT8 then. */
struct fleet_cuda_matrix {
    const void *data;
    enum program_type type;
    int64_t row, column, batch;
    enum fp8_type fp8;  /* FP8_NONE: of `type` */
    const float *scale; /* of fp8, in device memory: what a code is multiplied by */
};

/* c[b] = activation(a[b]·b[b] + bias), row-major and dense: [batch, m, n]. With `accumulates`
 * c[b] = c[b] + a[b]·b[b], one sum over k that begins with c[b]; c is fp32 then, there is neither
 * bias nor activation, and no factor is fp8. */
struct fleet_cuda_gemm {
    int64_t m, n, k, batch;
    struct fleet_cuda_matrix a, b;
    void *c;
    const void *bias; /* [n]; NULL: none */
    void *pre;        /* before the activation, of c's type; NULL: not kept */
    enum program_type c_type, bias_type;
    enum op_activation activation;
    bool accumulates;
};
cudaError_t fleet_cuda_gemm(cudaStream_t stream, const struct fleet_cuda_gemm *g);

/* ---- attention.cu ---------------------------------------------------------------------------- */

/* head_dim up to 128, best 64 or 128; heads is a multiple of kv_heads. If all types are the same
 * one of bf16 and fp16 and head_dim is a multiple of 8, it runs on tensor cores
 * (attention_tensor.cu). */
struct fleet_cuda_attention {
    const void *qkv; /* [batch, context, (heads + 2·kv_heads)·head_dim] */
    void *out;       /* [batch, context, heads·head_dim]; the gradient reads it */
    float *lse;      /* [batch, heads, context] */
    const void *d_out;
    void *d_qkv;
    enum program_type type, out_type, d_type, d_qkv_type;
    int64_t batch, context, heads, kv_heads, head_dim;
    bool causal;
    float *scratch; /* gradient: gpu_scratch_attention_grad() */
};
cudaError_t fleet_cuda_attention(cudaStream_t stream, const struct fleet_cuda_attention *a);
cudaError_t fleet_cuda_attention_grad(cudaStream_t stream, const struct fleet_cuda_attention *a);

/* ---- conv2d.cu ------------------------------------------------------------------------------- */

struct fleet_cuda_conv2d {
    const void *x, *weight, *d_y;
    void *y, *d_x, *d_weight; /* the result of the function that is called */
    enum program_type x_type, weight_type, y_type, d_x_type, d_weight_type; /* y_type: of d_y too */
    int64_t batch, in, out, h, w, out_h, out_w;
    int64_t window[2], stride[2], padding[2];
};
cudaError_t fleet_cuda_conv2d(cudaStream_t stream, const struct fleet_cuda_conv2d *c);
cudaError_t fleet_cuda_conv2d_grad_x(cudaStream_t stream, const struct fleet_cuda_conv2d *c);
cudaError_t fleet_cuda_conv2d_grad_weight(cudaStream_t stream, const struct fleet_cuda_conv2d *c);

/* ---- batch_norm.cu --------------------------------------------------------------------------- */

struct fleet_cuda_batch_norm {
    const void *x, *residual, *d_y; /* residual NULL: none */
    void *y, *d_x;                  /* d_x NULL: not wanted */
    enum program_type x_type, residual_type, d_type, out_type;
    const float *scale, *shift;
    const float *running_mean, *running_var; /* an evaluation: used instead; else NULL */
    float *mean, *rstd;                      /* [channels]; the gradient reads them */
    float *stat_mean, *stat_var;             /* NULL: not wanted */
    float *d_scale, *d_shift;                /* NULL: not wanted */
    /* Over several ranks: the sums of all of them, which replace those of this micro-batch, and
     * this rank's (op.h); NULL: of this micro-batch alone. Of x minus `center`, [channels]. */
    const float *total, *own, *center;
    float *sums; /* [2·channels + 1]: what the two functions below give */
    int64_t batch, channels, plane;
    float epsilon;
    bool relu;
};
cudaError_t fleet_cuda_batch_norm_sums(cudaStream_t stream, const struct fleet_cuda_batch_norm *b);
cudaError_t fleet_cuda_batch_norm_grad_sums(cudaStream_t stream,
                                            const struct fleet_cuda_batch_norm *b);
cudaError_t fleet_cuda_batch_norm(cudaStream_t stream, const struct fleet_cuda_batch_norm *b);
cudaError_t fleet_cuda_batch_norm_grad(cudaStream_t stream, const struct fleet_cuda_batch_norm *b);

/* ---- pool.cu --------------------------------------------------------------------------------- */

/* Sides of images, windows, strides and paddings are at most 32000. */
struct fleet_cuda_pool {
    const void *from; /* x, or d_y */
    void *to;         /* y, or d_x */
    int32_t *indices; /* MAX_POOL2D; NULL: not kept */
    enum program_type from_type, to_type;
    int64_t planes, h, w, out_h, out_w; /* of x and y */
    int64_t window[2], stride[2], padding[2];
    bool exclude_padding;
};
cudaError_t fleet_cuda_max_pool2d(cudaStream_t stream, const struct fleet_cuda_pool *p);
cudaError_t fleet_cuda_max_pool2d_grad(cudaStream_t stream, const struct fleet_cuda_pool *p);
cudaError_t fleet_cuda_avg_pool2d(cudaStream_t stream, const struct fleet_cuda_pool *p);
cudaError_t fleet_cuda_avg_pool2d_grad(cudaStream_t stream, const struct fleet_cuda_pool *p);
cudaError_t fleet_cuda_adaptive_avg_pool2d(cudaStream_t stream, const struct fleet_cuda_pool *p);
cudaError_t fleet_cuda_adaptive_avg_pool2d_grad(cudaStream_t stream,
                                                const struct fleet_cuda_pool *p);

/* ---- store.cu -------------------------------------------------------------------------------- */

/* to[0 … bytes) = from[…], which is the host's and is read before the function returns. `bytes` is
 * a multiple of 8. */
cudaError_t fleet_cuda_store(cudaStream_t stream, void *to, const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
