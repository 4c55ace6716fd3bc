/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_TRUST_SQUARES_H
#define LIBFLEET_PROGRAM_PASSES_TRUST_SQUARES_H

/*
 * LAMB and LARS divide the norm of a parameter by the norm of its step. Ranks that share tensors
 * have parts of both. An update may not communicate (it follows the vote), so the section check
 * computes the sums of squares of all parts, and the ranks gather them. The updates add them in the
 * order of the ranks.
 *
 * The pass runs behind those that choose the optimizer. It never fails.
 */

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;

bool trust_squares_wanted(const struct pass_context *context);
int trust_squares_apply(struct program *program, const struct pass_context *context,
                        struct fleet_error *err);

#endif
