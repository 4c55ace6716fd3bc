/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_SHARE_H
#define AGENT_RUNTIME_SHARE_H

/*
 * Behind an update with divided optimizer states a rank has new values of the parameters that it
 * holds the states of. Here every rank gets the others' from their owners, as the program's
 * all_gather operators say. A generation that breaks meanwhile loses nothing: the owners have
 * committed, and the next generation begins with it.
 */

#include <stddef.h>
#include <stdint.h>

struct comm_message;
struct fleet_error;
struct share_part;
struct trainer;

/* What this rank sends and receives behind each update of the generation. */
struct share {
    struct share_part *parts; /* [part_count] */
    size_t part_count;
    struct comm_message *messages; /* [message_count] */
    size_t message_count;
    int64_t complete; /* the update whose parameters this rank has of all owners */
};

/* Make the list for the trainer's placement. A later call replaces it. */
void share_prepare(struct trainer *trainer);
void share_release(struct share *share);

/* Nothing where no state is divided, or all is there. Allocates nothing. Errors as
 * comm_messages(). */
int share_parameters(struct trainer *trainer, struct fleet_error *err);

#endif
