/* SPDX-License-Identifier: Apache-2.0 */

/* `make install` into an empty folder: tests/install/run.sh says what is looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmocka.h>

static void test_install__is_complete(void **state)
{
    int status = system("env -u MAKEFLAGS -u MAKELEVEL tests/install/run.sh");

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_install__is_complete),
    };
    return cmocka_run_group_tests_name("install", tests, NULL, NULL);
}
