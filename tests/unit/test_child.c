/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"

/* What a shell prints that runs `script` with these descriptors and its output in a pipe. */
static int run_shell(struct fleet_child child, const char *script, char out[512])
{
    const char *const arguments[] = {"sh", "-c", script, NULL};
    FLEET_AUTO_CLOSE int read_end = -1;
    size_t used = 0;
    ssize_t size;
    int fds[2];
    pid_t pid;

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    read_end = fds[0];
    child.path = "sh";
    child.arguments = (char *const *)arguments;
    child.fds[child.fd_count++] = (struct fleet_child_fd){fds[1], STDOUT_FILENO};
    assert_int_equal(fleet_child_start(&child, &pid), 0);
    (void)close(fds[1]);
    while ((size = read(read_end, out + used, 511 - used)) > 0)
        used += (size_t)size;
    out[used] = '\0';
    return fleet_child_reap(pid);
}

static void test_child__descriptors_may_change_places(void **state)
{
    char script[128], out[512];
    int a[2], b[2];

    (void)state;
    assert_int_equal(pipe2(a, O_CLOEXEC), 0);
    assert_int_equal(pipe2(b, O_CLOEXEC), 0);
    assert_int_equal(write(a[1], "from a\n", 7), 7);
    assert_int_equal(write(b[1], "from b\n", 7), 7);
    (void)snprintf(script, sizeof(script),
                   "for fd in %d %d; do read line </proc/$$/fd/$fd && echo $line; done", a[0],
                   b[0]);
    (void)run_shell(
        (struct fleet_child){.fds = {{a[0], b[0]}, {b[0], a[0]}, {-1, 0}}, .fd_count = 3}, script,
        out);
    assert_string_equal(out, "from b\nfrom a\n");
    for (int i = 0; i < 2; i++) {
        (void)close(a[i]);
        (void)close(b[i]);
    }
}

static void test_child__inherits_what_it_is_given_and_nothing_else(void **state)
{
    int given = dup(STDERR_FILENO), other = dup(STDERR_FILENO); /* neither closes at exec */
    char script[128], out[512];

    (void)state;
    (void)snprintf(script, sizeof(script),
                   "for fd in %d %d; do [ -e /proc/$$/fd/$fd ] && echo yes || echo no; done", given,
                   other);
    (void)run_shell((struct fleet_child){.fds = {{given, FLEET_CHILD_SAME}}, .fd_count = 1}, script,
                    out);
    assert_string_equal(out, "yes\nno\n");
    (void)close(given);
    (void)close(other);
}

static void test_child__says_why_exec_failed(void **state)
{
    const char *const arguments[] = {"nothing", NULL};
    struct fleet_child child = {.path = "/nothing/here", .arguments = (char *const *)arguments};
    pid_t pid = -7;

    (void)state;
    assert_int_equal(fleet_child_start(&child, &pid), -ENOENT);
    child.path = "/dev/null";
    assert_int_equal(fleet_child_start(&child, &pid), -EACCES);
    assert_int_equal(pid, -7);
    assert_int_equal(fleet_child_ended(), 0); /* and has reaped it */
}

static void test_child__leads_a_group_or_a_session(void **state)
{
    static const char script[] = "set -- $(cat /proc/$$/stat); echo $(($1 == $5)) $(($1 == $6))";
    char out[512];

    (void)state;
    (void)run_shell((struct fleet_child){0}, script, out);
    assert_string_equal(out, "1 0\n");
    (void)run_shell((struct fleet_child){.is_session = true}, script, out);
    assert_string_equal(out, "1 1\n");
}

static void test_child__has_no_blocked_signals_and_its_own_environment(void **state)
{
    const char *const environment[] = {"ONLY=this", NULL};
    sigset_t blocked;
    char out[512];
    int status;

    (void)state;
    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &blocked, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    status = run_shell((struct fleet_child){.environment = (char *const *)environment},
                       "echo $ONLY$HOME; kill -TERM $$; echo still here", out);
    (void)sigprocmask(SIG_UNBLOCK, &blocked, NULL);
    assert_string_equal(out, "this\n");
    assert_int_equal(fleet_child_exit_code(status), 128 + SIGTERM);
    status = run_shell((struct fleet_child){0}, "kill -PIPE $$; echo still here", out);
    assert_int_equal(fleet_child_exit_code(status), 128 + SIGPIPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_child__descriptors_may_change_places),
        cmocka_unit_test(test_child__inherits_what_it_is_given_and_nothing_else),
        cmocka_unit_test(test_child__says_why_exec_failed),
        cmocka_unit_test(test_child__leads_a_group_or_a_session),
        cmocka_unit_test(test_child__has_no_blocked_signals_and_its_own_environment),
    };

    return cmocka_run_group_tests_name("child", tests, NULL, NULL);
}
