/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a member says of itself, in hello, ready and heartbeat alike; and how the hub corrects a
 * member that is in the wrong generation.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "libfleet/base/cause.h"
#include "libfleet/rendezvous/hub_internal.h"

void hub_status_running(struct hub *hub, struct hub_output *out)
{
    if (hub->phase != HUB_FORMING)
        return;
    hub->phase = HUB_RUNNING;
    hub->live = hub->newest;
    hub->is_dirty = true; /* newcomers may wait for the first step */
    for (size_t i = 0; i < hub->peer_count; i++)
        hub->peers[i]->failures = 0;
    hub_output_event(out, hub, HUB_EVENT_RUNNING, NULL);
}

static void note_restored(struct hub *hub, int64_t step)
{
    if (step >= 0) /* an own trainer need not say */
        hub->restart.restored_step = step;
    if (hub->restart.step < 0 && step > hub->progress_floor)
        hub->progress_floor = step;
}

/*
 * Training goes on from the agreed state. Without one it goes on from a known checkpoint, or from
 * an older one if that is damaged. At the job's start any checkpoint may be found.
 */
static bool is_right_step(const struct hub *hub, int64_t step)
{
    if (!hub->newest_text || hub->policy.own_trainer)
        return true; /* an earlier hub made it, or the trainer chose: no state was agreed */
    if (hub->restart.step >= 0)
        return step == hub->restart.step;
    return step <= hub->checkpoint_step ||
           hub->lineage.entries[hub->lineage.count - 1].first_step == 1;
}

static bool refuse_wrong_step(struct hub *hub, struct hub_peer *peer, struct hub_output *out)
{
    char reason[MESSAGE_REASON_MAX + 1];
    struct message refused = {.type = MESSAGE_REFUSED, .refused = {.reason = reason}};

    if (peer->status.phase != FLEET_PHASE_RESTORED || is_right_step(hub, peer->status.step))
        return false;
    hub_output_text(reason, "it restored step %" PRId64 ", agreed was step %" PRId64,
                    peer->status.step,
                    hub->restart.step >= 0 ? hub->restart.step : hub->checkpoint_step);
    hub_output_message(out, peer, &refused);
    hub_peer_lose(hub, peer, fleet_cause_word(FLEET_CAUSE_WRONG_STATE), reason, true, hub->now_ms,
                  out);
    return true;
}

/* A member of the newest generation has reached status.phase, `age_ms` ago. */
static void note_phases(struct hub *hub, struct hub_peer *peer, double age_ms,
                        struct hub_output *out)
{
    double at_ms = hub->now_ms - age_ms;

    for (unsigned phase = 0; phase <= peer->status.phase; phase++)
        if (isnan(peer->phase_ms[phase])) {
            peer->phase_ms[phase] = at_ms;
            hub->progress_ms = hub->now_ms;
        }
    hub_timeline_phase(hub);
    if (peer->status.phase == FLEET_PHASE_RESTORED)
        note_restored(hub, peer->status.step);
    if (peer->status.phase == FLEET_PHASE_FIRST_STEP) {
        hub_timeline_step(hub, at_ms);
        hub_status_running(hub, out);
    }
    hub_timeline_report(hub, false, out);
}

/*
 * An earlier hub ended the generation and gave the cause, or the member knows it from its trainer.
 */
static void note_former_cause(struct hub_cause *cause, const char *left_for)
{
    cause->cause = left_for;
    cause->peer = NULL; /* which member it was is no longer known */
    cause->is_explained = true;
    cause->is_failure = !fleet_cause_is_wanted(fleet_cause_find(left_for));
}

/* Its own trainers are well. A peer went, as it or Kubernetes said that it would, or the hub before
 * us knew more than that. */
static void explain(const struct hub *hub, const char *left_for, struct hub_cause *cause)
{
    enum fleet_cause former = fleet_cause_find(left_for);
    bool is_goodbye = former == FLEET_CAUSE_MEMBER_LEFT;

    if (former != FLEET_CAUSE_NONE && !is_goodbye)
        note_former_cause(cause, left_for);
    else if (hub_leave_find(hub))
        *cause = hub_leave_cause(hub, hub_leave_find(hub));
    else if (!hub_leave_explains(hub, 1, cause) && is_goodbye)
        note_former_cause(cause, left_for);
}

/* An earlier hub made a later generation, which this hub does not know yet. Its members will say
 * why it ended. */
static bool knows_later_one(const struct hub *hub, const struct hub_peer *peer)
{
    return fleet_cause_find(peer->left_for) == FLEET_CAUSE_SUPERSEDED &&
           hub->now_ms < hub->quiet_until_ms;
}

/* The member should be in the newest generation and is not: it lost trainers or a peer. */
static void note_departure(struct hub *hub, struct hub_peer *peer, struct hub_output *out)
{
    bool is_down = peer->status.state == MESSAGE_STATE_STARTING;
    struct hub_cause cause = {.cause = is_down ? fleet_cause_word(FLEET_CAUSE_MEMBER_LOST)
                                               : fleet_cause_word(FLEET_CAUSE_PEER_UNREACHABLE),
                              .peer = peer,
                              .is_failure = true,
                              .is_explained = is_down,
                              .exit_code = -1,
                              .fault_ms = hub->now_ms};

    if (!is_down && knows_later_one(hub, peer))
        return;
    if (!is_down)
        explain(hub, peer->left_for, &cause);
    if (hub_finish_is_decided(hub))
        hub_finish_try(hub, out);
    else
        hub_form_break(hub, &cause, out);
}

