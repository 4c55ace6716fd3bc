/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_RULE_H
#define DISTRIBUTED_PS_RULE_H

/* What a gradient does to values: the accessors' optimizers (fleet_ps.h). Pure. */

#include <stddef.h>
#include <stdint.h>

#include "distributed/distributed.h"
#include "include/fleet/fleet_ps.h"

/* Floats of optimizer state beside `width` values. */
size_t ps_rule_state(enum fleet_ps_rule rule, size_t width);

/* State of values that no gradient has reached. */
void ps_rule_reset(const struct fleet_ps_table *table, float *state, size_t width);

/* Apply gradient g[width] to w[width]. */
void ps_rule_apply(const struct fleet_ps_table *table, float *w, float *state, const float *g,
                   size_t width);

/* Every member of a table, with its range. -EINVAL names the member. */
int ps_table_check(const struct fleet_ps_table *table, struct fleet_error *err);

#endif
