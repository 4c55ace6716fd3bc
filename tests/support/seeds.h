/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_SEEDS_H
#define TESTS_SUPPORT_SEEDS_H

/* How many random histories a test plays: all of them on the release build, a tenth where a
 * sanitizer makes each ten times as long (tests/run.sh says which build it is). */

#include <stdlib.h>
#include <string.h>

static inline unsigned long seeds_count(unsigned long on_release)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, "release") != 0 ? on_release / 10 : on_release;
}

#endif
