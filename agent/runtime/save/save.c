/* SPDX-License-Identifier: Apache-2.0 */

/* When a checkpoint is due, what is in it, and the save of a rank that needs no other. */
#include "agent/runtime/save/save.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "agent/runtime/checkpoint/remote.h"
#include "agent/runtime/save/save_internal.h"
#include "agent/runtime/step/average.h"
#include "agent/runtime/step/private_save.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/program/passes/localsgd.h"

#define CALLED_MS 3600e3 /* a disk may be slow; a rank that dies breaks the connection */

static bool is_full(int code)
{
    return code == -ENOSPC || code == -EDQUOT;
}

static int try_to_write(const char *path, struct fleet_error *err)
{
    int rc = fleet_file_make_folder(path, err);

    return rc < 0 ? rc : fleet_file_try_folder(path, err);
}

/* Keys that may only read would be noticed at the first save. A store that is out of reach now may
 * be there then. */
static int try_store(struct remote *remote, struct fleet_error *err)
{
    struct fleet_error why;
    int rc = remote_try(remote, &why);

    return rc < 0 && rc != -EAGAIN ? fleet_error(err, rc, "it cannot be written: %s", why.text) : 0;
}

/* The local folder, and the store that it is the mirror of, if any. */
static int open_place(struct trainer *trainer, struct fleet_error *err)
{
    const char *path = trainer->job.config.checkpoint.path;
    int rc = 0;

    trainer->save.folder = path;
    if (fleet_path_is_remote(path)) {
        rc = remote_open(path, &trainer->save.remote, &trainer->save.folder, err);
        if (rc == 0)
            rc = remote_pull(trainer->save.remote, false, err);
        if (rc == 0)
            rc = try_store(trainer->save.remote, err);
    }
    return rc < 0 ? trainer_judge_store(trainer, rc, "spec.training.checkpoint.path", path, err)
                  : 0;
}

int save_open(struct trainer *trainer, struct fleet_error *err)
{
    const struct training_checkpoint *config = &trainer->job.config.checkpoint;
    int rc = save_read_patience(trainer, err);

    if (rc < 0 || !trainer->job.config.has_checkpoint)
        return rc;
    rc = open_place(trainer, err);
    if (rc < 0)
        return rc;
    rc = try_to_write(trainer->save.folder, err);
    if (rc == -EACCES || rc == -EPERM)
        return fleet_error(
            err, rc,
            "spec.training.checkpoint.path: %s: trainers run here as user %d, who may "
            "not write there: change the owner (on the node of a hostPath: chown -R %d "
            "FOLDER), or use a volume that is writable for that user",
            config->path, (int)geteuid(), (int)geteuid());
    if (rc < 0 && !is_full(rc))
        return fleet_error_wrap(err, "spec.training.checkpoint.path: %s", config->path);
    trainer->save.snapshot = snapshot_new(trainer->save.folder, config->keep, SNAPSHOT_MEMORY_MAX);
    snapshot_send(trainer->save.snapshot, trainer->save.remote);
    return 0;
}

void save_close(struct trainer *trainer)
{
    snapshot_free(trainer->save.snapshot);
    remote_free(trainer->save.remote);
}

/* ---- what is in it --------------------------------------------------------------------------- */

/* Between two averages of localsgd a checkpoint holds the mean of all ranks' parameters, if this
 * rank has it. The snapshot of the last average is not saved: a resume makes one. */
void save_state_of(const struct trainer *trainer, struct checkpoint_state *out)
{
    void *const *segment = trainer->state.bases.segment;
    const size_t *bytes = trainer->state.memory->bytes;
    int snapshot = localsgd_snapshot_slot(&trainer->job.plan.program);
    bool is_viewed =
        trainer->progress.viewed > 0 && trainer->progress.viewed == trainer->progress.committed;

    int states = trainer->job.plan.program.state_count;

    checkpoint_state_init(out, &trainer->job.plan.program, trainer->state.backend,
                          is_viewed ? trainer->state.slots[0] : segment[MEMORY_PARAMETERS],
                          states > 0 && snapshot != 0 ? segment[MEMORY_STATE0] : NULL,
                          states > 1 && snapshot != 1 ? segment[MEMORY_STATE1] : NULL,
                          bytes[MEMORY_BUFFERS] ? segment[MEMORY_BUFFERS] : NULL);
    out->map = &trainer->placement.map;
    out->replica = trainer->placement.replica;
    out->whole = stage_is_used(trainer) ? plan_whole(&trainer->job.plan) : NULL;
}

/* Several cells: each rank has parts of tensors, and whole ones are written. */
bool save_has_cells(const struct trainer *trainer)
{
    return cells_count(&trainer->job.plan.topology) > 1;
}

/* No rank has all of the state. */
bool save_is_divided(const struct trainer *trainer)
{
    return trainer->placement.map.shards > 1 || save_has_cells(trainer);
}

/* No rank can save everything alone. */
static bool needs_all(const struct trainer *trainer)
{
    return save_is_divided(trainer) || private_is_saved(trainer);
}

void save_describe(const struct trainer *trainer, struct manifest *out)
{
    int64_t steps = trainer_steps(trainer, trainer->progress.committed);

    *out = (struct manifest){
        .step = steps,
        .updates = trainer->progress.ledger->updates,
        .samples = steps * trainer->job.config.global_batch_size,
        .generation = trainer->generation.id,
    };
    (void)snprintf(out->instruction_set, sizeof(out->instruction_set), "%s",
                   fleet_isa_names[trainer->generation.level]);
    fleet_hex_encode(trainer->job.digest, sizeof(trainer->job.digest), out->config_digest);
    out->job = trainer->job.origin;
    out->extra = ledger_encode(trainer->progress.ledger);
}

