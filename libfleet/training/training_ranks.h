/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_TRAINING_RANKS_H
#define LIBFLEET_TRAINING_TRAINING_RANKS_H

/* What the training block says of the number of ranks. Pure. */

#include "libfleet/strategy/topology.h"

struct fleet_errors;
struct training_config;
struct training_surroundings;

/* Has each rank a micro-batch? For training_config_check(), which has the meaning of `around`. The
 * error names the most workers that have one where these are not the ranks themselves. */
void training_ranks_check(const struct training_config *config, const char *path,
                          const struct training_surroundings *around, struct fleet_errors *errors);

/* What the model allows of a grid of ranks. `ranks_of_worker`: 0 = not known. */
struct topology_job training_ranks_job(const struct training_config *config, int ranks_of_worker);

#endif
