/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_AVERAGING_H
#define LIBFLEET_TRAINING_AVERAGING_H

/*
 * After which updates localsgd and adaptive_localsgd average the parameters of the ranks
 * (spec/strategy.md 12, 13; Lin et al., 1808.07217; Wang and Joshi, 1810.08313). A value that every
 * rank advances by the same numbers, part of the checkpoint, current at the commit of an update.
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
    double unrounded; /* what the newest interval was rounded up from; 0: it was never computed */
};

/* What an update of number `update` (from 1) gives. */
struct averaging_step {
    int64_t update;
    double loss; /* the mean over the ranks of each one's own loss, before the update */
    double rate; /* the learning rate */
};

/* localsgd or adaptive_localsgd is on. */
bool averaging_is_on(const struct strategy *strategy);

/* Before the first update. */
void averaging_init(struct averaging *out, const struct strategy *strategy);

/*
 * Whether the parameters are averaged behind this update; moves `a` on. Both in
 * begin_step and in the intervals an update counts, not a batch. *out_kept: the formula of
 * adaptive_localsgd gives no number (a rate or loss of 0, a negative or infinite loss), so the
 * interval stays.
 */
bool averaging_advance(struct averaging *a, const struct strategy *strategy,
                       const struct strategy_options *options, const struct averaging_step *step,
                       bool *out_kept);

#endif
