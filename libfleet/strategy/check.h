/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_CHECK_H
#define LIBFLEET_STRATEGY_CHECK_H

/*
 * Checks that each value of a strategy is legal, by itself and together with related fields. All
 * errors are reported at once, each with its path. Two other checks live elsewhere:
 * strategy_select() decides which knobs may be on together, and topology_build() which degrees fit
 * a world.
 *
 * The ranges are those of knobs.def. Floats must be finite. The rules between fields:
 *   recompute_configs.checkpoint_shape      given exactly with enable_offload
 *   sharding_configs.hybrid_dp              the group size divides the world and is smaller
 *   sharding_configs.dp_degree > 1          hybrid_dp is not false
 *   sharding_configs.pp_degree > 1          needs pipeline
 *   sharding_configs.gradient_merge_acc_step > 1   only without stages
 *   sharding_configs.segment_anchors        not empty with that segment strategy
 *   hierarchical_allreduce_inter_nranks     > 1 and divides the world, with hierarchical all-reduce
 *   hybrid_configs.order                    each axis at most once
 * Rules of a unit that is off are not checked.
 */

#include <stdbool.h>

#include "libfleet/strategy/strategy.h"

struct fleet_errors;

/*
 * Append errors to `errors`, and unusual but legal values (a falling sparsity list) to `warnings`
 * (may be NULL). Each reported path starts with `path`. `world_size` is the number of ranks; 0
 * means unknown, and rules that depend on it are not checked. With `any_world` it is the number of
 * the moment, after a loss for example, and two things are no error: blocks that do not divide it
 * (sums then have one level), and groups of hybrid_dp that do not (all ranks are then one group).
 * Returns 0 or -EINVAL.
 */
int strategy_check(const struct strategy *s, int world_size, bool any_world, const char *path,
                   struct fleet_errors *errors, struct fleet_errors *warnings);

/*
 * Check only the ranges of the fields that are set, for a strategy whose other fields could not
 * be read.
 */
int strategy_check_values(const struct strategy *s, const char *path, struct fleet_errors *errors);

#endif
