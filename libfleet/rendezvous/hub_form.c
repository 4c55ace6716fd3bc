/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Making generations: the members that are waited for, and when the hub goes on without them.
 * hub_choose.c takes members and orders them; hub_assign.c writes the assignment.
 *
 * The elastic policy, in the order in which it is asked:
 *
 *   a new hub                       waits until it has heard from all, or its quiet time is over
 *   own trainers that keep failing  waits for the back-off (hub_restart.c)
 *   a survivor has not left yet     waits for it, at most HUB_ABORT_MS_MAX
 *   no ready member has the state,  waits for a holder that is not known to be dead (hub_holder.c)
 *   or a shard of it
 *   desired members are ready       goes on
 *   fewer than min are ready        waits; after timeoutSeconds says that it is stalled
 *   own trainers, or as asked       wait waitForReplacementSeconds for a replacement, then go on
 *   some hold the job's state       waits rejoinGraceMs for trainers that a living agent starts
 *                                   again, then goes on
 *   no member has it, first time    waits timeoutSeconds for the desired number, then goes on
 *   no member has it, again         waits for all trainers that are being started, then goes on
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libfleet/base/cause.h"
#include "libfleet/rendezvous/hub_internal.h"

/* ---- ending a generation --------------------------------------------------------------------- */

/* The newest generation, if the next hub reads of it in the status; `own` otherwise. A member that
 * has done all steps of an earlier generation waits until the job ends or a later one is named. */
static struct fleet_generation ended_for(const struct hub *hub, struct fleet_generation own)
{
    bool is_outdated = fleet_generation_compare(own, hub->newest) < 0;

    return is_outdated && fleet_generation_is_none(hub->unrecorded) ? hub->newest : own;
}

void hub_form_abort(struct hub *hub, struct hub_peer *peer, struct hub_output *out)
{
    struct message message = {
        .type = MESSAGE_ABORT,
        .abort = {.generation =
                      peer->place >= 0 ? hub->newest : ended_for(hub, peer->status.generation),
                  .cause = hub->incident.is_open ? hub->incident.cause
                                                 : fleet_cause_word(FLEET_CAUSE_SUPERSEDED),
                  .member = hub->incident.is_open ? hub->incident.member : -1}};

    hub_output_message(out, peer, &message);
    peer->abort_sent_ms = hub->now_ms;
}

static void note_cause(struct hub_incident *incident, const struct hub_cause *cause)
{
    const struct hub_departure *gone = cause->departure;

    hub_output_text(incident->cause, "%s", cause->cause);
    incident->member = gone ? gone->index : cause->peer ? cause->peer->index : -1;
    incident->attempt = gone ? gone->attempt : cause->peer ? cause->peer->attempt : -1;
    incident->exit_code = cause->exit_code;
    incident->signal = cause->signal;
}

/*
 * The first cause of an incident stays, with two exceptions: the new cause explains an accusation
 * or comes after a mere resize; or it says how a trainer ended that was only known to be missing.
 */
static void update_incident(struct hub *hub, const struct hub_cause *cause)
{
    struct hub_incident *incident = &hub->incident;

    if (!incident->is_open) {
        *incident = (struct hub_incident){.is_open = true,
                                          .fault_ms = fmin(cause->fault_ms, hub->now_ms),
                                          .aborted_ms = hub->now_ms,
                                          .progress_step = hub->progress_step};
        note_cause(incident, cause);
    } else if (cause->is_failure && !incident->is_failure) {
        note_cause(incident, cause);
        incident->fault_ms = fmin(cause->fault_ms, incident->aborted_ms);
    } else if (cause->is_explained &&
               (!incident->is_explained || (cause->peer && cause->peer->index == incident->member &&
                                            incident->exit_code < 0))) {
        note_cause(incident, cause);
        incident->fault_ms = fmin(cause->fault_ms, incident->fault_ms);
    }
    incident->is_explained |= cause->is_explained;
}

static void gather(struct hub *hub)
{
    hub->phase = HUB_GATHERING;
    hub->gather_ms = hub->now_ms;
    free(hub->chosen);
    hub->chosen = NULL;
    hub->chosen_count = 0;
    hub->is_dirty = true;
}

void hub_form_give_up(struct hub *hub, const struct hub_peer *peer)
{
    for (size_t i = 0; hub->phase == HUB_RECORDING && i < hub->chosen_count; i++)
        if (hub->chosen[i] == peer)
            gather(hub);
}

/* Also to members that have left: they tell the next hub why, if this one is lost. */
static void abort_all(struct hub *hub, struct hub_output *out)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub->peers[i]->place >= 0)
            hub_form_abort(hub, hub->peers[i], out);
}

/* A survivor lost a peer, and no failure was seen. Now that peer says goodbye: it left, and a hub
 * that was new could not know it. */
