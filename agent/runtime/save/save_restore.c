/* SPDX-License-Identifier: Apache-2.0 */

/* What the job starts from, and what a rank reads again. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/checkpoint/remote.h"
#include "agent/runtime/join/reshard.h"
#include "agent/runtime/origin.h"
#include "agent/runtime/save/save.h"
#include "agent/runtime/save/save_internal.h"
#include "agent/runtime/step/private.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"

/* The first rank of each cell reads the same files; one of them says what there is to say. */
static bool is_speaker(const struct trainer *trainer)
{
    return trainer->generation.rank == 0;
}

static void report_warnings(struct trainer *trainer, const struct fleet_errors *warnings)
{
    for (size_t i = 0; is_speaker(trainer) && i < warnings->count && i < FLEET_ERRORS_MAX; i++)
        trainer_warn(trainer, "checkpoint %s passed over: %s", warnings->items[i].path,
                     warnings->items[i].message);
}

/* The weights are then neither job's: worth a note, but it is what fine-tuning does. */
static void report_origin(struct trainer *trainer, const struct manifest *manifest,
                          const char *folder)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf fields = {0};
    const char *name = "";

    origin_compare(manifest->job, trainer->job.origin, &fields);
    (void)fleet_json_opt_string(manifest->job, "name", &name, NULL);
    if (fields.length > 0 && is_speaker(trainer))
        trainer_warn(
            trainer,
            "spec.training.checkpoint.resume: training goes on from %s, which job %s wrote "
            "with other settings: %s; to start from step 0 say never, or give another path",
            folder, name, fields.text);
}

/* Take up what the checkpoint says; its step must end an update of this job. */
static int resume_from(struct trainer *trainer, const struct manifest *manifest, const char *folder,
                       struct fleet_error *err)
{
    int64_t update = (manifest->step + trainer->job.merge - 1) / trainer->job.merge;

    if (manifest->step > trainer->job.config.steps)
        return fleet_error(err, -EINVAL,
                           "spec.training.steps: the checkpoint %s is of step %" PRId64
                           ", but steps is %" PRId64
                           ": give more steps, an earlier step as checkpoint.resume, or another "
                           "checkpoint.path",
                           folder, manifest->step, trainer->job.config.steps);
    if (trainer_steps(trainer, update) != manifest->step || update > trainer->job.updates)
        return fleet_error(
            err, -EINVAL,
            "spec.training.checkpoint: %s is of step %" PRId64
            ", at which this job makes no update: it merges the gradients of %" PRId64 " steps",
            folder, manifest->step, trainer->job.merge);
    if (ledger_decode(trainer->progress.ledger, manifest->extra, manifest->updates, err) < 0)
        return fleet_error_wrap(err, "spec.training.checkpoint: %s", folder);
    if (strcmp(manifest->instruction_set, fleet_isa_names[trainer->generation.level]) != 0 &&
        is_speaker(trainer))
        trainer_warn(trainer,
                     "resumed at instruction-set level %s a checkpoint computed at %s: the same "
                     "arithmetic, other last digits",
                     fleet_isa_names[trainer->generation.level], manifest->instruction_set);
    if (trainer->progress.ledger->averaging.last > update)
        trainer->progress.ledger->averaging.last = update;
    report_origin(trainer, manifest, folder);
    save_remember_newest(trainer, manifest->step, folder);
    trainer->progress.committed = trainer->save.saved = trainer->report.evaluated = update;
    return 0;
}

static void report_resumed(struct trainer *trainer, const char *folder)
{
    FLEET_AUTO_FREE char *place = fleet_file_join(trainer->job.config.checkpoint.path, folder);
    int64_t step = trainer_steps(trainer, trainer->progress.committed);

    if (!is_speaker(trainer))
        return;
    if (trainer->progress.committed == trainer->job.updates)
        trainer_note(trainer, "all %" PRId64 " steps are done (%s): nothing is left to do", step,
                     place);
    else
        trainer_note(trainer, "continuing from step %" PRId64 " (%s)", step, place);
}

/* The names of the checkpoints that a restore looks at, the first of them first. */
static int find_candidates(struct trainer *trainer, int64_t resume,
                           const struct manifest_history *history,
                           char (**out)[MANIFEST_FOLDER_MAX], size_t *count,
                           struct fleet_error *err)
{
    struct manifest_list list;
    int rc = manifest_scan(trainer->save.folder, history, &list, NULL, err);

    if (rc < 0)
        return rc;
    *count = 0;
    *out = calloc(list.count + 1, sizeof(**out));
    fleet_assert(*out != NULL);
    for (size_t i = 0; i < list.count; i++)
        if (resume < 0 || list.entries[i].manifest.step == resume)
            (void)snprintf((*out)[(*count)++], MANIFEST_FOLDER_MAX, "%s", list.entries[i].folder);
    manifest_list_release(&list);
    return 0;
}

