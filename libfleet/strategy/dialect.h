/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_DIALECT_H
#define LIBFLEET_STRATEGY_DIALECT_H

/*
 * The two dialects of a strategy: Paddle 2.0, and Paddle 2.1 with all later versions. Version 2.1
 * renamed three fields, renumbered some and added others. A reader of one dialect reports
 * names of the other dialect as errors.
 */

#include "libfleet/strategy/strategy.h"

struct fleet_errors;

enum strategy_dialect {
    STRATEGY_AS_READ, /* keep the names as they were given */
    STRATEGY_2_0,
    STRATEGY_2_1,
};

/*
 * Convert *s in place to the dialect `to`. Its meaning stays. Reported paths start with `path`.
 *
 * To 2.1: the new names are used. hybrid_dp also becomes dp_degree = world / group size, which
 * needs `world_size`. If that is 0 (unknown), dp_degree is left out, with a warning.
 * To 2.0: the old names are used. A dp_degree above 1 becomes hybrid_dp. A field that 2.0 lacks is
 * left out with a warning if it has its default value. With any other value it is an error, because
 * 2.0 cannot express it.
 *
 * `warnings` may be NULL. Returns 0, or -EINVAL if an error was added; *s is then partly
 * converted.
 */
int dialect_convert(struct strategy *s, enum strategy_dialect to, int world_size, const char *path,
                    struct fleet_errors *warnings, struct fleet_errors *errors);

#endif
