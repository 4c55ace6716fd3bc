/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_SCHEDULE_H
#define LIBFLEET_TRAINING_SCHEDULE_H

/*
 * The learning rate as a pure function of the number of the update, so that resuming, resizing and
 * gradient_merge cannot shift it.
 */

#include <stdint.h>

struct training_config;

/*
 * Rate of update `update_1based` (1 … updates_total) of a checked configuration; in double; a
 * caller that needs fp32 rounds it once. `updates_total` is training_updates(). Beyond the last
 * update the rate stays where cosine and polynomial end.
 *
 * Warm-up first: update u = 1 … n gets start + (first - start)·u/n, first = the schedule at t = 0;
 * then t = 0, 1, 2 … counts updates. noam has its own warm-up.
 */
double schedule_rate(const struct training_config *config, int64_t updates_total,
                     int64_t update_1based);

#endif
