/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_TREE_VALUES_H
#define TESTS_SUPPORT_TREE_VALUES_H

/* Values whose sum over the fixed tree is known, for tests of sums by several ranks. */

#include <math.h>
#include <stdint.h>

#include "libfleet/plan/tree.h"

/* Like a gradient: signs and magnitudes differ, so that another order gives other bits. */
static inline float leaf_value(int64_t leaf, int64_t element)
{
    uint32_t x = (uint32_t)(leaf * 2654435761u + element * 40503u + 12345u);

    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)(int32_t)x * (float)ldexp(1.0, (int)(x % 23) - 40);
}

/* The sum of leaves [a, b), one rank alone. */
static inline float tree_value(int64_t a, int64_t b, int64_t element)
{
    int64_t middle;

    if (b - a == 1)
        return leaf_value(a, element);
    middle = tree_split(a, b);
    return tree_value(a, middle, element) + tree_value(middle, b, element);
}

#endif
