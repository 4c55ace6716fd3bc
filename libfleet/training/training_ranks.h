/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_TRAINING_RANKS_H
#define LIBFLEET_TRAINING_TRAINING_RANKS_H

/* What the training block says of the number of ranks. Pure. */

#include "libfleet/strategy/topology_fit.h"

struct fleet_errors;
struct fleet_strbuf;
struct strategy;
struct strategy_options;
struct training_config;
struct training_surroundings;

/* Has each rank a micro-batch? For training_config_check(), which has the meaning of `around`. */
void training_ranks_check(const struct training_config *config, const char *path,
                          const struct training_surroundings *around, struct fleet_errors *errors);

/* What the job allows of a grid of ranks. `ranks_of_worker`: 0 = not known. */
struct topology_job training_ranks_job(const struct training_config *config,
                                       const struct strategy_options *options, int ranks_of_worker);

/*
 * Append what would be possible in place of the grid of `world` ranks that `s` asks for:
 * "; nearest possible: 4 workers; or mp_degree 2, or globalBatchSize 16". Each suggestion alone
 * makes the grid possible. If there is none, append nothing.
 */
void training_ranks_nearest(const struct training_config *config, const struct strategy *s,
                            const struct strategy_options *options, int world, int ranks_of_worker,
                            struct fleet_strbuf *out);

#endif
