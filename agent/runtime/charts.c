/* SPDX-License-Identifier: Apache-2.0 */

/*
 * From a step's numbers to the tags of TensorBoard. Charts are optional: a file that cannot be
 * written causes one warning and never stops the training.
 */
#include "agent/runtime/charts.h"

#include <math.h>
#include <string.h>

#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

static const char *const tags[CHART_COUNT] = {
    [CHART_LOSS] = "loss",
    [CHART_NORM] = "gradient_norm",
    [CHART_RATE] = "learning_rate",
    [CHART_TOKENS_PER_SECOND] = "tokens_per_second",
    [CHART_STEP] = "time/step",
    [CHART_DATA] = "time/data",
    [CHART_FORWARD] = "time/forward",
    [CHART_BACKWARD] = "time/backward",
    [CHART_EXCHANGE] = "time/exchange",
    [CHART_OPTIMIZER] = "time/optimizer",
    [CHART_HIDDEN] = "time/exchange_hidden",
    [CHART_LOSS_SCALE] = "loss_scale",
    [CHART_SKIPPED] = "skipped_updates",
    [CHART_NOT_FINITE] = "not_finite_gradients",
    [CHART_EVALUATION] = "evaluation/loss",
};

void charts_init(struct charts *charts, const char *folder, const char *job)
{
    *charts = (struct charts){0};
    if (folder)
        charts->log = event_log_new(folder, job);
}

void charts_release(struct charts *charts)
{
    event_log_free(charts->log);
    *charts = (struct charts){0};
}

struct chart_point chart_point_now(int64_t step)
{
    struct chart_point point = {.step = step, .wall_s = (double)fleet_wall_ms() * 1e-3};

    for (int i = 0; i < CHART_COUNT; i++)
        point.values[i] = NAN;
    return point;
}

void charts_add(struct charts *charts, const struct chart_point *point)
{
    struct chart_points *points = &charts->points;

    if (!charts->log)
        return;
    points->kept[points->end++ % CHARTS_KEPT] = *point;
    if (points->end - points->first > CHARTS_KEPT)
        points->first = points->end - CHARTS_KEPT;
}

/* A disk that is full stays so for many steps: one warning is enough. */
static int warn_once(struct charts *charts, int rc, struct fleet_error *err)
{
    if (rc == 0 || charts->has_warned)
        return 0;
    charts->has_warned = true;
    return fleet_error_wrap(err, "spec.training.log.tensorboard");
}

static int write_point(struct charts *charts, const struct chart_point *point,
                       struct fleet_error *err)
{
    struct event_scalar scalars[CHART_COUNT];
    int count = 0;

    for (int i = 0; i < CHART_COUNT; i++)
        if (!isnan(point->values[i]))
            scalars[count++] = (struct event_scalar){
                .tag = tags[i], .tag_size = strlen(tags[i]), .value = point->values[i]};
    return event_log_append(charts->log, point->step, point->wall_s, scalars, count, err);
}

int charts_write(struct charts *charts, struct fleet_error *err)
{
    int rc = 0;

    if (!charts->is_writing)
        return 0;
    if (charts->written < charts->points.first)
        charts->written = charts->points.first;
    while (charts->written < charts->points.end && rc == 0) {
        rc = write_point(charts, &charts->points.kept[charts->written % CHARTS_KEPT], err);
        charts->written += rc == 0;
    }
    return warn_once(charts, rc, err);
}

int charts_resume(struct charts *charts, int64_t step, struct fleet_error *err)
{
    struct chart_points *points = &charts->points;
    int rc;

    if (!charts->log)
        return 0;
    while (points->end > points->first && points->kept[(points->end - 1) % CHARTS_KEPT].step > step)
        points->end--;               /* steps after the restart point, which are computed again */
    charts->written = points->first; /* the files say which tags they have */
    charts->is_writing = true;
    rc = event_log_resume(charts->log, step, err);
    return rc < 0 ? warn_once(charts, rc, err) : charts_write(charts, err);
}

void charts_pause(struct charts *charts)
{
    charts->is_writing = false;
}
