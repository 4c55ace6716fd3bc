/* SPDX-License-Identifier: Apache-2.0 */

/* In the formulas lr is optimizer.learningRate, n the warm-up, U all updates. */
#include "libfleet/training/schedule.h"

#include <math.h>

#include "libfleet/training/training.h"

static double cosine(const struct training_schedule *schedule, double lr, int64_t updates, double t)
{
    double last = (double)(updates - schedule->warmup_steps - 1);
    double p = last > 0 ? fmin(t / last, 1) : 0;

    return schedule->min_learning_rate +
           (lr - schedule->min_learning_rate) * (1 + cos(M_PI * p)) / 2;
}

static double polynomial(const struct training_schedule *schedule, double lr, int64_t updates,
                         double t)
{
    int64_t whole = updates - schedule->warmup_steps;
    double d = (double)(schedule->decay_steps > 0 ? schedule->decay_steps : whole);
    double left = d > 0 ? 1 - fmin(t, d) / d : 1;

    return (lr - schedule->end_learning_rate) * pow(left, schedule->power) +
           schedule->end_learning_rate;
}

static double piecewise(const struct training_schedule *schedule, int64_t t)
{
    size_t passed = 0;

    while (passed < schedule->boundaries.count && schedule->boundaries.items[passed] <= t)
        passed++;
    return schedule->values.items[passed];
}

/* T counts from 1. */
static double noam(const struct training_schedule *schedule, double lr, int64_t update_1based)
{
    double T = (double)update_1based, n = (double)schedule->warmup_steps;

    return lr * pow((double)schedule->model_size, -0.5) * fmin(pow(T, -0.5), T * pow(n, -1.5));
}

/* The schedule proper at t = 0, 1, … updates after the warm-up. */
static double rate_after_warmup(const struct training_schedule *schedule, double lr,
                                int64_t updates, int64_t t)
{
    switch (schedule->name) {
    case TRAINING_SCHEDULE_COSINE:
        return cosine(schedule, lr, updates, (double)t);
    case TRAINING_SCHEDULE_POLYNOMIAL:
        return polynomial(schedule, lr, updates, (double)t);
    case TRAINING_SCHEDULE_PIECEWISE:
        return piecewise(schedule, t);
    case TRAINING_SCHEDULE_EXPONENTIAL:
        return lr * pow(schedule->gamma, (double)t);
    case TRAINING_SCHEDULE_NATURAL_EXPONENTIAL:
        return lr * exp(-schedule->gamma * (double)t);
    case TRAINING_SCHEDULE_INVERSE_TIME:
        return lr / (1 + schedule->gamma * (double)t);
    case TRAINING_SCHEDULE_STEP:
        return lr * pow(schedule->gamma, (double)(t / schedule->step_size));
    case TRAINING_SCHEDULE_CONSTANT:
    case TRAINING_SCHEDULE_NOAM:
        break;
    }
    return lr;
}

double schedule_rate(const struct training_config *config, int64_t updates_total,
                     int64_t update_1based)
{
    const struct training_schedule *schedule = &config->schedule;
    double lr = config->optimizer.learning_rate, start = schedule->start_learning_rate;
    int64_t n = schedule->warmup_steps;

    if (schedule->name == TRAINING_SCHEDULE_NOAM)
        return noam(schedule, lr, update_1based);
    if (update_1based <= n)
        return start + (rate_after_warmup(schedule, lr, updates_total, 0) - start) *
                           (double)update_1based / (double)n;
    return rate_after_warmup(schedule, lr, updates_total, update_1based - n - 1);
}
