/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_SHARE_H
#define AGENT_RUNTIME_STEP_SHARE_H

/*
 * After an update with divided optimizer states, a rank has new values only of its own parameters:
 * those whose optimizer states it holds. Here every rank gets the other parameters from their
 * owners, by the program's all_gather operators. If the generation ends meanwhile, nothing is lost:
 * the owners have committed, and the next generation begins with this exchange.
 */

#include <stddef.h>
#include <stdint.h>

struct comm_message;
struct fleet_error;
struct share_part;
struct trainer;

/* The messages that this rank sends and receives after each update of the generation. */
struct share {
    struct share_part *parts; /* [part_count] */
    size_t part_count;
    struct comm_message *messages; /* [message_count] */
    size_t message_count;
    int64_t complete; /* newest update whose parameters this rank has from all owners */
};

/* Make the list for the trainer's placement. A later call replaces it. */
void share_prepare(struct trainer *trainer);
void share_release(struct share *share);

/* Exchange the parameters of the newest update. Does nothing if no state is divided, or if this was
 * done before. Allocates nothing. Errors as comm_messages(). */
int share_parameters(struct trainer *trainer, struct fleet_error *err);

#endif