struct manifest_history save_own_history(const struct trainer *trainer)
{
    return (struct manifest_history){&trainer->generation.lineage, trainer->job.uid};
}

/*
 * Which checkpoints retention counts: the job's own and, if it resumed from another job, that job's
 * checkpoints up to the step of the resume. Rollbacks use only the job's own checkpoints.
 */
void save_follow(struct trainer *trainer)
{
    struct fleet_lineage lineage = trainer->generation.lineage;

    if (lineage.count > 0 && lineage.entries[0].first_step <= trainer->save.began_at)
        lineage.entries[0].first_step = trainer->save.began_at + 1;
    snapshot_follow(trainer->save.snapshot, &lineage, trainer->job.uid);
}

/* ---- by itself ------------------------------------------------------------------------------- */

void save_collect(struct trainer *trainer, bool wait)
{
    struct snapshot_result result;

    if (!trainer->save.snapshot || !snapshot_take(trainer->save.snapshot, wait, &result))
        return;
    whole_release(&trainer->save.whole);
    save_report(trainer, &result);
}

void save_guard(struct trainer *trainer)
{
    if (trainer->save.snapshot && !trainer->save.whole.is_made) /* else it reads a copy */
        snapshot_guard(trainer->save.snapshot);
}

void save_finish(struct trainer *trainer)
{
    save_collect(trainer, true);
}

void save_alone(struct trainer *trainer)
{
    struct checkpoint_state state;
    struct manifest about;
    struct fleet_error err;

    if (!trainer->save.snapshot || trainer->generation.rank != 0 || save_is_divided(trainer) ||
        trainer->progress.committed == trainer->save.saved || trainer->progress.committed <= 0)
        return;
    save_collect(trainer,
                 true); /* the disk is slower than the interval: this one waits for the last */
    save_state_of(trainer, &state);
    save_describe(trainer, &about);
    save_follow(trainer);
    trainer->save.begun_in = trainer->generation.id;
    if (snapshot_begin(trainer->save.snapshot, &state, &about, &err) < 0)
        save_report_failed(trainer, about.step, err.text);
    else
        trainer->save.saved = trainer->progress.committed;
    cJSON_Delete(about.extra);
}

void save_now(struct trainer *trainer)
{
    if (!needs_all(trainer))
        save_alone(trainer);
}

void save_if_ordered(struct trainer *trainer)
{
    if (!control_take_checkpoint(trainer->control))
        return;
    trainer->save.wants_call = true;
    save_now(trainer);
}

bool save_calls(const struct trainer *trainer)
{
    return needs_all(trainer) && trainer->job.config.has_checkpoint &&
           (trainer->save.wants_call || control_leaving(trainer->control) ||
            (trainer->save.failures > 0 && fleet_monotonic_ms() >= trainer->save.retry_at_ms));
}

bool save_lets_leave(const struct trainer *trainer)
{
    return !needs_all(trainer) || !trainer->job.config.has_checkpoint ||
           trainer->save.called_at == trainer->progress.committed;
}

void save_abandon(struct trainer *trainer)
{
    if (trainer->save.snapshot && snapshot_abandon(trainer->save.snapshot))
        trainer->save.saved = TRAINER_NO_STATE; /* if it is still due it is made again */
}

/* ---- when it is due -------------------------------------------------------------------------- */

/* Several ranks write when all come here for the same update: a scheduled checkpoint. */
static int save_scheduled(struct trainer *trainer, struct fleet_error *err)
{
    struct executor_bases bases;

    if (average_view(trainer, &bases, err) < 0)
        return err->code;
    if (trainer->generation.rank == 0)
        trainer->save.due_step = trainer_steps(trainer, trainer->progress.committed);
    if (trainer->generation.world == 1 ||
        (trainer->job.config.checkpoint.format == TRAINING_FORMAT_SINGLE && !needs_all(trainer))) {
        save_now(trainer);
        return 0;
    }
    return trainer->progress.committed == trainer->save.saved ? 0 : save_together(trainer, err);
}

/* A rank has called: no rank goes on before the checkpoint is on disk, as that rank may leave. */
static int save_called(struct trainer *trainer, struct fleet_error *err)
{
    struct executor_bases bases;

    trainer->save.is_called = trainer->save.wants_call = false;
    if (average_view(trainer, &bases, err) < 0 || save_together(trainer, err) < 0)
        return err->code;
    save_finish(trainer);
    if (comm_barrier(trainer->net.comm, fleet_monotonic_ms() + CALLED_MS, err) < 0)
        return fleet_error_wrap(err, "save together");
    trainer->save.called_at = trainer->progress.committed;
    return 0;
}

int save_if_due(struct trainer *trainer, struct fleet_error *err)
{
    const struct training_checkpoint *config = &trainer->job.config.checkpoint;
    int64_t before, now;
    int rc = 0;

    if (!trainer->job.config.has_checkpoint || trainer->progress.committed <= 0)
        return 0;
    save_collect(trainer, false);
    before = trainer_steps(trainer, trainer->progress.committed - 1);
    now = trainer_steps(trainer, trainer->progress.committed);
    if (trainer->progress.committed == trainer->job.updates ||
        (config->every_steps > 0 && before / config->every_steps != now / config->every_steps))
        rc = save_scheduled(trainer, err);
    else if (trainer->save.is_called && needs_all(trainer))
        rc = save_called(trainer, err);
    else if (trainer->save.failures > 0 && fleet_monotonic_ms() >= trainer->save.retry_at_ms)
        save_now(trainer);
    if (trainer->progress.committed == trainer->job.updates && rc == 0)
        rc = save_last(trainer, err);
    return rc;
}
