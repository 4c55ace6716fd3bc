/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_OPS_DEFINITIONS_H
#define LIBFLEET_PROGRAM_OPS_DEFINITIONS_H

/* The definitions that the files of this folder export; op.c puts them into one table. */

#include "libfleet/program/op.h"

extern const struct op_definition embedding_definition, embedding_grad_definition;
extern const struct op_definition layer_norm_definition, layer_norm_grad_definition;
extern const struct op_definition rms_norm_definition, rms_norm_grad_definition;
extern const struct op_definition linear_definition, linear_grad_definition;
extern const struct op_definition matmul_definition;
extern const struct op_definition attention_definition, attention_grad_definition;
extern const struct op_definition cross_entropy_definition, cross_entropy_grad_definition;
extern const struct op_definition add_definition, add_grad_b_definition;
extern const struct op_definition scale_definition;
extern const struct op_definition gelu_definition, gelu_grad_definition;
extern const struct op_definition relu_definition, relu_grad_definition;
extern const struct op_definition silu_definition, silu_grad_definition;
extern const struct op_definition swiglu_definition, swiglu_grad_definition;
extern const struct op_definition rope_definition;
extern const struct op_definition dropout_definition;
extern const struct op_definition softmax_definition, softmax_grad_definition;
extern const struct op_definition cast_definition;
extern const struct op_definition reshape_definition;
extern const struct op_definition transpose_definition;
extern const struct op_definition reduce_definition, reduce_grad_definition;
extern const struct op_definition concat_definition, split_definition;
extern const struct op_definition conv2d_definition, conv2d_grad_definition;
extern const struct op_definition batch_norm_definition, batch_norm_grad_definition;
extern const struct op_definition max_pool2d_definition, max_pool2d_grad_definition;
extern const struct op_definition avg_pool2d_definition, avg_pool2d_grad_definition;
extern const struct op_definition adaptive_avg_pool2d_definition;
extern const struct op_definition adaptive_avg_pool2d_grad_definition;
extern const struct op_definition memcpy_definition;
extern const struct op_definition fill_definition;
extern const struct op_definition all_reduce_definition;
extern const struct op_definition grad_norm_definition;
extern const struct op_definition check_finite_definition;
extern const struct op_definition sgd_definition, momentum_definition;
extern const struct op_definition adam_definition, adamw_definition, lamb_definition;
extern const struct op_definition lars_definition;

#endif
