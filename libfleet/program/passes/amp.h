/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_AMP_H
#define LIBFLEET_PROGRAM_PASSES_AMP_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Give every tensor of the forward part its type, fp32 or the 16-bit one that spec.training.precision
 * names, and insert casts where they meet: spec/strategy.md 7.2, before autodiff, which differentiates
 * casts too. Parameters stay fp32 and are cast where they are used.
 *
 *   strategy.amp                    the lists say where (amp_lists.h)
 *   strategy.amp, use_pure_fp16     16 bits everywhere
 *   strategy.amp, use_pure_bf16     the same in bf16, whatever is the default
 *   precision alone                 the lists, and what is in none follows what it reads
 *
 * With a loss scale (loss_scaling.h) the program's loss_scaling becomes the start of the backward
 * part. -EINVAL if custom_black_varnames names no tensor.
 */
bool amp_wanted(const struct pass_context *context);
int amp_apply(struct program *program, const struct pass_context *context, struct fleet_error *err);

#endif
