/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_SHARE_H
#define AGENT_RUNTIME_SHARE_H

/* A rank's share of the micro-batches of a group: which leaves, and how it folds them
 * (libfleet/plan/tree.h). */

#include <stdint.h>

#include "libfleet/plan/tree.h"

struct share {
    int64_t leaves;                        /* micro-batches of the group */
    int64_t first, end;                    /* own ones: [first, end) */
    struct tree_instruction *instructions; /* [count] */
    int64_t count;
    int slots; /* gradient buffers needed, at least 1: the sum arrives in the first */
};

/* The share of `rank` (tree_first_leaf() and tree_schedule()); and free it. */
void share_init(struct share *share, int64_t leaves, int world, int rank);

/* The share of an unfinished group, which makes no update: its leaves are run for their losses
 * alone, their gradients overwrite each other in slot 0. */
void share_init_unsummed(struct share *share, int64_t leaves, int world, int rank);
void share_release(struct share *share);

#endif
