/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Joining a generation: connect, agree, catch up, feed the newcomers.
 *
 *   assign ─▶ prepare ─▶ connect ─▶ agree ─┬─ a rank holds a state: catch up by one held gradient
 *                                          │  or receive the state from the lowest rank of the own
 *                                          │  cell that has it
 *                                          └─ none does: the first rank of each cell reads the
 *                                             checkpoint or starts from step 0, then as above
 *
 * Survivors need nothing from each other: a rank that has committed update c has seen every vote
 * for c, so every other survivor holds c's complete gradient (trainer.h (2)) and is at c - 1
 * or c. A rank with any other memory is a newcomer.
 */

#include "agent/runtime/elastic.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/evaluate.h"
#include "agent/runtime/exchange.h"
#include "agent/runtime/private.h"
#include "agent/runtime/reshard.h"
#include "agent/runtime/trainer.h"
#include "agent/runtime/update.h"
#include "agent/runtime/vote.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

#define CONNECT_TIMEOUT_MS 20000.0

/* A rank's report about itself to all ranks. Ranks of the same build send the struct as it is. */
struct peer_state {
    int64_t committed, voted;
    int64_t saved;           /* updates in the newest checkpoint that it knows */
    int64_t evaluated;       /* updates whose evaluation it has reported */
    int64_t evaluation_step; /* that evaluation */
    double evaluation_loss;
    int64_t has_jumped; /* its newest update asks to go back to a checkpoint */
    int64_t is_initial; /* its state is the initial one, which the seed determines */
    struct reshard_peer divided;
    int64_t is_finite; /* the gradient of its newest update had no inf or nan on any rank */
    struct private_peer private; /* what ranks do not share */
    uint8_t digest[FLEET_SHA256_SIZE];
};

static int use_level(struct trainer *trainer, enum fleet_isa level, struct fleet_error *err)
{
    struct backend *backend = NULL;
    struct executor *executor = NULL;
    int rc;

    if (trainer->device.executor && trainer->generation.level == level)
        return 0;
    rc = trainer->device.kind->create(level, trainer->job.threads, &backend, err);
    if (rc < 0)
        return rc;
    rc = executor_new(&trainer->job.plan.program, &trainer->placement.memory, backend, &executor,
                      err);
    if (rc < 0) {
        backend_free(backend);
        return rc;
    }
    executor_free(trainer->device.executor);
    if (trainer->device.backend)
        backend_free(trainer->device.backend);
    trainer->device.backend = backend;
    trainer->device.executor = executor;
    trainer->generation.level = level;
    return 0;
}

static void use_memory(struct trainer *trainer)
{
    free(trainer->progress.vote_workspace);
    trainer->progress.vote_workspace =
        calloc(1, vote_workspace(trainer->generation.world, trainer->generation.range.leaves,
                                 trainer->job.row));
    fleet_assert(trainer->progress.vote_workspace != NULL);
    evaluate_reserve(trainer);
}

static bool is_planned(const struct trainer *trainer, int world, int rank)
{
    const struct plan *plan = &trainer->job.plan;

    return trainer->device.executor && plan->world == world &&
           plan->cell == cells_place(&plan->topology, rank).cell;
}

/* Plan our cell with the number of ranks that there are; the executor points into the plan. */
static int use_world(struct trainer *trainer, int world, int rank, struct fleet_error *err)
{
    const struct topology *grid = &trainer->job.plan.topology;

    if (!is_planned(trainer, world, rank)) {
        executor_free(trainer->device.executor);
        trainer->device.executor = NULL;
        if (placement_plan(trainer, world, rank, err) < 0 || trainer_follow_plan(trainer, err) < 0)
            return err->code;
    }
    trainer->generation.rank = rank;
    trainer->generation.world = world;
    trainer->generation.place = cells_place(grid, rank);
    trainer->generation.replicas = cells_replicas(grid);
    return 0;
}

