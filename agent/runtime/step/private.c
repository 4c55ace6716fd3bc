/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/private.h"

#include <inttypes.h>

#include "agent/runtime/step/average.h"
#include "agent/runtime/step/gradient.h"
#include "agent/runtime/step/private_save.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"
#include "libfleet/program/passes/localsgd.h"

#define DGC_U 2 /* inputs of the operator */
#define DGC_V 3

void private_describe(const struct trainer *trainer, struct private_peer *out)
{
    bool has_state = trainer->progress.committed != TRAINER_NO_STATE;

    *out = (struct private_peer){.has_average =
                                     has_state && average_is_on(trainer) &&
                                     trainer->progress.averaged == trainer->progress.committed,
                                 .is_copy = has_state && trainer->progress.is_copy,
                                 .world = has_state ? trainer->generation.state_world : 0};
}

bool private_is_averaged(const struct trainer *trainer, const struct state_part *part)
{
    const struct executor_bases *bases = &trainer->state.bases;
    int slot = localsgd_snapshot_slot(&trainer->job.plan.program);

    return part->data == bases->segment[MEMORY_PARAMETERS] ||
           (slot == 0 && part->data == bases->segment[MEMORY_STATE0]) ||
           (slot == 1 && part->data == bases->segment[MEMORY_STATE1]);
}

int private_begin(struct trainer *trainer, struct fleet_error *err)
{
    return average_is_on(trainer) ? average_begin(trainer, err) : 0;
}

/* Ranks that are new, that stayed, that are lost. */
struct changes {
    int newcomers, survivors, lost;
    bool is_own; /* this rank is a newcomer */
};

static struct changes count_changes(const struct trainer *trainer, const struct private_peer *peers,
                                    int holder)
{
    struct changes c = {.is_own = peers[trainer->generation.rank].is_newcomer != 0};

    for (int r = 0; r < trainer->generation.world; r++)
        if (peers[r].is_newcomer)
            c.newcomers++;
        else
            c.survivors++;
    c.lost = peers[holder].world > c.survivors ? (int)peers[holder].world - c.survivors : 0;
    return c;
}

/* ---- localsgd -------------------------------------------------------------------------------- */

/* Number of ranks with parameters of their own; all ranks, if no rank has any. */
static int count_contributors(const struct private_peer *peers, int world)
{
    int count = 0;

    for (int r = 0; r < world; r++)
        count += !peers[r].is_newcomer && !peers[r].is_copy;
    return count;
}

static void report_average(struct trainer *trainer, const struct changes *c, int64_t since)
{
    if (trainer->generation.rank != 0 || (c->lost == 0 && c->newcomers == 0))
        return;
    trainer_note(trainer,
                 "local SGD: the parameters of the %d workers that stayed are averaged at once, "
                 "%d new ones start from that; of %d lost ones nothing behind step %" PRId64
                 " is in it",
                 c->survivors, c->newcomers, c->lost, trainer_steps(trainer, since));
}

/* The first generation of a run: from a checkpoint, or from step 0. The ledger says when the last
 * average before the checkpoint was made. */
static int begin_average(struct trainer *trainer, struct fleet_error *err)
{
    struct ledger *ledger = trainer->progress.ledger;
    int64_t committed = trainer->progress.committed;
    int saved = 0;

    if (trainer->generation.world > 1 &&
        private_read(trainer, ledger->averaging.last < committed, &saved, err) < 0)
        return err->code;
    if (trainer->generation.rank == 0 && saved > 0 && saved != trainer->generation.world)
        trainer_note(trainer,
                     "local SGD: the checkpoint is of %d workers: all %d start from the mean of "
                     "their parameters, and from the optimizer states of the first one",
                     saved, trainer->generation.world);
    if (saved == trainer->generation.world && ledger->averaging.last < committed)
        return 0; /* each rank goes on from its own parameters */
    if (ledger->averaging.last < committed)
        ledger->averaging.last = committed;
    average_done(trainer);
    return 0;
}

