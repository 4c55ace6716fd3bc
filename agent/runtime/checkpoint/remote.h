/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_REMOTE_H
#define AGENT_RUNTIME_CHECKPOINT_REMOTE_H

/*
 * Checkpoints in a store (store.h): "s3://BUCKET/FOLDER" as spec.training.checkpoint.path.
 *
 * A local folder, the mirror, has the manifests of the complete checkpoints in the store, so that
 * the functions of checkpoint.h choose, count and remove as in any folder. Files of a checkpoint
 * are in the mirror only from their writing to the end of the upload, and once they are read.
 *
 *     save       remote_pull(); checkpoint_begin() … write the files into the mirror;
 *                remote_put_shard(): the files, and the note of a rank that is not the first;
 *                first rank: remote_await_shards(); checkpoint_commit(); remote_finish(): the
 *                manifest last, then what retention has removed
 *     restore    remote_pull(); remote_bring() of the one that is read
 *
 * So the invariants of checkpoint.h hold for the store:
 *  (1) A folder with a manifest is complete: its files were there, with their sizes, before.
 *  (2) The newest complete checkpoint is never touched while another is being made.
 *  (3) A failed upload removes what it has sent, if it can; a later save removes the rest.
 *
 * Errors: those of store.h, and -errno of the mirror. `err` may not be NULL. Threads: one call at a
 * time.
 */

#include <stdatomic.h>
#include <stdbool.h>

#include "agent/runtime/checkpoint/checkpoint.h"

struct remote;

/* *out_folder (borrowed) is the mirror. No request is sent. */
int remote_open(const char *url, struct remote **out, const char **out_folder,
                struct fleet_error *err);
void remote_free(struct remote *remote); /* NULL is fine */

/* Can objects be written there? Writes a small one, and removes it. -EAGAIN: the store does not
 * answer now; other errors: each save would fail. */
int remote_try(struct remote *remote, struct fleet_error *err);

/* Make the mirror's manifests those of the store. `fresh` reads each one again, else only those
 * that the mirror lacks. */
int remote_pull(struct remote *remote, bool fresh, struct fleet_error *err);

/* Read what the mirror lacks of checkpoint `folder`: its manifest, and its files. Processes of one
 * machine do this one after another. -ENOENT: the store lacks one of them. */
int remote_bring(struct remote *remote, const char *folder, struct fleet_error *err);

/* Send the files of `shard` from the mirror, and then remove them there. */
int remote_put_shard(struct remote *remote, const char *folder,
                     const struct checkpoint_shard *shard, struct fleet_error *err);

/* Send the note that shards_report() has left in the mirror. */
int remote_put_note(struct remote *remote, const char *folder, int shard, int shards,
                    struct fleet_error *err);

/* shards_await() with the notes and files of the store. */
int remote_await_shards(struct remote *remote, const char *folder, int shards,
                        const atomic_bool *stop, const atomic_bool *abandoned, double patience_ms,
                        struct checkpoint_shard *out, struct fleet_error *err);

/*
 * After checkpoint_commit() in the mirror: check that all files are in the store, send the
 * manifest, then remove from the store what the mirror does not have any more, what killed saves of
 * `generation` and older ones have left, and the notes of `shards`. A failure before the manifest
 * is there discards the checkpoint; later ones leave garbage for the next save.
 */
int remote_finish(struct remote *remote, const char *folder, struct fleet_generation generation,
                  int shards, struct fleet_error *err);

/* Remove a checkpoint that will not be complete, here and in the store, if it can be reached. */
void remote_discard(struct remote *remote, const char *folder);

#endif
