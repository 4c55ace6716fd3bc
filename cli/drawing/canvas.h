/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DRAWING_CANVAS_H
#define CLI_DRAWING_CANVAS_H

/*
 * A sheet for lines and text, which becomes an SVG or a PNG.
 *
 *     struct canvas *canvas = canvas_new(CANVAS_PNG, 800, 420);
 *     canvas_move(canvas, &pen, x, y); canvas_line(canvas, x, y); …
 *     canvas_text(canvas, …);
 *     canvas_finish(canvas, &out);        the file's bytes; the canvas is gone
 *
 * Coordinates are pixels from the upper left corner; a PNG has twice as many of them on each
 * side. What lies outside is cut off. Colours are names, because an SVG has two of each: for
 * light and for dark ground. One thread.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/strbuf.h"

enum canvas_format {
    CANVAS_SVG, /* text stays text; follows the reader's light or dark ground */
    CANVAS_PNG, /* 8 bits of red, green and blue on white */
};

#define CANVAS_SERIES_MAX 10

enum canvas_colour {
    CANVAS_TEXT,
    CANVAS_GRID,
    CANVAS_ALARM,
    CANVAS_SERIES, /* and CANVAS_SERIES_MAX - 1 more after it, easily distinguished */
};

struct canvas_pen {
    int colour;     /* enum canvas_colour, or CANVAS_SERIES + i */
    double width;   /* pixels */
    double opacity; /* (0, 1] */
    double dash;    /* length of a dash and of a gap, 0 = a whole line */
};

enum canvas_anchor {
    CANVAS_START,
    CANVAS_MIDDLE,
    CANVAS_END
};

struct canvas;

/* Never NULL. */
struct canvas *canvas_new(enum canvas_format format, double width, double height);

/* Begin a line at (x, y) / go on with it to (x, y). Ends and corners are round. */
void canvas_move(struct canvas *canvas, const struct canvas_pen *pen, double x, double y);
void canvas_line(struct canvas *canvas, double x, double y);

/* A full circle. */
void canvas_dot(struct canvas *canvas, int colour, double radius, double x, double y);

/* Text whose base line is at y, and which starts, has its middle, or ends at x. `size` in
 * pixels. */
void canvas_text(struct canvas *canvas, int colour, double size, enum canvas_anchor anchor,
                 double x, double y, const char *text);

/* The same turned to the left by a quarter: it reads from below to above, its base line is at x. */
void canvas_text_upwards(struct canvas *canvas, int colour, double size, enum canvas_anchor anchor,
                         double x, double y, const char *text);

/* Append the bytes of the file to *out and free the canvas. */
void canvas_finish(struct canvas *canvas, struct fleet_strbuf *out);

/* ---- for the two kinds of canvas ------------------------------------------------------------- */

struct canvas_tint {
    uint32_t light, dark; /* 0xrrggbb, for light and dark ground */
};

extern const struct canvas_tint canvas_tints[CANVAS_SERIES + CANVAS_SERIES_MAX];

struct canvas_vtable {
    void (*move)(struct canvas *canvas, const struct canvas_pen *pen, double x, double y);
    void (*line)(struct canvas *canvas, double x, double y);
    void (*text)(struct canvas *canvas, int colour, double size, enum canvas_anchor anchor,
                 bool upwards, double x, double y, const char *text);
    void (*finish)(struct canvas *canvas, struct fleet_strbuf *out); /* and free `canvas` */
};

struct canvas {
    const struct canvas_vtable *vtable;
};

/* Freed by canvas_finish(). */
struct canvas *canvas_svg_new(double width, double height);
struct canvas *canvas_png_new(double width, double height);

#endif
