/* SPDX-License-Identifier: Apache-2.0 */

/* The sheet from top to bottom: title, description of the job, the plot with its axes, the
 * legend. */
#include "cli/curves/picture.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli/curves/loss_range.h"
#include "cli/curves/plot.h"
#include "cli/drawing/font.h"
#include "cli/drawing/legend.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"

#define WIDTH       800.0
#define PLOT_HEIGHT 330.0
#define MARGIN      24.0 /* right of the plot, and left of all parts */
#define TITLE_SIZE  16.0
#define ABOUT_SIZE  11.0 /* of the line below the title */
#define TEXT_SIZE   12.0
#define TITLE_Y     28.0
#define SUBTITLE_Y  47.0
#define SPACE       16.0 /* between title and plot */
#define LABEL_X     18.0 /* base line of the loss axis' label */
#define TICK_GAP    8.0
#define STEPS_Y     20.0 /* from the plot down to the numbers of the steps */
#define LABEL_Y     40.0 /* … to their label */
#define LEGEND_Y    50.0 /* … to the legend */
#define BELOW       10.0
#define LOSS_MARGIN 0.04
#define LOSS_TICKS  7
#define STEP_TICKS  8
#define LABEL_MAX   60 /* letters of a run's label that are shown */

struct sheet {
    const struct picture *picture;
    struct font *font;
    struct canvas *canvas;
    struct loss_range range;
    struct plot plot;
    struct plot_style styles[PICTURE_RUNS_MAX];
    struct legend legend;
    double left, right, top, bottom; /* of the plot */
};

/* ---- styles ---------------------------------------------------------------------------------- */

static void choose_styles(struct sheet *sheet)
{
    bool is_one = sheet->picture->count == 1;

    for (size_t i = 0; i < sheet->picture->count; i++) {
        int colour = CANVAS_SERIES + (int)i;
        sheet->styles[i] = (struct plot_style){
            .losses = {colour, 1.0, is_one ? 0.45 : 0.25, 0},
            .average = {colour, 2.0, 1.0, 0},
            .evaluations = {is_one ? CANVAS_SERIES + 1 : colour, 1.5, 1.0, is_one ? 0 : 4},
            .restart = {is_one ? CANVAS_ALARM : colour, 1.0, 1.0, 4},
            .resume = {is_one ? CANVAS_TEXT : colour, 1.0, 1.0, 2},
            .short_marks = !is_one,
        };
    }
}

/* ---- legend ---------------------------------------------------------------------------------- */

static struct plot_counts count_all(const struct sheet *sheet)
{
    struct plot_counts sum = {.beyond_max = -INFINITY};

    for (size_t i = 0; i < sheet->picture->count; i++) {
        struct plot_counts c = plot_count(sheet->picture->runs[i].curve, sheet->plot.loss.high);
        sum.not_finite += c.not_finite;
        sum.restarts += c.restarts;
        sum.resumes += c.resumes;
        sum.beyond += c.beyond;
        sum.beyond_max = fmax(sum.beyond_max, c.beyond_max);
    }
    return sum;
}

static bool any_evaluations(const struct picture *picture)
{
    for (size_t i = 0; i < picture->count; i++)
        if (picture->runs[i].curve->evaluations.count > 0)
            return true;
    return false;
}

/* The end of a long label tells more than its beginning. */
static const char *label_end(const char *label, bool *out_cut)
{
    size_t letters = 0, length;
    const char *at = label;

    for (const char *c = label; *c; c += length > 0 ? length : 1, letters++)
        length = fleet_utf8_length(c);
    *out_cut = letters > LABEL_MAX;
    for (; letters > LABEL_MAX; letters--) {
        length = fleet_utf8_length(at);
        at += length > 0 ? length : 1;
    }
    return at;
}

static void list_runs(struct sheet *sheet)
{
    for (size_t i = 0; i < sheet->picture->count; i++) {
        const struct picture_run *run = &sheet->picture->runs[i];
        bool is_empty = run->curve->losses.count + run->curve->evaluations.count == 0, is_cut;
        const char *label = label_end(run->label, &is_cut);
        legend_add(&sheet->legend, LEGEND_LINE, &sheet->styles[i].average, "%s%s%s",
                   is_cut ? "…" : "", label, is_empty ? " (no losses)" : "");
    }
}

/* Explain thin, thick and dashed lines. If there are several runs, the samples have a neutral
 * colour. */
static void list_lines(struct sheet *sheet)
{
    const struct picture *picture = sheet->picture;
    struct plot_style style = sheet->styles[0];
    int64_t steps = 0;

    if (picture->count > 1)
        style.losses.colour = style.average.colour = style.evaluations.colour =
            style.restart.colour = style.resume.colour = CANVAS_TEXT;
    for (size_t i = 0; i < picture->count; i++)
        if (plot_average_steps(picture->runs[i].curve) > steps)
            steps = plot_average_steps(picture->runs[i].curve);
    legend_add(&sheet->legend, LEGEND_LINE, &style.losses, "training loss");
    if (steps > 0 && picture->count == 1)
        legend_add(&sheet->legend, LEGEND_LINE, &style.average, "average of %lld steps",
                   (long long)steps);
    else if (steps > 0)
        legend_add(&sheet->legend, LEGEND_LINE, &style.average, "average");
    if (any_evaluations(picture))
        legend_add(&sheet->legend, LEGEND_DOTS, &style.evaluations, "held-out loss");
}

