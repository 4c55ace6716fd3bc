/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_UNITS_H
#define LIBFLEET_STRATEGY_UNITS_H

/*
 * The eleven switches of a strategy that Paddle calls meta optimizers: a unit rewrites the program
 * and may contain another unit. Internal to the selection.
 */

#include <stdbool.h>

#include "libfleet/strategy/select.h"

/* The field that switches it: "amp". Static. */
const char *unit_name(enum unit unit);

/* Read and change the unit's switch in `s`; a changed one counts as set by its name. */
bool unit_is_on(const struct strategy *s, enum unit unit);
void unit_set(struct strategy *s, enum unit unit, bool on);

/* Units that `unit` may directly contain, as bits. */
unsigned int unit_may_contain(enum unit unit);

/* Paddle's data-parallel graph executor cannot be used with it. */
bool unit_bars_graph_executor(enum unit unit);

/* It works with that optimizer; NULL, the unknown optimizer, is always right. */
bool unit_fits_optimizer(enum unit unit, const char *optimizer);

/* "Momentum", "SGD or Momentum", …; NULL if it does not matter. */
const char *unit_optimizer(enum unit unit);

/* ---- parts of the selection ---- */

struct topology;

/*
 * Paddle 2.0's choice among the units that are on in `s` (with `auto`: switched on by it). Fills
 * applied, dropped and graph_executor of `out`, and switches off in `s` what was dropped.
 */
void select_paddle(struct strategy *s, const struct select_options *options,
                   struct select_result *out);

/* select_is_auto(): switch every unit on that needs no data of the user's. */
void select_expand_auto(struct strategy *s);

/* Fill without_effect, depends_on_workers and notes. `asked` is what the user wrote. */
void select_explain(const struct strategy *asked, const struct select_options *options,
                    const struct topology *topology, struct select_result *out);

/* Add the unit to `applied`, innermost. */
void select_apply(struct select_result *result, enum unit unit);

/* Append a copy of `name`. */
void select_name(struct select_names *names, const char *name);

#endif
