/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/join/catch_up.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "agent/runtime/join/device.h"
#include "agent/runtime/join/lost_shard.h"
#include "agent/runtime/join/peer_state.h"
#include "agent/runtime/join/reshard.h"
#include "agent/runtime/step/exchange.h"
#include "agent/runtime/step/private.h"
#include "agent/runtime/step/update.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

/* A newcomer needs everything; a rank that has missed an average needs the result of it. */
static bool needs(const struct trainer *trainer, const struct peer_state *all, int64_t newest,
                  int holder, int rank, const struct state_part *part)
{
    return peer_state_is_newcomer(&all[rank], newest) ||
           (all[holder].private.has_average && !all[rank].private.has_average &&
            private_is_averaged(trainer, part));
}

/* The cell's holder sends what every rank of the cell holds to each that needs it, at once. */
static int transfer_state(struct trainer *trainer, const struct peer_state *all, int64_t newest,
                          struct fleet_error *err)
{
    const struct topology *grid = &trainer->job.plan.topology;
    int cell = trainer->generation.place.cell;
    int holder = peer_state_holder(trainer, all, cell, newest);
    struct state_part parts[STATE_PARTS_MAX];
    enum state_division division = placement_division(trainer, plan_shards(&trainer->job.plan));
    int part_count = state_parts(&trainer->state, division, parts);
    int world = trainer->generation.world;
    FLEET_AUTO_FREE const void **send = calloc((size_t)world, sizeof(*send));
    FLEET_AUTO_FREE void **receive = calloc((size_t)world, sizeof(*receive));
    FLEET_AUTO_FREE size_t *send_bytes = calloc((size_t)world, sizeof(*send_bytes));
    FLEET_AUTO_FREE size_t *receive_bytes = calloc((size_t)world, sizeof(*receive_bytes));

    fleet_assert(send && receive && send_bytes && receive_bytes);
    for (int p = 0; p < part_count; p++) {
        size_t bytes = (size_t)parts[p].count * sizeof(float);
        void *host = backend_map(trainer->state.backend, parts[p].data, bytes, BACKEND_CHANGE);
        int rc;
        for (int r = 0; r < world; r++) {
            bool is_sent = cells_place(grid, r).cell == cell &&
                           needs(trainer, all, newest, holder, r, &parts[p]);
            if (is_sent && trainer->generation.rank == holder) {
                send[r] = host;
                send_bytes[r] = bytes;
            } else if (is_sent && trainer->generation.rank == r) {
                receive[holder] = host;
                receive_bytes[holder] = bytes;
            }
        }
        rc = comm_exchange(trainer->net.comm, send, send_bytes, receive, receive_bytes,
                           trainer_deadline_ms(trainer), err);
        backend_unmap(trainer->state.backend, parts[p].data, bytes, BACKEND_CHANGE, host);
        if (rc < 0)
            return fleet_error_wrap(err, "receive the state from rank %d", holder);
    }
    return 0;
}

/* The newest evaluation that any of the ranks has made is not made again. Perhaps only that rank
 * has it, and its agent does not report to the hub. So all ranks learn it and report it again. */
static void learn_evaluation(struct trainer *trainer, const struct peer_state *all)
{
    for (int r = 0; r < trainer->generation.world; r++) {
        if (all[r].evaluated > trainer->report.evaluated)
            trainer->report.evaluated = all[r].evaluated;
        if (all[r].evaluation_step > trainer->report.evaluation_step) {
            trainer->report.evaluation_step = all[r].evaluation_step;
            trainer->report.evaluation_loss = all[r].evaluation_loss;
        }
    }
}

/* A shard is lost with its holders: no rank has a state that training could go on from. The hub
 * learns it from each, and the next generation begins with the last checkpoint. */
static int refuse_lost(struct trainer *trainer, int64_t newest, int shard, struct fleet_error *err)
{
    bool had_state = reshard_own(trainer).source == RESHARD_HELD;

    save_finish(trainer); /* its result does not concern the next generation */
    trainer->progress.committed = TRAINER_NO_STATE;
    trainer->placement.lost = shard + 1;
    if (had_state) /* each of them: others may not come as far as this */
        trainer_warn(trainer,
                     "shard %d of the optimizer state of step %" PRId64
                     " is lost with the workers that held it: training goes on from the last "
                     "checkpoint",
                     shard, trainer_steps(trainer, newest));
    return fleet_error(err, -ECANCELED, "shard %d of the optimizer state is lost", shard);
}

