/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_CHECK_H
#define LIBFLEET_STRATEGY_CHECK_H

/*
 * Is each value of a strategy legal by itself and beside its companions? All errors at once, each
 * with its path. strategy_select() decides which knobs may be on together, topology_build() which
 * degrees fit a world.
 *
 * Ranges are those of knobs.def; floats are finite everywhere; companions:
 *   recompute_configs.checkpoint_shape      given exactly with enable_offload
 *   sharding_configs.hybrid_dp              the group size divides the world and is smaller
 *   sharding_configs.dp_degree > 1          hybrid_dp is not false
 *   sharding_configs.pp_degree > 1          needs pipeline
 *   sharding_configs.gradient_merge_acc_step > 1   only without stages
 *   sharding_configs.segment_anchors        not empty with that segment strategy
 *   hierarchical_allreduce_inter_nranks     > 1 and divides the world, with hierarchical all-reduce
 *   hybrid_configs.order                    no axis twice
 * Companions of a unit that is off are not looked at.
 */

#include "libfleet/strategy/strategy.h"

struct fleet_errors;

/*
 * Append what is wrong to `errors` and what is only unusual (a falling sparsity list) to `warnings`
 * (may be NULL). `path` stands in front of each path. `world_size` is the number of workers' ranks,
 * 0 if unknown: then what depends on it is not looked at. Returns 0 or -EINVAL.
 */
int strategy_check(const struct strategy *s, int world_size, const char *path,
                   struct fleet_errors *errors, struct fleet_errors *warnings);

/*
 * Check only the ranges of the fields that are set, for a strategy whose other fields could not
 * be read.
 */
int strategy_check_values(const struct strategy *s, const char *path, struct fleet_errors *errors);

#endif
