/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/loss_range.h"

#include <math.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"

#define STARTS        10
#define DIVERGED      20.0 /* times the start */
#define DIVERGED_FLAT 4.0  /* times the spread, where a logarithm has no meaning */
#define LOG_FROM      10.0 /* times the median */

bool loss_range_is_finite(double loss)
{
    return isfinite(loss) && fabs(loss) <= LOSS_RANGE_MAX;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

/* Finite losses of both series, appended to values[*count]. */
static void collect(const struct curve *curve, double *values, size_t *count)
{
    const struct curve_series *series[] = {&curve->losses, &curve->evaluations};

    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < series[s]->count; i++)
            if (loss_range_is_finite(series[s]->points[i].loss))
                values[(*count)++] = series[s]->points[i].loss;
}

/* The largest of the run's values[count] that is on the axis. */
static double highest(const double *values, size_t count, bool positive)
{
    size_t starts = count < STARTS ? count : STARTS;
    double first[STARTS], start, low = INFINITY, high = -INFINITY, limit, spread;

    for (size_t i = 0; i < starts; i++)
        first[i] = values[i];
    start = median(first, starts);
    for (size_t i = 0; i < count; i++)
        low = fmin(low, values[i]);
    spread = fmax(fabs(start), start - low);
    limit = positive ? DIVERGED * start : start + (spread > 0 ? DIVERGED_FLAT * spread : INFINITY);
    for (size_t i = 0; i < count; i++)
        if (values[i] <= limit)
            high = fmax(high, values[i]);
    return high;
}

void loss_range_of(const struct curve *const *curves, size_t count, struct loss_range *out)
{
    size_t total = 0, begin = 0, end = 0;
    bool positive = true;
    double *values;

    *out = (struct loss_range){.low = INFINITY, .high = -INFINITY};
    for (size_t i = 0; i < count; i++)
        total += curves[i]->losses.count + curves[i]->evaluations.count;
    values = malloc((total + 1) * sizeof(*values));
    fleet_assert(values);
    for (size_t i = 0; i < count; i++)
        collect(curves[i], values, &out->count);
    for (size_t i = 0; i < out->count; i++) {
        out->low = fmin(out->low, values[i]);
        positive = positive && values[i] > 0;
    }
    for (size_t i = 0; i < count; i++, begin = end) { /* the same values, run by run */
        collect(curves[i], values, &end);
        if (end > begin)
            out->high = fmax(out->high, highest(values + begin, end - begin, positive));
    }
    if (out->count == 0)
        *out = (struct loss_range){.low = 0, .high = 1};
    else
        out->is_log = positive && out->high > LOG_FROM * median(values, out->count);
    free(values);
}
