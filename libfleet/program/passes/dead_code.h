/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_DEAD_CODE_H
#define LIBFLEET_PROGRAM_PASSES_DEAD_CODE_H

struct fleet_error;
struct pass_context;
struct program;

/* Take out operators of the micro-batch section that are not needed: all they write are activations
 * that no later operator reads. Paddle's recorded programs keep such operators. Never fails. */
int dead_code_apply(struct program *program, const struct pass_context *context,
                    struct fleet_error *err);

#endif