static bool is_explained_away(const struct hub *hub, const struct hub_cause *cause)
{
    return hub->incident.is_open && !hub->incident.is_explained && cause->is_explained &&
           !cause->is_failure;
}

void hub_form_break(struct hub *hub, const struct hub_cause *cause, struct hub_output *out)
{
    bool was_failure = hub->incident.is_open && hub->incident.is_failure, is_news;
    bool stays_failure = was_failure && !is_explained_away(hub, cause);
    enum fleet_cause told =
        hub->is_broken ? fleet_cause_find(hub->incident.cause) : FLEET_CAUSE_NONE;

    if (hub_finish_is_over(hub) || hub_restart_ends_by_rule(hub, cause, out))
        return;
    update_incident(hub, cause);
    hub->incident.is_failure =
        stays_failure || cause->is_failure; /* counted with the next generation */
    if (cause->is_failure && !hub_restart_is_allowed(hub, cause, !was_failure, out))
        return;
    hub_finish_forget(hub);
    hub_timeline_report(hub, true, out); /* the generation ends before its first step */
    is_news = !hub->is_broken || fleet_cause_find(hub->incident.cause) != told;
    hub->is_broken = true;
    if (is_news)
        abort_all(hub, out);
    if (hub->phase != HUB_GATHERING)
        gather(hub);
    hub->is_dirty = true; /* hub_form_try() follows at the end of this call */
}

/* ---- may a generation be made now? ----------------------------------------------------------- */

bool hub_form_has_state(const struct hub *hub, const struct hub_peer *peer)
{
    const struct fleet_generation made = peer->status.state_generation;
    const struct fleet_lineage *lineage = &hub->lineage;
    bool is_recorded =
        lineage->count > 0 &&
        fleet_generation_compare(made, lineage->entries[lineage->count - 1].generation) <= 0;

    if (hub->policy.own_trainer)
        return false; /* it ends with its generation */
    if (is_recorded && !fleet_lineage_has(lineage, made, peer->status.step))
        return false; /* on a branch that was given up */
    return peer->status.step >= 0 && !fleet_generation_is_none(peer->status.state_generation) &&
           fleet_generation_compare(peer->status.state_generation, hub->live) >= 0;
}

bool hub_form_is_present(const struct hub_peer *peer)
{
    return peer->is_connected && !peer->is_dropped;
}

/*
 * The member waits for an assign, and no assign is on its way to it. A member of the newest
 * generation must have said that it left that one, not an earlier one.
 */
bool hub_form_is_candidate(const struct hub *hub, const struct hub_peer *peer)
{
    return hub_form_is_present(peer) && !peer->is_replaced && !peer->is_behind &&
           peer->status.state == MESSAGE_STATE_WAITING &&
           (peer->place < 0 || fleet_generation_compare(peer->status.generation, hub->newest) >= 0);
}

/* It was asked to leave the newest generation, and is still in it. */
static bool has_yet_to_leave(const struct hub *hub, const struct hub_peer *peer)
{
    return hub_form_is_present(peer) && peer->place >= 0 &&
           peer->status.state != MESSAGE_STATE_STARTING &&
           !(peer->is_replaced && peer->status.state == MESSAGE_STATE_WAITING) &&
           !hub_form_is_candidate(hub, peer);
}

struct tally {
    int candidates, with_state;
    int leaving;             /* members that are still in the newest generation */
    int starting, returning; /* trainers down: all, and those of the newest generation */
    double grace_end_ms;     /* until when the hub waits for `returning` */
};

static struct tally count_members(const struct hub *hub)
{
    struct tally tally = {.grace_end_ms = -INFINITY};

    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        if (!hub_form_is_present(peer))
            continue;
        tally.candidates += hub_form_is_candidate(hub, peer);
        tally.with_state += hub_form_is_candidate(hub, peer) && hub_form_has_state(hub, peer);
        tally.leaving += has_yet_to_leave(hub, peer);
        if (peer->status.state != MESSAGE_STATE_STARTING)
            continue;
        tally.starting++;
        if (peer->place >= 0) {
            tally.returning++;
            tally.grace_end_ms =
                fmax(tally.grace_end_ms, peer->down_ms + hub->policy.rejoin_grace_ms);
        }
    }
    if (!hub_cells_are_whole(hub))
        tally.with_state = 0;
    return tally;
}

/* True once `at_ms` has come; otherwise hub_tick() asks again at that time. */
static bool has_come(struct hub *hub, double at_ms)
{
    if (hub->now_ms >= at_ms)
        return true;
    hub_wake_at(hub, at_ms);
    return false;
}

