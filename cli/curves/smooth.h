/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_SMOOTH_H
#define CLI_CURVES_SMOOTH_H

/*
 * The thick line of a loss curve: a moving average that neither lags nor leans to the first loss.
 *
 * At a step it is the value of the straight line through the losses of a window around the step,
 * by least squares (local linear regression; Cleveland, Robust Locally Weighted Regression, JASA
 * 1979, with equal weights). In the middle of a run this is the mean of the window. At both
 * ends, where half of the window is missing, the line's slope corrects the mean. Losses on a
 * straight line are therefore met exactly, from the first step to the last; an exponential
 * average starts at the first loss and stays behind a falling curve. Pure.
 */

#include <stddef.h>

struct smooth_point {
    double x, y; /* x ascends; y may be NaN: left out */
};

/* Points on each side of a window for `count` points: a fortieth of them, at least 2. 0: too few
 * to average. */
size_t smooth_reach(size_t count);

/* The average at points[at], within [at - reach, at + reach]; NaN if the window has no y. */
double smooth_at(const struct smooth_point *points, size_t count, size_t at, size_t reach);

#endif
