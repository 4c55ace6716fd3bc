/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_UNITS_H
#define LIBFLEET_STRATEGY_UNITS_H

/*
 * The eleven switches of a strategy that Paddle calls meta optimizers: a unit rewrites the program
 * and may contain another unit. Internal to the selection.
 */

#include <stdbool.h>

#include "libfleet/strategy/select.h"

/* The field that switches the unit: "amp". Static. */
const char *unit_name(enum unit unit);

/* Read and change the unit's switch in `s`. After a change the field is set, by its own name. */
bool unit_is_on(const struct strategy *s, enum unit unit);
void unit_set(struct strategy *s, enum unit unit, bool on);

/* Units that `unit` may directly contain, as bits. */
unsigned int unit_may_contain(enum unit unit);

/* True if Paddle's data-parallel graph executor cannot be used with the unit. */
bool unit_bars_graph_executor(enum unit unit);

/* True if the unit works with that optimizer. NULL, an unknown optimizer, gives true. */
bool unit_fits_optimizer(enum unit unit, const char *optimizer);

/* The optimizers that the unit works with: "Momentum", "SGD or Momentum", …; NULL: all. */
const char *unit_optimizer(enum unit unit);

/* ---- parts of the selection ---- */

struct topology;

/*
 * Paddle 2.0's choice among the units that are on in `s`; with `auto` it first switches units on.
 * Fills applied, dropped and graph_executor of `out`, and switches the dropped units off in `s`.
 */
void select_paddle(struct strategy *s, const struct select_options *options,
                   struct select_result *out);

/* For select_is_auto(): switch on every unit that needs no values from the user. */
void select_expand_auto(struct strategy *s);

/* Fill without_effect, depends_on_workers and notes. `asked` is the strategy as the user wrote
 * it. */
void select_explain(const struct strategy *asked, const struct select_options *options,
                    const struct topology *topology, struct select_result *out);

/* Add the unit to `applied` as the innermost one. */
void select_apply(struct select_result *result, enum unit unit);

/* Append a copy of `name`. */
void select_name(struct select_names *names, const char *name);

#endif