/* Take over this rank's place in the generation, and make what it needs. */
static int prepare(struct trainer *trainer, const struct link_message *assign,
                   struct fleet_error *err)
{
    int rc = use_world(trainer, assign->assign.world, assign->assign.rank, err);

    trainer->generation.id = assign->generation;
    if (rc < 0 || (rc = reshard_undivided(trainer, err)) < 0 ||
        (rc = use_level(trainer, assign->assign.level, err)) < 0)
        return rc;
    if (!assign->assign.keeps_state) { /* of a branch that was given up, or too old */
        trainer->progress.committed = TRAINER_NO_STATE;
        trainer->progress.voted = 0;
    }
    if (trainer->progress.committed == TRAINER_NO_STATE)
        trainer->generation.state_world = 0;
    trainer->progress.viewed = 0;
    trainer->generation.lineage = assign->assign.lineage;
    leaf_range_release(&trainer->generation.range);
    (exchange_divides(trainer) ? leaf_range_init_in_turn : leaf_range_init)(
        &trainer->generation.range, trainer->job.merge * trainer->job.micro_batches,
        trainer->generation.replicas, trainer->generation.place.replica);
    leaf_range_release(&trainer->generation.last_range);
    leaf_range_init_unsummed(
        &trainer->generation.last_range,
        trainer->job.config.steps % trainer->job.merge * trainer->job.micro_batches,
        trainer->generation.replicas, trainer->generation.place.replica, exchange_divides(trainer));
    use_memory(trainer);
    return 0;
}

static int connect_ranks(struct trainer *trainer, const struct link_message *assign,
                         struct fleet_error *err)
{
    struct comm_tcp_options options = {.rank = trainer->generation.rank,
                                       .world = trainer->generation.world,
                                       .addresses = (const char *const *)assign->assign.addresses,
                                       .listener = trainer->net.listener,
                                       .stop = control_stop_fd(trainer->control),
                                       .neighbours = COMM_NEIGHBOURS_DIRECT,
                                       .channels = trainer->job.plan.selection.final.nccl_comm_num,
                                       .encrypts = trainer->job.encrypts,
                                       .failed_rank = &trainer->generation.failed_rank};
    int rc = 0;

    memcpy(options.key, assign->assign.key, sizeof(options.key));
    if (atomic_load(control_stop(trainer->control)))
        return fleet_error(err, -ECANCELED, "the generation was aborted before it began");
    if (trainer->generation.world == 1)
        trainer->net.comm = comm_local_new();
    else
        rc = comm_tcp_new(&options, fleet_monotonic_ms() + CONNECT_TIMEOUT_MS, &trainer->net.comm,
                          err);
    if (rc < 0)
        return fleet_error_wrap(err, "connect the ranks");
    control_set_comm(trainer->control, trainer->net.comm);
    return exchange_open(trainer, err);
}

static int exchange_peer_states(struct trainer *trainer, bool is_initial,
                                struct reshard_peer divided, struct peer_state *all,
                                struct fleet_error *err)
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

/* The lowest rank with the newest state, or -1 if there is no state at all. One whose parameters
 * are those of all ranks comes before others. */
static int newest_holder(const struct peer_state *all, int world)
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

/* One update behind with that update's gradient in hand. */
static bool can_catch_up(const struct peer_state *peer, int64_t newest)
{
    return peer->committed != TRAINER_NO_STATE && peer->committed == newest - 1 &&
           peer->voted == newest;
}

static bool is_newcomer(const struct peer_state *peer, int64_t newest)
{
    return peer->committed != newest && !can_catch_up(peer, newest);
}

/* The lowest rank of `cell` that has the newest update, or will have it; -1: none has. One whose
 * parameters are those of all ranks comes before others. */
static int holder_of_cell(const struct trainer *trainer, const struct peer_state *all, int cell,
                          int64_t newest)
{
    int holder = -1;

    for (int r = 0; r < trainer->generation.world; r++) {
        if (cells_place(&trainer->job.plan.topology, r).cell != cell ||
            is_newcomer(&all[r], newest))
            continue;
        if (holder < 0 || is_ahead(&all[r], &all[holder]))
            holder = r;
    }
    return holder;
}

