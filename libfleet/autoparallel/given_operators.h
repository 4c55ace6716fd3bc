/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_GIVEN_OPERATORS_H
#define LIBFLEET_AUTOPARALLEL_GIVEN_OPERATORS_H

/*
 * spec.training.operatorStrategies: strategies that a user gives to operators of the model, as
 * MindSpore's shard() takes them. The built-in trainer runs grids of ranks, so all operators share
 * one choice: a given strategy says which grids are possible. Pure.
 *
 * The first entry that matches an operator is for it. A tuple that is not given says nothing.
 */

#include <stddef.h>

#include "libfleet/autoparallel/model_operators.h"

struct fleet_errors;
struct training_operator_list;

/*
 * The grids of `devices` ranks, at most FLEET_WORLD_MAX, that divide all operators as `given` says:
 * heap list into *out, returns its length. Those that share neither sequences nor rows come first,
 * then those with more replicas. `path` precedes paths ("spec.training.operatorStrategies"). 0 with
 * errors appended:
 *   a tuple that is no list of numbers from 1 on; an entry without tuples
 *   a name or pattern that matches no operator ("did you mean"), or only those of earlier entries
 *   what operator_strategy_from_splits() refuses
 *   an operator that no grid divides so: the message has the strategies that grids have
 *   two entries that have no grid in common
 */
size_t given_operators_grids(const struct training_operator_list *given,
                             const struct model_operators *operators, int devices, const char *path,
                             struct operator_grid **out, struct fleet_errors *errors);

/* Does `grid` divide all operators so? 0, or -EINVAL with errors appended, as if this grid were the
 * only one. */
int given_operators_check(const struct training_operator_list *given,
                          const struct model_operators *operators, const struct operator_grid *grid,
                          const char *path, struct fleet_errors *errors);

#endif
