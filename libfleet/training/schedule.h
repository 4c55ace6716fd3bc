/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_SCHEDULE_H
#define LIBFLEET_TRAINING_SCHEDULE_H

/*
 * The learning rate as a pure function of the update's number. Resuming, resizing and
 * gradient_merge cannot shift it.
 */

#include <stdint.h>

struct training_config;

/*
 * The rate of update `update_1based` (1 … updates_total) of a checked configuration, as a double. A
 * caller that needs fp32 rounds it once. `updates_total` is training_updates(). Beyond the last
 * update cosine and polynomial keep their last rate.
 *
 * The warm-up comes first: update u = 1 … n gets start + (first - start)·u/n, where `first` is the
 * schedule at t = 0. Then t = 0, 1, 2 … counts updates. noam has its own warm-up.
 */
double schedule_rate(const struct training_config *config, int64_t updates_total,
                     int64_t update_1based);

#endif
