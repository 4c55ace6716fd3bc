/* SPDX-License-Identifier: Apache-2.0 */

/* When a checkpoint is due, what is in it, and what the trainer reports about it. */
#include "agent/runtime/save.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "agent/runtime/average.h"
#include "agent/runtime/private_save.h"
#include "agent/runtime/save_internal.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/variable.h"
#include "libfleet/program/passes/localsgd.h"

/* after a save that failed; twice as long after each further one … */
#define RETRY_FIRST_MS      1000.0
#define RETRY_MAX_MS        60e3   /* … up to this, while training goes on */
#define RETRY_LAST_MS       5000.0 /* while there is nothing else to do */
#define SAVE_PATIENCE_S     300    /* for the job's last checkpoint */
#define SAVE_PATIENCE_S_MAX 86400
#define LEAVE_PATIENCE_MS   10e3   /* when asked to leave, which has a grace of its own */
#define CALLED_MS           3600e3 /* a disk may be slow; a rank that dies breaks the connection */

static bool is_full(int code)
{
    return code == -ENOSPC || code == -EDQUOT;
}

static int try_to_write(const char *path, struct fleet_error *err)
{
    int rc = fleet_file_make_folder(path, err);

    return rc < 0 ? rc : fleet_file_try_folder(path, err);
}

int save_open(struct trainer *trainer, struct fleet_error *err)
{
    const struct training_checkpoint *config = &trainer->job.config.checkpoint;
    int rc = trainer->job.config.has_checkpoint ? try_to_write(config->path, err) : 0;

    if (rc == -EACCES || rc == -EPERM)
        return fleet_error(
            err, rc,
            "spec.training.checkpoint.path: %s: trainers run here as user %d, who may "
            "not write there: change the owner (on the node of a hostPath: chown -R %d "
            "FOLDER), or use a volume that is writable for that user",
            config->path, (int)geteuid(), (int)geteuid());
    if (rc < 0 && !is_full(rc))
        return fleet_error_wrap(err, "spec.training.checkpoint.path: %s", config->path);
    if (trainer->job.config.has_checkpoint)
        trainer->save.snapshot = snapshot_new(config->path, config->keep, SNAPSHOT_MEMORY_MAX);
    return 0;
}

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
static bool has_cells(const struct trainer *trainer)
{
    return cells_count(&trainer->job.plan.topology) > 1;
}

/* No rank has all of the state. */
static bool is_divided(const struct trainer *trainer)
{
    return trainer->placement.map.shards > 1 || has_cells(trainer);
}

/* No rank can save everything alone. */
static bool needs_all(const struct trainer *trainer)
{
    return is_divided(trainer) || private_is_saved(trainer);
}

/* Rank 0 has the weights that a checkpoint holds, without asking the others. */
static bool has_weights(const struct trainer *trainer)
{
    return average_is_common(trainer) || trainer->progress.viewed == trainer->progress.committed;
}

static void describe(const struct trainer *trainer, struct manifest *out)
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
static void follow(struct trainer *trainer)
{
    struct fleet_lineage lineage = trainer->generation.lineage;

    if (lineage.count > 0 && lineage.entries[0].first_step <= trainer->save.began_at)
        lineage.entries[0].first_step = trainer->save.began_at + 1;
    snapshot_follow(trainer->save.snapshot, &lineage, trainer->job.uid);
}

/* Once a process. */
static void report_shared(struct trainer *trainer, const char *theirs)
{
    if (trainer->save.is_shared)
        return;
    trainer->save.is_shared = true;
    trainer_warn(trainer,
                 "spec.training.checkpoint.path: %s is written by another run, too: %s is not of "
                 "this one; each may delete what the other goes on from; give each run a folder "
                 "of its own",
                 trainer->job.config.checkpoint.path, theirs);
}

static void describe_newest(const struct trainer *trainer, struct fleet_strbuf *out)
{
    if (trainer->save.newest_step > 0)
        fleet_strbuf_appendf(out, "the newest checkpoint is %s of step %" PRId64,
                             trainer->save.newest_folder, trainer->save.newest_step);
    else
        fleet_strbuf_append(out, "there is no checkpoint yet");
}

void save_remember_newest(struct trainer *trainer, int64_t step, const char *folder)
{
    trainer->save.failures = 0;
    trainer->save.newest_step = step;
    (void)snprintf(trainer->save.newest_folder, sizeof(trainer->save.newest_folder), "%s", folder);
}

