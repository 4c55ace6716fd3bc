/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/operators.h"

#include "cuda/operators_internal.h"
#include "libfleet/program/ops/operand.h"

static cudaError_t (*const launches[OP_KIND_COUNT])(const struct launch *l) = {
    [OP_EMBEDDING] = cuda_launch_embedding,
    [OP_EMBEDDING_GRAD] = cuda_launch_embedding_grad,
    [OP_LAYER_NORM] = cuda_launch_norm,
    [OP_LAYER_NORM_GRAD] = cuda_launch_norm_grad,
    [OP_RMS_NORM] = cuda_launch_norm,
    [OP_RMS_NORM_GRAD] = cuda_launch_norm_grad,
    [OP_LINEAR] = cuda_launch_linear,
    [OP_LINEAR_GRAD] = cuda_launch_linear_grad,
    [OP_MATMUL] = cuda_launch_matmul,
    [OP_ATTENTION] = cuda_launch_attention,
    [OP_ATTENTION_GRAD] = cuda_launch_attention_grad,
    [OP_CROSS_ENTROPY] = cuda_launch_cross_entropy,
    [OP_CROSS_ENTROPY_SUMS] = cuda_launch_cross_entropy_sums,
    [OP_CROSS_ENTROPY_GRAD] = cuda_launch_cross_entropy_grad,
    [OP_LINEAR_CROSS_ENTROPY] = cuda_launch_classifier,
    [OP_ADD] = cuda_launch_add,
    [OP_ADD_GRAD_B] = cuda_launch_add_grad_b,
    [OP_SUBTRACT] = cuda_launch_subtract,
    [OP_SCALE] = cuda_launch_scale,
    [OP_GELU] = cuda_launch_gelu,
    [OP_GELU_GRAD] = cuda_launch_gelu_grad,
    [OP_RELU] = cuda_launch_relu,
    [OP_RELU_GRAD] = cuda_launch_relu_grad,
    [OP_SILU] = cuda_launch_silu,
    [OP_SILU_GRAD] = cuda_launch_silu_grad,
    [OP_SWIGLU] = cuda_launch_swiglu,
    [OP_SWIGLU_GRAD] = cuda_launch_swiglu_grad,
    [OP_ROPE] = cuda_launch_rope,
    [OP_DROPOUT] = cuda_launch_dropout,
    [OP_SOFTMAX] = cuda_launch_softmax,
    [OP_SOFTMAX_GRAD] = cuda_launch_softmax,
    [OP_CAST] = cuda_launch_cast,
    [OP_TRANSPOSE] = cuda_launch_transpose,
    [OP_REDUCE] = cuda_launch_reduce,
    [OP_REDUCE_GRAD] = cuda_launch_reduce,
    [OP_CONCAT] = cuda_launch_concat,
    [OP_SPLIT] = cuda_launch_concat,
    [OP_CONV2D] = cuda_launch_conv2d,
    [OP_CONV2D_GRAD] = cuda_launch_conv2d_grad,
    [OP_BATCH_NORM] = cuda_launch_batch_norm,
    [OP_BATCH_NORM_GRAD] = cuda_launch_batch_norm_grad,
    [OP_BATCH_NORM_SUMS] = cuda_launch_batch_norm_sums,
    [OP_BATCH_NORM_GRAD_SUMS] = cuda_launch_batch_norm_grad_sums,
    [OP_MAX_POOL2D] = cuda_launch_max_pool2d,
    [OP_MAX_POOL2D_GRAD] = cuda_launch_max_pool2d_grad,
    [OP_AVG_POOL2D] = cuda_launch_avg_pool2d,
    [OP_AVG_POOL2D_GRAD] = cuda_launch_avg_pool2d_grad,
    [OP_ADAPTIVE_AVG_POOL2D] = cuda_launch_adaptive_avg_pool2d,
    [OP_ADAPTIVE_AVG_POOL2D_GRAD] = cuda_launch_adaptive_avg_pool2d_grad,
    [OP_FILL] = cuda_launch_fill,
    [OP_GRAD_NORM] = cuda_launch_grad_norm,
    [OP_JOIN_NORMS] = cuda_launch_join_norms,
    [OP_SPREAD_NORMS] = cuda_launch_spread_norms,
    [OP_TOTAL_NORM] = cuda_launch_total_norm,
    [OP_TRUST_SQUARES] = cuda_launch_trust_squares,
    [OP_CHECK_FINITE] = cuda_launch_check_finite,
    [OP_SGD] = cuda_launch_optimizer,
    [OP_MOMENTUM] = cuda_launch_optimizer,
    [OP_ADAM] = cuda_launch_optimizer,
    [OP_ADAMW] = cuda_launch_optimizer,
    [OP_LAMB] = cuda_launch_optimizer,
    [OP_LARS] = cuda_launch_optimizer,
    [OP_DGC_SELECT] = cuda_launch_dgc_select,
    [OP_DGC] = cuda_launch_dgc,
};

bool cuda_operator_exists(enum op_kind kind)
{
    return launches[kind] != NULL;
}

cudaError_t cuda_operator_launch(cudaStream_t stream, const struct kernel_call *call,
                                 const struct cuda_operator_context *context)
{
    struct launch l = {
        .stream = stream, .call = call, .context = context, .attributes = &call->op->attributes};

    return launches[call->op->kind] ? launches[call->op->kind](&l) : cudaErrorInvalidValue;
}
