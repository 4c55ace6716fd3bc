/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_AMP_H
#define LIBFLEET_PROGRAM_PASSES_AMP_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Give every tensor of the forward part its type, fp32 or the 16-bit one that
 * spec.training.precision names, and insert casts where they meet, before
 * autodiff, which differentiates casts too. Parameters stay fp32 and are cast where they are used.
 *
 *   strategy.amp                    the lists say where (amp_lists.h)
 *   strategy.amp, use_pure_fp16     16 bits everywhere but in custom_black_list
 *   strategy.amp, use_pure_bf16     the same in bf16, with any default
 *   precision alone                 the lists, and what is in none follows what it reads
 *   precision fp8                   bf16; LINEARs in bf16 get the attribute fp8, if their three
 *                                   sizes are multiples of 16 and they do not make logits
 *
 * With spec.training.stochasticRounding, casts of parameters to bf16 get a stream (op.h, CAST).
 *
 * An activation inside a linear that a custom list names becomes an operator of its own where the
 * two are to run apart. With a loss scale (loss_scaling.h) the program's loss_scaling becomes the
 * start of the backward part.
 *
 * -EINVAL: custom_black_varnames names no tensor; a custom list names no operator; the two name one
 * operator. Idle (pass.h): a list with names that this model has not.
 */
bool amp_wanted(const struct pass_context *context);
int amp_apply(struct program *program, const struct pass_context *context, struct fleet_error *err);

#endif
