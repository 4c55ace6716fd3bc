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

#include "agent/runtime/join/elastic.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/join/catch_up.h"
#include "agent/runtime/join/device.h"
#include "agent/runtime/join/peer_state.h"
#include "agent/runtime/join/reshard.h"
#include "agent/runtime/step/evaluate.h"
#include "agent/runtime/step/exchange.h"
#include "agent/runtime/step/vote.h"
#include "agent/runtime/strategy_files.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/variable.h"

#define SHARED_MEMORY_ENV  "FLEET_SHARED_MEMORY"
#define CONNECT_TIMEOUT_MS 20000.0

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
        device_drop_executor(trainer);
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
    if (rc < 0 || (rc = strategy_files_use(trainer, err)) < 0 ||
        (rc = reshard_undivided(trainer, err)) < 0 ||
        (rc = device_use_level(trainer, assign->assign.level, err)) < 0)
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

int elastic_read_settings(struct trainer *trainer, struct fleet_error *err)
{
    int is_shared;
    int rc = fleet_variable_number(SHARED_MEMORY_ENV, 0, 1, 1, &is_shared, err);

    if (rc == 0)
        trainer->net.neighbours = is_shared ? COMM_NEIGHBOURS_DIRECT : COMM_NEIGHBOURS_TCP;
    return rc;
}

static int connect_ranks(struct trainer *trainer, const struct link_message *assign,
                         struct fleet_error *err)
{
    struct comm_tcp_options options = {.rank = trainer->generation.rank,
                                       .world = trainer->generation.world,
                                       .addresses = (const char *const *)assign->assign.addresses,
                                       .listener = trainer->net.listener,
                                       .stop = control_stop_fd(trainer->control),
                                       .neighbours = trainer->net.neighbours,
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
    if (peer_state_exchange(trainer, is_initial, divided, all, err) < 0)
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
    if (peer_state_exchange(trainer, false, reshard_own(trainer), all, err) < 0 ||
        (peer_state_newest(all, world) < 0 && make_first(trainer, all, err) < 0))
        return err->code;
    newest = all[peer_state_newest(all, world)].committed;
    cell = peer_state_lost_cell(trainer, all, newest);
    if (cell >= 0)
        return refuse_lost_cell(trainer, newest, cell, err);
    return catch_up(trainer, all, peer_state_newest(all, world), err);
}

int elastic_join(struct trainer *trainer, const struct link_message *assign,
                 struct fleet_error *err)
{
    int rc;

    exchange_settle(trainer);
    if (prepare(trainer, assign, err) < 0 || connect_ranks(trainer, assign, err) < 0)
        return err->code;
    trainer_announce(trainer, FLEET_PHASE_CONNECTED);
    trainer->generation.is_joining = true;
    rc = agree(trainer, err);
    trainer->generation.is_joining = false;
    if (rc < 0)
        return rc;
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
