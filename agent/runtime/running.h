/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_RUNNING_H
#define AGENT_RUNTIME_RUNNING_H

/*
 * The running statistics of batch_norm. A micro-batch leaves its own mean and variance in scalars;
 * they travel with the vote, and every rank folds those of all micro-batches into its buffers at
 * the commit, in their order: r = (1 - momentum) · r + momentum · stat.
 *
 *     running_take()    after a micro-batch: its statistics as a row of floats
 *     running_fold()    at the commit: the rows of all micro-batches of the update
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/state.h"

struct running_place {
    int stat, buffer; /* variables: what a micro-batch leaves, where it is folded in */
    int64_t first;    /* floats of a row before these */
    int64_t count;
    float momentum;
};

struct running {
    struct running_place *places; /* [place_count], in program order */
    int place_count;
    int64_t row;    /* floats of a micro-batch's statistics; 0 = the model has none */
    bool is_shared; /* they are of all ranks: the first rank's count, see running_pass_over() */
};

/* Find the statistics of `program`; it is not kept. And free the list. */
void running_init(struct running *running, const struct program *program);
void running_release(struct running *running);

/* The statistics of the micro-batch that has just run, row[running->row]. */
void running_take(const struct running *running, const struct state *state, float *row);

/* Make it a row that running_fold() passes over. Micro-batches of several ranks that are normalized
 * together have the same statistics, which count once: in the row of rank 0, which has the most. */
void running_pass_over(const struct running *running, float *row);

/* Fold in rows[0], rows[stride], … rows[(count - 1) · stride]. A micro-batch whose statistics are
 * not finite (its forward part overflowed) is passed over as a whole. */
void running_fold(const struct running *running, struct state *state, const float *rows,
                  int64_t stride, int64_t count);

#endif
