/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_SAVE_H
#define AGENT_RUNTIME_SAVE_H

/*
 * When a checkpoint is saved, and from which one a job starts.
 * `err` may not be NULL anywhere here.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/link.h"
#include "agent/runtime/checkpoint/snapshot.h"

struct backend;
struct fleet_error;
struct manifest;
struct ownership;
struct trainer;

/* The part of a trainer that this file keeps. */
struct trainer_save {
    struct snapshot *snapshot;        /* writes checkpoints beside the training; NULL without */
    struct fleet_generation begun_in; /* in which the newest save began */
    int64_t saved;                    /* updates in the newest checkpoint begun or read here */
    int64_t began_at;  /* step of another run's checkpoint that this one went on from; 0 = none */
    bool is_wanted;    /* asked for between two averages of localsgd */
    bool is_shared;    /* reported that another run writes into our folder */
    bool is_called;    /* divided state: a rank wants all to save behind the newest vote */
    bool wants_call;   /* this one does: ordered by the agent */
    int64_t called_at; /* update that all ranks have saved together because one called */
    char
        restored[CHECKPOINT_FOLDER_MAX]; /* that save_restore() or save_read() has read; "": none */
    int failures;               /* saves that failed since the last complete one; first rank */
    double retry_at_ms;         /* while failures > 0 */
    char error[LINK_TEXT_SIZE]; /* of the last one */
    int64_t newest_step;        /* of the newest complete checkpoint known here; 0 = none */
    char newest_folder[CHECKPOINT_FOLDER_MAX];
};

/*
 * See whether training.checkpoint.path can be written to, and get ready. -errno naming it if it
 * never will be; a disk that is full may have room later.
 */
int save_open(struct trainer *trainer, struct fleet_error *err);

/*
 * Begin to save a checkpoint if one is due after the update just committed, rank 0 alone or all
 * ranks together as training.checkpoint.format says, and report one that has been written. Rank
 * 0 reports a failed save and tries again after a back-off; until then the older checkpoint
 * stays. The checkpoint of the last update is on disk when this returns: -ENOTRECOVERABLE with
 * the steps that are lost if it could not be written for LINK_SAVE_PATIENCE_ENV. Other errors as
 * train_run(): a peer was lost while the ranks agreed.
 */
int save_if_due(struct trainer *trainer, struct fleet_error *err);

/* The generation broke: a checkpoint that its ranks were writing together is not waited for. */
void save_abandon(struct trainer *trainer);

/*
 * Begin to save now, unless the newest one is of this step; with localsgd behind the next
 * average. Not where the state is divided: no rank
 * can save it alone. There a rank calls the others by its next vote, and all save behind that
 * update:
 *
 *     save_if_ordered()   the agent wants a checkpoint: begins one, or notes the call
 *     save_calls()        for the vote: an order, a save to be tried again, or this rank is leaving
 *     save_lets_leave()   a rank that is asked to leave may: nothing that it alone has is lost
 */
void save_now(struct trainer *trainer);
void save_if_ordered(struct trainer *trainer);
bool save_calls(const struct trainer *trainer);
bool save_lets_leave(const struct trainer *trainer);

/* Wait for the checkpoint that is being written, and report it. */
void save_finish(struct trainer *trainer);

/* As save_now(), and insist for ten seconds if it fails: the state goes with this process. */
void save_before_leaving(struct trainer *trainer);

/*
 * Fill the state with what the job starts from: a checkpoint as `resume` says, else the initial
 * weights; sets `committed`. *out_is_initial: the seed alone gives this state. Called on rank 0 of
 * a generation in which no rank has a state.
 */
int save_restore(struct trainer *trainer, bool *out_is_initial, struct fleet_error *err);

/* Fill the state from this job's checkpoint of `step`; its counts stay. *out is to be released.
 * Errors as checkpoint_restore(). */
int save_read(struct trainer *trainer, int64_t step, struct manifest *out, struct fleet_error *err);

/*
 * The divided state of rank `replica` of a map, from the checkpoint that save_restore() or
 * save_read() has read: optimizer state i to states[i], memory of `backend` (NULL: the host's).
 * Zeros, if there was none. Errors as those of reading it.
 */
int save_read_divided(struct trainer *trainer, const struct ownership *map, int replica,
                      struct backend *backend, float *const *states, struct fleet_error *err);

#endif
