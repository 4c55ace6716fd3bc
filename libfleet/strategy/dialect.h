/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_DIALECT_H
#define LIBFLEET_STRATEGY_DIALECT_H

/*
 * The two dialects of a strategy: Paddle 2.0, and 2.1 with all later versions. Between them fields
 * were renamed (three), renumbered and added; a text of one is an error to readers of the other.
 */

#include "libfleet/strategy/strategy.h"

struct fleet_errors;

enum strategy_dialect {
    STRATEGY_AS_READ, /* keep the names as they were given */
    STRATEGY_2_0,
    STRATEGY_2_1,
};

/*
 * Make *s say the same in one dialect. `path` stands in front of each path.
 *
 * To 2.1: new names; hybrid_dp also becomes dp_degree = world / group size, which needs
 * `world_size` (0 if unknown: left out, with a warning).
 * To 2.0: old names; dp_degree above 1 becomes hybrid_dp; what 2.0 lacks is left out if it has its
 * default value (with a warning) and is an error if not: nothing of 2.0 says the same.
 *
 * `warnings` may be NULL. Returns 0 or -EINVAL; then *s is partly converted.
 */
int dialect_convert(struct strategy *s, enum strategy_dialect to, int world_size, const char *path,
                    struct fleet_errors *warnings, struct fleet_errors *errors);

#endif
