/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One thin line for every step's loss, one thick line for a running mean, an axis each with round
 * numbers. Columns of pixels that hold several steps show their lowest and highest loss.
 */
#include "cli/curve.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/canvas.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

#define WIDTH  800.0
#define HEIGHT 420.0
#define LEFT   64.0
#define RIGHT  24.0
#define TOP    44.0
#define BOTTOM 48.0
#define SMALL  12.0 /* letters */
#define LARGE  16.0
#define MEAN   0.95 /* weight of the past in the running mean, at 100 steps and more */

struct scale {
    double first_step, last_step, low, high; /* high > low, last_step > first_step */
};

void curve_release(struct curve *curve)
{
    free(curve->points);
    free(curve->restarts);
    *curve = (struct curve){0};
}

void curve_add(struct curve *curve, int64_t step, double loss)
{
    if (curve->count == curve->capacity) {
        curve->capacity = curve->capacity ? 2 * curve->capacity : 256;
        curve->points = realloc(curve->points, curve->capacity * sizeof(*curve->points));
        fleet_assert(curve->points);
    }
    curve->points[curve->count++] = (struct curve_point){step, loss};
}

void curve_add_restart(struct curve *curve, int64_t step)
{
    curve->restarts =
        realloc(curve->restarts, (curve->restart_count + 1) * sizeof(*curve->restarts));
    fleet_assert(curve->restarts);
    curve->restarts[curve->restart_count++] = step;
}

static struct scale find_scale(const struct curve *curve)
{
    struct scale s = {(double)curve->points[0].step, (double)curve->points[curve->count - 1].step,
                      INFINITY, -INFINITY};

    for (size_t i = 0; i < curve->count; i++)
        if (isfinite(curve->points[i].loss)) {
            s.low = fmin(s.low, curve->points[i].loss);
            s.high = fmax(s.high, curve->points[i].loss);
        }
    if (!(s.high > s.low)) {
        s.low = isfinite(s.low) ? s.low - 0.5 : 0.0;
        s.high = s.low + 1.0;
    }
    if (!(s.last_step > s.first_step))
        s.last_step = s.first_step + 1.0;
    return s;
}

static double x_of(const struct scale *s, double step)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (step - s->first_step) / (s->last_step - s->first_step);
}

static double y_of(const struct scale *s, double loss)
{
    return TOP + (HEIGHT - TOP - BOTTOM) * (s->high - loss) / (s->high - s->low);
}

/* 1, 2 or 5 times a power of ten, so that about six of them cover the range. */
static double round_interval(double range)
{
    double rough = range / 6.0, power = pow(10.0, floor(log10(rough)));

    for (int i = 0; i < 3; i++) {
        static const double factors[] = {1.0, 2.0, 5.0};
        if (rough <= factors[i] * power)
            return factors[i] * power;
    }
    return 10.0 * power;
}

static void draw_axes(const struct scale *s, struct canvas *canvas)
{
    double interval = round_interval(s->high - s->low);
    char number[32];

    for (double loss = ceil(s->low / interval) * interval; loss <= s->high; loss += interval) {
        double y = y_of(s, loss);
        (void)snprintf(number, sizeof(number), "%g", fabs(loss) < interval / 1e6 ? 0.0 : loss);
        canvas_move(canvas, CANVAS_GRID, LEFT, y);
        canvas_line(canvas, WIDTH - RIGHT, y);
        canvas_text(canvas, CANVAS_GRID, SMALL, CANVAS_END, LEFT - 8, y + 4, number);
    }
    interval = fmax(1.0, round_interval(s->last_step - s->first_step));
    for (double step = ceil(s->first_step / interval) * interval; step <= s->last_step;
         step += interval) {
        (void)snprintf(number, sizeof(number), "%.0f", step);
        canvas_text(canvas, CANVAS_GRID, SMALL, CANVAS_MIDDLE, x_of(s, step), HEIGHT - BOTTOM + 20,
                    number);
    }
    canvas_text(canvas, CANVAS_GRID, SMALL, CANVAS_MIDDLE, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10,
                "step");
}

static void draw_restarts(const struct curve *curve, const struct scale *s, struct canvas *canvas)
{
    for (size_t i = 0; i < curve->restart_count; i++) {
        double x = x_of(s, (double)curve->restarts[i]);
        canvas_move(canvas, CANVAS_RESTART, x, TOP);
        canvas_line(canvas, x, HEIGHT - BOTTOM);
        canvas_text(canvas, CANVAS_RESTART, SMALL, CANVAS_START, x + 4, TOP + 12, "restart");
    }
}

/* Steps that share a column of pixels become one stroke from their lowest to their highest loss. */
static void draw_steps(const struct curve *curve, const struct scale *s, struct canvas *canvas)
{
    bool pen_is_down = false;

    for (size_t i = 0; i < curve->count;) {
        double x = x_of(s, (double)curve->points[i].step), low = INFINITY, high = -INFINITY;
        for (; i < curve->count && x_of(s, (double)curve->points[i].step) < x + 1.0; i++)
            if (isfinite(curve->points[i].loss)) {
                low = fmin(low, curve->points[i].loss);
                high = fmax(high, curve->points[i].loss);
            }
        if (low <= high && pen_is_down)
            canvas_line(canvas, x, y_of(s, high));
        else if (low <= high)
            canvas_move(canvas, CANVAS_STEPS, x, y_of(s, high));
        if (low < high)
            canvas_line(canvas, x, y_of(s, low));
        pen_is_down = low <= high;
    }
}

static void draw_mean(const struct curve *curve, const struct scale *s, struct canvas *canvas)
{
    double mean = NAN, keep = fmin(MEAN, 1.0 - 5.0 / (double)(curve->count + 5)), last_x = -1.0;

    for (size_t i = 0; i < curve->count; i++) {
        double loss = curve->points[i].loss, x = x_of(s, (double)curve->points[i].step);
        if (!isfinite(loss))
            continue;
        mean = isnan(mean) ? loss : keep * mean + (1.0 - keep) * loss;
        if (x - last_x < 1.0 && i + 1 < curve->count)
            continue;
        if (last_x < 0)
            canvas_move(canvas, CANVAS_MEAN, x, y_of(s, mean));
        else
            canvas_line(canvas, x, y_of(s, mean));
        last_x = x;
    }
}

void curve_draw(const struct curve *curve, const char *title, enum curve_format format,
                struct fleet_strbuf *out)
{
    struct canvas *canvas =
        format == CURVE_PNG ? canvas_png(WIDTH, HEIGHT) : canvas_svg(WIDTH, HEIGHT);
    struct scale s = find_scale(curve);

    canvas_text(canvas, CANVAS_GRID, LARGE, CANVAS_START, LEFT, 26, title);
    draw_axes(&s, canvas);
    draw_restarts(curve, &s, canvas);
    draw_steps(curve, &s, canvas);
    draw_mean(curve, &s, canvas);
    canvas_finish(canvas, out);
}

static enum curve_format format_of(const char *path)
{
    size_t size = strlen(path);

    return size >= 4 && strcasecmp(path + size - 4, ".png") == 0 ? CURVE_PNG : CURVE_SVG;
}

int curve_write(const struct curve *curve, const char *title, const char *path,
                struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (curve->count == 0)
        return fleet_error(err, -EINVAL, "draw %s: no step was committed", path);
    curve_draw(curve, title, format_of(path), &text);
    return fleet_file_write(path, text.text, text.length, err);
}