/* checkpoint_restore(). From a store it gets the files of one checkpoint after another, until one
 * is sound. */
static int restore(struct trainer *trainer, int64_t resume, const struct manifest_history *history,
                   struct checkpoint_state *state, struct manifest *out,
                   char folder[CHECKPOINT_FOLDER_MAX], struct fleet_errors *warnings,
                   struct fleet_error *err)
{
    FLEET_AUTO_FREE char(*names)[MANIFEST_FOLDER_MAX] = NULL;
    struct remote *remote = trainer->save.remote;
    size_t count = 0;
    int rc = 0;

    if (remote)
        rc = remote_pull(remote, true, err);
    if (remote && rc == 0)
        rc = find_candidates(trainer, resume, history, &names, &count, err);
    for (size_t i = 0; rc == 0 && i < (count ? count : 1); i++) {
        if (i < count)
            rc = remote_bring(remote, names[i], err);
        if (rc < 0 && rc != -ENOENT) /* what the store lacks is passed over, with a warning */
            break;
        fleet_errors_release(warnings);
        rc = checkpoint_restore(trainer->save.folder, resume, history, state, out, folder, warnings,
                                err);
        if (rc != -EBADMSG || i + 1 >= count)
            return rc;
        rc = 0;
    }
    return fleet_error_wrap(err, "%s", trainer->job.config.checkpoint.path);
}

int save_restored_folder(struct trainer *trainer, char **out, struct fleet_error *err)
{
    int rc =
        trainer->save.remote ? remote_bring(trainer->save.remote, trainer->save.restored, err) : 0;

    if (rc < 0)
        return fleet_error_wrap(err, "spec.training.checkpoint.path");
    *out = fleet_file_join(trainer->save.folder, trainer->save.restored);
    return 0;
}

/*
 * 0 and *out_found if there was a checkpoint to go on from. At the job's start any one below the
 * path counts, as `resume` says; a job that is under way goes on from its own, those on the
 * recorded lineage. One that lost everything before its first checkpoint is at its start again.
 */
static int restore_checkpoint(struct trainer *trainer, bool *out_found, struct fleet_error *err)
{
    const struct training_checkpoint *config = &trainer->job.config.checkpoint;
    const struct fleet_lineage *lineage = &trainer->generation.lineage;
    struct manifest_history history = save_own_history(trainer);
    bool is_start = lineage->count <= 1 || lineage->entries[lineage->count - 1].first_step == 1;
    int64_t resume = is_start ? config->resume : TRAINING_RESUME_AUTO;
    struct fleet_errors warnings = {0};
    struct checkpoint_state state;
    struct manifest manifest;
    char folder[CHECKPOINT_FOLDER_MAX];
    int rc;

    *out_found = false;
    trainer->save.restored[0] = '\0';
    if (!trainer->job.config.has_checkpoint || resume == TRAINING_RESUME_NEVER)
        return 0;
    save_state_of(trainer, &state);
    rc = restore(trainer, resume, is_start ? NULL : &history, &state, &manifest, folder, &warnings,
                 err);
    report_warnings(trainer, &warnings);
    fleet_errors_release(&warnings);
    if (rc == -ENOENT && resume == TRAINING_RESUME_AUTO)
        return 0;
    if (rc < 0)
        return fleet_error_wrap(err, "spec.training.checkpoint.resume");
    (void)snprintf(trainer->save.restored, sizeof(trainer->save.restored), "%s", folder);
    rc = resume_from(trainer, &manifest, folder, err);
    if (rc == 0) {
        trainer->save.began_at = is_start ? manifest.step : trainer->save.began_at;
        report_resumed(trainer, folder);
    }
    manifest_release(&manifest);
    *out_found = rc == 0;
    return rc;
}

/* A job that was to start from step 0 does not go back to what it found. */
static bool is_own(const struct trainer *trainer, const struct manifest *manifest)
{
    return trainer->job.config.checkpoint.resume != TRAINING_RESUME_NEVER ||
           trainer->generation.lineage.count == 0 ||
           fleet_generation_compare(manifest->generation,
                                    trainer->generation.lineage.entries[0].generation) >= 0;
}

int save_read(struct trainer *trainer, int64_t step, struct manifest *out, struct fleet_error *err)
{
    struct manifest_history history = save_own_history(trainer);
    struct fleet_errors warnings = {0};
    struct checkpoint_state state;
    char folder[CHECKPOINT_FOLDER_MAX];
    int rc;

    save_state_of(trainer, &state);
    rc = restore(trainer, step, &history, &state, out, folder, &warnings, err);
    report_warnings(trainer, &warnings);
    fleet_errors_release(&warnings);
    if (rc == 0)
        (void)snprintf(trainer->save.restored, sizeof(trainer->save.restored), "%s", folder);
    if (rc < 0 || is_own(trainer, out))
        return rc;
    manifest_release(out);
    return fleet_error(err, -ENOENT, "checkpoint %s is not of this job", folder);
}

