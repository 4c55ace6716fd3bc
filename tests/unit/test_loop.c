/* SPDX-License-Identifier: Apache-2.0 */

/* The agent's loop where nothing happens but its timer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/loop.h"
#include "libfleet/base/clock.h"

#define LIMIT_S 300 /* a turn that does not end is ended by SIGALRM */

static void count(void *user)
{
    ++*(int *)user;
}

/* As the agent does: after each turn the timer is set again, now and then to a time that has
 * passed. */
static void test_loop__a_turn_ends_with_the_timer(void **state)
{
    struct loop *loop;
    int due = 0;

    (void)state;
    assert_int_equal(loop_new(&loop, NULL), 0);
    (void)alarm(LIMIT_S);
    for (int i = 0; i < 20; i++) {
        double at_ms = fleet_monotonic_ms() + (i % 2 ? 5 : -5);
        while (due == i) {
            loop_set_timer(loop, at_ms, count, &due);
            loop_turn(loop);
        }
    }
    (void)alarm(0);
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loop__a_turn_ends_with_the_timer),
    };

    return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
