/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Paddle's update_loss_scaling rule in fp32 arithmetic, so that the scale
 * follows Paddle's bit by bit: growth that would overflow is left out, a shrinking scale stops at
 * 1.
 */
#include "libfleet/training/loss_scaling.h"

#include <math.h>

#include "libfleet/strategy/strategy.h"

bool loss_scaling_is_on(const struct strategy *strategy)
{
    return strategy->amp && (strategy->amp_configs.use_dynamic_loss_scaling ||
                             strategy->amp_configs.init_loss_scaling != 1.0F);
}

void loss_scaling_init(struct loss_scaling *out, const struct strategy *strategy)
{
    *out = (struct loss_scaling){
        .scale = loss_scaling_is_on(strategy) ? strategy->amp_configs.init_loss_scaling : 1.0F};
}

void loss_scaling_advance(struct loss_scaling *state, const struct strategy *strategy, bool found)
{
    float next;

    if (!loss_scaling_is_on(strategy) || !strategy->amp_configs.use_dynamic_loss_scaling)
        return;
    if (found) {
        state->good = 0;
        if (++state->bad < strategy->amp_configs.decr_every_n_nan_or_inf)
            return;
        next = state->scale * strategy->amp_configs.decr_ratio;
        state->scale = next < 1.0F ? 1.0F : next; /* this raises a scale below 1 */
        state->bad = 0;
        return;
    }
    state->bad = 0;
    if (++state->good < strategy->amp_configs.incr_every_n_steps)
        return;
    next = state->scale * strategy->amp_configs.incr_ratio;
    if (isfinite(next))
        state->scale = next;
    state->good = 0;
}
