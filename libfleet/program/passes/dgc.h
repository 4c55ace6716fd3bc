/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_DGC_H
#define LIBFLEET_PROGRAM_PASSES_DGC_H

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

/*
 * Deep gradient compression (libfleet/program/dgc.h): the momentum operator of each tensor of at
 * least DGC_ELEMENTS_MIN elements becomes a dgc operator with a second state, what has not been
 * sent yet. Their ranges of the exchange are summed in the dense phase only; behind it the exchange
 * section selects and gathers messages. Smaller tensors stay as they are. Knob: dgc. -EINVAL: the
 * gradient is clipped otherwise than by the norm of each tensor.
 */
bool dgc_wanted(const struct pass_context *context);
int dgc_apply(struct program *program, const struct pass_context *context, struct fleet_error *err);

#endif
