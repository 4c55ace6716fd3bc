/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/curve.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"

void curve_release(struct curve *curve)
{
    free(curve->name);
    free(curve->about);
    free(curve->losses.points);
    free(curve->evaluations.points);
    free(curve->marks);
    *curve = (struct curve){0};
}

void curve_describe(struct curve *curve, const char *name, const char *about)
{
    if (name && name[0])
        fleet_set_text(&curve->name, name);
    if (about && about[0])
        fleet_set_text(&curve->about, about);
}

static void cut(struct curve_series *series, int64_t step)
{
    while (series->count > 0 && series->points[series->count - 1].step >= step)
        series->count--;
}

static void append(struct curve_series *series, int64_t step, double loss)
{
    series->points =
        fleet_reserve(series->points, series->count, &series->capacity, sizeof(*series->points));
    series->points[series->count++] = (struct curve_point){step, loss};
}

void curve_cut(struct curve *curve, int64_t step)
{
    size_t kept = 0;

    cut(&curve->losses, step);
    cut(&curve->evaluations, step);
    for (size_t i = 0; i < curve->mark_count; i++)
        if (curve->marks[i].step < step)
            curve->marks[kept++] = curve->marks[i];
    curve->mark_count = kept;
}

void curve_add(struct curve *curve, int64_t step, double loss)
{
    cut(&curve->losses, step);
    cut(&curve->evaluations, step);
    append(&curve->losses, step, loss);
    for (size_t i = 0; i < curve->mark_count; i++)
        if (curve->marks[i].step < 0)
            curve->marks[i].step = step - 1;
}

void curve_add_evaluation(struct curve *curve, int64_t step, double loss)
{
    cut(&curve->evaluations, step);
    append(&curve->evaluations, step, loss);
}

void curve_add_mark(struct curve *curve, enum curve_mark_kind kind, int64_t step)
{
    curve->marks = fleet_grow(curve->marks, curve->mark_count, sizeof(*curve->marks));
    curve->marks[curve->mark_count++] = (struct curve_mark){kind, step < 0 ? -1 : step};
}
