/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_CLOCK_H
#define LIBFLEET_BASE_CLOCK_H

/*
 * Time. Domain code never reads a clock: its callers pass `now`. Two clocks exist:
 *
 *  monotonic  for deadlines and durations, milliseconds (double, so that tenths survive) of
 *             CLOCK_MONOTONIC: the same for all processes of one machine, meaningless beyond it
 *  wall       for what people read, milliseconds since 1970 UTC
 */

#include <stddef.h>
#include <stdint.h>

/* Milliseconds of CLOCK_MONOTONIC, with fractions. Never goes back. Any thread. */
double fleet_monotonic_ms(void);

/* Milliseconds since 1970 UTC. May jump when the clock is set. Any thread. */
int64_t fleet_wall_ms(void);

#define FLEET_RFC3339_SIZE 32

/* "2026-11-21T04:41:00Z" (or with milliseconds, "….123Z", if the time has any) into `out`. A time
 * outside the years 0 to 9999 becomes 1970-01-01. */
void fleet_rfc3339_format(int64_t wall_ms, char out[FLEET_RFC3339_SIZE]);

/*
 * Read RFC 3339 (what Kubernetes writes: any fraction of at most 9 digits, Z or ±hh:mm).
 * Returns 0 and *out_wall_ms, or -EINVAL (nothing written). At most 64 bytes are looked at.
 */
int fleet_rfc3339_parse(const char *text, int64_t *out_wall_ms);

#endif
