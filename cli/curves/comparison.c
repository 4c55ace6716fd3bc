/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/comparison.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/curves/curve.h"
#include "cli/curves/loss_range.h"
#include "cli/curves/smooth.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"

#define CELL 32

static int64_t last_step(const struct curve *curve)
{
    return curve->losses.count > 0 ? curve->losses.points[curve->losses.count - 1].step : 0;
}

int64_t comparison_step(const struct comparison_run *runs, size_t count)
{
    int64_t step = INT64_MAX;

    for (size_t i = 0; i < count; i++)
        step = last_step(runs[i].curve) < step ? last_step(runs[i].curve) : step;
    for (size_t i = 0; i < count; i++)
        if (runs[i].curve->losses.count == 0 || runs[i].curve->losses.points[0].step > step)
            return 0;
    return step;
}

double comparison_loss(const struct curve *curve, int64_t step)
{
    const struct curve_series *series = &curve->losses;
    size_t count = 0, reach = smooth_reach(series->count);
    struct smooth_point *points = malloc((series->count + 1) * sizeof(*points));
    double loss;

    fleet_assert(points);
    while (count < series->count && series->points[count].step <= step) {
        double value = series->points[count].loss;
        points[count] = (struct smooth_point){(double)series->points[count].step,
                                              loss_range_is_finite(value) ? value : NAN};
        count++;
    }
    if (count == 0 || isnan(points[count - 1].y))
        loss = NAN;
    else
        loss = smooth_at(points, count, count - 1, reach); /* later points do not count */
    free(points);
    return loss;
}

static void lowest_evaluation(const struct curve *curve, char cell[CELL])
{
    const struct curve_point *lowest = NULL;

    for (size_t i = 0; i < curve->evaluations.count; i++) {
        const struct curve_point *point = &curve->evaluations.points[i];
        if (loss_range_is_finite(point->loss) && (!lowest || point->loss < lowest->loss))
            lowest = point;
    }
    if (lowest)
        (void)snprintf(cell, CELL, "%.4g (%lld)", lowest->loss, (long long)lowest->step);
    else
        (void)snprintf(cell, CELL, "-");
}

static void format_loss(double loss, char cell[CELL])
{
    if (isnan(loss))
        (void)snprintf(cell, CELL, "-");
    else
        (void)snprintf(cell, CELL, "%.5g", loss);
}

static void format_difference(double difference, char cell[CELL])
{
    if (isnan(difference))
        (void)snprintf(cell, CELL, "-");
    else
        (void)snprintf(cell, CELL, "%+.4g", difference);
}

static int letters(const char *text)
{
    int count = 0;

    for (; *text; text++)
        count += (*text & 0xc0) != 0x80; /* do not cut inside a character */
    return count;
}

void comparison_print(const struct comparison_run *runs, size_t count, struct fleet_strbuf *out)
{
    int64_t step = comparison_step(runs, count);
    double first = step > 0 ? comparison_loss(runs[0].curve, step) : NAN;
    int width = letters("run");
    char loss[CELL], difference[CELL], lowest[CELL];

    for (size_t i = 0; i < count; i++)
        width = letters(runs[i].label) > width ? letters(runs[i].label) : width;
    (void)snprintf(loss, sizeof(loss), step > 0 ? "loss at %lld" : "loss", (long long)step);
    fleet_strbuf_appendf(out, "%-*s  %8s  %14s  %10s  %s\n", width, "run", "steps", loss,
                         "difference", "lowest held-out loss (step)");
    for (size_t i = 0; i < count; i++) {
        double own = step > 0 ? comparison_loss(runs[i].curve, step) : NAN;
        format_loss(own, loss);
        format_difference(i == 0 ? NAN : own - first, difference);
        lowest_evaluation(runs[i].curve, lowest);
        fleet_strbuf_appendf(out, "%s%*s  %8lld  %14s  %10s  %s\n", runs[i].label,
                             width - letters(runs[i].label), "",
                             (long long)last_step(runs[i].curve), loss, difference, lowest);
    }
    if (step == 0)
        fleet_strbuf_append(out, "The runs have no step in common.\n");
}
