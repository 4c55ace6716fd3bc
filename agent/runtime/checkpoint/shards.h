/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_SHARDS_H
#define AGENT_RUNTIME_CHECKPOINT_SHARDS_H

/*
 * Several ranks write one checkpoint and communicate through its folder. A rank that has written
 * and synced its shard leaves a note there. The first rank waits for all notes and then
 * completes the checkpoint. No rank waits in a collective while the training goes on.
 *
 *     shard-00002-of-00004.note    how shard 1 (from 0) went: its files, or why there are none
 *
 * A note is renamed into place; it is of fixed size, plain bytes between equal builds.
 */

#include <stdatomic.h>
#include <stddef.h>

#include "agent/runtime/checkpoint/checkpoint.h"

struct fleet_error;

#define SHARDS_NOTE_PREFIX "shard-"

/* Leave the note of shard `shard` of `shards`. `rc` < 0: it failed, `why` says how, and its
 * files go. Where there is no room for a note, the shard's files make it, and the note says so:
 * then the result is negative. -errno with the path: there is no note, the first will run into
 * its patience. */
int shards_report(const char *path, const char *folder, int shard, int shards, int rc,
                  const char *why, const struct checkpoint_shard *described,
                  struct fleet_error *err);

/*
 * Wait at most `patience_ms` for the notes of all shards but the first, out[1 … shards - 1]; checks
 * that their files are there as described. All are waited for, even if one of them failed, so that
 * none is written any more afterwards. Gives up with -ECANCELED once *stop or *abandoned is set
 * (the rank that writes may be dead), with the first failed shard's own error, -ETIMEDOUT, -EBADMSG
 * for a note that is none or a file of another size.
 */
int shards_await(const char *path, const char *folder, int shards, const atomic_bool *stop,
                 const atomic_bool *abandoned, double patience_ms, struct checkpoint_shard *out,
                 struct fleet_error *err);

/*
 * The note of shard `shard` (from 0) of `shards` from its bytes, which another rank wrote: 0 and
 * *out, the error that the shard met with its reason, or -EBADMSG for what is no sound note: of
 * another size, of another shard, naming anything but that shard's own files, each once.
 */
int shards_note_decode(const void *data, size_t size, int shard, int shards,
                       struct checkpoint_shard *out, struct fleet_error *err);

/* Remove the notes, once they are of no use. */
void shards_forget(const char *path, const char *folder, int shards);

#endif