/* A cell whose state no rank has; -1: together the ranks have a whole state. */
static int lost_cell(const struct trainer *trainer, const struct peer_state *all, int64_t newest)
{
    for (int cell = 0; cell < cells_count(&trainer->job.plan.topology); cell++)
        if (holder_of_cell(trainer, all, cell, newest) < 0)
            return cell;
    return -1;
}

/* A newcomer needs everything; a rank that has missed an average needs the result of it. */
static bool needs(const struct trainer *trainer, const struct peer_state *all, int64_t newest,
                  int holder, int rank, const struct state_part *part)
{
    return is_newcomer(&all[rank], newest) ||
           (all[holder].private.has_average && !all[rank].private.has_average &&
            private_is_averaged(trainer, part));
}

/* The cell's holder sends what every rank of the cell holds to each that needs it, at once. */
static int transfer_state(struct trainer *trainer, const struct peer_state *all, int64_t newest,
                          struct fleet_error *err)
{
    const struct topology *grid = &trainer->job.plan.topology;
    int cell = trainer->generation.place.cell;
    int holder = holder_of_cell(trainer, all, cell, newest);
    struct state_part parts[STATE_PARTS_MAX];
    int part_count = state_parts(&trainer->state, plan_shards(&trainer->job.plan) > 1, parts);
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

/* The newest update asks to go back. A rank that has done so does it again, so that all have. */
static bool has_jumped(const struct peer_state *all, int world, int64_t newest)
{
    for (int r = 0; r < world; r++)
        if (all[r].committed == newest && all[r].has_jumped)
            return true;
    return false;
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

/* The divided state of our cell's ranks that are at the newest update, or will be: [replicas]. */
static struct reshard_peer *list_divided(const struct trainer *trainer,
                                         const struct peer_state *all, int64_t newest)
{
    struct reshard_peer *peers = calloc((size_t)trainer->generation.replicas, sizeof(*peers));

    fleet_assert(peers != NULL);
    for (int replica = 0; replica < trainer->generation.replicas; replica++) {
        int r = cells_rank(&trainer->job.plan.topology,
                           (struct cell_place){trainer->generation.place.cell, replica});
        if (!is_newcomer(&all[r], newest))
            peers[replica] = all[r].divided;
    }
    return peers;
}

/* A cell is lost with its ranks: no rank has its part of the model. */
static int refuse_lost_cell(struct trainer *trainer, int64_t newest, int cell,
                            struct fleet_error *err)
{
    bool had_state = trainer->progress.committed != TRAINER_NO_STATE;

    save_finish(trainer); /* its result does not concern the next generation */
    trainer->progress.committed = TRAINER_NO_STATE;
    if (had_state)
        trainer_warn(trainer,
                     "cell %d of the model of step %" PRId64
                     " is lost with the workers that held it: training goes on from the last "
                     "checkpoint",
                     cell, trainer_steps(trainer, newest));
    return fleet_error(err, -ECANCELED, "cell %d of the model is lost", cell);
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

    if (has_moved) { /* the executor knows the old places */
        executor_free(trainer->device.executor);
        trainer->device.executor = NULL;
    }
    if (rc == 0)
        rc = use_level(trainer, trainer->generation.level, err);
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
        peers[r].is_newcomer = is_newcomer(&all[r], all[holder].committed);
    }
    return private_join(trainer, peers, holder, err);
}

/* Bring this rank to the holder's update. */
static int catch_up(struct trainer *trainer, const struct peer_state *all, int holder,
                    struct fleet_error *err)
{
    const struct peer_state *mine = &all[trainer->generation.rank], *newest = &all[holder];
    bool behind = can_catch_up(mine, newest->committed);
    FLEET_AUTO_FREE struct reshard_peer *divided = list_divided(trainer, all, newest->committed);
    struct reshard_peer *own_divided = &divided[trainer->generation.place.replica];
    int lost = reshard_lost(trainer, divided);
    size_t leaves = (size_t)(trainer->job.merge * trainer->job.micro_batches * trainer->job.row) *
                    sizeof(*trainer->progress.committed_leaves);

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
    if (has_jumped(all, trainer->generation.world, newest->committed))
        trainer->progress.ledger->owes_rollback = 1;
    trainer->progress.committed = newest->committed;
    trainer->save.saved = newest->saved;
    learn_evaluation(trainer, all);
    if (place_divided(trainer, divided, err) < 0 || settle_private(trainer, all, holder, err) < 0)
        return err->code;
    return report_join(trainer, holder, err);
}

/* The first ranks of the cells have read the same state. */
static int compare_first(const struct trainer *trainer, const struct peer_state *all,
                         struct fleet_error *err)
{
    const struct topology *grid = &trainer->job.plan.topology;

