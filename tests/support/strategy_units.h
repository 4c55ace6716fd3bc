/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_STRATEGY_UNITS_H
#define TESTS_SUPPORT_STRATEGY_UNITS_H

#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/units.h"

/* Make a strategy with a set of units (bits: UNIT_BIT()), each with the data that it needs to take
 * part. */
static inline void strategy_units_make(struct strategy *s, unsigned int bits)
{
    strategy_init(s);
    for (int i = 0; i < UNITS; i++)
        if (bits & UNIT_BIT(i))
            unit_set(s, (enum unit)i, true);
    if (s->recompute) {
        knob_append_string(&s->recompute_configs.checkpoints, "x");
        s->recompute_configs.has_checkpoints = s->has_recompute_configs = KNOB_BY_NAME;
    }
    if (s->gradient_merge) {
        s->gradient_merge_configs.k_steps = 4;
        s->gradient_merge_configs.has_k_steps = s->has_gradient_merge_configs = KNOB_BY_NAME;
    }
}

#endif
