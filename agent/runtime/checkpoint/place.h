/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_PLACE_H
#define AGENT_RUNTIME_CHECKPOINT_PLACE_H

/*
 * Where checkpoints are saved: a folder, or a store and its mirror (remote.h). snapshot.c writes
 * the files and calls these functions for all else. Errors and meaning are those of checkpoint.h,
 * shards.h and remote.h.
 */

#include "agent/runtime/checkpoint/remote.h"

struct place {
    char *path;            /* the folder, or the mirror; owned */
    struct remote *remote; /* NULL: there is no store; borrowed */
};

int place_begin(const struct place *place, const struct manifest *about,
                char folder[CHECKPOINT_FOLDER_MAX], struct fleet_error *err);

/* The files of this rank are written: send them. */
int place_send(const struct place *place, const char *folder, const struct checkpoint_shard *shard,
               struct fleet_error *err);

/* A rank that is not the first leaves its note: `rc` < 0 with `*err`: its shard has failed. Returns
 * the first error there was. */
int place_report(const struct place *place, const char *folder, int shard, int shards, int rc,
                 const struct checkpoint_shard *described, struct fleet_error *err);

/* How long the first rank waits for the others' notes, in ms: `rc` is the result of its own shard,
 * which took `took_ms`. A store that has not taken this shard may take no note either, and a file
 * that comes after the wait is in no manifest. */
double place_patience_ms(const struct place *place, int rc, double took_ms);

int place_await(const struct place *place, const char *folder, int shards, const atomic_bool *stop,
                const atomic_bool *abandoned, double patience_ms, struct checkpoint_shard *out,
                struct fleet_error *err);

int place_commit(const struct place *place, const char *folder, int64_t keep,
                 const struct manifest_history *history, const struct manifest *about,
                 const struct checkpoint_shard *shards, int shard_count, struct fleet_error *err);

void place_discard(const struct place *place, const char *folder);

#endif
