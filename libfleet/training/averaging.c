/* SPDX-License-Identifier: Apache-2.0 */

/*
 * adaptive_localsgd's interval is ⌈√(lr0·L / (lr·L0) · init)⌉ as Paddle has it, or
 * ⌈√(lr0·L / (lr·L0)) · init⌉ as the paper does (strategyOptions.adacommFormula).
 */
#include "libfleet/training/averaging.h"

#include <math.h>

#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"

bool averaging_is_on(const struct strategy *strategy)
{
    return strategy->localsgd || strategy->adaptive_localsgd;
}

void averaging_init(struct averaging *out, const struct strategy *strategy)
{
    *out = (struct averaging){
        .last = strategy->adaptive_localsgd ? 0 : strategy->localsgd_configs.begin_step,
        .interval = strategy->adaptive_localsgd ? strategy->adaptive_localsgd_configs.init_k_steps
                                                : strategy->localsgd_configs.k_steps};
}

/* False, and the interval stays: there is no such number. */
static bool adapt(struct averaging *a, const struct strategy *strategy,
                  const struct strategy_options *options, const struct averaging_step *step)
{
    double init = strategy->adaptive_localsgd_configs.init_k_steps;
    double quotient = a->first_rate * step->loss / (step->rate * a->first_loss), interval;
    bool is_paper = options && options->adacomm_formula == STRATEGY_ADACOMM_PAPER;

    if (!(step->loss >= 0) || !(a->first_loss > 0) || !isfinite(quotient))
        return false;
    interval = is_paper ? sqrt(quotient) * init : sqrt(quotient * init);
    a->unrounded = interval;
    a->interval = (int64_t)fmin(fmax(ceil(interval), 1), AVERAGING_INTERVAL_MAX);
    return true;
}

bool averaging_advance(struct averaging *a, const struct strategy *strategy,
                       const struct strategy_options *options, const struct averaging_step *step,
                       bool *out_kept)
{
    bool adapts = strategy->adaptive_localsgd;
    int64_t begin = adapts ? strategy->adaptive_localsgd_configs.begin_step
                           : strategy->localsgd_configs.begin_step;

    *out_kept = false;
    if (adapts && !a->has_first) {
        a->has_first = 1;
        a->first_loss = step->loss;
        a->first_rate = step->rate;
    }
    if (step->update > begin && step->update - a->last < a->interval)
        return false;
    a->last = step->update;
    if (adapts && step->update > begin)
        *out_kept = !adapt(a, strategy, options, step);
    return true;
}
