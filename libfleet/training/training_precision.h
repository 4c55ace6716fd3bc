/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_TRAINING_PRECISION_H
#define LIBFLEET_TRAINING_TRAINING_PRECISION_H

#include <stdbool.h>

struct fleet_errors;
struct training_config;

/* spec.training.precision beside strategy.amp, and what needs a certain precision. `path` is that
 * of training. */
void training_precision_check(const struct training_config *config, const char *path, bool amp,
                              struct fleet_errors *errors);

#endif
