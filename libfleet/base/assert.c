/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/assert.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

struct guard {
    struct guard *outer;
    jmp_buf back;
    char *text;
    size_t size;
};

static _Thread_local struct guard *innermost; /* NULL = no guard is active */

bool fleet_assert_guard(void (*work)(void *user), void *user, char *text, size_t size)
{
    struct guard guard = {.outer = innermost, .text = text, .size = size};

    innermost = &guard;
    if (setjmp(guard.back) != 0) { /* fleet_assert_failed() has set `innermost` */
        return false;
    }
    work(user);
    innermost = guard.outer;
    return true;
}

void fleet_assert_failed(const char *expression, const char *file, int line)
{
    struct guard *guard = innermost;

    if (!guard) {
        (void)fprintf(stderr, "BUG: %s:%d: %s does not hold\n", file, line, expression);
        abort();
    }
    (void)snprintf(guard->text, guard->size, "%s:%d: %s does not hold", file, line, expression);
    innermost = guard->outer;
    longjmp(guard->back, 1);
}