static void report_stalled(struct hub *hub, const struct tally *tally, struct hub_output *out)
{
    struct hub_event *event;

    if (hub->is_stalled || !has_come(hub, hub->gather_ms + hub->policy.timeout_ms))
        return;
    hub->is_stalled = true;
    event = hub_output_stall(out, hub, HUB_EVENT_STALLED, HUB_STALL_TOO_FEW_MEMBERS);
    hub_output_text(
        event->message,
        "%d worker%s ready, at least %d are needed (%d have trainers that do not start)",
        tally->candidates, tally->candidates == 1 ? " is" : "s are", hub_cells_least(hub),
        tally->starting);
}

/* True once `at_ms` has come; otherwise this is the cause that the job waits for. */
static bool is_over(struct hub *hub, enum hub_wait_cause cause, double at_ms)
{
    if (has_come(hub, at_ms))
        return true;
    hub_wait_note(hub, cause, at_ms);
    return false;
}

/* Enough members are ready, but fewer than desired, and this is not the first generation: how long
 * to wait for the others. */
static bool may_go_on_with_fewer(struct hub *hub, const struct tally *tally)
{
    if (!is_over(hub, HUB_WAIT_REPLACEMENT, hub->gather_ms + hub->policy.replacement_ms))
        return false;
    if (tally->with_state > 0)
        return tally->returning == 0 || is_over(hub, HUB_WAIT_TRAINERS, tally->grace_end_ms);
    return tally->starting == 0 ||
           is_over(hub, HUB_WAIT_TRAINERS, hub->gather_ms + hub->policy.timeout_ms);
}

/* Until when survivors may take to leave the last generation. The agent of an own trainer ends it
 * when its grace is over. */
static double leaving_end(const struct hub *hub)
{
    return hub->policy.own_trainer ? INFINITY : hub->gather_ms + HUB_ABORT_MS_MAX;
}

static bool may_form(struct hub *hub, struct hub_output *out)
{
    struct tally tally = count_members(hub);

    hub->wait = (struct hub_wait){0};
    if (hub->now_ms < hub->quiet_until_ms &&
        (hub->newest_members == 0 || hub->newest_heard < hub->newest_members))
        return has_come(hub, hub->quiet_until_ms);
    if (!is_over(hub, HUB_WAIT_BACK_OFF, hub->restart_ms))
        return false;
    if (tally.leaving > 0 && !is_over(hub, HUB_WAIT_LEAVING, leaving_end(hub)))
        return false;
    if (tally.candidates >= hub_cells_least(hub) &&
        (tally.with_state == 0 || hub_holder_missing_shard(hub) >= 0) &&
        !fleet_generation_is_none(hub->newest) && hub_holder_is_awaited(hub, out))
        return false;
    if (tally.candidates >= hub_cells_seats(hub, hub->policy.desired) &&
        tally.candidates >= hub_cells_least(hub))
        return true;
    if (tally.candidates < hub_cells_least(hub)) {
        hub_wait_note(hub, HUB_WAIT_FEW, INFINITY);
        report_stalled(hub, &tally, out);
        return false;
    }
    if (fleet_generation_is_none(hub->newest))
        return is_over(hub, HUB_WAIT_START, hub->changed_ms + hub->policy.timeout_ms);
    return may_go_on_with_fewer(hub, &tally);
}

/* ---- proposing ------------------------------------------------------------------------------- */

/* How many members the newest generation has or had. A job may have been resized since. */
static int count_newest(const struct hub *hub)
{
    return hub->newest_members > 0     ? hub->newest_members
           : hub->recorded_members > 0 ? hub->recorded_members
                                       : hub->policy.desired;
}

/* A generation trained under an earlier hub, and none of its members has come to this one. */
static void lose_all(struct hub *hub, struct hub_output *out)
{
    struct hub_cause cause = {.cause = fleet_cause_word(FLEET_CAUSE_MEMBER_LOST),
                              .is_failure = true,
                              .is_explained = true,
                              .exit_code = -1,
                              .fault_ms = hub->now_ms};

    (void)hub_leave_explains(hub, count_newest(hub), &cause);
    if (hub->has_trained && !hub->incident.is_open)
        hub_form_break(hub, &cause, out);
}

/* The next generation begins without a member of the newest one that does not leave it, or whose
 * connection is broken. It has failed, even if another member has said goodbye meanwhile (seed
 * 117031820). */
static bool is_missing(const struct hub *hub, const struct hub_peer *peer)
{
    return peer->place >= 0 && !peer->is_dropped && !peer->is_departing && !peer->is_replaced &&
           (!peer->is_connected || has_yet_to_leave(hub, peer));
}

static void blame_missing(struct hub *hub, struct hub_output *out)
{
    struct hub_cause cause = {.cause = fleet_cause_word(FLEET_CAUSE_MEMBER_LOST),
                              .is_failure = true,
                              .is_explained = true,
                              .exit_code = -1,
                              .fault_ms = hub->now_ms};

    for (size_t i = 0; i < hub->peer_count && !cause.peer; i++)
        if (is_missing(hub, hub->peers[i]))
            cause.peer = hub->peers[i];
    if (cause.peer && hub->incident.is_open && !hub->incident.is_failure)
        hub_form_break(hub, &cause, out);
}

