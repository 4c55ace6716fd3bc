/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_LEAF_RANGE_H
#define AGENT_RUNTIME_LEAF_RANGE_H

/* A rank's range of an update's micro-batches: which leaves it runs, and in which order it adds
 * their gradients (libfleet/plan/tree.h). */

#include <stdint.h>

#include "libfleet/plan/tree.h"

struct leaf_range {
    int64_t leaves;                        /* micro-batches of the update */
    int64_t first, end;                    /* own ones: [first, end) */
    struct tree_instruction *instructions; /* [count] */
    int64_t count;
    int64_t folds_first; /* instructions from here on are only additions */
    int slots;           /* gradient buffers needed, at least 1: the first one gets the sum */
};

/* Compute the range of `rank` with tree_first_leaf() and tree_schedule(). Free it with
 * leaf_range_release(). */
void leaf_range_init(struct leaf_range *range, int64_t leaves, int world, int rank);

/* The range in an incomplete update. Its leaves run only for their losses; their gradients
 * overwrite each other in slot 0. */
void leaf_range_init_unsummed(struct leaf_range *range, int64_t leaves, int world, int rank);
void leaf_range_release(struct leaf_range *range);

#endif
