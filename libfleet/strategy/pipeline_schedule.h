/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_PIPELINE_SCHEDULE_H
#define LIBFLEET_STRATEGY_PIPELINE_SCHEDULE_H

/*
 * In which order a pipeline stage runs the forward (f) and backward (b) passes of its
 * micro-batches.
 *
 *   F-then-B     all forwards, then all backwards; every micro-batch's activations are held
 *   1F1B         as few forwards as fill the pipeline, then one of each in turn
 *   interleaved  1F1B over several chunks of layers a stage (Narayanan and others, 2104.04473):
 *                chunk c of stage s is the virtual stage c·P + s
 *
 * Micro-batches go in ascending order in both directions, so sums have the same order in all.
 */

#include <stdbool.h>
#include <stddef.h>

struct fleet_strbuf;
struct strategy;

struct pipeline_shape {
    int stages;        /* P >= 1 */
    int micro_batches; /* M >= 1 */
    int chunks;        /* V >= 1; above 1 interleaved, which wants P > 2 and M >= 2P */
    bool all_forward;  /* F-then-B; only with one chunk */
};

struct pipeline_step {
    bool is_backward;
    int micro_batch, chunk;
};

/* pipeline_configs.schedule_mode is F-then-B; else 1F1B. */
bool pipeline_is_all_forward(const struct strategy *s);

/* Steps of one stage: 2·M·V. */
size_t pipeline_step_count(const struct pipeline_shape *shape);

/* Write them to `out`, in order. */
void pipeline_steps(const struct pipeline_shape *shape, int stage, struct pipeline_step *out);

/* Append "f0 f1 b0 f2 …"; an apostrophe a chunk: f0' is chunk 1. */
void pipeline_print(const struct pipeline_shape *shape, int stage, struct fleet_strbuf *out);

/* Chunks of activations that `stage` holds at most at one time. */
int pipeline_peak(const struct pipeline_shape *shape, int stage);

/*
 * Time until the last backward is done where a whole stage's forward takes t_forward and its
 * backward t_backward, chunks their share, and sending nothing. Negative if the order deadlocks.
 */
double pipeline_makespan(const struct pipeline_shape *shape, double t_forward, double t_backward);

#endif
