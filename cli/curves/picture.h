/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_PICTURE_H
#define CLI_CURVES_PICTURE_H

/*
 * The losses of one or several runs as a picture with axes, a legend and a title.
 *
 * What is drawn
 *  - the loss of each step, thin and pale; steps that share a column of pixels as one stroke
 *    from their lowest to their highest loss;
 *  - the moving average of smooth.h, thick, from 5 steps on;
 *  - the held-out losses as points on a line of their own;
 *  - restarts and resumes as dashed lines, or, with several runs, as short strokes at the bottom;
 *  - a cross at the bottom for steps whose loss is not finite (NaN, infinite, beyond 1e100),
 *    where the lines have a gap.
 *
 * The loss axis is that of loss_range.h. Triangles at the upper edge mark losses beyond it, and
 * the legend has the largest one. On a logarithmic axis the average is the one of the
 * logarithms; losses beyond the axis are left out of it.
 */

#include <stddef.h>

#include "cli/curves/curve.h"
#include "cli/drawing/canvas.h"
#include "libfleet/base/strbuf.h"

struct fleet_error;

#define PICTURE_RUNS_MAX CANVAS_SERIES_MAX

struct picture_run {
    const struct curve *curve; /* borrowed */
    const char *label;         /* in the legend, if there are several */
};

struct picture {
    const char *title;    /* NULL: the name of the only run, or how many there are */
    const char *subtitle; /* NULL: the description of the only run, or nothing */
    struct picture_run runs[PICTURE_RUNS_MAX];
    size_t count; /* >= 1 */
};

/* Append the bytes of the file. A run may be empty. */
void picture_draw(const struct picture *picture, enum canvas_format format,
                  struct fleet_strbuf *out);

/* The format that the ending of a file's name asks for: .svg or .png. -EINVAL if it has neither. */
int picture_format(const char *path, enum canvas_format *out, struct fleet_error *err);

/* Draw into the file at `path`, atomically (libfleet/base/file.h). -EINVAL: no run has a loss;
 * -errno: it cannot be written. */
int picture_write(const struct picture *picture, enum canvas_format format, const char *path,
                  struct fleet_error *err);

#endif
