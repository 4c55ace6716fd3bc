/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CANVAS_H
#define CLI_CANVAS_H

/*
 * Something to draw lines and words on: an SVG, or a PNG with its own pixels and letters.
 *
 *     struct canvas *canvas = canvas_svg(800, 420);
 *     canvas_move(canvas, CANVAS_MEAN, x, y); canvas_line(canvas, x, y); …
 *     canvas_text(canvas, …);
 *     canvas_finish(canvas, &out);        the file's bytes; the canvas is gone
 *
 * Coordinates are in pixels of an SVG of that size, from its upper left corner.
 */

#include "libfleet/base/strbuf.h"

enum canvas_style {
    CANVAS_GRID,    /* thin, grey */
    CANVAS_STEPS,   /* thin, pale */
    CANVAS_MEAN,    /* thick */
    CANVAS_RESTART, /* dashed, red */
    CANVAS_STYLE_COUNT,
};

enum canvas_anchor {
    CANVAS_START,
    CANVAS_MIDDLE,
    CANVAS_END
};

struct canvas;

struct canvas_vtable {
    void (*move)(struct canvas *canvas, enum canvas_style style, double x, double y);
    void (*line)(struct canvas *canvas, double x, double y);
    void (*text)(struct canvas *canvas, enum canvas_style style, double size,
                 enum canvas_anchor anchor, double x, double y, const char *text);
    void (*finish)(struct canvas *canvas, struct fleet_strbuf *out);
};

struct canvas {
    const struct canvas_vtable *vtable;
    double width, height;
};

/* Lines and words as SVG elements, which follow the reader's light or dark ground. */
struct canvas *canvas_svg(double width, double height);

/* Twice as many pixels a side. Letters are lower case; what has no glyph is left blank. */
struct canvas *canvas_png(double width, double height);

/* Begin a line at (x, y) / go on with it to (x, y). */
void canvas_move(struct canvas *canvas, enum canvas_style style, double x, double y);
void canvas_line(struct canvas *canvas, double x, double y);

/* Words whose base line is at y: they start, have their middle, or end at x. `size` in pixels. */
void canvas_text(struct canvas *canvas, enum canvas_style style, double size,
                 enum canvas_anchor anchor, double x, double y, const char *text);

/* Append the bytes of the file to *out and free the canvas. */
void canvas_finish(struct canvas *canvas, struct fleet_strbuf *out);

#endif
