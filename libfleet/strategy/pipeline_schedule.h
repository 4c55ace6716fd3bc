/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_PIPELINE_SCHEDULE_H
#define LIBFLEET_STRATEGY_PIPELINE_SCHEDULE_H

/*
 * The order in which a pipeline stage runs the forward (f) and backward (b) passes of its
 * micro-batches. zero-bubble cuts the backward pass in two: b makes the gradient of the stage's
 * input, which the stage before it waits for; w makes those of the weights, for which no stage
 * waits.
 *
 *   F-then-B     all forwards, then all backwards; holds the activations of every micro-batch
 *   1F1B         first the forwards that fill the pipeline, then one forward and one backward in
 *                turn
 *   interleaved  1F1B over several chunks of layers a stage (Narayanan and others, 2104.04473):
 *                chunk c of stage s is the virtual stage c·P + s
 *   zero-bubble  ZB-H1 (Qi and others, 2401.10241, 3.1): 1F1B with w. Stage s holds s of its w's
 *                back, to fill the time in which it waits for gradients. No stage holds more
 *                activations than the first one of 1F1B: a micro-batch's are kept until its w.
 *
 * In both directions the micro-batches run in ascending order. So all schedules add gradients in
 * the same order.
 */

#include <stdbool.h>
#include <stddef.h>

struct fleet_error;
struct fleet_strbuf;
struct strategy;

struct pipeline_shape {
    int stages;        /* P >= 1 */
    int micro_batches; /* M >= 1 */
    int chunks;        /* V >= 1; above 1: interleaved */
    bool all_forward;  /* F-then-B; only with one chunk */
    bool zero_bubble;  /* only with one chunk, and not with all_forward */
};

#define PIPELINE_STEPS_PRINTED 4096 /* of one stage; longer orders are not printed */

enum pipeline_pass {
    PIPELINE_FORWARD,
    PIPELINE_BACKWARD, /* with zero_bubble: of the input alone */
    PIPELINE_WEIGHTS,  /* only with zero_bubble */
    PIPELINE_PASSES,
};

struct pipeline_step {
    enum pipeline_pass pass;
    int micro_batch, chunk;
};

/*
 * Can a job run by this schedule? -EINVAL names what is wrong; topology_nearest.h has remedies:
 *   more than one stage  M >= P
 *   interleaved          P > 2, M >= 2P, M a multiple of P; not with F-then-B or zero-bubble
 *   zero-bubble          not with F-then-B
 * The functions below take what Paddle's own schedulers take, which is more.
 */
int pipeline_check(const struct pipeline_shape *shape, struct fleet_error *err);

/* 'f', 'b' or 'w'. */
char pipeline_pass_letter(enum pipeline_pass pass);

/* True if pipeline_configs.schedule_mode is F-then-B; false for 1F1B. */
bool pipeline_is_all_forward(const struct strategy *s);

/* Number of steps of one stage: 2·M·V, or 3·M with zero_bubble. */
size_t pipeline_step_count(const struct pipeline_shape *shape);

/* Write them to `out`, in order. */
void pipeline_steps(const struct pipeline_shape *shape, int stage, struct pipeline_step *out);

/* Append "f0 f1 b0 f2 …". One apostrophe per chunk: f0' is micro-batch 0 of chunk 1. */
void pipeline_print(const struct pipeline_shape *shape, int stage, struct fleet_strbuf *out);

/* The same for all stages: "s0: f0 f1 b0 …", a line a stage. */
void pipeline_print_all(const struct pipeline_shape *shape, struct fleet_strbuf *out);

/* The most chunks of activations that `stage` holds at one time. */
int pipeline_peak(const struct pipeline_shape *shape, int stage);

/*
 * Time until the last pass has ended. A whole stage takes t_forward and t_backward, a chunk its
 * share of them; b and w of zero-bubble take half of t_backward each. Sending takes no time.
 * Negative if the order deadlocks.
 */
double pipeline_makespan(const struct pipeline_shape *shape, double t_forward, double t_backward);

#endif
