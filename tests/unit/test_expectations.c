/* SPDX-License-Identifier: Apache-2.0 */

/* Expected objects are waited for by name, and not for ever. */
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

#include "controller/machinery/expectations.h"

static void test_expectations__are_met_by_name_and_kind(void **state)
{
    struct expectations *e = expectations_new();

    (void)state;
    assert_true(expectations_are_met(e, "ns/job", 0));
    expectations_note(e, "ns/job", EXPECT_CREATED, "w-0", 0);
    expectations_note(e, "ns/job", EXPECT_CREATED, "w-1", 0);
    expectations_note(e, "ns/job", EXPECT_DELETED, "w-2", 0);
    assert_false(expectations_are_met(e, "ns/job", 1));
    assert_true(expectations_are_met(e, "ns/other", 1));
    assert_false(expectations_meet(e, "ns/job", EXPECT_CREATED, "w-2"));
    assert_false(expectations_meet(e, "ns/job", EXPECT_CREATED, "w-9"));
    assert_true(expectations_meet(e, "ns/job", EXPECT_CREATED, "w-0"));
    assert_false(expectations_meet(e, "ns/job", EXPECT_CREATED, "w-0")); /* once */
    assert_true(expectations_meet(e, "ns/job", EXPECT_DELETED, "w-2"));
    assert_false(expectations_are_met(e, "ns/job", 1));
    assert_true(expectations_meet(e, "ns/job", EXPECT_CREATED, "w-1"));
    assert_true(expectations_are_met(e, "ns/job", 1));
    expectations_free(e);
}

static void test_expectations__do_not_wait_for_ever(void **state)
{
    struct expectations *e = expectations_new();

    (void)state;
    expectations_note(e, "j", EXPECT_CREATED, "a", 0);
    expectations_note(e, "j", EXPECT_CREATED, "b", 1000);
    assert_true(expectations_due_ms(e, "j") == 1000 + EXPECTATIONS_TIMEOUT_MS);
    assert_false(expectations_are_met(e, "j", EXPECTATIONS_TIMEOUT_MS + 999));
    assert_true(expectations_are_met(e, "j", EXPECTATIONS_TIMEOUT_MS + 1000));
    assert_true(isinf(expectations_due_ms(e, "j")));
    expectations_note(e, "j", EXPECT_CREATED, "a", 0);
    expectations_forget(e, "j");
    assert_true(expectations_are_met(e, "j", 0));
    expectations_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expectations__are_met_by_name_and_kind),
        cmocka_unit_test(test_expectations__do_not_wait_for_ever),
    };
    return cmocka_run_group_tests_name("expectations", tests, NULL, NULL);
}