/* The member knows of a failure that this hub does not know, or has taken for a departure. */
static bool knows_failure(const struct hub *hub, const char *left_for)
{
    return left_for[0] && !fleet_cause_is_wanted(fleet_cause_find(left_for)) &&
           (hub->incident.is_open ? !hub->incident.is_failure : !hub->is_broken);
}

void hub_status_hear_refused(struct hub *hub, const struct message_hello *hello,
                             struct hub_output *out)
{
    struct hub_cause cause = {.exit_code = -1, .fault_ms = hub->now_ms};
    bool is_first = hello->left_for[0] && !hub->incident.is_open && !hub->is_broken &&
                    hub->phase == HUB_GATHERING;

    if (hello->place < 0 || hub_finish_is_decided(hub) ||
        fleet_generation_compare(hello->status.generation, hub->newest) != 0)
        return;
    if (hub->newest_members == 0)
        hub->newest_members = hello->members;
    if (hello->status.is_leaving &&
        (!hello->left_for[0] || fleet_cause_is_wanted(fleet_cause_find(hello->left_for)))) {
        hub_leave_hear_refused(hub, hello, out);
        if (!is_first)
            return;
    } else if (!(is_first || knows_failure(hub, hello->left_for)))
        return;
    note_former_cause(&cause, hello->left_for);
    hub_form_break(hub, &cause, out);
}

static bool is_due(const struct hub *hub, double sent_ms)
{
    return hub->now_ms - sent_ms >= hub_heartbeat_interval(hub);
}

/* A member in the wrong generation gets the right one, again if needed: (9). */
static void correct(struct hub *hub, struct hub_peer *peer, double age_ms, bool is_hello,
                    struct hub_output *out)
{
    bool is_current =
        peer->place >= 0 && fleet_generation_compare(peer->status.generation, hub->newest) == 0;
    bool is_whole = hub->phase == HUB_FORMING || hub->phase == HUB_RUNNING;
    bool is_running = peer->status.state == MESSAGE_STATE_RUNNING;
    bool has_left = is_current && !is_running && hub->phase == HUB_GATHERING;

    if (is_whole && is_current && is_running) {
        if (!refuse_wrong_step(hub, peer, out))
            note_phases(hub, peer, age_ms, out);
    } else if (has_left && is_hello && knows_failure(hub, peer->left_for))
        note_departure(hub, peer, out); /* even if asked to leave: a new hub may not know */
    else if (peer->is_dropped && !(is_whole && is_current))
        return; /* it goes anyway */
    else if (is_whole && is_current)
        note_departure(hub, peer, out);
    else if (is_whole && peer->place >= 0 && peer->status.state == MESSAGE_STATE_STARTING)
        note_departure(hub, peer, out);
    else if (is_whole && peer->place >= 0 && (is_hello || is_due(hub, peer->assign_sent_ms)))
        hub_assign_repeat(hub, peer, out);
    else if (has_left && !hub->is_broken)
        note_departure(hub, peer, out);
    else if ((peer->place >= 0 ? hub->is_broken && (is_running || !is_current) : is_running) &&
             (is_hello || is_due(hub, peer->abort_sent_ms)))
        hub_form_abort(hub, peer, out);
}

/*
 * The generation made a step if a member runs after its first step, or holds a state with a step of
 * it. The second matters for a new hub: the member may have left that generation before it came, or
 * one of its trainers may be down while another holds the state.
 */
static void note_live(struct hub *hub, const struct message_status *status)
{
    struct fleet_generation made = status->state_generation;

    if (status->state == MESSAGE_STATE_RUNNING && status->phase == FLEET_PHASE_FIRST_STEP &&
        fleet_generation_compare(status->generation, hub->live) > 0)
        hub->live = status->generation;
    if (fleet_generation_compare(made, hub->live) > 0 && !hub->policy.own_trainer &&
        fleet_lineage_made(&hub->lineage, made, status->step))
        hub->live = made;
}

void hub_status_take(struct hub *hub, struct hub_peer *peer, const struct message_status *status,
                     double age_ms, bool is_hello, struct hub_output *out)
{
    if (peer->status.state != status->state || is_hello) {
        hub->is_dirty = true;
        if (status->state == MESSAGE_STATE_WAITING)
            peer->ready_ms = hub->changed_ms = hub->now_ms;
        else if (status->state == MESSAGE_STATE_STARTING)
            peer->down_ms = hub->now_ms;
    }
    hub->is_dirty |= peer->is_behind; /* what the others hold may have changed */
    peer->status = *status;
    hub_leave_note(hub, peer, out);
    note_live(hub, status);
    correct(hub, peer, age_ms, is_hello, out);
}
