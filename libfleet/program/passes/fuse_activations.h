/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_FUSE_ACTIVATIONS_H
#define LIBFLEET_PROGRAM_PASSES_FUSE_ACTIVATIONS_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Let the operator in front of a relu apply it, so that what lies between does not go to memory and
 * back. Knobs of build_strategy:
 *
 *   fuse_bn_act_ops            batch_norm, relu
 *   fuse_bn_add_act_ops        batch_norm, add, relu (the end of a residual block)
 *   fuse_elewise_add_act_ops   add, relu
 *
 * Only if no other operator reads what disappears; relu's backward part reads its output, which
 * stays. In fp32 the bits are those of the separate operators; 16-bit tensors are rounded once
 * instead of two or three times. Runs behind recompute, whose repeated operators are fused too.
 * Never fails.
 */
bool fuse_activations_wanted(const struct pass_context *context);
int fuse_activations_apply(struct program *program, const struct pass_context *context,
                           struct fleet_error *err);

#endif
