/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_OPERATORS_INTERNAL_H
#define CUDA_OPERATORS_INTERNAL_H

/* What the files of operators.h share, for them alone: a launch, its operands, and a function a
 * kind. */

#include "cuda/operators.h"
#include "libfleet/program/ops/operand.h"

struct launch {
    cudaStream_t stream;
    const struct kernel_call *call;
    const struct cuda_operator_context *context;
    const struct op_attributes *attributes;
};

static inline const struct program_var *in(const struct launch *l, int i)
{
    return operand_in(l->call->program, l->call->op, i);
}

static inline const struct program_var *out(const struct launch *l, int i)
{
    return operand_out(l->call->program, l->call->op, i);
}

static inline enum program_type in_type(const struct launch *l, int i)
{
    return in(l, i) ? in(l, i)->type : PROGRAM_FP32;
}

static inline enum program_type out_type(const struct launch *l, int i)
{
    return out(l, i) ? out(l, i)->type : PROGRAM_FP32;
}

/* Bytes of an array of floats in scratch, so that what follows is aligned. */
static inline size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- operators_elements.c -------------------------------------------------------------------- */

cudaError_t cuda_launch_dropout(const struct launch *l);
cudaError_t cuda_launch_transpose(const struct launch *l);
cudaError_t cuda_launch_concat(const struct launch *l);
cudaError_t cuda_launch_reduce(const struct launch *l);
cudaError_t cuda_launch_add(const struct launch *l);
cudaError_t cuda_launch_subtract(const struct launch *l);
cudaError_t cuda_launch_scale(const struct launch *l);
cudaError_t cuda_launch_cast(const struct launch *l);
cudaError_t cuda_launch_fill(const struct launch *l);
cudaError_t cuda_launch_gelu(const struct launch *l);
cudaError_t cuda_launch_gelu_grad(const struct launch *l);
cudaError_t cuda_launch_relu(const struct launch *l);
cudaError_t cuda_launch_relu_grad(const struct launch *l);
cudaError_t cuda_launch_silu(const struct launch *l);
cudaError_t cuda_launch_silu_grad(const struct launch *l);
cudaError_t cuda_launch_swiglu(const struct launch *l);
cudaError_t cuda_launch_swiglu_grad(const struct launch *l);

/* ---- operators_rows.c ------------------------------------------------------------------------ */

cudaError_t cuda_launch_norm(const struct launch *l);
cudaError_t cuda_launch_norm_grad(const struct launch *l);
cudaError_t cuda_launch_column_sum(const struct launch *l, const void *x, enum program_type type,
                                   int i, int64_t rows, int64_t columns, void *scratch);
cudaError_t cuda_launch_add_grad_b(const struct launch *l);
cudaError_t cuda_launch_softmax(const struct launch *l);
cudaError_t cuda_launch_cross_entropy(const struct launch *l);
cudaError_t cuda_launch_cross_entropy_sums(const struct launch *l);
cudaError_t cuda_launch_cross_entropy_grad(const struct launch *l);
cudaError_t cuda_launch_embedding(const struct launch *l);
cudaError_t cuda_launch_embedding_grad(const struct launch *l);
cudaError_t cuda_launch_rope(const struct launch *l);

/* ---- operators_products.c -------------------------------------------------------------------- */

cudaError_t cuda_launch_linear(const struct launch *l);
cudaError_t cuda_launch_linear_grad(const struct launch *l);
cudaError_t cuda_launch_matmul(const struct launch *l);
struct fleet_cuda_attention cuda_attention_of(const struct program *program,
                                              const struct program_op *op, int i);
cudaError_t cuda_launch_attention(const struct launch *l);
cudaError_t cuda_launch_attention_grad(const struct launch *l);

/* ---- operators_classifier.c ------------------------------------------------------------------ */

cudaError_t cuda_launch_classifier(const struct launch *l);

/* Its products of a chunk of `rows` rows from row `first` on: the logits, x's gradient, the
 * weight's. c is NULL where one is not wanted. */
void cuda_classifier_products(const struct launch *l, int64_t first, int64_t rows,
                              struct fleet_cuda_gemm out[3]);

/* ---- operators_images.c ---------------------------------------------------------------------- */

cudaError_t cuda_launch_conv2d(const struct launch *l);
cudaError_t cuda_launch_conv2d_grad(const struct launch *l);
cudaError_t cuda_launch_batch_norm(const struct launch *l);
cudaError_t cuda_launch_batch_norm_grad(const struct launch *l);
cudaError_t cuda_launch_batch_norm_sums(const struct launch *l);
cudaError_t cuda_launch_batch_norm_grad_sums(const struct launch *l);
cudaError_t cuda_launch_max_pool2d(const struct launch *l);
cudaError_t cuda_launch_avg_pool2d(const struct launch *l);
cudaError_t cuda_launch_adaptive_avg_pool2d(const struct launch *l);
cudaError_t cuda_launch_max_pool2d_grad(const struct launch *l);
cudaError_t cuda_launch_avg_pool2d_grad(const struct launch *l);
cudaError_t cuda_launch_adaptive_avg_pool2d_grad(const struct launch *l);

/* ---- operators_update.c ---------------------------------------------------------------------- */

int64_t cuda_blocks_of(int64_t count);
int64_t cuda_gradient_blocks(const struct program *program, const struct kernel_held *held,
                             int *out_count);
cudaError_t cuda_launch_grad_norm(const struct launch *l);
cudaError_t cuda_launch_join_norms(const struct launch *l);
cudaError_t cuda_launch_spread_norms(const struct launch *l);
cudaError_t cuda_launch_total_norm(const struct launch *l);
cudaError_t cuda_launch_check_finite(const struct launch *l);
cudaError_t cuda_launch_optimizer(const struct launch *l);
cudaError_t cuda_launch_trust_squares(const struct launch *l);

/* ---- operators_dgc.c ------------------------------------------------------------------------- */

cudaError_t cuda_launch_dgc_select(const struct launch *l);
cudaError_t cuda_launch_dgc(const struct launch *l);

#endif
