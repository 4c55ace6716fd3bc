/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PRUNE_H
#define LIBFLEET_PROGRAM_PRUNE_H

/*
 * The part of a program that computes some variables from others, as Paddle prunes a program before
 * it saves a model for inference.
 *
 * The result has the forward operators that the fetches need, in their order, and only variables
 * that these operators name. Operators that an evaluation leaves out are left out. A feed becomes
 * an input. A fetched activation becomes a SCALAR, so that no later operator takes its memory.
 * It has no loss, gradients or states. Its flat spaces have a layout of their own. VERIFY_INFERENCE
 * holds.
 */

#include "libfleet/program/program.h"

struct fleet_error;

struct prune_request {
    const int *feeds; /* [feed_count] variables whose values are given; none: the program's inputs,
                         as far as they are needed */
    int feed_count;
    const int *fetches; /* [fetch_count], at least one: variables that are wanted */
    int fetch_count;
};

/*
 * *out must be released unless an error is returned. -EINVAL names the variable: a fetch is not
 * written by a forward operator; a fetch is a feed, too; an input is needed and not fed; a feed is
 * not needed, or is a parameter. -EINVAL also for an operator that communicates.
 */
int prune_forward(const struct program *program, const struct prune_request *request,
                  struct program *out, struct fleet_error *err);

#endif
