/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_STRATEGY_JSON_H
#define LIBFLEET_STRATEGY_STRATEGY_JSON_H

/*
 * The strategy as JSON, the form of `spec.strategy`: Paddle's names, snake_case, set fields only.
 *
 * Rules of reading. Each violation is one error with its path:
 *  (1) An unknown name is refused, at every level, with "did you mean".
 *  (2) A value has exactly the type of its field: true is not a number, 1 is not a bool, "x" is not
 *      a list. An integer has no fraction and fits 32 bits. "inf", "-inf" and "nan" are read as
 *      floats, because JSON has no other notation for them; strategy_check() refuses them.
 *  (3) null is refused; leave the field out instead.
 *  (4) Two names of one setting (sharding_group_size, sharding_degree) must agree.
 *  (5) `mode` is refused: it follows from the kind of job.
 *  (6) If a_sync is given, a_sync_configs.k_steps becomes 0, unless it is given, too.
 * The names of Paddle's Python properties _fuse_grad_size_in_TFLOPS, _calc_comm_same_stream and
 * is_with_coordinator are read as the fields they set.
 *
 * Ranges and the rules between fields are not checked here; strategy_check() does that.
 */

#include <cjson/cJSON.h>

#include "libfleet/strategy/strategy.h"

struct fleet_errors;

/*
 * Read `json` (an object) into uninitialised *out. Each error's path starts with `path`
 * ("spec.strategy"; "" for none). *out is always a valid strategy, which holds every field that
 * could be read; release it. Returns 0, or -EINVAL if errors were added.
 */
int strategy_json_decode(const cJSON *json, const char *path, struct strategy *out,
                         struct fleet_errors *errors);

/* The set fields as an object that the caller owns. Aborts when out of memory. */
cJSON *strategy_json_encode(const struct strategy *s);

#endif
