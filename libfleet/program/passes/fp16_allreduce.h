/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_FP16_ALLREDUCE_H
#define LIBFLEET_PROGRAM_PASSES_FP16_ALLREDUCE_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/* Gradients are sent in fp16: every tree_sum becomes an all_reduce with wire=fp16. Knob:
 * fp16_allreduce. Never fails. */
bool fp16_allreduce_wanted(const struct pass_context *context);
int fp16_allreduce_apply(struct program *program, const struct pass_context *context,
                         struct fleet_error *err);

#endif
