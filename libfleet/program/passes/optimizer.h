/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_OPTIMIZER_H
#define LIBFLEET_PROGRAM_PASSES_OPTIMIZER_H

struct fleet_error;
struct pass_context;
struct program;

/*
 * Append norms and the inf/nan flag to the check section, then to the update section one operator a
 * trained parameter, in name order, with the hyper-parameters of spec.training.optimizer. Never
 * fails.
 */
int optimizer_apply(struct program *program, const struct pass_context *context,
                    struct fleet_error *err);

#endif
