/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/smooth.h"

#include <math.h>

#define PART      40 /* share of all points on each side of a window */
#define REACH_MIN 2

size_t smooth_reach(size_t count)
{
    if (count < 2 * REACH_MIN + 1)
        return 0;
    return count / PART > REACH_MIN ? count / PART : REACH_MIN;
}

double smooth_at(const struct smooth_point *points, size_t count, size_t at, size_t reach)
{
    size_t begin = at > reach ? at - reach : 0, end = count - at > reach ? at + reach + 1 : count;
    double n = 0, x = 0, y = 0, xx = 0, xy = 0, spread;

    for (size_t i = begin; i < end; i++) {
        double dx = points[i].x - points[at].x; /* keeps the precision of large steps */
        if (isnan(points[i].y))
            continue;
        n++;
        x += dx;
        y += points[i].y;
        xx += dx * dx;
        xy += dx * points[i].y;
    }
    if (n == 0)
        return NAN;
    spread = n * xx - x * x;
    if (!(spread > 0)) /* one point */
        return y / n;
    return (xx * y - x * xy) / spread;
}
