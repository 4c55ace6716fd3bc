/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void fleet_assert_failed(const char *expression, const char *file, int line)
{
    (void)fprintf(stderr, "BUG: %s:%d: %s does not hold\n", file, line, expression);
    abort();
}
