/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_RUNNING_H
#define AGENT_RUNTIME_STEP_RUNNING_H

/*
 * The running statistics of batch_norm. A micro-batch leaves its own mean and variance in variables
 * of the program. The vote carries them to all ranks. At the commit every rank folds those of all
 * micro-batches into its buffers, in their order: r = (1 - momentum) · r + momentum · stat.
 *
 *     running_take()    after a micro-batch: its statistics as a row of floats, after the next
 *                       backend_finish()
 *     running_fold()    at the commit: the rows of all micro-batches of the update
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/state.h"

struct running_place {
    int stat, buffer; /* variables: a micro-batch's statistic, and the running one */
    int64_t first;    /* floats of a row before these */
    int64_t count;
    float momentum;
};

struct running {
    struct running_place *places; /* [place_count], in program order */
    int place_count;
    int64_t row;    /* floats of a micro-batch's statistics; 0 = the model has none */
    bool is_shared; /* all ranks have the same: only rank 0's count, see running_pass_over() */
};

/* List the statistics of `program`, which is not kept. Release the list. */
void running_init(struct running *running, const struct program *program);
void running_release(struct running *running);

/* Copy the statistics of the micro-batch that has just run to row[running->row], memory of
 * allocate_host, which has them after backend_finish(). */
void running_take(const struct running *running, const struct state *state, float *row);

/* Make it a row that running_fold() skips. If micro-batches of several ranks are normalized
 * together, all have the same statistics, and they count once: in the rows of rank 0, which has the
 * most micro-batches. */
void running_pass_over(const struct running *running, float *row);

/* Fold in rows[0], rows[stride], … rows[(count - 1) · stride]. A micro-batch whose statistics are
 * not finite (its forward part overflowed) is skipped as a whole. */
void running_fold(const struct running *running, struct state *state, const float *rows,
                  int64_t stride, int64_t count);

#endif
