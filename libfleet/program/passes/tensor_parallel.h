/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_TENSOR_PARALLEL_H
#define LIBFLEET_PROGRAM_PASSES_TENSOR_PARALLEL_H

/*
 * tensor_parallel, the backward part. The model's builder has divided layers by columns and rows
 * and put in the sums of the forward part (models/builder.h). A layer that has some of the features
 * gives, on each rank, a part of the gradient of its input, which all ranks have: this pass sums it
 * over the model ranks, once for all layers that read the same input.
 *
 * If there are fewer heads of keys and values than ranks, each rank has the whole layer that makes
 * them and uses some of its features (builder_kv_linear()). Such a layer also gives a part of the
 * gradient of its input, and a part of its weight's gradient, which the pass sums, too.
 *
 * The pass runs right behind autodiff. What reads the input beside such layers is an error. Norms
 * of the gradient are joined (optimizer.c), and so are those of LAMB and LARS (trust_squares.h).
 */

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

bool tensor_parallel_wanted(const struct pass_context *context);
int tensor_parallel_apply(struct program *program, const struct pass_context *context,
                          struct fleet_error *err);

#endif