/* To the log and to the job's status; the save is tried again after a back-off. */
static void report_failed_save(struct trainer *trainer, int64_t step, const char *reason)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct link_message message = {.kind = LINK_CHECKPOINT_FAILED};
    double wait_ms = fmin(RETRY_FIRST_MS * exp2(fmin(trainer->save.failures, 16)), RETRY_MAX_MS);

    trainer->save.saved = TRAINER_NO_STATE; /* nothing of this process is */
    trainer->save.failures++;
    if (step == trainer->save.due_step)
        trainer->save.failed_step = step;
    trainer->save.retry_at_ms = fleet_monotonic_ms() + wait_ms;
    fleet_strbuf_appendf(&text,
                         "checkpoint of step %" PRId64
                         " failed and is tried again (spec.training.checkpoint.path %s): %s; ",
                         step, trainer->job.config.checkpoint.path, reason);
    describe_newest(trainer, &text);
    (void)snprintf(trainer->save.error, sizeof(trainer->save.error), "%s", reason);
    message.checkpoint_failed.step = step;
    (void)snprintf(message.checkpoint_failed.text, sizeof(message.checkpoint_failed.text), "%s",
                   text.text);
    control_send(trainer->control, &message);
    trainer_warn(trainer, "%s", text.text);
}

static void report_saved(struct trainer *trainer, const struct snapshot_result *result)
{
    const char *path = trainer->job.config.checkpoint.path;
    struct link_message message = {.kind = LINK_CHECKPOINT_DONE,
                                   .generation = trainer->save.begun_in};
    FLEET_AUTO_FREE char *place = fleet_file_join(path, result->folder);

    if (result->shard > 0) /* the first rank reports */
        return;
    if (result->is_shared)
        report_shared(trainer, result->theirs);
    if (result->rc < 0) {
        report_failed_save(trainer, result->step, result->err.text);
        return;
    }
    save_remember_newest(trainer, result->step, result->folder);
    message.checkpoint_done.step = result->step;
    (void)snprintf(message.checkpoint_done.path, sizeof(message.checkpoint_done.path), "%s", place);
    control_send(trainer->control, &message);
}

static void collect(struct trainer *trainer, bool wait)
{
    struct snapshot_result result;

    if (!trainer->save.snapshot || !snapshot_take(trainer->save.snapshot, wait, &result))
        return;
    whole_release(&trainer->save.whole);
    report_saved(trainer, &result);
}

void save_guard(struct trainer *trainer)
{
    if (trainer->save.snapshot && !trainer->save.whole.is_made) /* else it reads a copy */
        snapshot_guard(trainer->save.snapshot);
}

void save_finish(struct trainer *trainer)
{
    collect(trainer, true);
}

