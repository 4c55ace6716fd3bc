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
 * Build the program into *out, which the caller releases. -EINVAL: an error was appended, and there
 * is nothing to release. Its path is below "spec.training.model" if the model is at fault; else it
 * is below `strategy_path` and names the knob, if the pass names one.
 */
int program_build(const struct pass_context *context, const char *strategy_path,
                  struct program *out, struct fleet_errors *errors);

#endif
