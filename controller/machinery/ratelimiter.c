/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Doubling delays with jitter. When the API server is unreachable, many keys fail at the same time;
 * jitter spreads their retries.
 */
#include "controller/machinery/ratelimiter.h"

#include "libfleet/base/assert.h"

void ratelimiter_release(struct ratelimiter *limiter)
{
    fleet_map_release(&limiter->failures);
}

double ratelimiter_delay_ms(double base_ms, double max_ms, unsigned int failures, double random)
{
    double delay_ms = base_ms;

    fleet_assert(failures >= 1 && base_ms > 0 && random >= 0 && random < 1);
    for (unsigned int i = 1; i < failures && delay_ms < max_ms; i++)
        delay_ms *= 2;
    if (delay_ms > max_ms)
        delay_ms = max_ms;
    return delay_ms * (1 + random / 4);
}

double ratelimiter_fail(struct ratelimiter *limiter, const char *key, double random)
{
    uintptr_t failures = ratelimiter_failures(limiter, key) + 1;

    fleet_map_set(&limiter->failures, key, (void *)failures); /* NOLINT: a count, not an address */
    return ratelimiter_delay_ms(limiter->base_ms, limiter->max_ms, (unsigned int)failures, random);
}

void ratelimiter_forget(struct ratelimiter *limiter, const char *key)
{
    fleet_map_remove(&limiter->failures, key);
}

unsigned int ratelimiter_failures(const struct ratelimiter *limiter, const char *key)
{
    return (unsigned int)(uintptr_t)fleet_map_get(&limiter->failures, key);
}
