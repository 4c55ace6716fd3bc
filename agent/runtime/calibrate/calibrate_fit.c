/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>

#include "agent/runtime/calibrate/calibrate_internal.h"

/* seconds = start + work · seconds of a unit + weights · seconds of a byte, the coefficients that
 * are sought; a term whose bit is missing from a mask is 0. */
enum term {
    START,
    WORK,
    WEIGHTS,
    TERMS,
};

/* Sums over the samples of a class, each with the weight 1 / seconds. */
struct sums {
    double xx[TERMS][TERMS], xy[TERMS], yy;
};

static struct sums add_up(const struct calibrate_sample *samples, int count,
                          enum links_class class_)
{
    struct sums s = {.yy = 0};

    for (int i = 0; i < count; i++) {
        double w = 1 / samples[i].seconds, y = samples[i].seconds;
        double x[TERMS] = {1, samples[i].work, samples[i].weights};

        if (samples[i].class_ != class_)
            continue;
        for (int j = 0; j < TERMS; j++) {
            for (int k = 0; k < TERMS; k++)
                s.xx[j][k] += w * x[j] * x[k];
            s.xy[j] += w * x[j] * y;
        }
        s.yy += w * y * y;
    }
    return s;
}

/* Solve for the terms of `mask` by elimination. False: they depend on each other, or one is
 * negative. */
static bool solve(const struct sums *s, unsigned mask, double out[TERMS])
{
    struct sums m = *s;

    for (int i = 0; i < TERMS; i++) {
        out[i] = 0;
        if (!(mask & 1U << i))
            continue;
        if (m.xx[i][i] <= 1e-9 * s->xx[i][i])
            return false;
        for (int j = i + 1; j < TERMS; j++) {
            double factor = m.xx[j][i] / m.xx[i][i];

            for (int k = i; k < TERMS; k++)
                m.xx[j][k] -= factor * m.xx[i][k];
            m.xy[j] -= factor * m.xy[i];
        }
    }
    for (int i = TERMS - 1; i >= 0; i--) {
        if (!(mask & 1U << i))
            continue;
        out[i] = m.xy[i];
        for (int k = i + 1; k < TERMS; k++)
            out[i] -= m.xx[i][k] * out[k];
        out[i] /= m.xx[i][i];
        if (out[i] < 0)
            return false;
    }
    return out[WORK] > 0;
}

/* The weighted squares of the errors that `terms` leave. */
static double rest(const struct sums *s, const double terms[TERMS])
{
    double rest = s->yy;

    for (int j = 0; j < TERMS; j++) {
        rest -= 2 * terms[j] * s->xy[j];
        for (int k = 0; k < TERMS; k++)
            rest += terms[j] * terms[k] * s->xx[j][k];
    }
    return rest;
}

/* The best terms without a negative one: those of the best of all masks with work. */
static void fit(const struct sums *s, double best[TERMS])
{
    double least = INFINITY;

    for (unsigned mask = 0; mask < 1U << TERMS; mask++) {
        double terms[TERMS];

        if (!(mask & 1U << WORK) || !solve(s, mask, terms) || rest(s, terms) >= least)
            continue;
        least = rest(s, terms);
        for (int i = 0; i < TERMS; i++)
            best[i] = terms[i];
    }
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

        if (class_ == LINKS_MATRIX && compute->weight_bytes > 0)
            predicted += samples[i].weights / compute->weight_bytes;

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
        double terms[TERMS] = {0};

        if (s.xx[WORK][WORK] == 0)
            continue;
        fit(&s, terms);
        compute.start[class_] = terms[START];
        *rate_of(&compute, (enum links_class)class_) = 1 / terms[WORK];
        if (class_ == LINKS_MATRIX && terms[WEIGHTS] > 0)
            compute.weight_bytes = 1 / terms[WEIGHTS];
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
