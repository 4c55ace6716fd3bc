/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_LARS_H
#define LIBFLEET_PROGRAM_PASSES_LARS_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Turn every momentum operator into lars (You et al., 2017): rate, momentum, clip and
 * regularization stay, Nesterov is not honoured. A parameter whose name contains a string of
 * exclude_from_weight_decay gets λ = 0 and with it no trust ratio. Never fails.
 */
bool lars_wanted(const struct pass_context *context);
int lars_apply(struct program *program, const struct pass_context *context,
               struct fleet_error *err);

#endif
