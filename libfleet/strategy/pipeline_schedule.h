/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_PIPELINE_SCHEDULE_H
#define LIBFLEET_STRATEGY_PIPELINE_SCHEDULE_H

/*
 * The order in which a pipeline stage runs the forward (f) and backward (b) passes of its
 * micro-batches.
 *
 *   F-then-B     all forwards, then all backwards; holds the activations of every micro-batch
 *   1F1B         first the forwards that fill the pipeline, then one forward and one backward in
 *                turn
 *   interleaved  1F1B over several chunks of layers a stage (Narayanan and others, 2104.04473):
 *                chunk c of stage s is the virtual stage c·P + s
 *
 * In both directions the micro-batches run in ascending order. So all three schedules add gradients
 * in the same order.
 */

#include <stdbool.h>
#include <stddef.h>

struct fleet_strbuf;
struct strategy;

struct pipeline_shape {
    int stages;        /* P >= 1 */
    int micro_batches; /* M >= 1 */
    int chunks;        /* V >= 1; above 1: interleaved, which needs P > 2 and M >= 2P */
    bool all_forward;  /* F-then-B; only with one chunk */
};

struct pipeline_step {
    bool is_backward;
    int micro_batch, chunk;
};

/* True if pipeline_configs.schedule_mode is F-then-B; false for 1F1B. */
bool pipeline_is_all_forward(const struct strategy *s);

/* Number of steps of one stage: 2·M·V. */
size_t pipeline_step_count(const struct pipeline_shape *shape);

/* Write them to `out`, in order. */
void pipeline_steps(const struct pipeline_shape *shape, int stage, struct pipeline_step *out);

/* Append "f0 f1 b0 f2 …". One apostrophe per chunk: f0' is micro-batch 0 of chunk 1. */
void pipeline_print(const struct pipeline_shape *shape, int stage, struct fleet_strbuf *out);

/* The most chunks of activations that `stage` holds at one time. */
int pipeline_peak(const struct pipeline_shape *shape, int stage);

/*
 * Time until the last backward has ended. A whole stage takes t_forward and t_backward, a chunk its
 * share of them, and sending takes no time. Negative if the order deadlocks.
 */
double pipeline_makespan(const struct pipeline_shape *shape, double t_forward, double t_backward);

#endif
