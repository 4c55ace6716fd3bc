/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_TABLE_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_TABLE_H

/*
 * All kernels of one level. A level's file (kernels_plain.c, …) defines CPU_KERNELS as the name of
 * its table and includes this; the compiler flags of the file make the difference.
 */

#include "agent/runtime/backend/cpu/kernels/attention.h"
#include "agent/runtime/backend/cpu/kernels/batch_norm.h"
#include "agent/runtime/backend/cpu/kernels/column_sum.h"
#include "agent/runtime/backend/cpu/kernels/concat.h"
#include "agent/runtime/backend/cpu/kernels/conv2d.h"
#include "agent/runtime/backend/cpu/kernels/cross_entropy.h"
#include "agent/runtime/backend/cpu/kernels/dgc.h"
#include "agent/runtime/backend/cpu/kernels/dropout.h"
#include "agent/runtime/backend/cpu/kernels/elementwise.h"
#include "agent/runtime/backend/cpu/kernels/embedding.h"
#include "agent/runtime/backend/cpu/kernels/grad_norm.h"
#include "agent/runtime/backend/cpu/kernels/linear.h"
#include "agent/runtime/backend/cpu/kernels/matmul.h"
#include "agent/runtime/backend/cpu/kernels/norm.h"
#include "agent/runtime/backend/cpu/kernels/optimizer.h"
#include "agent/runtime/backend/cpu/kernels/pool.h"
#include "agent/runtime/backend/cpu/kernels/reduce.h"
#include "agent/runtime/backend/cpu/kernels/rope.h"
#include "agent/runtime/backend/cpu/kernels/softmax.h"
#include "agent/runtime/backend/cpu/kernels/transpose.h"

#ifndef CPU_KERNELS
#define CPU_KERNELS cpu_kernels_plain
#endif

const struct cpu_kernels CPU_KERNELS = {
    .of =
        {
            [OP_EMBEDDING] = embedding_kernel,
            [OP_EMBEDDING_GRAD] = embedding_grad_kernel,
            [OP_LAYER_NORM] = layer_norm_kernel,
            [OP_LAYER_NORM_GRAD] = layer_norm_grad_kernel,
            [OP_RMS_NORM] = rms_norm_kernel,
            [OP_RMS_NORM_GRAD] = rms_norm_grad_kernel,
            [OP_LINEAR] = linear_kernel,
            [OP_LINEAR_GRAD] = linear_grad_kernel,
            [OP_MATMUL] = matmul_kernel,
            [OP_ATTENTION] = attention_kernel,
            [OP_ATTENTION_GRAD] = attention_grad_kernel,
            [OP_CROSS_ENTROPY] = cross_entropy_kernel,
            [OP_CROSS_ENTROPY_GRAD] = cross_entropy_grad_kernel,
            [OP_CROSS_ENTROPY_SUMS] = cross_entropy_sums_kernel,
            [OP_ADD] = add_kernel,
            [OP_ADD_GRAD_B] = add_grad_b_kernel,
            [OP_SCALE] = scale_kernel,
            [OP_GELU] = gelu_kernel,
            [OP_GELU_GRAD] = gelu_grad_kernel,
            [OP_RELU] = relu_kernel,
            [OP_RELU_GRAD] = relu_grad_kernel,
            [OP_SILU] = silu_kernel,
            [OP_SILU_GRAD] = silu_grad_kernel,
            [OP_SWIGLU] = swiglu_kernel,
            [OP_SWIGLU_GRAD] = swiglu_grad_kernel,
            [OP_ROPE] = rope_kernel,
            [OP_DROPOUT] = dropout_kernel,
            [OP_SOFTMAX] = softmax_kernel,
            [OP_SOFTMAX_GRAD] = softmax_grad_kernel,
            [OP_CAST] = cast_kernel,
            [OP_RESHAPE] = reshape_kernel,
            [OP_MEMCPY] = reshape_kernel,
            [OP_TRANSPOSE] = transpose_kernel,
            [OP_REDUCE] = reduce_kernel,
            [OP_REDUCE_GRAD] = reduce_grad_kernel,
            [OP_CONCAT] = concat_kernel,
            [OP_SPLIT] = split_kernel,
            [OP_CONV2D] = conv2d_kernel,
            [OP_CONV2D_GRAD] = conv2d_grad_kernel,
            [OP_BATCH_NORM] = batch_norm_kernel,
            [OP_BATCH_NORM_GRAD] = batch_norm_grad_kernel,
            [OP_BATCH_NORM_SUMS] = batch_norm_sums_kernel,
            [OP_BATCH_NORM_GRAD_SUMS] = batch_norm_grad_sums_kernel,
            [OP_MAX_POOL2D] = max_pool2d_kernel,
            [OP_MAX_POOL2D_GRAD] = max_pool2d_grad_kernel,
            [OP_AVG_POOL2D] = avg_pool2d_kernel,
            [OP_AVG_POOL2D_GRAD] = avg_pool2d_grad_kernel,
            [OP_ADAPTIVE_AVG_POOL2D] = adaptive_avg_pool2d_kernel,
            [OP_ADAPTIVE_AVG_POOL2D_GRAD] = adaptive_avg_pool2d_grad_kernel,
            [OP_FILL] = fill_kernel,
            [OP_SUBTRACT] = subtract_kernel,
            [OP_DGC_SELECT] = dgc_select_kernel,
            [OP_GRAD_NORM] = grad_norm_kernel,
            [OP_JOIN_NORMS] = join_norms_kernel,
            [OP_CHECK_FINITE] = check_finite_kernel,
            [OP_SGD] = optimizer_kernel,
            [OP_MOMENTUM] = optimizer_kernel,
            [OP_ADAM] = optimizer_kernel,
            [OP_ADAMW] = optimizer_kernel,
            [OP_LAMB] = optimizer_kernel,
            [OP_LARS] = optimizer_kernel,
            [OP_DGC] = dgc_kernel,
        },
    .add = add_into,
    .narrow = narrow_into,
    .widen = widen_into,
};

#endif