bool save_is_lost(struct trainer *trainer, int64_t step)
{
    struct manifest_history history = save_own_history(trainer);
    struct manifest_list list;
    struct manifest manifest;
    struct fleet_error err;
    int64_t newest = 0;
    int rc;

    if (trainer->save.failed_step == step || trainer->save.newest_step >= step ||
        (trainer->save.remote && remote_pull(trainer->save.remote, true, &err) < 0) ||
        manifest_scan(trainer->save.folder, &history, &list, NULL, NULL) < 0)
        return false;
    for (size_t i = 0; i < list.count; i++)
        if (list.entries[i].manifest.step > newest)
            newest = list.entries[i].manifest.step;
    manifest_list_release(&list);
    if (newest >= step)
        return false;
    rc = save_read(trainer, TRAINING_RESUME_AUTO, &manifest, &err);
    if (rc == 0)
        manifest_release(&manifest);
    return rc == 0 || rc == -ENOENT; /* without any the job begins again */
}

/* A rank that gave up its state begins as one that never had any. */
static void forget_updates(struct trainer *trainer)
{
    save_finish(trainer);
    free(trainer->progress.ledger);
    trainer->progress.ledger = ledger_new(&trainer->job.rules);
}

static int load_initial_weights(const struct trainer *trainer, struct checkpoint_state *state,
                                struct fleet_error *err)
{
    if (checkpoint_load_weights(trainer_input(trainer, TRAINER_INPUT_WEIGHTS), state, err) < 0)
        return fleet_error_wrap(err, "spec.training.model.initialWeights");
    return 0;
}

int save_restore(struct trainer *trainer, bool *out_is_initial, struct fleet_error *err)
{
    struct checkpoint_state state;
    bool found;
    int rc;

    forget_updates(trainer);
    rc = restore_checkpoint(trainer, &found, err);

    *out_is_initial = false;
    if (rc < 0)
        return rc;
    if (found)
        return private_begin(trainer, err);
    placement_initialize(trainer);
    trainer->progress.committed = trainer->save.saved = trainer->report.evaluated = 0;
    *out_is_initial = trainer->job.config.model.initial_weights == NULL;
    if (!*out_is_initial) {
        save_state_of(trainer, &state);
        if (load_initial_weights(trainer, &state, err) < 0)
            return err->code;
    }
    return private_begin(trainer, err);
}

/* Zeros for what rank `replica` holds of `space`. */
static void clear_space(struct trainer *trainer, const struct ownership *map,
                        enum ownership_space space, int replica, struct backend *backend,
                        float *memory)
{
    int64_t count = trainer->job.plan.program.flat_count;
    size_t bytes = (size_t)ownership_elements(map, space, count, replica) * sizeof(*memory);
    void *host = backend_map(backend, memory, bytes, BACKEND_WRITE);

    memset(host, 0, bytes);
    backend_unmap(backend, memory, bytes, BACKEND_WRITE, host);
}

static void clear_divided(struct trainer *trainer, const struct ownership *map, int replica,
                          struct backend *backend, float *const *states)
{
    for (int slot = 0; slot < trainer->job.plan.program.state_count; slot++)
        clear_space(trainer, map, slot ? OWNERSHIP_STATE1 : OWNERSHIP_STATE0, replica, backend,
                    states[slot]);
    if (exchange_gathers(trainer))
        clear_space(trainer, map, OWNERSHIP_PARAMETERS, replica, backend, states[RESHARD_VALUES]);
}

int save_read_divided(struct trainer *trainer, const struct ownership *map, int replica,
                      struct backend *backend, float *const *states, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *place = NULL;
    int count = trainer->job.plan.program.state_count;
    struct checkpoint_state state;
    struct manifest manifest;
    int rc;

    clear_divided(trainer, map, replica, backend, states); /* the gaps between tensors, too */
    checkpoint_state_init(&state, &trainer->job.plan.program, backend,
                          exchange_gathers(trainer) ? states[RESHARD_VALUES] : NULL,
                          count > 0 ? states[0] : NULL, count > 1 ? states[1] : NULL, NULL);
    state.map = map;
    state.replica = replica;
    state.whole = stage_is_used(trainer) ? plan_whole(&trainer->job.plan) : NULL;
    for (int i = 0; i < state.space_count; i++)
        state.spaces[i].is_elsewhere = state.spaces[i].slot < 0 && !state.spaces[i].data;
    if (!trainer->save.restored[0])
        return exchange_gathers(trainer) ? load_initial_weights(trainer, &state, err) : 0;
    rc = save_restored_folder(trainer, &place, err);
    if (rc == 0)
        rc = manifest_read(place, &manifest, err);
    if (rc < 0)
        return rc;
    rc = checkpoint_load_folder(place, &manifest, false, &state, err);
    manifest_release(&manifest);
    return rc;
}
