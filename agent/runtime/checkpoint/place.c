/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/checkpoint/place.h"

#include "agent/runtime/checkpoint/shards.h"
#include "libfleet/base/error.h"

#define PATIENCE_LEAST_MS       60000.0
#define PATIENCE_IN_WRITES      20.0
#define PATIENCE_LOST_LEAST_MS  2000.0 /* its own shard is lost, in a store */
#define PATIENCE_LOST_IN_WRITES 2.0

int place_begin(const struct place *place, const struct manifest *about,
                char folder[CHECKPOINT_FOLDER_MAX], struct fleet_error *err)
{
    int rc = place->remote ? remote_pull(place->remote, false, err) : 0;

    return rc < 0 ? rc : checkpoint_begin(place->path, about, folder, err);
}

int place_send(const struct place *place, const char *folder, const struct checkpoint_shard *shard,
               struct fleet_error *err)
{
    return place->remote ? remote_put_shard(place->remote, folder, shard, err) : 0;
}

int place_report(const struct place *place, const char *folder, int shard, int shards, int rc,
                 const struct checkpoint_shard *described, struct fleet_error *err)
{
    struct fleet_error later;
    int told;

    if (rc == 0)
        rc = shards_report(place->path, folder, shard, shards, 0, "", described, err);
    else
        (void)shards_report(place->path, folder, shard, shards, rc, err->text, NULL, &later);
    if (!place->remote)
        return rc;
    told = remote_put_note(place->remote, folder, shard, shards, rc < 0 ? &later : err);
    return rc < 0 ? rc : told;
}

double place_patience_ms(const struct place *place, int rc, double took_ms)
{
    return rc < 0 && place->remote ? PATIENCE_LOST_LEAST_MS + PATIENCE_LOST_IN_WRITES * took_ms
                                   : PATIENCE_LEAST_MS + PATIENCE_IN_WRITES * took_ms;
}

int place_await(const struct place *place, const char *folder, int shards, const atomic_bool *stop,
                const atomic_bool *abandoned, double patience_ms, struct checkpoint_shard *out,
                struct fleet_error *err)
{
    return place->remote
               ? remote_await_shards(place->remote, folder, shards, stop, abandoned, patience_ms,
                                     out, err)
               : shards_await(place->path, folder, shards, stop, abandoned, patience_ms, out, err);
}

int place_commit(const struct place *place, const char *folder, int64_t keep,
                 const struct manifest_history *history, const struct manifest *about,
                 const struct checkpoint_shard *shards, int shard_count, struct fleet_error *err)
{
    int rc = checkpoint_commit(place->path, folder, keep, history, about, shards, shard_count, err);

    if (rc < 0 && place->remote)
        remote_discard(place->remote, folder);
    if (rc == 0 && place->remote)
        rc = remote_finish(place->remote, folder, about->generation, shard_count, err);
    if (rc == 0)
        shards_forget(place->path, folder, shard_count);
    return rc;
}

void place_discard(const struct place *place, const char *folder)
{
    if (place->remote)
        remote_discard(place->remote, folder);
    else
        checkpoint_discard(place->path, folder);
}
