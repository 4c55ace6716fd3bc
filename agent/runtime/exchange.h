/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXCHANGE_H
#define AGENT_RUNTIME_EXCHANGE_H

/*
 * What the program's communication operators need of a generation: communicators of their groups, a
 * workspace, this rank's partial sums. The operators themselves run in the executor.
 */

#include <stdbool.h>

#include "agent/runtime/executor/communication.h"

struct fleet_error;
struct leaf_range;
struct trainer;

struct exchange_groups {
    struct communication communication;
    struct comm *made[OP_GROUP_WORLD + 1]; /* of those in `communication`, to be freed */
    void *workspace;                       /* of the memory's host */
    size_t workspace_bytes;
};

/*
 * Make the groups over the generation's world and bind them to the executor. All ranks of the
 * generation call it at the same point. Errors as comm_group(); -EINVAL: the world is no multiple
 * of the degrees; -ENOMEM, -EAGAIN.
 */
int exchange_open(struct trainer *trainer, struct fleet_error *err);

/* Before the world's communicator goes. Fine if nothing is open. */
void exchange_close(struct trainer *trainer);

/* The partial sums of a complete update are completed by the operators that read them, not before:
 * so a bucket can leave while others are still computed. */
bool exchange_folds(const struct trainer *trainer);

/* Rounds of micro-batches that this rank takes part in without one of its own: those of the first
 * rank less its own, where ranks communicate inside micro-batches. */
int64_t exchange_absences(const struct trainer *trainer, const struct leaf_range *range);

/* Free the workspace. */
void exchange_release(struct trainer *trainer);

#endif
