/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_FAILING_CALL_H
#define TESTS_SUPPORT_FAILING_CALL_H

/* A test of the n-th call that fails, for each n: each trial runs in a process of its own. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "tests/support/child_process.h"

/*
 * Run trial(n, code) in a child, without its standard error. Returns the trial's result, which is
 * the exit code of the child. A child that a signal ends, also after 300 s, fails the test.
 */
static inline int failing_call_try(int (*trial)(long n, int code), long n, int code)
{
    pid_t pid = child_process_fork();
    int exit_code;

    if (pid == 0) {
        (void)alarm(300);
        fleet_assert(freopen("/dev/null", "w", stderr) != NULL);
        exit(trial(n, code));
    }
    exit_code = child_process_wait(pid);
    if (exit_code > CHILD_PROCESS_SIGNALED)
        fail_msg("call %ld with error %d: ended by signal %d", n, code,
                 exit_code - CHILD_PROCESS_SIGNALED);
    return exit_code;
}

#endif
