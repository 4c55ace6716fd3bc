/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_GIVEN_POSSIBLE_H
#define LIBFLEET_AUTOPARALLEL_GIVEN_POSSIBLE_H

/* The strategies that a message names as possible. Part of given_operators.c. */

#include <stdbool.h>

#include "libfleet/autoparallel/model_operators.h"

#define GIVEN_POSSIBLE_MAX 8 /* strategies of a message */

struct fleet_strbuf;

/* Append "in [[4, 1, 1], …], out [[4, 1, 1]]", with "; or " in front of all but the first. Nothing
 * if it is there already, or *count is GIVEN_POSSIBLE_MAX; else *count is one more. */
void given_possible_add(const struct operator_axes *axes, const struct operator_strategy *strategy,
                        int *count, struct fleet_strbuf *out);

/*
 * Those that operator `op` has on `grid`, which divides by operator, beside the entries of
 * operators->training: heap list into *out, returns its length.
 */
size_t given_possible_strategies(const struct model_operators *operators, int op,
                                 const struct operator_grid *grid, struct operator_strategy **out);

/* Could an entry say so? Words or heads that ranks divide unevenly have no number of parts. */
bool given_possible_fits(const struct operator_axes *axes,
                         const struct operator_strategy *strategy);

/* Can single operators have whole samples of a micro-batch on each rank, for any number of ranks
 * that share tensors? */
bool given_possible_samples(const struct model_operators *operators, int devices);

/* Append those that operator `op` has, beside others that are divided in another way, on `devices`
 * ranks: all that the builder makes if this operator's strategy is the only one given. */
void given_possible_list(const struct model_operators *operators, int op, int devices, int *count,
                         struct fleet_strbuf *out);

#endif
