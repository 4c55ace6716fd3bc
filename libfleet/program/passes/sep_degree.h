/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_SEP_DEGREE_H
#define LIBFLEET_PROGRAM_PASSES_SEP_DEGREE_H

/*
 * hybrid_configs.sep_degree, the backward part. The model's builder has given each rank its tokens,
 * and put in the exchanges around attention and the average of the loss (models/builder.h,
 * builder_join_tokens()). Autodiff gives the reverse exchanges, and the gather of the gradient in
 * front of the embedding, which each rank then computes as a whole.
 *
 * Left is the gradient of the other parameters: each rank has it of its own tokens. The ranks sum
 * it in each micro-batch, in rank order, so every rank has the complete gradient and the same
 * weights. The pass runs right behind tensor_parallel.
 */

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

bool sep_degree_wanted(const struct pass_context *context);

/* -EINVAL: a knob is on that keeps values of its own on each worker. */
int sep_degree_apply(struct program *program, const struct pass_context *context,
                     struct fleet_error *err);

#endif
