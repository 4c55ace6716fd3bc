/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_LAMB_H
#define LIBFLEET_PROGRAM_PASSES_LAMB_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Turn every adam operator into lamb (You et al., ICLR 2020): rate, betas, epsilon, clip and
 * regularization stay. A parameter whose name ends with a string of exclude_from_weight_decay gets
 * λ = 0; the trust ratio still applies to it. Never fails.
 */
bool lamb_wanted(const struct pass_context *context);
int lamb_apply(struct program *program, const struct pass_context *context,
               struct fleet_error *err);

#endif
