/* SPDX-License-Identifier: Apache-2.0 */

/* A checkpoint that all ranks write, each a part. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/runtime/checkpoint/remote.h"
#include "agent/runtime/save/save_internal.h"
#include "agent/runtime/step/private_save.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

#define STORE_MS 3600e3

/* What rank 0 sends about a checkpoint that all write. */
struct plan_of_save {
    int64_t is_shared; /* all see the folder: each writes its shard */
    char folder[CHECKPOINT_FOLDER_MAX];
};

/* A store may take minutes to refuse what the save before has sent, which another rank then waits
 * for. A rank that dies breaks the connection. */
static double deadline_ms(const struct trainer *trainer)
{
    return trainer->save.remote ? fleet_monotonic_ms() + STORE_MS : trainer_deadline_ms(trainer);
}

/* The first rank makes the folder; if one of the others does not see it there, the first writes
 * alone. */
static int agree_on_folder(struct trainer *trainer, const struct manifest *about,
                           struct plan_of_save *out, struct fleet_error *err)
{
    const char *path = trainer->save.folder;
    FLEET_AUTO_FREE uint8_t *seen = calloc((size_t)trainer->generation.world, 1);
    struct fleet_error why;
    uint8_t mine = 1;
    int rc = 0;

    fleet_assert(seen != NULL);
    *out = (struct plan_of_save){0};
    if (trainer->generation.rank == 0 && trainer->save.remote)
        rc = remote_pull(trainer->save.remote, false, &why);
    if (trainer->generation.rank == 0 && rc == 0)
        rc = checkpoint_begin(path, about, out->folder, &why);
    mine = rc == 0;
    if (comm_broadcast(trainer->net.comm, out, sizeof(*out), 0, deadline_ms(trainer), err) < 0)
        return err->code;
    if (trainer->generation.rank != 0) {
        FLEET_AUTO_FREE char *place = fleet_file_join(path, out->folder);
        if (trainer->save.remote && out->folder[0]) /* each machine has a mirror */
            (void)fleet_file_make_folder(place, NULL);
        mine = out->folder[0] && access(place, W_OK) == 0;
    }
    if (comm_all_gather(trainer->net.comm, &mine, 1, seen, deadline_ms(trainer), err) < 0)
        return err->code;
    out->is_shared = 1;
    for (int r = 0; r < trainer->generation.world; r++)
        out->is_shared &= seen[r];
    if (!out->is_shared && trainer->generation.rank == 0 && mine)
        checkpoint_discard(path, out->folder);
    if (rc < 0 && trainer->save.remote)
        (void)snprintf(trainer->save.error, sizeof(trainer->save.error), "%s", why.text);
    return 0;
}

/* Not all ranks see the folder. */
static void save_unshared(struct trainer *trainer, int64_t step)
{
    if (trainer->save.remote && trainer->generation.rank == 0)
        save_report_failed(trainer, step,
                           trainer->save.error[0] ? trainer->save.error
                                                  : "a worker cannot write to its FLEET_CACHE");
    if (trainer->save.remote)
        return;
    if (save_is_divided(trainer) && trainer->generation.rank == 0) {
        save_report_failed(trainer, step,
                           "not all workers can write to that folder, and where workers divide the "
                           "state each has to write its part: it must be one that all share");
        return;
    }
    if (private_is_saved(trainer) && trainer->generation.rank == 0 && !trainer->save.has_told_alone)
        trainer_warn(trainer,
                     "spec.training.checkpoint.path: %s is not a folder that all workers share, so "
                     "checkpoints have what the first worker has for itself, and not what the "
                     "others have",
                     trainer->job.config.checkpoint.path);
    trainer->save.has_told_alone = true;
    save_alone(trainer); /* says what is wrong, if it is the disk */
}

/* The part of this rank in a checkpoint that all write. */
static int choose_part(struct trainer *trainer, struct checkpoint_state *out,
                       struct snapshot_shard *part, struct fleet_error *err)
{
    if (!save_has_cells(trainer)) {
        save_state_of(trainer, out);
        if (private_is_saved(trainer))
            private_add_spaces(trainer, out);
        part->shard = trainer->generation.rank;
        part->shards = trainer->generation.world;
        return 0;
    }
    if (whole_make(trainer, &trainer->save.whole, err) < 0)
        return err->code;
    whole_state_of(&trainer->save.whole, trainer->generation.place.cell, out);
    part->shard = trainer->generation.place.cell; /* ranks of other replicas write nothing */
    part->shards = cells_count(&trainer->job.plan.topology);
    return 0;
}

static int write_part(struct trainer *trainer, const struct manifest *about, const char *folder,
                      struct fleet_error *err)
{
    struct snapshot_shard part = {.folder = folder, .stop = control_stop(trainer->control)};
    struct checkpoint_state state;
    struct fleet_error why;

    if (choose_part(trainer, &state, &part, err) < 0)
        return err->code;
    if (save_has_cells(trainer) && trainer->generation.place.replica > 0)
        return 0;
    save_follow(trainer);
    trainer->save.begun_in = trainer->generation.id;
    if (snapshot_begin_shard(trainer->save.snapshot, &state, about, &part, &why) < 0)
        save_report_failed(trainer, about->step, why.text);
    else if (trainer->generation.rank == 0)
        trainer->save.saved = trainer->progress.committed; /* the others learn of it, once it is
                                                              complete, by a join */
    return 0;
}

/* All ranks write the newest committed update, each a part. */
int save_together(struct trainer *trainer, struct fleet_error *err)
{
    struct plan_of_save plan;
    struct manifest about;
    int rc;

    save_collect(trainer, true);
    save_describe(trainer, &about);
    rc = agree_on_folder(trainer, &about, &plan, err);
    if (rc == 0 && plan.is_shared)
        rc = write_part(trainer, &about, plan.folder, err);
    cJSON_Delete(about.extra);
    if (rc == 0 && !plan.is_shared)
        save_unshared(trainer, about.step);
    return rc;
}
