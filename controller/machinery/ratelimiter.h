/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_RATELIMITER_H
#define CONTROLLER_MACHINERY_RATELIMITER_H

/*
 * How long to wait before a key that failed is tried again: the first failure costs base_ms, each
 * further one twice as much, at most max_ms, plus up to a quarter at random. A success resets
 * the count. Memory is held only for keys that are failing now.
 */

#include <stdint.h>

#include "libfleet/base/map.h"

struct ratelimiter { /* base_ms and max_ms are set by the owner, the rest begins as zero */
    double base_ms, max_ms;
    struct fleet_map failures; /* key → count */
};

/* Forget all keys and free their memory. */
void ratelimiter_release(struct ratelimiter *limiter);

/* Count one failure; returns the wait in milliseconds. `random` is uniform in [0, 1). */
double ratelimiter_fail(struct ratelimiter *limiter, const char *key, double random);

/* It has succeeded, or is gone. */
void ratelimiter_forget(struct ratelimiter *limiter, const char *key);

/* Failures in a row, 0 for a key that does not fail. */
unsigned int ratelimiter_failures(const struct ratelimiter *limiter, const char *key);

/* The same growth for a single thing: after `failures` (>= 1) in a row. */
double ratelimiter_delay_ms(double base_ms, double max_ms, unsigned int failures, double random);

#endif
