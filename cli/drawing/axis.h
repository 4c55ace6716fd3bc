/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DRAWING_AXIS_H
#define CLI_DRAWING_AXIS_H

/* Numbers along an edge of a drawing: where a value lies, and which values are labelled. Pure. */

#include <stdbool.h>
#include <stddef.h>

#define AXIS_TICKS_MAX 16

struct axis {
    double low, high; /* high > low; both > 0 if is_log */
    bool is_log;
    double from, to; /* pixels of `low` and `high`; from > to is allowed */
};

struct axis_tick {
    double value;
    char text[24];
};

/* [low, high] and `margin` of that range more on both sides; a sensible range around them if
 * they are equal. low <= high, finite, at most 1e100 in size. */
void axis_init(struct axis *axis, double low, double high, double margin, bool is_log, double from,
               double to);

/* The pixel of `value`; what lies beyond the axis is at its end. */
double axis_place(const struct axis *axis, double value);

/* The measure of a value: the value, or its logarithm of base 10. A value beyond the axis is at its
 * end. */
double axis_measure(const struct axis *axis, double value);

/* The pixel of a measure, not cut to the axis. */
double axis_place_measure(const struct axis *axis, double measure);

/*
 * About `wanted` round values in ascending order: multiples of 1, 2 or 5 times a power of ten,
 * on a logarithmic axis powers of ten, or 1, 2 and 5 times them where there are few. Neighbours
 * have different texts. `whole`: no fractions. Returns how many.
 */
size_t axis_ticks(const struct axis *axis, int wanted, bool whole,
                  struct axis_tick ticks[AXIS_TICKS_MAX]);

/* A number for people: 3.2, 1500, 20k, 1.5M, 3.2e16, 4e-5. */
void axis_number(double value, char out[24]);

#endif
