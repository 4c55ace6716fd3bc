/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "agent/runtime/calibrate/calibrate_internal.h"

/* Sums over the samples of a class: weights w = 1 / seconds, x = work, y = seconds. */
struct sums {
    double w, wx, wxx, wy, wxy;
};

/* The line y = start + x / rate; through the origin if it would begin below. */
static void fit_line(const struct sums *s, double *out_start, double *out_rate)
{
    double determinant = s->w * s->wxx - s->wx * s->wx;
    double slope =
        determinant > 1e-9 * s->w * s->wxx ? (s->w * s->wxy - s->wx * s->wy) / determinant : 0;
    double start = s->w > 0 ? (s->wy - slope * s->wx) / s->w : 0;

    if (slope <= 0 || start < 0) {
        start = 0;
        slope = s->wxy / s->wxx;
    }
    *out_start = start;
    *out_rate = 1 / slope;
}

static struct sums add_up(const struct calibrate_sample *samples, int count,
                          enum links_class class_)
{
    struct sums s = {0};

    for (int i = 0; i < count; i++) {
        double w = 1 / samples[i].seconds, x = samples[i].work, y = samples[i].seconds;

        if (samples[i].class_ != class_)
            continue;
        s.w += w;
        s.wx += w * x;
        s.wxx += w * x * x;
        s.wy += w * y;
        s.wxy += w * x * y;
    }
    return s;
}

static double *rate_of(struct links_compute *compute, enum links_class class_)
{
    return class_ < LINKS_OTHER    ? &compute->flops[class_]
           : class_ == LINKS_OTHER ? &compute->bytes
                                   : &compute->more[class_ - LINKS_ACTIVATION];
}

static double mean_error(const struct calibrate_sample *samples, int count,
                         struct links_compute *compute)
{
    double error = 0, seconds = 0;

    for (int i = 0; i < count; i++) {
        enum links_class class_ = samples[i].class_;
        double predicted = compute->start[class_] + samples[i].work / *rate_of(compute, class_);

        error += fabs(predicted - samples[i].seconds);
        seconds += samples[i].seconds;
    }
    return seconds > 0 ? error / seconds : 0;
}

double calibrate_fit(const struct calibrate_sample *samples, int count, struct links_compute *out)
{
    struct links_compute compute = {.flops = {0}};
    double highest = 0, error;

    for (int class_ = 0; class_ < LINKS_CLASSES; class_++) {
        struct sums s = add_up(samples, count, (enum links_class)class_);
        if (s.wxx > 0)
            fit_line(&s, &compute.start[class_], rate_of(&compute, (enum links_class)class_));
    }
    error = mean_error(samples, count, &compute);
    for (int i = 0; i < LINKS_OTHER; i++)
        highest = fmax(highest, compute.flops[i]);
    for (int i = 0; i < LINKS_OTHER; i++)
        if (compute.flops[i] == 0)
            compute.flops[i] = highest > 0 ? highest : 1e9;
    if (compute.bytes == 0)
        compute.bytes = 1e9;
    *out = compute;
    return error;
}
