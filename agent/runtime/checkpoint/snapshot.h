/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_SNAPSHOT_H
#define AGENT_RUNTIME_CHECKPOINT_SNAPSHOT_H

/*
 * Saving while the training goes on: a thread writes the checkpoint straight from the live state,
 * which does not change between one update and the next (running buffers may change at any time).
 *
 *     snapshot_begin()    after an update: takes microseconds; copies the running buffers, then the
 *                         writer starts to read the state
 *     …forward, backward, exchange: the writer reads; the state does not change…
 *     snapshot_guard()    before the next update: copies the part that the writer has not read yet;
 *                         afterwards the state may change
 *     snapshot_take()     returns the result of a save that has ended
 *
 * The training waits only in snapshot_guard(). If the writer was faster than the step, the wait is
 * zero. Else up to `memory_max` bytes are copied, and only for the rest the training waits for the
 * disk. Memory besides the state: at most `memory_max` bytes, only while such a copy is needed.
 *
 * A device copies its state by itself, beside the training, into memory that snapshot_reserve() has
 * allocated (aside.h). Then snapshot_begin() and snapshot_guard() only put work into its queues,
 * and no other memory is needed.
 *
 * All calls come from one thread. One save at a time.
 */

#include <stdatomic.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/runtime_memory.h"

struct snapshot;

#define SNAPSHOT_MEMORY_MAX RUNTIME_SNAPSHOT_BYTES_MAX /* bytes; a good default */

/* Saves go below `path`; the newest `keep` are kept; at most `memory_max` bytes of a state that is
 * about to change are copied. The thread starts with the first save. */
struct snapshot *snapshot_new(const char *path, int64_t keep, size_t memory_max);

struct remote;

/* `path` is the mirror of this place in a store (borrowed; longer than the snapshot): a save ends
 * when the checkpoint is there. Call it before the first save. */
void snapshot_send(struct snapshot *snapshot, struct remote *remote);

/*
 * Have room for `bytes` of a state in memory of `backend` (borrowed, longer than the snapshot), if
 * its device can copy beside the training; else this does nothing. -EBUSY: more is needed than
 * before, and a save is in progress. -ENOMEM, -EIO: saves then work as without it.
 */
int snapshot_reserve(struct snapshot *snapshot, struct backend *backend, size_t bytes,
                     struct fleet_error *err);

/* Waits for a save in progress, then frees; NULL is fine. */
void snapshot_free(struct snapshot *snapshot);

/* From now on `keep` counts the checkpoints on this lineage (copied) of the job `job_uid`
 * (borrowed). Call it only while nothing is being saved. */
void snapshot_follow(struct snapshot *snapshot, const struct fleet_lineage *lineage,
                     const char *job_uid);

/*
 * Start to save `state` as checkpoint_save() does. `state` must keep its memory until the save has
 * ended. `about` is copied, with its `job` and `extra`. -EBUSY: snapshot_take() has not returned
 * the last save yet.
 */
int snapshot_begin(struct snapshot *snapshot, const struct checkpoint_state *state,
                   const struct manifest *about, struct fleet_error *err);

/* The part of a rank in a checkpoint that several write. */
struct snapshot_shard {
    int shard, shards;
    const char *folder;      /* made by the first rank with checkpoint_begin(); copied */
    const atomic_bool *stop; /* set to end the wait for the other ranks; borrowed */
};

/*
 * The same for one shard. All ranks call it for the same state, and each writes its part. The first
 * (shard 0) waits for the others and completes the checkpoint. If that fails, or after
 * snapshot_abandon(), nothing of the checkpoint is left. -EBUSY as snapshot_begin().
 */
int snapshot_begin_shard(struct snapshot *snapshot, const struct checkpoint_state *state,
                         const struct manifest *about, const struct snapshot_shard *part,
                         struct fleet_error *err);

/* The ranks that write with us may be dead: the first rank stops waiting for missing shards.
 * Returns true if a save with other ranks was in progress. */
bool snapshot_abandon(struct snapshot *snapshot);

/* Returns when the state may be changed. Cheap when nothing is being saved. */
void snapshot_guard(struct snapshot *snapshot);

struct snapshot_result {
    int rc; /* of checkpoint_save() */
    int64_t step;
    int shard; /* 0: the result is that of the whole checkpoint */
    char folder[CHECKPOINT_FOLDER_MAX];
    struct fleet_error err; /* if rc < 0 */
    bool is_shared;         /* another job has saved here since snapshot_new(); shard 0 */
    char theirs[CHECKPOINT_FOLDER_MAX]; /* a checkpoint of that job */
};

/* Returns true once for each save that has ended. With `wait` it waits for one in progress. */
bool snapshot_take(struct snapshot *snapshot, bool wait, struct snapshot_result *out);

/* Milliseconds that the last snapshot_guard() took, for the parts of the step's time. */
double snapshot_stall_ms(const struct snapshot *snapshot);

#endif
