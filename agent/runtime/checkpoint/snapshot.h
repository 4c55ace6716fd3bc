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
 *     snapshot_guard()    before the next update: copies aside what the writer has not read yet;
 *                         afterwards the state may change
 *     snapshot_take()     has it ended, and how?
 *
 * The stall that training sees is snapshot_guard(): nothing when the writer was faster than the
 * step; else a copy of at most `memory_max` bytes, and waiting for the disk only for what exceeds
 * that. Memory besides the state: at most `memory_max`, only while such a copy is needed.
 *
 * All calls come from one thread. One save at a time.
 */

#include <stdatomic.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/runtime_memory.h"

struct snapshot;

#define SNAPSHOT_MEMORY_MAX RUNTIME_SNAPSHOT_BYTES_MAX /* bytes; a good default */

/* Saves below `path`, keeps the newest `keep`, copies at most `memory_max` bytes of a state that is
 * about to change. Its thread begins with the first save. */
struct snapshot *snapshot_new(const char *path, int64_t keep, size_t memory_max);

/* Waits for a save in progress, then frees; NULL is fine. */
void snapshot_free(struct snapshot *snapshot);

/* Checkpoints on this lineage (copied) of the job `job_uid` (borrowed) are the ones that `keep`
 * counts. While nothing is being saved. */
void snapshot_follow(struct snapshot *snapshot, const struct fleet_lineage *lineage,
                     const char *job_uid);

/*
 * Start saving `state` as checkpoint_save() would. `state` must keep its memory until the save has
 * ended; `about` is copied (its `job` and `extra`, too). -EBUSY: the last one has not been taken
 * yet.
 */
int snapshot_begin(struct snapshot *snapshot, const struct checkpoint_state *state,
                   const struct manifest *about, struct fleet_error *err);

/* The part of a rank in a checkpoint that several write. */
struct snapshot_shard {
    int shard, shards;
    const char *folder;      /* made by the first one with checkpoint_begin(); copied */
    const atomic_bool *stop; /* set once the others cannot be waited for any more; borrowed */
};

/*
 * The same for one shard, called on all ranks for the same state: each writes its part, the first
 * (shard 0) waits for the others' and ends the checkpoint. If that fails, or on snapshot_abandon(),
 * nothing is left of it. -EBUSY as snapshot_begin().
 */
int snapshot_begin_shard(struct snapshot *snapshot, const struct checkpoint_state *state,
                         const struct manifest *about, const struct snapshot_shard *part,
                         struct fleet_error *err);

/* The ranks that write with us may be no more: the first does not wait for what is missing. True if
 * a save with others was in progress. */
bool snapshot_abandon(struct snapshot *snapshot);

/* Returns when the state may be changed. Cheap when nothing is being saved. */
void snapshot_guard(struct snapshot *snapshot);

struct snapshot_result {
    int rc; /* of checkpoint_save() */
    int64_t step;
    int shard; /* 0: it speaks for the whole checkpoint */
    char folder[CHECKPOINT_FOLDER_MAX];
    struct fleet_error err;             /* if rc < 0 */
    bool is_shared;                     /* another job saves here, since snapshot_new(); shard 0 */
    char theirs[CHECKPOINT_FOLDER_MAX]; /* a checkpoint of it */
};

/* True once for each save that has ended; `wait` waits for one in progress. */
bool snapshot_take(struct snapshot *snapshot, bool wait, struct snapshot_result *out);

/* Milliseconds that the last guard took, for the step's time split. */
double snapshot_stall_ms(const struct snapshot *snapshot);

#endif
