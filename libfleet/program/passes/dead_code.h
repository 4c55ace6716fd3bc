/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_DEAD_CODE_H
#define LIBFLEET_PROGRAM_PASSES_DEAD_CODE_H

struct fleet_error;
struct pass_context;
struct program;

/* Remove operators of the micro-batch section whose only results are activations that no remaining
 * operator reads. RECEIVE stays, because another rank sends. Paddle's recorded programs keep such
 * operators. `context` and `err` are not used; always returns 0. */
int dead_code_apply(struct program *program, const struct pass_context *context,
                    struct fleet_error *err);

#endif