/* Bring the divided state to where this generation wants it; the executor follows. */
static int place_divided(struct trainer *trainer, const struct reshard_peer *peers,
                         struct fleet_error *err)
{
    bool has_moved;
    int rc = reshard_apply(trainer, peers, &has_moved, err);

    if (has_moved)
        device_drop_executor(trainer);
    if (rc == 0)
        rc = device_use_level(trainer, trainer->generation.level, err);
    if (rc == 0)
        rc = exchange_divide(trainer, err);
    if (rc == 0)
        rc = executor_bind(trainer->device.executor, &trainer->net.groups.communication, err);
    if (rc == 0)
        rc = stage_open(trainer, err);
    share_prepare(trainer);
    return rc;
}

/* What ranks do not share follows its own rules. */
static int settle_private(struct trainer *trainer, const struct peer_state *all, int holder,
                          struct fleet_error *err)
{
    int world = trainer->generation.world;
    FLEET_AUTO_FREE struct private_peer *peers = calloc((size_t)world, sizeof(*peers));

    fleet_assert(peers != NULL);
    for (int r = 0; r < world; r++) {
        peers[r] = all[r].private;
        peers[r].is_newcomer = peer_state_is_newcomer(&all[r], all[holder].committed);
    }
    return private_join(trainer, peers, holder, err);
}

int catch_up(struct trainer *trainer, const struct peer_state *all, int holder,
             struct fleet_error *err)
{
    const struct peer_state *mine = &all[trainer->generation.rank], *newest = &all[holder];
    bool behind = peer_state_is_one_behind(mine, newest->committed);
    FLEET_AUTO_FREE struct reshard_peer *divided =
        peer_state_divided(trainer, all, newest->committed);
    struct reshard_peer *own_divided = &divided[trainer->generation.place.replica];
    int lost = reshard_lost(trainer, divided);
    size_t leaves = (size_t)(trainer->job.merge * trainer->job.micro_batches * trainer->job.row) *
                    sizeof(*trainer->progress.committed_leaves);

    if (lost_shard_agree(trainer, &lost, err) < 0)
        return err->code;
    if (lost >= 0)
        return refuse_lost(trainer, newest->committed, lost, err);
    if (!behind && mine->committed != newest->committed) { /* a newcomer, until it has all */
        save_finish(trainer);                              /* it may be reading the state */
        trainer->progress.committed = TRAINER_NO_STATE;
    }
    if (own_divided->source != RESHARD_HELD)
        trainer->placement.replica = PLACEMENT_NO_RANK; /* what its memory has is of no use */
    if (comm_broadcast(trainer->net.comm, trainer->progress.committed_leaves, leaves, holder,
                       trainer_deadline_ms(trainer), err) < 0)
        return fleet_error_wrap(err, "receive what the last step left");
    if (behind) {
        trainer->progress.voted_finite = newest->is_finite;
        if (update_commit(trainer, newest->committed, trainer->progress.committed_leaves, err) < 0)
            return err->code;
        trainer->report.times = (struct fleet_step_times){0};
        trainer->report.total_s = (fleet_monotonic_ms() - trainer->report.step_started_ms) * 1e-3;
        report_update(trainer, trainer->progress.committed);
    }
    if (!newest->is_initial && transfer_state(trainer, all, newest->committed, err) < 0)
        return err->code;
    if (trainer->progress.committed == TRAINER_NO_STATE && newest->is_initial) {
        placement_initialize(trainer);
        if (private_begin(trainer, err) < 0)
            return err->code;
    }
    if (comm_broadcast(trainer->net.comm, trainer->progress.ledger,
                       ledger_bytes(trainer->progress.ledger), holder, trainer_deadline_ms(trainer),
                       err) < 0)
        return fleet_error_wrap(err, "receive the ledger");
    if (peer_state_has_jumped(all, trainer->generation.world, newest->committed))
        trainer->progress.ledger->owes_rollback = 1;
    trainer->progress.committed = newest->committed;
    trainer->save.saved = newest->saved;
    learn_evaluation(trainer, all);
    if (place_divided(trainer, divided, err) < 0 || settle_private(trainer, all, holder, err) < 0)
        return err->code;
    return report_join(trainer, holder, err);
}
