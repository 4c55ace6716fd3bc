/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_PLOT_H
#define CLI_CURVES_PLOT_H

/* One run's lines and marks, drawn between two axes. */

#include <stdbool.h>
#include <stddef.h>

#include "cli/curves/curve.h"
#include "cli/drawing/axis.h"
#include "cli/drawing/canvas.h"

struct plot {
    struct canvas *canvas;   /* borrowed */
    struct axis steps, loss; /* pixels from left to right, from the bottom to the top */
};

/* How one run is drawn. */
struct plot_style {
    struct canvas_pen losses, average, evaluations, restart, resume;
    bool short_marks; /* restarts and resumes as strokes at the bottom, instead of whole lines */
};

/* All of the run. */
void plot_run(const struct plot *plot, const struct plot_style *style, const struct curve *curve);

/* Steps that the moving average of the run covers; 0: there is none. */
int64_t plot_average_steps(const struct curve *curve);

/* The kinds of lines and marks that the run has, for a legend. */
struct plot_counts {
    size_t not_finite; /* steps and evaluations */
    size_t restarts, resumes;
    size_t beyond; /* losses above `high` */
    double beyond_max;
};

struct plot_counts plot_count(const struct curve *curve, double high);

#endif
