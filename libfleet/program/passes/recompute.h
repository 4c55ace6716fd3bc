/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_RECOMPUTE_H
#define LIBFLEET_PROGRAM_PASSES_RECOMPUTE_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Keep only checkpoints from the forward part and repeat the rest, segment by segment, in the
 * backward part (Chen et al., arXiv:1604.06174). Runs right behind autodiff (it needs
 * program_op.source).
 *
 * Checkpoints are the tensors recompute_configs.checkpoints names; if it names none, outputs of
 * blocks are chosen so that there are about √blocks segments. With enable_offload all but the last
 * move to host memory and back. Idle (pass.h): `recompute` if nothing is repeated,
 * recompute_configs.enable_offload if nothing is moved.
 *
 * Messages between the stages of a pipeline are never repeated, and no segment has operators of two
 * chunks. A stage leaves out the named checkpoints of other stages.
 *
 * -EINVAL if a name is no tensor of the program, a checkpoint has another shape than
 * checkpoint_shape, or an offloaded one is not made by exactly one operator.
 */
bool recompute_wanted(const struct pass_context *context);

/* Refuse names that are no tensors of the whole model, before it is cut into stages. */
int recompute_check(const struct program *program, const struct pass_context *context,
                    struct fleet_error *err);

int recompute_apply(struct program *program, const struct pass_context *context,
                    struct fleet_error *err);

#endif
