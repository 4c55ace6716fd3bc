/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_SAVE_SAVE_H
#define AGENT_RUNTIME_SAVE_SAVE_H

/*
 * Decides when to save a checkpoint, and from which checkpoint a job starts.
 * `err` may not be NULL anywhere here.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/link.h"
#include "agent/runtime/checkpoint/snapshot.h"
#include "agent/runtime/save/whole.h"

struct backend;
struct fleet_error;
struct manifest;
struct ownership;
struct remote;
struct trainer;

/* The part of a trainer that this file keeps. */
struct trainer_save {
    struct remote *remote; /* the store of spec.training.checkpoint.path; NULL: that is a folder */
    const char *folder;    /* of the checkpoints on this machine: that path, or the store's mirror;
                              borrowed; NULL without checkpoints */
    struct snapshot *snapshot;        /* writes checkpoints beside the training; NULL without */
    struct fleet_generation begun_in; /* in which the newest save began */
    int64_t saved;                    /* updates in the newest checkpoint begun or read here */
    int64_t began_at;    /* step of another run's checkpoint that this run continues; 0 = none */
    bool is_shared;      /* reported that another run writes into our folder */
    bool has_told_alone; /* that a checkpoint has the private values of the first rank only */
    struct whole whole;  /* what this rank writes where ranks share tensors */
    bool is_called;      /* a rank wants all ranks to save after the newest vote */
    bool wants_call;     /* this rank wants it: the agent has ordered a checkpoint */
    int64_t called_at;   /* update that all ranks have saved together because one called */
    char restored[CHECKPOINT_FOLDER_MAX]; /* last read by save_restore(), save_read(); "": none */
    int64_t due_step;    /* the last scheduled checkpoint that this rank had to write; 0 = none */
    int64_t failed_step; /* the last of these whose save failed; 0 = none */
    int failures;        /* failed saves since the last complete one; first rank only */
    double retry_at_ms;  /* while failures > 0 */
    double patience_ms;  /* how long the last checkpoint of the job is tried */
    char error[LINK_TEXT_SIZE]; /* of the last failed save */
    int64_t newest_step;        /* of the newest complete checkpoint known here; 0 = none */
    char newest_folder[CHECKPOINT_FOLDER_MAX];
};

/*
 * Check that training.checkpoint.path can be written to, and prepare for saves. -errno with the
 * path if a retry cannot help. A full disk is not an error here, because it may have room later.
 * Of a place in a store: that it can be listed; errors of store.h.
 */
int save_open(struct trainer *trainer, struct fleet_error *err);

/*
 * Before the first step of a generation: have room for what this rank writes by itself, if the
 * device can copy it beside the training. Otherwise, or if there is no such memory (a warning says
 * so), a save stops the training while the state is copied.
 */
void save_reserve(struct trainer *trainer);

/*
 * Begin to save a checkpoint if one is due after the update just committed, and report one that has
 * been written. By training.checkpoint.format rank 0 saves alone, or all ranks save together. Rank
 * 0 reports a failed save and tries again after a back-off; until then the older checkpoint stays.
 *
 * After the last update this returns when its checkpoint is on disk. If it cannot be written within
 * the time that LINK_SAVE_PATIENCE_ENV gives: -ENOTRECOVERABLE with the steps that are lost. Other
 * errors as train_run(): a peer was lost while the ranks agreed.
 */
int save_if_due(struct trainer *trainer, struct fleet_error *err);

/* Waits for a save in progress, then frees. */
void save_close(struct trainer *trainer);

/* Returns when the state may be changed. */
void save_guard(struct trainer *trainer);

/* The generation broke: stop waiting for a checkpoint that its ranks were writing together. */
void save_abandon(struct trainer *trainer);

/*
 * Begin to save now, unless the newest checkpoint is of this step. If the state is divided, or each
 * rank has values of its own (private_save.h), no rank can save it alone, and save_now() does
 * nothing. Then a rank calls the others by its next vote, and all save after that update:
 *
 *     save_if_ordered()   if the agent wants a checkpoint: begin one, or remember to call
 *     save_calls()        for the vote: the agent's order, a save to retry, or this rank is leaving
 *     save_lets_leave()   true if no state is lost when this rank leaves
 */
void save_now(struct trainer *trainer);
void save_if_ordered(struct trainer *trainer);
bool save_calls(const struct trainer *trainer);
bool save_lets_leave(const struct trainer *trainer);

/* Wait for the checkpoint that is being written, and report it. */
void save_finish(struct trainer *trainer);

/* Save what this rank holds if the newest checkpoint is older, and retry for ten seconds if that
 * fails: the state ends with this process. */
void save_before_leaving(struct trainer *trainer);

/*
 * Fill the state that the job starts from: the checkpoint that `resume` selects, else the initial
 * weights; sets `committed`. *out_is_initial: the seed alone gives this state. Rank 0 calls it in a
 * generation in which no rank has a state.
 */
int save_restore(struct trainer *trainer, bool *out_is_initial, struct fleet_error *err);

/* Fill the state from this job's checkpoint of `step`; the counts of the trainer stay. Release
 * *out. Errors as checkpoint_restore(). */
int save_read(struct trainer *trainer, int64_t step, struct manifest *out, struct fleet_error *err);

/* The folder of the checkpoint that save_restore() or save_read() has read, on this machine; heap.
 * From a store, ranks that have not read it themselves get its files now. Errors of remote.h. */
int save_restored_folder(struct trainer *trainer, char **out, struct fleet_error *err);

/*
 * Rank 0: is the scheduled checkpoint of `step` missing, and would training from the newest one
 * that there is make it again? False if this rank has tried to save it and failed, has completed
 * it, or a checkpoint of that step or a newer one is listed. True: the state may be changed, and is
 * of no use any more.
 */
bool save_is_lost(struct trainer *trainer, int64_t step);

/*
 * Read the divided state of rank `replica` of a map, from the checkpoint that save_restore() or
 * save_read() has read. Optimizer state i goes to states[i], and parameters, if they are divided,
 * to states[RESHARD_VALUES]: memory of `backend` (NULL: the host's). Without a checkpoint states
 * are zeros, and parameters are those of model.initialWeights. Errors as those of reading it.
 */
int save_read_divided(struct trainer *trainer, const struct ownership *map, int replica,
                      struct backend *backend, float *const *states, struct fleet_error *err);

#endif
