/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/drawing/legend.h"

#include <stdarg.h>
#include <stdlib.h>

#include "cli/drawing/font.h"
#include "libfleet/base/assert.h"

#define SAMPLE   26.0 /* width of a sample */
#define GAP      7.0  /* between a sample and its text */
#define NEXT     18.0 /* between two entries */
#define MARK     3.5  /* half of a mark's width */
#define DOT      3.0
#define MIDDLE_Y 12.0 /* of a sample, from the top of its row */
#define BASE_Y   16.0 /* of the words */

void legend_add(struct legend *legend, enum legend_sample sample, const struct canvas_pen *pen,
                const char *format, ...)
{
    struct fleet_strbuf text = {0};
    va_list args;

    fleet_assert(legend->count < LEGEND_MAX);
    va_start(args, format);
    fleet_strbuf_appendv(&text, format, args);
    va_end(args);
    legend->entries[legend->count++] =
        (struct legend_entry){sample, *pen, fleet_strbuf_take(&text)};
}

void legend_release(struct legend *legend)
{
    while (legend->count > 0)
        free(legend->entries[--legend->count].text);
}

void legend_cross(struct canvas *canvas, int colour, double x, double y)
{
    struct canvas_pen pen = {.colour = colour, .width = 1.5, .opacity = 1.0};

    for (int i = -1; i <= 1; i += 2) {
        canvas_move(canvas, &pen, x - MARK, y - i * MARK);
        canvas_line(canvas, x + MARK, y + i * MARK);
    }
}

void legend_triangle(struct canvas *canvas, int colour, double x, double y)
{
    struct canvas_pen pen = {.colour = colour, .width = 1.5, .opacity = 1.0};

    canvas_move(canvas, &pen, x - MARK, y + MARK);
    canvas_line(canvas, x, y - MARK);
    canvas_line(canvas, x + MARK, y + MARK);
    canvas_line(canvas, x - MARK, y + MARK);
}

static void draw_sample(const struct legend_entry *entry, struct canvas *canvas, double x, double y)
{
    switch (entry->sample) {
    case LEGEND_DOTS:
        canvas_dot(canvas, entry->pen.colour, DOT, x + SAMPLE / 2.0, y);
        /* fall through */
    case LEGEND_LINE:
        canvas_move(canvas, &entry->pen, x, y);
        canvas_line(canvas, x + SAMPLE, y);
        break;
    case LEGEND_CROSS:
        legend_cross(canvas, entry->pen.colour, x + SAMPLE / 2.0, y);
        break;
    case LEGEND_TRIANGLE:
        legend_triangle(canvas, entry->pen.colour, x + SAMPLE / 2.0, y);
        break;
    }
}

/* Place the entries, and draw them unless `canvas` is NULL. Returns the number of rows. */
static int lay_out(const struct legend *legend, const struct font *font, struct canvas *canvas,
                   double left, double top, double width)
{
    double x = left;
    int row = 0;

    for (int i = 0; i < legend->count; i++) {
        const struct legend_entry *entry = &legend->entries[i];
        double size = SAMPLE + GAP + font_width(font, LEGEND_TEXT_SIZE, entry->text);
        if (x > left && x + size > left + width) {
            x = left;
            row++;
        }
        if (canvas) {
            double y = top + row * LEGEND_ROW_HEIGHT;
            draw_sample(entry, canvas, x, y + MIDDLE_Y);
            canvas_text(canvas, CANVAS_TEXT, LEGEND_TEXT_SIZE, CANVAS_START, x + SAMPLE + GAP,
                        y + BASE_Y, entry->text);
        }
        x += size + NEXT;
    }
    return legend->count > 0 ? row + 1 : 0;
}

int legend_rows(const struct legend *legend, const struct font *font, double width)
{
    return lay_out(legend, font, NULL, 0.0, 0.0, width);
}

void legend_draw(const struct legend *legend, const struct font *font, struct canvas *canvas,
                 double left, double top, double width)
{
    (void)lay_out(legend, font, canvas, left, top, width);
}
