/* SPDX-License-Identifier: Apache-2.0 */

/* The helper of the tests that start processes: exit codes, both pipes, ends. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/child_process.h"

static void test_child_process__a_copy_ends_with_its_code(void **state)
{
    pid_t pid = child_process_fork();

    (void)state;
    if (pid == 0)
        _exit(7);
    assert_int_equal(child_process_wait(pid), 7);
}

static void test_child_process__a_killed_one_says_its_signal(void **state)
{
    pid_t pid = child_process_fork();

    (void)state;
    if (pid == 0) {
        (void)pause();
        _exit(0);
    }
    assert_int_equal(child_process_kill(pid), CHILD_PROCESS_SIGNALED + SIGKILL);
    assert_int_equal(kill(pid, 0), -1);
}

/* More than a pipe holds, on both: neither may block the other. */
static void test_child_process__both_outputs_are_read_to_their_end(void **state)
{
    const char *const arguments[] = {
        "sh", "-c", "head -c 300000 /dev/zero >&2; head -c 200000 /dev/zero; cat; exit 3", NULL};
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    FLEET_AUTO_STRBUF struct fleet_strbuf err = {0};
    struct child_process process = child_process_start("sh", arguments);

    (void)state;
    assert_int_equal(child_process_finish(&process, &out, &err), 3);
    assert_int_equal(out.length, 200000);
    assert_int_equal(err.length, 300000);
    assert_int_equal(process.pid, 0);
    assert_false(child_process_read(&process, 0, &out, &err));
}

static void test_child_process__a_released_program_is_gone(void **state)
{
    const char *const arguments[] = {"sleep", "1000", NULL};
    struct child_process process = child_process_start("sleep", arguments);
    pid_t pid = process.pid;

    (void)state;
    assert_int_equal(kill(pid, 0), 0);
    child_process_release(&process);
    assert_int_equal(kill(pid, 0), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_child_process__a_copy_ends_with_its_code),
        cmocka_unit_test(test_child_process__a_killed_one_says_its_signal),
        cmocka_unit_test(test_child_process__both_outputs_are_read_to_their_end),
        cmocka_unit_test(test_child_process__a_released_program_is_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
