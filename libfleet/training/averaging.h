/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_AVERAGING_H
#define LIBFLEET_TRAINING_AVERAGING_H

/*
 * Decides after which updates localsgd and adaptive_localsgd average the parameters of the ranks
 * (Lin et al., 1808.07217; Wang and Joshi, 1810.08313). Every rank advances this value by the same
 * numbers at the commit of an update. It is part of the checkpoint.
 */

#include <stdbool.h>
#include <stdint.h>

struct strategy;
struct strategy_options;

#define AVERAGING_INTERVAL_MAX 16 /* adaptive_localsgd: the longest one */

struct averaging {
    int64_t last;      /* the update after which the parameters were averaged */
    int64_t interval;  /* updates between two averages */
    int64_t has_first; /* 1: the next two are known */
    double first_loss; /* adaptive_localsgd: L0 and lr0, of the first update */
    double first_rate;
    double unrounded; /* newest interval before it was rounded up; 0: it was never computed */
};

/* The data of update number `update` (from 1). */
struct averaging_step {
    int64_t update;
    double loss; /* mean of the ranks' own losses, before the update */
    double rate; /* the learning rate */
};

/* True if localsgd or adaptive_localsgd is on. */
bool averaging_is_on(const struct strategy *strategy);

/* The value before the first update. */
void averaging_init(struct averaging *out, const struct strategy *strategy);

/*
 * Advance `a` by one update. Returns true if the parameters are averaged after it. begin_step and
 * the intervals count updates, not batches. *out_kept: the formula of adaptive_localsgd gives no
 * number (a rate or loss of 0, a negative or infinite loss), so the interval does not change.
 */
bool averaging_advance(struct averaging *a, const struct strategy *strategy,
                       const struct strategy_options *options, const struct averaging_step *step,
                       bool *out_kept);

#endif
