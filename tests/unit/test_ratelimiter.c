/* SPDX-License-Identifier: Apache-2.0 */

/* Waits grow, end at the limit, are forgotten by a success, and do not move in step. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/ratelimiter.h"

static void test_ratelimiter__doubles_up_to_its_limit(void **state)
{
    struct ratelimiter limiter = {.base_ms = 10, .max_ms = 1000};
    static const double expected[] = {10, 20, 40, 80, 160, 320, 640, 1000, 1000};

    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        double delay = ratelimiter_fail(&limiter, "a", 0);
        if (delay != expected[i])
            fail_msg("failure %zu: expected %g ms, got %g", i + 1, expected[i], delay);
    }
    assert_int_equal(ratelimiter_failures(&limiter, "a"), 9);
    assert_true(ratelimiter_fail(&limiter, "b", 0) == 10); /* each key for itself */
    ratelimiter_forget(&limiter, "a");
    assert_true(ratelimiter_fail(&limiter, "a", 0) == 10);
    ratelimiter_release(&limiter);
}

static void test_ratelimiter__adds_up_to_a_quarter(void **state)
{
    (void)state;
    assert_true(ratelimiter_delay_ms(100, 1000, 1, 0.5) == 112.5);
    assert_true(ratelimiter_delay_ms(100, 1000, 1000000, 0.999) < 1250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ratelimiter__doubles_up_to_its_limit),
        cmocka_unit_test(test_ratelimiter__adds_up_to_a_quarter),
    };
    return cmocka_run_group_tests_name("ratelimiter", tests, NULL, NULL);
}
