/* SPDX-License-Identifier: Apache-2.0 */

/*
 * health.lossSpike rollback: the state goes back to the last scheduled checkpoint, the data and the
 * numbers of the steps go on, so the batches in between are passed over and nothing is repeated.
 *
 * The commit of the update that jumped only notes in the ledger that a rollback is due. The
 * rollback happens here, before anything else. The first rank of each cell reads the checkpoint
 * and sends it to the others of the cell. If the generation ends meanwhile, nothing is lost: a rank
 * with a partly received state counts as having none, and in the next generation all ranks go back,
 * also those that already did (elastic.c), because one of them may have been one update behind. The
 * step alone determines the checkpoint, not the speed of the disk or the rank that was interrupted.
 *
 * If the rank that was to write this checkpoint died first, the weights of an older one would not
 * be those of an undisturbed job. Then all ranks give up their state (save_is_lost()). The next
 * generation goes on from the older checkpoint, writes the missing one on the way, comes to the
 * same jump, and goes back as planned. That costs one restart. A save that failed with an error is
 * not repeated this way, because it would fail again and again: the job goes back to the older
 * checkpoint and says so.
 */

#include "agent/runtime/join/rollback.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "agent/runtime/join/reshard.h"
#include "agent/runtime/step/average.h"
#include "agent/runtime/step/private.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

/* What rank 0 sends to the others. */
struct offer {
    int64_t step;    /* of the checkpoint, 0 = there is none */
    int64_t missing; /* a newer one was scheduled after this step, and is not there; 0 = no */
    int64_t is_lost; /* … and it must be made again */
    int64_t updates;
    struct loss_scaling scaling;
};

/* The newest step at or before the end of `update` after which a checkpoint was due; 0 = none. */
static int64_t scheduled_step(const struct trainer *trainer, int64_t update)
{
    int64_t every = trainer->job.config.checkpoint.every_steps;

    for (; update > 0 && every > 0; update--) {
        int64_t steps = trainer_steps(trainer, update);
        if (steps / every != trainer_steps(trainer, update - 1) / every)
            return steps;
    }
    return 0;
}

/* The first rank of a cell: fill the state from the newest scheduled checkpoint that is there. If
 * rank 0 finds that one is missing and can be made, the state is of no more use. */
static void read_checkpoint(struct trainer *trainer, struct offer *out)
{
    int64_t update = trainer->progress.committed - 1; /* not what the jump itself has left */
    int64_t step;

    *out = (struct offer){0};
    save_finish(trainer);
    while ((step = scheduled_step(trainer, update)) > 0) {
        struct manifest manifest;
        struct fleet_error err;
        if (save_read(trainer, step, &manifest, &err) == 0) {
            out->step = step;
            out->updates = manifest.updates;
            out->scaling = trainer->progress.ledger->scaling;
            if (ledger_read_scaling(manifest.extra, &out->scaling, &err) < 0)
                trainer_warn(trainer, "checkpoint of step %" PRId64 ": %s", step, err.text);
            manifest_release(&manifest);
            return;
        }
        if (out->missing == 0 && trainer->generation.rank == 0 && save_is_lost(trainer, step)) {
            *out = (struct offer){.missing = step, .is_lost = 1};
            return;
        }
        out->missing = out->missing ? out->missing : step;
        update = (step - 1) / trainer->job.merge;
    }
}

static int share_state(struct trainer *trainer, struct fleet_error *err)
{
    struct state_part parts[STATE_PARTS_MAX];
    int count = state_parts(&trainer->state,
                            placement_division(trainer, trainer->placement.map.shards), parts);

    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)parts[i].count * sizeof(float);
        void *host = backend_map(trainer->state.backend, parts[i].data, bytes, BACKEND_CHANGE);
        int rc =
            comm_broadcast(trainer->net.cell, host, bytes, 0, trainer_deadline_ms(trainer), err);
        backend_unmap(trainer->state.backend, parts[i].data, bytes, BACKEND_CHANGE, host);
        if (rc < 0)
            return rc;
    }
    return reshard_read(trainer, err);
}

/* All ranks begin as ones that have no state, in the next generation. */
static int replay(struct trainer *trainer, int64_t missing, struct fleet_error *err)
{
    save_finish(trainer); /* its result does not concern the next generation */
    if (trainer->generation.rank == 0)
        trainer_warn(trainer,
                     "the checkpoint of step %" PRId64
                     " is missing, because the worker that was to write it is gone: training goes "
                     "on from an older one, and writes it on the way",
                     missing);
    return fleet_error(err, -ECANCELED, "the checkpoint of step %" PRId64 " is missing", missing);
}

static void report(struct trainer *trainer, const struct offer *offer)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (trainer->generation.rank != 0)
        return;
    if (offer->step > 0)
        fleet_strbuf_appendf(&text, "weights and optimizer are those of step %" PRId64 " again",
                             offer->step);
    else
        fleet_strbuf_append(&text, "there is no checkpoint to go back to yet: the weights stay");
    if (offer->missing > 0)
        fleet_strbuf_appendf(&text,
                             "; a checkpoint was due after step %" PRId64 ", but it cannot be read",
                             offer->missing);
    trainer_warn(trainer, "%s", text.text);
}

int rollback_if_due(struct trainer *trainer, struct fleet_error *err)
{
    int64_t committed = trainer->progress.committed, own_step;
    struct offer offer = {0};

    if (!trainer->progress.ledger->owes_rollback)
        return 0;
    trainer->progress.committed = TRAINER_NO_STATE; /* until all of it has arrived */
    if (trainer->generation.place.replica == 0) {
        trainer->progress.committed = committed; /* names the update */
        read_checkpoint(trainer, &offer);
        trainer->progress.committed = TRAINER_NO_STATE;
    }
    own_step = offer.step;
    if (comm_broadcast(trainer->net.comm, &offer, sizeof(offer), 0, trainer_deadline_ms(trainer),
                       err) < 0)
        return fleet_error_wrap(err, "go back to the last checkpoint");
    if (offer.is_lost)
        return replay(trainer, offer.missing, err);
    if (trainer->generation.place.replica == 0 && own_step != offer.step)
        return fleet_error(err, -EINVAL,
                           "spec.training.checkpoint.path: rank %d reads the checkpoint of step "
                           "%" PRId64 ", rank 0 that of step %" PRId64
                           ": where workers share a model it must be one folder that all share",
                           trainer->generation.rank, own_step, offer.step);
    if (offer.step > 0 && share_state(trainer, err) < 0)
        return fleet_error_wrap(err, "go back to the last checkpoint");
    if (offer.step > 0 && average_is_on(trainer)) { /* all have the same parameters again */
        if (average_begin(trainer, err) < 0)
            return err->code;
        trainer->progress.ledger->averaging.last = committed;
    }
    if (offer.step > 0) {
        trainer->progress.ledger->updates = offer.updates;
        trainer->progress.ledger->scaling = offer.scaling;
    }
    if (offer.step > 0 &&
        private_go_back(trainer, (offer.step + trainer->job.merge - 1) / trainer->job.merge, err) <
            0)
        return err->code;
    trainer->progress.ledger->owes_rollback = 0;
    trainer->progress.committed = committed;
    if (offer.step > 0)
        average_done(trainer);
    report(trainer, &offer);
    return 0;
}
