/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVE_H
#define CLI_CURVE_H

/*
 * The loss of each step as a drawing: training.log.curve. SVG, readable on light and dark ground, or
 * PNG; restarts marked. Steps are thinned to what a drawing can show.
 */

#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;

struct curve_point {
    int64_t step; /* ascending */
    double loss;  /* not finite: a gap */
};

struct curve {
    struct curve_point *points; /* [count] */
    size_t count, capacity;
    int64_t *restarts; /* [restart_count] steps after which training was restarted */
    size_t restart_count;
};

/* Free all points; empty afterwards. All zero is empty, too. */
void curve_release(struct curve *curve);

/* The loss of a step that follows all before; training was restarted after `step`. */
void curve_add(struct curve *curve, int64_t step, double loss);
void curve_add_restart(struct curve *curve, int64_t step);

enum curve_format {
    CURVE_SVG,
    CURVE_PNG
};

/* The drawing as the bytes of a file. */
void curve_draw(const struct curve *curve, const char *title, enum curve_format format,
                struct fleet_strbuf *out);

/* Draw into the file at `path`, a PNG if it ends in .png, atomically. -EINVAL: nothing to draw;
 * -errno: it cannot be written. */
int curve_write(const struct curve *curve, const char *title, const char *path,
                struct fleet_error *err);

#endif
