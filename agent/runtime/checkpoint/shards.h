/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_SHARDS_H
#define AGENT_RUNTIME_CHECKPOINT_SHARDS_H

/*
 * Several ranks write one checkpoint and communicate through its folder. A rank that has written
 * and synced its shard leaves a note there. The first rank waits for all notes and then completes
 * the checkpoint. No rank waits in a collective while the training goes on.
 *
 *     shard-00002-of-00004.note    the result of shard 1 (from 0): its files, or its error
 *
 * A note is renamed into place. It has a fixed size and is plain bytes: all ranks run the same
 * build.
 */

#include <stdatomic.h>
#include <stddef.h>

#include "agent/runtime/checkpoint/checkpoint.h"

struct fleet_error;

#define SHARDS_NOTE_PREFIX "shard-"

/* Leave the note of shard `shard` of `shards`. `rc` < 0: the shard failed with the message `why`,
 * and its files are removed. If the disk has no room for the note, the shard's files are removed to
 * make room, and the note reports a failure; the result is negative. -errno with the path: there is
 * no note, and the first rank waits until its patience ends. */
int shards_report(const char *path, const char *folder, int shard, int shards, int rc,
                  const char *why, const struct checkpoint_shard *described,
                  struct fleet_error *err);

/* How the note of shard `shard` is read, and its files are checked. 1: it is not there yet. */
struct shards_reader {
    int (*read)(void *context, int shard, struct checkpoint_shard *out, struct fleet_error *err);
    void *context;
    int pause_ms; /* between two looks */
};

/*
 * Wait at most `patience_ms` for the notes of all shards but the first, out[1 … shards - 1], and
 * check that their files are there as described. It waits for all of them even if one has failed,
 * so that afterwards no rank writes any more. Errors: the first failed shard's own error;
 * -ECANCELED once *stop or *abandoned is set (a writing rank may be dead); -ETIMEDOUT; -EBADMSG for
 * an invalid note or a file of another size.
 */
int shards_await_by(const struct shards_reader *reader, int shards, const atomic_bool *stop,
                    const atomic_bool *abandoned, double patience_ms, struct checkpoint_shard *out,
                    struct fleet_error *err);

/* The same with notes and files in the folder of the checkpoint. */
int shards_await(const char *path, const char *folder, int shards, const atomic_bool *stop,
                 const atomic_bool *abandoned, double patience_ms, struct checkpoint_shard *out,
                 struct fleet_error *err);

/*
 * Decode the note of shard `shard` (from 0) of `shards`, which another rank wrote. Returns 0 and
 * fills *out, or returns the shard's own error with its reason. -EBADMSG: the note has another
 * size, is of another shard, or does not name exactly that shard's files, each once.
 */
int shards_note_decode(const void *data, size_t size, int shard, int shards,
                       struct checkpoint_shard *out, struct fleet_error *err);

/* Remove the notes when they are no longer needed. */
void shards_forget(const char *path, const char *folder, int shards);

#endif
