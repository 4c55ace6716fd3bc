/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/drawing/canvas.h"

#define DOT_LENGTH 0.05 /* a line of this length with round ends is a circle */

const struct canvas_tint canvas_tints[CANVAS_SERIES + CANVAS_SERIES_MAX] = {
    [CANVAS_TEXT] = {0x444444, 0xbbbbbb},       [CANVAS_GRID] = {0x999999, 0x777777},
    [CANVAS_ALARM] = {0xcc3333, 0xff7b72},      [CANVAS_SERIES] = {0x1f5fa8, 0x7ab8ff},
    [CANVAS_SERIES + 1] = {0xd9650b, 0xffa657}, [CANVAS_SERIES + 2] = {0x2a7f3f, 0x66c97d},
    [CANVAS_SERIES + 3] = {0x7b3fa0, 0xc792ea}, [CANVAS_SERIES + 4] = {0x8a5a2b, 0xd2a679},
    [CANVAS_SERIES + 5] = {0x00808a, 0x4fd1d9}, [CANVAS_SERIES + 6] = {0xc2408f, 0xff8cc8},
    [CANVAS_SERIES + 7] = {0x77770a, 0xcfcf4a}, [CANVAS_SERIES + 8] = {0x5b6777, 0xa8b5c7},
    [CANVAS_SERIES + 9] = {0xb8860b, 0xffd257},
};

struct canvas *canvas_new(enum canvas_format format, double width, double height)
{
    return format == CANVAS_PNG ? canvas_png_new(width, height) : canvas_svg_new(width, height);
}

void canvas_move(struct canvas *canvas, const struct canvas_pen *pen, double x, double y)
{
    canvas->vtable->move(canvas, pen, x, y);
}

void canvas_line(struct canvas *canvas, double x, double y)
{
    canvas->vtable->line(canvas, x, y);
}

void canvas_dot(struct canvas *canvas, int colour, double radius, double x, double y)
{
    struct canvas_pen pen = {.colour = colour, .width = 2.0 * radius, .opacity = 1.0};

    canvas_move(canvas, &pen, x - DOT_LENGTH / 2.0, y);
    canvas_line(canvas, x + DOT_LENGTH / 2.0, y);
}

void canvas_text(struct canvas *canvas, int colour, double size, enum canvas_anchor anchor,
                 double x, double y, const char *text)
{
    canvas->vtable->text(canvas, colour, size, anchor, false, x, y, text);
}

void canvas_text_upwards(struct canvas *canvas, int colour, double size, enum canvas_anchor anchor,
                         double x, double y, const char *text)
{
    canvas->vtable->text(canvas, colour, size, anchor, true, x, y, text);
}

void canvas_finish(struct canvas *canvas, struct fleet_strbuf *out)
{
    canvas->vtable->finish(canvas, out);
}