static void save_alone(struct trainer *trainer)
{
    struct checkpoint_state state;
    struct manifest about;
    struct fleet_error err;

    if (!trainer->save.snapshot || trainer->generation.rank != 0 || is_divided(trainer) ||
        trainer->progress.committed == trainer->save.saved || trainer->progress.committed <= 0)
        return;
    collect(trainer, true); /* the disk is slower than the interval: this one waits for the last */
    save_state_of(trainer, &state);
    describe(trainer, &about);
    follow(trainer);
    trainer->save.begun_in = trainer->generation.id;
    if (snapshot_begin(trainer->save.snapshot, &state, &about, &err) < 0)
        report_failed_save(trainer, about.step, err.text);
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

/* What rank 0 sends about a checkpoint that all write. */
struct plan_of_save {
    int64_t is_shared; /* all see the folder: each writes its shard */
    char folder[CHECKPOINT_FOLDER_MAX];
};

/* The first rank makes the folder; if one of the others does not see it there, the first writes
 * alone. */
static int agree_on_folder(struct trainer *trainer, const struct manifest *about,
                           struct plan_of_save *out, struct fleet_error *err)
{
    const char *path = trainer->job.config.checkpoint.path;
    FLEET_AUTO_FREE uint8_t *seen = calloc((size_t)trainer->generation.world, 1);
    struct fleet_error why;
    uint8_t mine = 1;

    fleet_assert(seen != NULL);
    *out = (struct plan_of_save){0};
    if (trainer->generation.rank == 0)
        mine = checkpoint_begin(path, about, out->folder, &why) == 0;
    if (comm_broadcast(trainer->net.comm, out, sizeof(*out), 0, trainer_deadline_ms(trainer), err) <
        0)
        return err->code;
    if (trainer->generation.rank != 0) {
        FLEET_AUTO_FREE char *place = fleet_file_join(path, out->folder);
        mine = out->folder[0] && access(place, W_OK) == 0;
    }
    if (comm_all_gather(trainer->net.comm, &mine, 1, seen, trainer_deadline_ms(trainer), err) < 0)
        return err->code;
    out->is_shared = 1;
    for (int r = 0; r < trainer->generation.world; r++)
        out->is_shared &= seen[r];
    if (!out->is_shared && trainer->generation.rank == 0 && mine)
        checkpoint_discard(path, out->folder);
    return 0;
}

/* Not all ranks see the folder. */
static void save_unshared(struct trainer *trainer, int64_t step)
{
    if (is_divided(trainer) && trainer->generation.rank == 0) {
        report_failed_save(trainer, step,
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
    if (!has_cells(trainer)) {
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
    if (has_cells(trainer) && trainer->generation.place.replica > 0)
        return 0;
    follow(trainer);
    trainer->save.begun_in = trainer->generation.id;
    if (snapshot_begin_shard(trainer->save.snapshot, &state, about, &part, &why) < 0)
        report_failed_save(trainer, about->step, why.text);
    else if (trainer->generation.rank == 0)
        trainer->save.saved = trainer->progress.committed; /* the others learn of it, once it is
                                                              complete, by a join */
    return 0;
}

/* All ranks write the newest committed update, each a part. */
static int save_together(struct trainer *trainer, struct fleet_error *err)
{
    struct plan_of_save plan;
    struct manifest about;
    int rc;

    collect(trainer, true);
    describe(trainer, &about);
    rc = agree_on_folder(trainer, &about, &plan, err);
    if (rc == 0 && plan.is_shared)
        rc = write_part(trainer, &about, plan.folder, err);
    cJSON_Delete(about.extra);
    if (rc == 0 && !plan.is_shared)
        save_unshared(trainer, about.step);
    return rc;
}

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

/* Sleeps until then, in short naps: false if the generation is over or we are asked to leave
 * first. */
static bool sleep_until(const struct trainer *trainer, double at_ms, bool is_leaving)
{
    while (fleet_monotonic_ms() < at_ms) {
        struct timespec nap = {.tv_nsec = 50000000};
        if (!is_leaving &&
            (atomic_load(control_stop(trainer->control)) || control_leaving(trainer->control)))
            return false;
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

/* The newest state of all, which the job's end or our leaving would lose. On the first rank: until
 * it is on disk, `patience_ms` are over, or the generation is. True if it is on disk. */
static bool insist(struct trainer *trainer, double patience_ms, bool is_leaving)
{
    double give_up_ms = fleet_monotonic_ms() + patience_ms;

    save_finish(trainer);
    if (trainer->generation.rank != 0)
        trainer->save.failures = 0; /* of a generation in which it was the first */
    while (trainer->save.failures > 0) {
        double now_ms = fleet_monotonic_ms();
        double next_ms = fmin(trainer->save.retry_at_ms, now_ms + RETRY_LAST_MS);
        if (now_ms >= give_up_ms || !sleep_until(trainer, fmin(next_ms, give_up_ms), is_leaving))
            return false;
        save_alone(trainer);
        save_finish(trainer);
    }
    return true;
}

static double patience_ms(void)
{
    int seconds;

    return fleet_variable_number(LINK_SAVE_PATIENCE_ENV, 0, SAVE_PATIENCE_S_MAX, SAVE_PATIENCE_S,
                                 &seconds, NULL) < 0
               ? SAVE_PATIENCE_S * 1e3
               : seconds * 1e3;
}

/* The job does not succeed without its last checkpoint. */
static int save_last(struct trainer *trainer, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf newest = {0};

    /* Divided state takes all ranks to save, and the others wait for this one. */
    if (insist(trainer, is_divided(trainer) ? 0 : patience_ms(), false))
        return 0;
    if (atomic_load(control_stop(trainer->control)))
        return fleet_error(err, -ECANCELED, "the generation is over");
    if (control_leaving(trainer->control))
        return fleet_error(err, -EINTR, "asked to leave");
    describe_newest(trainer, &newest);
    return fleet_error(err, -ENOTRECOVERABLE,
                       "the last checkpoint, of step %" PRId64
                       ", could not be written to %s and is lost (tried for %.0f s): %s; %s",
                       trainer_steps(trainer, trainer->progress.committed),
                       trainer->job.config.checkpoint.path, patience_ms() / 1e3,
                       trainer->save.error, newest.text);
}

void save_before_leaving(struct trainer *trainer)
{
    if (!has_weights(trainer) && trainer->generation.rank == 0)
        trainer_warn(trainer,
                     "local SGD: the checkpoint of step %" PRId64
                     " holds the parameters of one worker, which had no time to average them; what "
                     "the others have done since step %" PRId64 " is not in it",
                     trainer_steps(trainer, trainer->progress.committed),
                     trainer_steps(trainer, trainer->progress.ledger->averaging.last));
    save_alone(trainer);
    (void)insist(trainer, LEAVE_PATIENCE_MS, true);
}

int save_if_due(struct trainer *trainer, struct fleet_error *err)
{
    const struct training_checkpoint *config = &trainer->job.config.checkpoint;
    int64_t before, now;
    int rc = 0;

    if (!trainer->job.config.has_checkpoint || trainer->progress.committed <= 0)
        return 0;
    collect(trainer, false);
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