    for (int cell = 1; cell < cells_count(grid); cell++) {
        int r = cells_rank(grid, (struct cell_place){.cell = cell});
        if (all[r].committed != all[0].committed || all[r].is_initial != all[0].is_initial)
            return fleet_error(
                err, -EINVAL,
                "spec.training.checkpoint.path: rank %d reads the checkpoint of step "
                "%" PRId64 ", rank 0 that of step %" PRId64
                ": where workers share a model it must be one folder that all share",
                r, trainer_steps(trainer, all[r].committed),
                trainer_steps(trainer, all[0].committed));
    }
    return 0;
}

/* No rank holds a state: the first rank of each cell makes its part of the first one. */
static int make_first(struct trainer *trainer, struct peer_state *all, struct fleet_error *err)
{
    struct reshard_peer divided = {.source = RESHARD_NONE};
    bool is_initial = false;

    if (trainer->generation.place.replica == 0) {
        if (save_restore(trainer, &is_initial, err) < 0)
            return err->code;
        divided.source = is_initial ? RESHARD_ZERO : RESHARD_FILES;
    }
    if (exchange_peer_states(trainer, is_initial, divided, all, err) < 0)
        return err->code;
    return compare_first(trainer, all, err);
}

/* Agree on the state that each rank holds; if no rank holds one, make the first one. */
static int agree(struct trainer *trainer, struct fleet_error *err)
{
    int world = trainer->generation.world;
    FLEET_AUTO_FREE struct peer_state *all = calloc((size_t)world, sizeof(*all));
    int64_t newest;
    int cell;

    fleet_assert(all != NULL);
    if (exchange_peer_states(trainer, false, reshard_own(trainer), all, err) < 0 ||
        (newest_holder(all, world) < 0 && make_first(trainer, all, err) < 0))
        return err->code;
    newest = all[newest_holder(all, world)].committed;
    cell = lost_cell(trainer, all, newest);
    if (cell >= 0)
        return refuse_lost_cell(trainer, newest, cell, err);
    return catch_up(trainer, all, newest_holder(all, world), err);
}

int elastic_join(struct trainer *trainer, const struct link_message *assign,
                 struct fleet_error *err)
{
    if (prepare(trainer, assign, err) < 0 || connect_ranks(trainer, assign, err) < 0)
        return err->code;
    trainer_announce(trainer, FLEET_PHASE_CONNECTED);
    if (agree(trainer, err) < 0)
        return err->code;
    trainer->progress.voted = 0; /* what was held is applied, or will be computed again */
    trainer->generation.first_step_pending = true;
    trainer_announce(trainer, FLEET_PHASE_RESTORED);
    return 0;
}

void elastic_leave(struct trainer *trainer)
{
    charts_pause(&trainer->report.charts);
    control_set_comm(trainer->control, NULL);
    stage_close(trainer);
    exchange_close(trainer);
    comm_free(trainer->net.comm);
    trainer->net.comm = NULL;
}
