/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/journal.h"

#include <math.h>

#include "libfleet/base/log.h"

/* A user looks for the step lines in the log of worker 0. If another worker is rank 0, name it. */
#define RANK_0_ELSEWHERE "Rank 0, whose log has the step lines, is another worker"

/* Keys that each line has from now on; before the first generation only the pod. */
static void set_context(const struct journal *journal, const struct member_action *action)
{
    fleet_log_set_context(
        (const struct fleet_log_pair[]){FLEET_STR("pod", journal->pod_name),
                                        FLEET_INT("rank", action->first_rank),
                                        FLEET_INT("generation", action->assign->generation.counter),
                                        {.key = NULL}});
}

static void log_assign(const struct member_action *action)
{
    const struct message_assign *assign = action->assign;
    int64_t first_step = assign->lineage_count > 0
                             ? assign->lineage[assign->lineage_count - 1].first_step
                             : assign->step + 1;

    fleet_log_info("Joined a generation",
                   FLEET_INT("ranks", assign->members[action->place].processes),
                   FLEET_INT("world", assign->world), FLEET_INT("firstStep", first_step),
                   FLEET_STR("state", assign->members[action->place].step >= 0 ? "kept"
                                      : assign->step >= 0                      ? "received"
                                                                               : "none"));
    if (assign->members[action->place].index == 0 && action->place != 0)
        fleet_log_info(RANK_0_ELSEWHERE, FLEET_INT("worker", assign->members[0].index));
}

void journal_order(struct journal *journal, const struct member_action *action, double now_ms)
{
    switch (action->type) {
    case MEMBER_ASSIGN:
        journal->assigned_ms = now_ms;
        set_context(journal, action);
        log_assign(action);
        break;
    case MEMBER_ABORT:
        fleet_log_info("Left the generation", FLEET_STR("cause", action->reason));
        break;
    case MEMBER_CHECKPOINT:
        fleet_log_info("Asked for a checkpoint");
        break;
    case MEMBER_LEAVE:
        fleet_log_info("Asked to leave", FLEET_STR("reason", action->reason));
        break;
    case MEMBER_DONE:
        fleet_log_info(action->succeeded ? "Job succeeded" : "Job ended",
                       FLEET_STR("reason", action->reason));
        break;
    case MEMBER_REFUSED:
        fleet_log_error("The hub refused this member", FLEET_STR("reason", action->reason));
        break;
    default:
        break;
    }
}

static void log_phase(const struct journal *journal, const struct link_message *m, double now_ms)
{
    if (m->ready.phase == FLEET_PHASE_RESTORED)
        fleet_log_info(
            "Ready to train", FLEET_INT("step", m->ready.step),
            FLEET_INT("afterMs", llround(fmax(m->ready.at_ms - journal->assigned_ms, 0))));
    else if (m->ready.phase == FLEET_PHASE_FIRST_STEP)
        fleet_log_info("Made the first step", FLEET_INT("step", m->ready.step),
                       FLEET_INT("afterMs", llround(fmax(now_ms - journal->assigned_ms, 0))));
}

void journal_message(struct journal *journal, int local_rank, const struct link_message *m,
                     double now_ms)
{
    switch (m->kind) {
    case LINK_READY:
        if (local_rank == 0)
            log_phase(journal, m, now_ms);
        break;
    case LINK_PEER_LOST:
        fleet_log_info("Lost a peer", FLEET_INT("peerRank", m->peer_lost.rank),
                       FLEET_STR("err", m->peer_lost.text));
        break;
    case LINK_CHECKPOINT_DONE:
        fleet_log_info("Saved a checkpoint", FLEET_INT("step", m->checkpoint_done.step),
                       FLEET_STR("path", m->checkpoint_done.path));
        break;
    case LINK_FINISHED:
        if (local_rank == 0)
            fleet_log_info("All steps are done", FLEET_INT("steps", m->finished.steps),
                           FLEET_STR("weightsSha256", m->finished.weights_sha256));
        break;
    default:
        break;
    }
}