/* The pods that a scale-down removes leave after the others have gone on without them. */
static void propose(struct hub *hub, struct hub_output *out)
{
    lose_all(hub, out);
    hub_accuse_judge(hub, out);
    blame_missing(hub, out);
    if (hub->phase != HUB_GATHERING || !may_form(hub, out)) /* a member may have been evicted */
        return;
    if (!hub_restart_judge(hub, out))
        return;
    hub_choose(hub);
    if (hub->counter < hub->newest.counter)
        hub->counter = hub->newest.counter;
    hub->proposed = (struct fleet_generation){hub->epoch, ++hub->counter};
    hub->proposed_ms = hub->now_ms;
    hub->phase = HUB_RECORDING;
    hub->record_ms = INFINITY;
    hub_output_record(out, hub, hub->proposed, hub->chosen_first_step);
}

/* ---- resizing -------------------------------------------------------------------------------- */

/* A member with a broken connection may come back at once, or be lost; one whose replacement waits
 * is about to go, and may hold the only state. Until it is known, no resize ends the generation. */
static bool is_whole(const struct hub *hub)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub->peers[i]->place >= 0 &&
            (!hub->peers[i]->is_connected || hub->peers[i]->is_replaced))
            return false;
    return true;
}

/* Ready newcomers, or a smaller desired size, end a running generation and begin a new one. */
static void try_resize(struct hub *hub, struct hub_output *out)
{
    int room = hub_cells_seats(hub, hub->policy.desired) - hub->newest_members, ready = 0;
    /* Own trainers lose their state at a restart: one restart takes up all newcomers. */
    double settle_ms =
        hub->policy.own_trainer ? fmax(HUB_SETTLE_MS, hub->policy.replacement_ms) : HUB_SETTLE_MS;
    double last_ready_ms = -INFINITY;
    struct hub_cause cause = {.cause = fleet_cause_word(FLEET_CAUSE_RESIZE),
                              .is_explained = true,
                              .exit_code = -1,
                              .fault_ms = hub->now_ms};

    if (hub->is_finishing || hub->newest_members == 0 || hub->newest_heard < hub->newest_members ||
        !is_whole(hub))
        return;
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub_form_is_candidate(hub, hub->peers[i]) && hub->peers[i]->place < 0) {
            ready++;
            last_ready_ms = fmax(last_ready_ms, hub->peers[i]->ready_ms);
        }
    ready = hub_cells_seats(hub, hub->newest_members + ready) - hub->newest_members;
    if (room < 0 ||
        (room > 0 && ready > 0 && (ready >= room || has_come(hub, last_ready_ms + settle_ms))))
        hub_form_break(hub, &cause, out);
}

/* Has a chosen member changed, or has a member come since with a newer state than all of them? */
static bool is_outdated(const struct hub *hub)
{
    for (size_t i = 0; i < hub->chosen_count; i++)
        if (!hub_form_is_candidate(hub, hub->chosen[i]))
            return true;
    return hub_holder_has_come(hub);
}

/* The hub waits for a record, which may take long. Is the proposal still the best choice? */
static void watch_record(struct hub *hub, struct hub_output *out)
{
    if (is_outdated(hub)) {
        gather(hub);
        return;
    }
    if (has_come(hub, hub->record_ms)) {
        hub->record_ms = INFINITY;
        hub_output_record(out, hub, hub->proposed, hub->chosen_first_step);
    }
}

/* A generation was assigned before its record was written. Once a later record was asked for, which
 * includes it, an earlier one must not be written any more: it could come after the later one. The
 * next proposal asks again. */
static void ask_for_unrecorded(struct hub *hub, struct hub_output *out)
{
    if (fleet_generation_is_none(hub->unrecorded) || hub->phase == HUB_RECORDING ||
        fleet_generation_compare(hub->asked, hub->unrecorded) > 0 ||
        !has_come(hub, hub->unrecorded_ms))
        return;
    hub->unrecorded_ms = INFINITY;
    hub_output_record(out, hub, hub->unrecorded, hub->unrecorded_first_step);
}

void hub_form_try(struct hub *hub, struct hub_output *out)
{
    hub->is_dirty = false;
    hub_claim_again(hub, out);
    if (hub->phase == HUB_RUNNING)
        try_resize(hub, out);
    if (hub->phase == HUB_RECORDING)
        watch_record(hub, out);
    if (hub->phase == HUB_GATHERING && !hub->is_finishing && may_form(hub, out))
        propose(hub, out);
    if (hub->phase != HUB_GATHERING)
        hub->wait = (struct hub_wait){0};
    hub_wait_report(hub, out);
    ask_for_unrecorded(hub, out);
}
