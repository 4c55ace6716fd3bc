/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_RULE_H
#define DISTRIBUTED_PS_RULE_H

/* The optimizers of tables: how a gradient changes values (enum fleet_ps_rule). Pure. */

#include <stddef.h>
#include <stdint.h>

#include "distributed/distributed.h"
#include "include/fleet/fleet_ps.h"

/* The number of floats of optimizer state for `width` values. */
size_t ps_rule_state(enum fleet_ps_rule rule, size_t width);

/* Set the optimizer state to that of values without any gradient yet. */
void ps_rule_reset(const struct fleet_ps_table *table, float *state, size_t width);

/* Apply gradient g[width] to w[width]. */
void ps_rule_apply(const struct fleet_ps_table *table, float *w, float *state, const float *g,
                   size_t width);

/* Check each member of a table against its range. -EINVAL names the member. */
int ps_table_check(const struct fleet_ps_table *table, struct fleet_error *err);

#endif
