/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/join/peer_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

int peer_state_exchange(struct trainer *trainer, bool is_initial, struct reshard_peer divided,
                        struct peer_state *all, struct fleet_error *err)
{
    struct peer_state mine = {.committed = trainer->progress.committed,
                              .voted = trainer->progress.voted,
                              .saved = trainer->save.saved,
                              .evaluated = trainer->report.evaluated,
                              .evaluation_step = trainer->report.evaluation_step,
                              .evaluation_loss = trainer->report.evaluation_loss,
                              .has_jumped = trainer->progress.ledger->has_jumped,
                              .is_initial = is_initial,
                              .is_finite = trainer->progress.voted_finite,
                              .divided = divided};

    private_describe(trainer, &mine.private);
    memcpy(mine.digest, trainer->job.digest, sizeof(mine.digest));
    if (comm_all_gather(trainer->net.comm, &mine, sizeof(mine), all, trainer_deadline_ms(trainer),
                        err) < 0)
        return fleet_error_wrap(err, "agree on the step");
    for (int r = 0; r < trainer->generation.world; r++)
        if (memcmp(all[r].digest, trainer->job.digest, sizeof(trainer->job.digest)) != 0)
            return fleet_error(
                err, -EINVAL,
                "rank %d has another program or other data than rank %d: "
                "spec.training.data must show the same files to every worker, unchanged during "
                "the run, and all workers must run the same version",
                r, trainer->generation.rank);
    return 0;
}

/* A newer state; or one that is as new, and whose parameters are those of all ranks. */
static bool is_ahead(const struct peer_state *a, const struct peer_state *b)
{
    return a->committed > b->committed ||
           (a->committed == b->committed && a->private.has_average && !b->private.has_average);
}

int peer_state_newest(const struct peer_state *all, int world)
{
    int holder = -1;

    for (int r = 0; r < world; r++) {
        if (all[r].committed == TRAINER_NO_STATE)
            continue;
        if (holder < 0 || is_ahead(&all[r], &all[holder]))
            holder = r;
    }
    return holder;
}

bool peer_state_is_one_behind(const struct peer_state *peer, int64_t newest)
{
    return peer->committed != TRAINER_NO_STATE && peer->committed == newest - 1 &&
           peer->voted == newest;
}

bool peer_state_is_newcomer(const struct peer_state *peer, int64_t newest)
{
    return peer->committed != newest && !peer_state_is_one_behind(peer, newest);
}

int peer_state_holder(const struct trainer *trainer, const struct peer_state *all, int cell,
                      int64_t newest)
{
    int holder = -1;

    for (int r = 0; r < trainer->generation.world; r++) {
        if (cells_place(&trainer->job.plan.topology, r).cell != cell ||
            peer_state_is_newcomer(&all[r], newest))
            continue;
        if (holder < 0 || is_ahead(&all[r], &all[holder]))
            holder = r;
    }
    return holder;
}

int peer_state_lost_cell(const struct trainer *trainer, const struct peer_state *all,
                         int64_t newest)
{
    for (int cell = 0; cell < cells_count(&trainer->job.plan.topology); cell++)
        if (peer_state_holder(trainer, all, cell, newest) < 0)
            return cell;
    return -1;
}

bool peer_state_has_jumped(const struct peer_state *all, int world, int64_t newest)
{
    for (int r = 0; r < world; r++)
        if (all[r].committed == newest && all[r].has_jumped)
            return true;
    return false;
}

struct reshard_peer *peer_state_divided(const struct trainer *trainer, const struct peer_state *all,
                                        int64_t newest)
{
    struct reshard_peer *peers = calloc((size_t)trainer->generation.replicas, sizeof(*peers));

    fleet_assert(peers != NULL);
    for (int replica = 0; replica < trainer->generation.replicas; replica++) {
        int r = cells_rank(&trainer->job.plan.topology,
                           (struct cell_place){trainer->generation.place.cell, replica});
        if (!peer_state_is_newcomer(&all[r], newest))
            peers[replica] = all[r].divided;
    }
    return peers;
}