/* The ledger is the holder's by now. */
static int settle_average(struct trainer *trainer, const struct private_peer *peers, int holder,
                          const struct changes *c, struct fleet_error *err)
{
    struct ledger *ledger = trainer->progress.ledger;
    bool has_changed =
        c->newcomers > 0 || c->lost > 0 || peers[holder].world != trainer->generation.world;
    int64_t since = ledger->averaging.last;

    if (peers[holder].world == 0)
        return begin_average(trainer, err);
    if (c->is_own)
        trainer->progress.is_copy = true;
    if (peers[holder].has_average) {
        average_done(trainer);
        return 0;
    }
    if (!has_changed)
        return 0;
    if (trainer->progress.committed > since)
        report_average(trainer, c, since);
    ledger->averaging.last = trainer->progress.committed;
    trainer->progress.contributors = count_contributors(peers, trainer->generation.world);
    if (c->survivors == 1)
        average_done(trainer); /* all hold what that one held */
    else
        ledger->owes_average = 1;
    return 0;
}

/* ---- dgc ------------------------------------------------------------------------------------- */

static void clear(struct trainer *trainer, int var)
{
    struct backend *memory = trainer->state.backend;

    memory->vtable->clear(memory, state_address(&trainer->state, var),
                          program_var_bytes(&trainer->job.plan.program.vars[var]));
}

static void clear_residuals(struct trainer *trainer)
{
    const struct program *program = &trainer->job.plan.program;

    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == OP_DGC) {
            clear(trainer, program->ops[i].inputs[DGC_U]);
            clear(trainer, program->ops[i].inputs[DGC_V]);
        }
}

static bool is_dense(const struct trainer *trainer, int64_t update)
{
    return update <= trainer->job.rules.strategy->dgc_configs.rampup_begin_step;
}

/* The residuals of a checkpoint to their ranks; further ranks begin with none. */
static int read_residuals(struct trainer *trainer, struct fleet_error *err)
{
    int world = trainer->generation.world, saved = 0;

    if (world > 1 && private_read(trainer, false, &saved, err) < 0)
        return err->code;
    if (trainer->generation.rank >= (saved > 0 ? saved : 1))
        clear_residuals(trainer);
    if (trainer->generation.rank != 0 || saved == world || trainer->progress.committed <= 0)
        return 0;
    if (saved > 0)
        trainer_note(trainer,
                     "dgc: the checkpoint has what %d workers had not sent yet, and there are %d: "
                     "that of %d is gone, %d start with empty residuals",
                     saved, world, saved > world ? saved - world : 0,
                     saved < world ? world - saved : 0);
    else
        trainer_note(trainer,
                     "dgc: the checkpoint has what one worker had not sent yet; the %d others "
                     "start with empty residuals",
                     world - 1);
    return 0;
}

static int settle_residuals(struct trainer *trainer, const struct changes *c, bool is_start,
                            struct fleet_error *err)
{
    if (is_dense(trainer, trainer->progress.committed))
        return 0; /* u is the velocity, the same on all ranks; v is zero */
    if (is_start)
        return read_residuals(trainer, err);
    if (c->is_own)
        clear_residuals(trainer);
    if (trainer->generation.rank == 0 && (c->lost > 0 || c->newcomers > 0))
        trainer_note(trainer,
                     "dgc: what %d lost workers had not sent yet is gone, %d new ones start with "
                     "empty residuals",
                     c->lost, c->newcomers);
    return 0;
}

int private_go_back(struct trainer *trainer, int64_t update, struct fleet_error *err)
{
    return trainer->job.message_words > 0 && !is_dense(trainer, update)
               ? read_residuals(trainer, err)
               : 0;
}

/* ---- both ------------------------------------------------------------------------------------ */

int private_join(struct trainer *trainer, const struct private_peer *peers, int holder,
                 struct fleet_error *err)
{
    struct changes c = count_changes(trainer, peers, holder);
    bool is_start = peers[holder].world == 0;

    if ((average_is_on(trainer) && settle_average(trainer, peers, holder, &c, err) < 0) ||
        (trainer->job.message_words > 0 && settle_residuals(trainer, &c, is_start, err) < 0))
        return err->code;
    trainer->generation.state_world = trainer->generation.world;
    return gradient_reserve(trainer, err);
}