static void list_marks(struct sheet *sheet)
{
    struct plot_counts c = count_all(sheet);
    struct plot_style style = sheet->styles[0];
    struct canvas_pen plain = {CANVAS_TEXT, 1.0, 1.0, 0};
    char number[24];

    if (sheet->picture->count > 1)
        style.restart.colour = style.resume.colour = CANVAS_TEXT;
    if (c.restarts > 0)
        legend_add(&sheet->legend, LEGEND_LINE, &style.restart, "restart (%zu)", c.restarts);
    if (c.resumes > 0)
        legend_add(&sheet->legend, LEGEND_LINE, &style.resume, "resumed (%zu)", c.resumes);
    axis_number(c.beyond_max, number);
    if (c.beyond > 0)
        legend_add(&sheet->legend, LEGEND_TRIANGLE, &plain, "beyond the axis, up to %s", number);
    if (c.not_finite > 0)
        legend_add(&sheet->legend, LEGEND_CROSS, &plain, "not finite (%zu)", c.not_finite);
}

/* ---- axes ------------------------------------------------------------------------------------ */

static void find_steps(const struct picture *picture, double *out_first, double *out_last)
{
    *out_first = INFINITY;
    *out_last = -INFINITY;
    for (size_t i = 0; i < picture->count; i++) {
        const struct curve *curve = picture->runs[i].curve;
        const struct curve_series *series[] = {&curve->losses, &curve->evaluations};
        for (int s = 0; s < 2; s++)
            if (series[s]->count > 0) {
                *out_first = fmin(*out_first, (double)series[s]->points[0].step);
                *out_last = fmax(*out_last, (double)series[s]->points[series[s]->count - 1].step);
            }
    }
    if (*out_first > *out_last)
        *out_first = *out_last = 1.0;
}

static const char *title_of(const struct picture *picture, char *text, size_t size)
{
    const char *name = picture->runs[0].curve->name;

    if (!picture->title && picture->count > 1) {
        (void)snprintf(text, size, "Losses of %zu runs", picture->count);
        return text;
    }
    return picture->title ? picture->title : name ? name : picture->runs[0].label;
}

static const char *subtitle_of(const struct picture *picture)
{
    return picture->subtitle                                      ? picture->subtitle
           : picture->count == 1 && picture->runs[0].curve->about ? picture->runs[0].curve->about
                                                                  : "";
}

/* Compute the sizes of all parts; the pixel ranges of the axes follow from them. */
static void lay_out(struct sheet *sheet)
{
    const struct curve *curves[PICTURE_RUNS_MAX];
    struct axis_tick ticks[AXIS_TICKS_MAX];
    struct loss_range *range = &sheet->range;
    double first, last, widest = 0.0;
    size_t count;

    for (size_t i = 0; i < sheet->picture->count; i++)
        curves[i] = sheet->picture->runs[i].curve;
    loss_range_of(curves, sheet->picture->count, range);
    find_steps(sheet->picture, &first, &last);
    sheet->top = (subtitle_of(sheet->picture)[0] ? SUBTITLE_Y : TITLE_Y) + SPACE;
    sheet->bottom = sheet->top + PLOT_HEIGHT;
    axis_init(&sheet->plot.loss, range->low, range->high, LOSS_MARGIN, range->is_log, sheet->bottom,
              sheet->top);
    count = axis_ticks(&sheet->plot.loss, LOSS_TICKS, false, ticks);
    for (size_t i = 0; i < count; i++)
        widest = fmax(widest, font_width(sheet->font, TEXT_SIZE, ticks[i].text));
    sheet->left = LABEL_X + TICK_GAP + widest + TICK_GAP;
    sheet->right = WIDTH - MARGIN;
    axis_init(&sheet->plot.steps, first, last, 0.0, false, sheet->left, sheet->right);
}

static void draw_loss_axis(const struct sheet *sheet)
{
    static const struct canvas_pen grid = {CANVAS_GRID, 1.0, 0.35, 0};
    struct axis_tick ticks[AXIS_TICKS_MAX];
    size_t count = axis_ticks(&sheet->plot.loss, LOSS_TICKS, false, ticks);

    for (size_t i = 0; i < count; i++) {
        double y = axis_place(&sheet->plot.loss, ticks[i].value);
        canvas_move(sheet->canvas, &grid, sheet->left, y);
        canvas_line(sheet->canvas, sheet->right, y);
        canvas_text(sheet->canvas, CANVAS_TEXT, TEXT_SIZE, CANVAS_END, sheet->left - TICK_GAP,
                    y + TEXT_SIZE / 3.0, ticks[i].text);
    }
    canvas_text_upwards(sheet->canvas, CANVAS_TEXT, TEXT_SIZE, CANVAS_MIDDLE, LABEL_X,
                        (sheet->top + sheet->bottom) / 2.0,
                        sheet->range.is_log ? "loss (logarithmic)" : "loss");
}

