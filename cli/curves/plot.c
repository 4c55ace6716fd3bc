/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/plot.h"

#include <math.h>
#include <stdlib.h>

#include "cli/curves/loss_range.h"
#include "cli/curves/smooth.h"
#include "cli/drawing/legend.h"
#include "libfleet/base/assert.h"

#define COLUMN     1.0 /* pixels that steps share */
#define MARK_SPACE 8.0 /* minimum between two marks */
#define LINE_SPACE 3.0 /* minimum between two lines of restarts */
#define EDGE       7.0 /* from an edge of the plot to the middle of a mark */
#define SHORT_MARK 14.0
#define DOT        3.0 /* radius of a single step between two gaps */
#define EVALUATED  2.5
#define DOTS_MAX   100 /* up to this many held-out losses are drawn as dots */

static double x_of(const struct plot *plot, int64_t step)
{
    return axis_place(&plot->steps, (double)step);
}

static double y_of(const struct plot *plot, double loss)
{
    return axis_place(&plot->loss, loss);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The points [begin, end) of a series that share a column of pixels. */
struct column {
    size_t begin, end;
    double x, low, high; /* range of the finite losses; low > high: there are none */
};

static struct column column_at(const struct plot *plot, const struct curve_series *series,
                               size_t begin)
{
    struct column c = {begin, begin, x_of(plot, series->points[begin].step), INFINITY, -INFINITY};

    for (; c.end < series->count && x_of(plot, series->points[c.end].step) < c.x + COLUMN; c.end++)
        if (loss_range_is_finite(series->points[c.end].loss)) {
            c.low = fmin(c.low, series->points[c.end].loss);
            c.high = fmax(c.high, series->points[c.end].loss);
        }
    return c;
}

static bool is_gap(const struct column *column)
{
    return !(column->low <= column->high);
}

/* The whole column is outside of the axis; triangles mark it. */
static bool is_beyond(const struct plot *plot, const struct column *column)
{
    return !is_gap(column) && column->low > plot->loss.high;
}

/* A column between two gaps, which no line reaches. */
static bool is_alone(const struct plot *plot, const struct curve_series *series,
                     const struct column *column, bool after_gap)
{
    struct column next;

    if (!after_gap || column->end == series->count)
        return after_gap;
    next = column_at(plot, series, column->end);
    return is_gap(&next);
}

static void draw_losses(const struct plot *plot, const struct canvas_pen *pen,
                        const struct curve_series *series)
{
    bool after_gap = true, was_beyond = false;
    double last_x = 0.0;
    struct column c;

    for (size_t i = 0; i < series->count; i = c.end) {
        c = column_at(plot, series, i);
        if (is_beyond(plot, &c) && was_beyond) {
            last_x = c.x;
            continue;
        }
        if (!is_gap(&c) && is_alone(plot, series, &c, after_gap))
            canvas_dot(plot->canvas, pen->colour, DOT, c.x, y_of(plot, c.high));
        if (was_beyond && !is_gap(&c)) /* back from above */
            canvas_move(plot->canvas, pen, last_x, plot->loss.to);
        else if (!is_gap(&c) && after_gap)
            canvas_move(plot->canvas, pen, c.x, y_of(plot, c.high));
        if (!is_gap(&c))
            canvas_line(plot->canvas, c.x, y_of(plot, c.high));
        if (c.low < c.high)
            canvas_line(plot->canvas, c.x, y_of(plot, c.low));
        after_gap = is_gap(&c);
        was_beyond = is_beyond(plot, &c);
        last_x = c.x;
    }
}

/* ---- the average ----------------------------------------------------------------------------- */

/* The points in the form of smooth.h, heap. Losses outside of the axis are left out, because one of
 * them would raise the average of the whole window. */
static bool is_averaged(const struct plot *plot, double loss)
{
    return loss_range_is_finite(loss) && loss <= plot->loss.high;
}

static struct smooth_point *measures(const struct plot *plot, const struct curve_series *series)
{
    struct smooth_point *points = malloc(series->count * sizeof(*points));

    fleet_assert(points);
    for (size_t i = 0; i < series->count; i++)
        points[i] = (struct smooth_point){(double)series->points[i].step,
                                          is_averaged(plot, series->points[i].loss)
                                              ? axis_measure(&plot->loss, series->points[i].loss)
                                              : NAN};
    return points;
}

/* The last point of a column that has an average; false: none. */
static bool find_averaged(const struct smooth_point *points, const struct column *column,
                          size_t *out)
{
    for (size_t i = column->end; i > column->begin; i--)
        if (!isnan(points[i - 1].y)) {
            *out = i - 1;
            return true;
        }
    return false;
}

static void draw_average(const struct plot *plot, const struct canvas_pen *pen,
                         const struct curve_series *series)
{
    size_t reach = smooth_reach(series->count), at;
    struct smooth_point *points;
    bool after_gap = true;
    struct column c;

    if (reach == 0)
        return;
    points = measures(plot, series);
    for (size_t i = 0; i < series->count; i = c.end) {
        bool has_average;
        c = column_at(plot, series, i);
        has_average = find_averaged(points, &c, &at);
        if (has_average) {
            double average = smooth_at(points, series->count, at, reach);
            double y = axis_place_measure(&plot->loss, average);
            y = fmin(fmax(y, plot->loss.to), plot->loss.from);
            if (after_gap)
                canvas_move(plot->canvas, pen, x_of(plot, series->points[at].step), y);
            else
                canvas_line(plot->canvas, x_of(plot, series->points[at].step), y);
        }
        after_gap = !has_average;
    }
    free(points);
}

int64_t plot_average_steps(const struct curve *curve)
{
    const struct curve_series *s = &curve->losses;
    size_t reach = smooth_reach(s->count);

    if (reach == 0)
        return 0;
    return llround((double)(2 * reach + 1) *
                   (double)(s->points[s->count - 1].step - s->points[0].step) /
                   (double)(s->count - 1));
}

/* ---- held-out losses ------------------------------------------------------------------------- */

static void draw_evaluations(const struct plot *plot, const struct canvas_pen *pen,
                             const struct curve_series *series)
{
    bool after_gap = true;

    for (size_t i = 0; i < series->count; i++) {
        const struct curve_point *point = &series->points[i];
        double x = x_of(plot, point->step);
        if (!loss_range_is_finite(point->loss)) {
            after_gap = true;
            continue;
        }
        if (after_gap)
            canvas_move(plot->canvas, pen, x, y_of(plot, point->loss));
        else
            canvas_line(plot->canvas, x, y_of(plot, point->loss));
        after_gap = false;
    }
    for (size_t i = 0; i < series->count && series->count <= DOTS_MAX; i++)
        if (loss_range_is_finite(series->points[i].loss))
            canvas_dot(plot->canvas, pen->colour, EVALUATED, x_of(plot, series->points[i].step),
                       y_of(plot, series->points[i].loss));
}

/* ---- marks ----------------------------------------------------------------------------------- */

static void draw_marks(const struct plot *plot, const struct plot_style *style,
                       const struct curve *curve)
{
    double top = style->short_marks ? plot->loss.from - SHORT_MARK : plot->loss.to;
    double last[2] = {-INFINITY, -INFINITY};

    for (size_t i = 0; i < curve->mark_count; i++) {
        enum curve_mark_kind kind = curve->marks[i].kind;
        double x = x_of(plot, curve->marks[i].step);
        if (fabs(x - last[kind]) < LINE_SPACE)
            continue;
        canvas_move(plot->canvas, kind == CURVE_RESTART ? &style->restart : &style->resume, x,
                    plot->loss.from);
        canvas_line(plot->canvas, x, top);
        last[kind] = x;
    }
}

/* Draw crosses where a loss is not finite, and triangles where it is outside of the axis. */
static void draw_oddities(const struct plot *plot, int colour, const struct curve_series *series)
{
    double cross = -INFINITY, triangle = -INFINITY;

    for (size_t i = 0; i < series->count; i++) {
        double loss = series->points[i].loss, x = x_of(plot, series->points[i].step);
        if (!loss_range_is_finite(loss) && x - cross >= MARK_SPACE) {
            legend_cross(plot->canvas, colour, x, plot->loss.from - EDGE);
            cross = x;
        }
        if (loss_range_is_finite(loss) && loss > plot->loss.high && x - triangle >= MARK_SPACE) {
            legend_triangle(plot->canvas, colour, x, plot->loss.to + EDGE);
            triangle = x;
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

void plot_run(const struct plot *plot, const struct plot_style *style, const struct curve *curve)
{
    draw_marks(plot, style, curve);
    draw_losses(plot, &style->losses, &curve->losses);
    draw_average(plot, &style->average, &curve->losses);
    draw_evaluations(plot, &style->evaluations, &curve->evaluations);
    draw_oddities(plot, style->average.colour, &curve->losses);
    draw_oddities(plot, style->evaluations.colour, &curve->evaluations);
}

struct plot_counts plot_count(const struct curve *curve, double high)
{
    const struct curve_series *series[] = {&curve->losses, &curve->evaluations};
    struct plot_counts counts = {.beyond_max = -INFINITY};

    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < series[s]->count; i++) {
            double loss = series[s]->points[i].loss;
            counts.not_finite += !loss_range_is_finite(loss);
            if (loss_range_is_finite(loss) && loss > high) {
                counts.beyond++;
                counts.beyond_max = fmax(counts.beyond_max, loss);
            }
        }
    for (size_t i = 0; i < curve->mark_count; i++) {
        counts.restarts += curve->marks[i].kind == CURVE_RESTART;
        counts.resumes += curve->marks[i].kind == CURVE_RESUME;
    }
    return counts;
}
