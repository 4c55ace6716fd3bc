/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_LOOP_TURN_H
#define TESTS_SUPPORT_LOOP_TURN_H

/* Turns libuv's loop until something has happened. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include <cmocka.h>

#include "libfleet/base/clock.h"

#define LOOP_TURN_PATIENCE_MS 600000.0 /* sanitizers on a busy machine */

/* Turn the loop until *flag is at least `value`. The test fails if that takes too long. */
static inline void loop_turn_until(uv_loop_t *loop, const int *flag, int value)
{
    double end = fleet_monotonic_ms() + LOOP_TURN_PATIENCE_MS;

    while (*flag < value) {
        if (fleet_monotonic_ms() > end)
            fail_msg("timed out waiting for %d, got to %d", value, *flag);
        (void)uv_run(loop, UV_RUN_ONCE);
    }
}

#endif