static void draw_step_axis(const struct sheet *sheet)
{
    static const struct canvas_pen line = {CANVAS_GRID, 1.0, 1.0, 0};
    struct axis_tick ticks[AXIS_TICKS_MAX];
    size_t count = axis_ticks(&sheet->plot.steps, STEP_TICKS, true, ticks);

    canvas_move(sheet->canvas, &line, sheet->left, sheet->top);
    canvas_line(sheet->canvas, sheet->left, sheet->bottom);
    canvas_line(sheet->canvas, sheet->right, sheet->bottom);
    for (size_t i = 0; i < count; i++) {
        double x = axis_place(&sheet->plot.steps, ticks[i].value);
        canvas_move(sheet->canvas, &line, x, sheet->bottom);
        canvas_line(sheet->canvas, x, sheet->bottom + TICK_GAP / 2.0);
        canvas_text(sheet->canvas, CANVAS_TEXT, TEXT_SIZE, CANVAS_MIDDLE, x,
                    sheet->bottom + STEPS_Y, ticks[i].text);
    }
    canvas_text(sheet->canvas, CANVAS_TEXT, TEXT_SIZE, CANVAS_MIDDLE,
                (sheet->left + sheet->right) / 2.0, sheet->bottom + LABEL_Y, "step");
}

/* The text, truncated with an ellipsis at the edge of the sheet. */
static void draw_heading(const struct sheet *sheet, double size, double y, const char *text)
{
    double width = WIDTH - 2.0 * MARGIN, used = font_width(sheet->font, size, "…"), advance;
    FLEET_AUTO_STRBUF struct fleet_strbuf cut = {0};
    FT_Outline *outline;

    if (font_width(sheet->font, size, text) > width) {
        const char *end = text;
        while (*end) {
            const char *next = font_letter(sheet->font, size, end, &outline, &advance);
            used += advance;
            if (used > width)
                break;
            end = next;
        }
        fleet_strbuf_append_bytes(&cut, text, (size_t)(end - text));
        fleet_strbuf_append(&cut, "…");
        text = cut.text;
    }
    canvas_text(sheet->canvas, CANVAS_TEXT, size, CANVAS_START, MARGIN, y, text);
}

/* ---- the whole ------------------------------------------------------------------------------- */

void picture_draw(const struct picture *picture, enum canvas_format format,
                  struct fleet_strbuf *out)
{
    struct sheet sheet = {.picture = picture, .font = font_new()};
    double width = WIDTH - 2.0 * MARGIN;
    char title[64];

    fleet_assert(picture->count >= 1 && picture->count <= PICTURE_RUNS_MAX);
    choose_styles(&sheet);
    lay_out(&sheet);
    if (picture->count > 1)
        list_runs(&sheet);
    list_lines(&sheet);
    list_marks(&sheet);
    sheet.plot.canvas = sheet.canvas =
        canvas_new(format, WIDTH,
                   sheet.bottom + LEGEND_Y + BELOW +
                       legend_rows(&sheet.legend, sheet.font, width) * LEGEND_ROW_HEIGHT);
    draw_heading(&sheet, TITLE_SIZE, TITLE_Y, title_of(picture, title, sizeof(title)));
    if (subtitle_of(picture)[0])
        draw_heading(&sheet, ABOUT_SIZE, SUBTITLE_Y, subtitle_of(picture));
    draw_loss_axis(&sheet);
    draw_step_axis(&sheet);
    for (size_t i = 0; i < picture->count; i++)
        plot_run(&sheet.plot, &sheet.styles[i], picture->runs[i].curve);
    legend_draw(&sheet.legend, sheet.font, sheet.canvas, MARGIN, sheet.bottom + LEGEND_Y, width);
    canvas_finish(sheet.canvas, out);
    legend_release(&sheet.legend);
    font_free(sheet.font);
}

int picture_format(const char *path, enum canvas_format *out, struct fleet_error *err)
{
    size_t size = strlen(path);

    if (size > 4 && strcasecmp(path + size - 4, ".png") == 0)
        *out = CANVAS_PNG;
    else if (size > 4 && strcasecmp(path + size - 4, ".svg") == 0)
        *out = CANVAS_SVG;
    else
        return fleet_error(err, -EINVAL, "%s: must end in .svg or .png", path);
    return 0;
}

int picture_write(const struct picture *picture, enum canvas_format format, const char *path,
                  struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    size_t points = 0;

    for (size_t i = 0; i < picture->count; i++)
        points += picture->runs[i].curve->losses.count + picture->runs[i].curve->evaluations.count;
    if (points == 0)
        return fleet_error(err, -EINVAL, "draw %s: there is no loss yet", path);
    picture_draw(picture, format, &text);
    return fleet_file_write(path, text.text, text.length, err);
}
