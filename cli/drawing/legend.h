/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DRAWING_LEGEND_H
#define CLI_DRAWING_LEGEND_H

/* What the lines and marks of a drawing mean: samples with words beside them, in rows. */

#include "cli/drawing/canvas.h"

struct font;

#define LEGEND_MAX        24
#define LEGEND_ROW_HEIGHT 20.0
#define LEGEND_TEXT_SIZE  12.0

enum legend_sample {
    LEGEND_LINE,
    LEGEND_DOTS, /* a line with a dot */
    LEGEND_CROSS,
    LEGEND_TRIANGLE,
};

struct legend {
    struct legend_entry {
        enum legend_sample sample;
        struct canvas_pen pen;
        char *text; /* heap */
    } entries[LEGEND_MAX];
    int count;
};

/* Append an entry; no more than LEGEND_MAX. */
void legend_add(struct legend *legend, enum legend_sample sample, const struct canvas_pen *pen,
                const char *format, ...) __attribute__((format(printf, 4, 5)));
void legend_release(struct legend *legend);

/* Rows that the entries need in `width`. */
int legend_rows(const struct legend *legend, const struct font *font, double width);

/* The rows, from (left, top) on. */
void legend_draw(const struct legend *legend, const struct font *font, struct canvas *canvas,
                 double left, double top, double width);

/* The marks themselves, with their middle at (x, y). */
void legend_cross(struct canvas *canvas, int colour, double x, double y);
void legend_triangle(struct canvas *canvas, int colour, double x, double y);

#endif
