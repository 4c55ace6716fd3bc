/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PROGRAM_BUILD_H
#define LIBFLEET_PROGRAM_PROGRAM_BUILD_H

/*
 * From a model and a strategy to the program that every rank runs: the model, the passes before
 * autodiff, autodiff, the passes after it, with a verification after each. Part of plan_build().
 */

struct fleet_errors;
struct pass_context;
struct program;

/*
 * Build the program into *out, to be released. -EINVAL with an error appended and nothing to
 * release: the model's below "spec.training.model", a knob's below `strategy_path`, with the knob's
 * own path where the pass names it.
 */
int program_build(const struct pass_context *context, const char *strategy_path,
                  struct program *out, struct fleet_errors *errors);

#endif
