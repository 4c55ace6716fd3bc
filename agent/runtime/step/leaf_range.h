/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_LEAF_RANGE_H
#define AGENT_RUNTIME_STEP_LEAF_RANGE_H

/* A rank's range of an update's micro-batches: which leaves it runs, and in which order it adds
 * their gradients (libfleet/plan/tree.h). */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/plan/tree.h"

struct leaf_range {
    int64_t leaves;                        /* micro-batches of the update */
    int64_t first, end, step;              /* own ones: first, first + step, … below end */
    struct tree_instruction *instructions; /* [count] */
    int64_t count;
    int64_t folds_first; /* instructions from here on are only additions */
    int slots;           /* gradient buffers needed, at least 1: the first one gets the sum */
};

/* Compute the range of `rank` with tree_first_leaf() and tree_schedule(). Free it with
 * leaf_range_release(). */
void leaf_range_init(struct leaf_range *range, int64_t leaves, int world, int rank);

/* The range if gradients are divided (libfleet/plan/adders.h): ranks take leaves in turn, and the
 * program adds their gradients. */
void leaf_range_init_in_turn(struct leaf_range *range, int64_t leaves, int world, int rank);

/* The number of own leaves. */
int64_t leaf_range_own(const struct leaf_range *range);

/* The range in an incomplete update. Its leaves run only for their losses; their gradients
 * overwrite each other in slot 0. */
void leaf_range_init_unsummed(struct leaf_range *range, int64_t leaves, int world, int rank,
                              bool in_turn);
void leaf_range_release(struct leaf_range *range);

#endif
