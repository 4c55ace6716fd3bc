/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_EXCHANGE_H
#define AGENT_RUNTIME_STEP_EXCHANGE_H

/*
 * The things that the program's communication operators need in a generation: communicators for
 * their groups, a workspace, and this rank's partial sums. The executor runs the operators.
 */

#include <stdbool.h>

#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/divided_sum.h"
#include "agent/runtime/executor/gather.h"

struct comm_device_library;
struct fleet_error;
struct leaf_range;
struct trainer;

/* The group of a replica: one rank of each cell. */
#define EXCHANGE_CELLS (OP_GROUP_MODEL | OP_GROUP_SEQUENCE | OP_GROUP_PIPELINE)

struct exchange_groups {
    struct communication communication;
    struct comm *made[OP_GROUP_WORLD + 1]; /* those of `communication` that this struct owns */
    void *workspace;                       /* host memory of the memory's back end */
    size_t workspace_bytes;
    struct divided_sum divided;                /* of `communication`, if gradients are divided */
    struct gather gather;                      /* the same, if parameters are divided */
    const struct comm_device_library *library; /* in use since some generation; NULL: none */
    enum comm_device_captures captures;        /* it and the back end, on all ranks */
};

/*
 * Make the groups over the generation's world and bind them to the executor. All ranks of the
 * generation call it at the same point. Errors as comm_group(); -ENOMEM, -EAGAIN.
 */
int exchange_open(struct trainer *trainer, struct fleet_error *err);

/* Allocate the slots for this rank's sums; of divided gradients also what it needs to add up its
 * part of them, and of divided parameters what it needs to gather them. Call it once the
 * generation's placement is the trainer's. If the slots change, the gradient that they held is
 * lost. -ENOMEM. */
int exchange_divide(struct trainer *trainer, struct fleet_error *err);

/* True if ranks hold parts of the gradient; and of the parameters. */
bool exchange_divides(const struct trainer *trainer);
bool exchange_gathers(const struct trainer *trainer);

/* Before a generation, wait until the aborted operations of the device's library have ended. */
void exchange_settle(const struct trainer *trainer);

/* Free the groups. Call it before the world's communicator is freed. Fine if nothing is open. */
void exchange_close(struct trainer *trainer);

/* True if the communication operators complete this rank's partial sums of a complete update. Then
 * a bucket can be sent while others are still computed. */
bool exchange_folds(const struct trainer *trainer);

/* The number of rounds in which this rank has no micro-batch of its own but must communicate with
 * ranks that have one: the first replica's number of micro-batches less this one's. 0 if replicas
 * do not communicate inside micro-batches. */
int64_t exchange_absences(const struct trainer *trainer, const struct leaf_range *range);

/* Free the workspace. */
void exchange_release(struct trainer *trainer);

#endif
