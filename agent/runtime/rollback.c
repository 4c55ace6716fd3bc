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
 */

#include "agent/runtime/rollback.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "agent/runtime/average.h"
#include "agent/runtime/private.h"
#include "agent/runtime/reshard.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"

/* What rank 0 sends to the others. */
struct offer {
    int64_t step; /* of the checkpoint, 0 = there is none */
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

/* The first rank of a cell: fill the state from the newest scheduled checkpoint that is there. */
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
            struct ledger *ledger = trainer->progress.ledger;
            *out = (struct offer){step, manifest.updates, ledger->scaling};
            if (ledger_read_scaling(manifest.extra, &out->scaling, &err) < 0)
                trainer_warn(trainer, "checkpoint of step %" PRId64 ": %s", step, err.text);
            manifest_release(&manifest);
            return;
        }
        update = (step - 1) / trainer->job.merge;
    }
}

static int share_state(struct trainer *trainer, struct fleet_error *err)
{
    struct state_part parts[STATE_PARTS_MAX];
    int count = state_parts(&trainer->state, trainer->placement.map.shards > 1, parts);

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
    if (trainer->generation.rank == 0 && offer.step > 0)
        trainer_warn(trainer, "weights and optimizer are those of step %" PRId64 " again",
                     offer.step);
    else if (trainer->generation.rank == 0)
        trainer_warn(trainer, "there is no checkpoint to go back to yet: the weights stay");
    return 0;
}
