/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CURVES_CURVE_H
#define CLI_CURVES_CURVE_H

/*
 * The losses of one job over its steps, as they are recorded and drawn.
 *
 * Invariants
 *  (1) The steps of `losses` ascend, and so do those of `evaluations`.
 *  (2) A step that is made again replaces what was known from it on: losses and evaluations.
 */

#include <stddef.h>
#include <stdint.h>

#define CURVE_STEP_MAX ((int64_t)1 << 53)

struct curve_point {
    int64_t step; /* 0 to CURVE_STEP_MAX */
    double loss;  /* may be NaN or infinite */
};

struct curve_series {
    struct curve_point *points; /* [count] */
    size_t count, capacity;
};

enum curve_mark_kind {
    CURVE_RESTART, /* training was restarted within a run */
    CURVE_RESUME,  /* a later run went on from a checkpoint */
};

struct curve_mark {
    enum curve_mark_kind kind;
    int64_t step; /* the last one before it */
};

struct curve {
    char *name;                      /* of the job, heap; NULL = not known */
    char *about;                     /* what it trains, one line, heap; NULL = not known */
    struct curve_series losses;      /* of the steps */
    struct curve_series evaluations; /* on held-out samples, after the steps */
    struct curve_mark *marks;        /* [mark_count], in the order they were added */
    size_t mark_count;
};

/* Free all of it; empty afterwards. All zero is empty, too. */
void curve_release(struct curve *curve);

/* Copies of the texts; NULL or "" leaves a text as it is. */
void curve_describe(struct curve *curve, const char *name, const char *about);

/* Forget losses, evaluations and marks from `step` on. */
void curve_cut(struct curve *curve, int64_t step);

/* The loss of a step (2). */
void curve_add(struct curve *curve, int64_t step, double loss);

/* The held-out loss after a step; of two for one step the later one stays. */
void curve_add_evaluation(struct curve *curve, int64_t step, double loss);

/* Add a mark after `step`; < 0: before the next step that is added. */
void curve_add_mark(struct curve *curve, enum curve_mark_kind kind, int64_t step);

#endif
