/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHARTS_H
#define AGENT_RUNTIME_CHARTS_H

/*
 * training.log.tensorboard: the curves of a job.
 *
 * Every rank keeps the newest points; rank 0 writes them (tensorboard/event_log.h). If rank 0 is
 * killed between the commit of a step and the write, the next rank 0 writes that point: at a join,
 * the rank that holds the newest state sends its points to all ranks.
 *
 * A failure here does not fail the training. The first failed write gives a warning. A point that
 * could not be written is tried again together with the next one, as long as it is among the kept
 * points.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/tensorboard/event_log.h"

struct fleet_error;

#define CHARTS_KEPT 64

enum chart {
    CHART_LOSS,
    CHART_NORM,
    CHART_RATE,
    CHART_TOKENS_PER_SECOND,
    CHART_STEP, /* seconds; the next ones are its parts */
    CHART_DATA,
    CHART_FORWARD,
    CHART_BACKWARD,
    CHART_EXCHANGE,
    CHART_OPTIMIZER,
    CHART_HIDDEN, /* communication beside these parts */
    CHART_LOSS_SCALE,
    CHART_SKIPPED,
    CHART_NOT_FINITE,
    CHART_EVALUATION,
    CHART_COUNT,
};

struct chart_point {
    int64_t step;
    double wall_s;              /* since 1970 */
    double values[CHART_COUNT]; /* NaN = none */
};

/* Plain bytes: ranks of the same build send the struct as it is. */
struct chart_points {
    int64_t first,
        end; /* points [first, end) are kept, at most CHARTS_KEPT; i at i % CHARTS_KEPT */
    struct chart_point kept[CHARTS_KEPT];
};

struct charts {
    struct event_log *log; /* NULL: no charts are wanted */
    struct chart_points points;
    int64_t written; /* points that are in the files */
    bool is_writing; /* from charts_resume() to charts_pause() */
    bool has_warned;
};

/* `folder` NULL: no charts, and the functions below do nothing. */
void charts_init(struct charts *charts, const char *folder, const char *job);
void charts_release(struct charts *charts);

/* A point of `step` without values, at this moment. */
struct chart_point chart_point_now(int64_t step);

/* Keep a point. */
void charts_add(struct charts *charts, const struct chart_point *point);

/*
 * A generation begins after `step`. Removes the points beyond it from the files, and writes missing
 * points up to it from the kept ones. The writing rank calls it before charts_write(). The first
 * failure returns -errno with the path; later calls return 0 even if they fail.
 */
int charts_resume(struct charts *charts, int64_t step, struct fleet_error *err);

/* Write the points that were added since the last call. Does nothing while paused. Errors as
 * charts_resume(). */
int charts_write(struct charts *charts, struct fleet_error *err);

/* The generation is over: another rank may write until the next charts_resume(). */
void charts_pause(struct charts *charts);

#endif
