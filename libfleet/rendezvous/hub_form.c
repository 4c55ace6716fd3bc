/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Making generations: who is waited for, who is taken, in which order, and what each is told.
 *
 * The elastic policy (design.md 7), in the order in which it is asked:
 *
 *   a new hub                       waits until it has heard of all, or its quiet time is over
 *   a survivor has not left yet     waits for it, at most HUB_ABORT_MS_MAX
 *   nobody ready holds the state    waits for one who does and is not known to be dead (hub_holder.c)
 *   desired members are ready       goes on
 *   fewer than min are ready        waits; after timeoutSeconds says that it is stalled
 *   some hold the job's state       waits rejoinGraceMs for trainers that are being started again by
 *                                   a living agent, then goes on
 *   nobody holds it, first time     waits timeoutSeconds for the desired number, then goes on
 *   nobody holds it, again          waits for all trainers that are being started, then goes on
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/rendezvous/hub_internal.h"
#include "libfleet/rendezvous/kv.h"
#include "libfleet/rendezvous/rank_assign.h"

/* ---- ending a generation ----------------------------------------------------------------------- */

void hub_form_abort(struct hub *hub, struct hub_peer *peer, struct hub_output *out)
{
    struct message message = {
        .type = MESSAGE_ABORT,
        .abort = {.generation = peer->place >= 0 ? hub->newest : peer->status.generation,
                  .cause = hub->incident.is_open ? hub->incident.cause : "Superseded",
                  .member = hub->incident.is_open ? hub->incident.member : -1}};

    hub_output_message(out, peer, &message);
    peer->abort_sent_ms = hub->now_ms;
}

static void note_cause(struct hub_incident *incident, const struct hub_cause *cause)
{
    hub_output_text(incident->cause, "%s", cause->cause);
    incident->member = cause->peer ? cause->peer->index : -1;
    incident->attempt = cause->peer ? cause->peer->attempt : -1;
    incident->exit_code = cause->exit_code;
    incident->signal = cause->signal;
}

/*
 * The first cause stays, unless the new one explains what so far was a resize or an accusation, or
 * knows how the trainer ended that was only seen to be missing.
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

void hub_form_break(struct hub *hub, const struct hub_cause *cause, struct hub_output *out)
{
    bool was_failure = hub->incident.is_open && hub->incident.is_failure;

    if (hub->phase == HUB_FINISHED || hub->phase == HUB_FAILED)
        return;
    update_incident(hub, cause);
    if (cause->is_failure && !was_failure) {
        if (hub->restarts >= hub->policy.restarts_max) {
            hub_finish_fail(hub, cause, out);
            return;
        }
        hub->incident.is_failure = true; /* counted with the generation that it leads to */
        hub->steps_since_restart = 0;
    }
    hub_timeline_tell(hub, true, out); /* of the generation that ends before its first step */
    if (!hub->is_broken) {
        hub->is_broken = true;
        for (size_t i = 0; i < hub->peer_count; i++)
            if (hub->peers[i]->place >= 0)
                hub_form_abort(hub, hub->peers[i], out);
    }
    if (hub->phase != HUB_GATHERING)
        gather(hub);
    hub->is_dirty = true; /* hub_form_try() follows when all of this call is known */
}

/* ---- may a generation be made now? ------------------------------------------------------------- */

bool hub_form_has_state(const struct hub *hub, const struct hub_peer *peer)
{
    const struct generation made = peer->status.state_generation;
    bool is_recorded =
        hub->lineage_count > 0 &&
        generation_compare(made, hub->lineage[hub->lineage_count - 1].generation) <= 0;

    if (is_recorded && !hub_lineage_has(hub, made, peer->status.step))
        return false; /* of a branch that was given up */
    return peer->status.step >= 0 && !generation_is_none(peer->status.state_generation) &&
           generation_compare(peer->status.state_generation, hub->live) >= 0;
}

bool hub_form_is_present(const struct hub_peer *peer)
{
    return peer->is_connected && !peer->is_dropped;
}

/*
 * It waits for an assign, and there is none on its way to it: a member of the newest generation has
 * to say that it has left that one, not the one before.
 */
static bool is_candidate(const struct hub *hub, const struct hub_peer *peer)
{
    return hub_form_is_present(peer) && peer->status.state == MESSAGE_STATE_WAITING &&
           (peer->place < 0 || generation_compare(peer->status.generation, hub->newest) >= 0);
}

struct tally {
    int candidates, with_state;
    int leaving;             /* members of the newest generation that are still in it */
    int starting, returning; /* trainers down: all, and those of the newest generation */
    double grace_end_ms;     /* until when the latter are waited for */
};

static struct tally count_members(const struct hub *hub)
{
    struct tally tally = {.grace_end_ms = -INFINITY};

    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        if (!hub_form_is_present(peer))
            continue;
        tally.candidates += is_candidate(hub, peer);
        tally.with_state += is_candidate(hub, peer) && hub_form_has_state(hub, peer);
        tally.leaving += peer->place >= 0 && peer->status.state != MESSAGE_STATE_STARTING &&
                         !is_candidate(hub, peer);
        if (peer->status.state != MESSAGE_STATE_STARTING)
            continue;
        tally.starting++;
        if (peer->place >= 0) {
            tally.returning++;
            tally.grace_end_ms =
                fmax(tally.grace_end_ms, peer->down_ms + hub->policy.rejoin_grace_ms);
        }
    }
    return tally;
}

/* True once `at_ms` has come; else hub_tick() will ask again then. */
static bool has_come(struct hub *hub, double at_ms)
{
    if (hub->now_ms >= at_ms)
        return true;
    hub_wake_at(hub, at_ms);
    return false;
}

static void tell_stalled(struct hub *hub, const struct tally *tally, struct hub_output *out)
{
    struct hub_event *event;

    if (hub->is_stalled || !has_come(hub, hub->gather_ms + hub->policy.timeout_ms))
        return;
    hub->is_stalled = true;
    event = hub_output_event(out, hub, HUB_EVENT_STALLED, NULL);
    hub_output_text(event->cause, "TooFewMembers");
    hub_output_text(event->message,
                    "%d members are ready, at least %d are needed (%d have trainers that do not "
                    "start)",
                    tally->candidates, hub->policy.min, tally->starting);
}

static bool may_form(struct hub *hub, struct hub_output *out)
{
    struct tally tally = count_members(hub);
    double timeout_ms = hub->policy.timeout_ms;

    if (hub->now_ms < hub->quiet_until_ms &&
        (hub->newest_members == 0 || hub->newest_heard < hub->newest_members))
        return has_come(hub, hub->quiet_until_ms);
    if (tally.leaving > 0 && !has_come(hub, hub->gather_ms + HUB_ABORT_MS_MAX))
        return false;
    if (tally.candidates >= hub->policy.min && tally.with_state == 0 &&
        !generation_is_none(hub->newest) && hub_holder_is_awaited(hub, out))
        return false;
    if (tally.candidates >= hub->policy.desired)
        return true;
    if (tally.candidates < hub->policy.min) {
        tell_stalled(hub, &tally, out);
        return false;
    }
    if (tally.with_state > 0)
        return tally.returning == 0 || has_come(hub, tally.grace_end_ms);
    if (generation_is_none(hub->newest))
        return has_come(hub, hub->changed_ms + timeout_ms);
    return tally.starting == 0 || has_come(hub, hub->gather_ms + timeout_ms);
}

/* ---- choosing ---------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    return (*(struct hub_peer *const *)a)->place - (*(struct hub_peer *const *)b)->place;
}

static int by_order(const void *a, const void *b)
{
    const struct hub_peer *x = *(struct hub_peer *const *)a, *y = *(struct hub_peer *const *)b;

    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return x->index - y->index;
}

static int by_index(const void *a, const void *b)
{
    return (*(struct hub_peer *const *)a)->index - (*(struct hub_peer *const *)b)->index;
}

/*
 * At most `desired` candidates into list[peer_count]: members of the newest generation (the lowest
 * indices, if they are too many) by place, then newcomers by arrival; in a first generation all in
 * the order that hub_order() has given, else by index.
 */
static size_t pick(const struct hub *hub, struct hub_peer **list)
{
    size_t placed = 0, count, desired = (size_t)hub->policy.desired;

    for (size_t i = 0; i < hub->peer_count; i++)
        if (is_candidate(hub, hub->peers[i]) && hub->peers[i]->place >= 0)
            list[placed++] = hub->peers[i];
    count = placed;
    for (size_t i = 0; i < hub->peer_count; i++)
        if (is_candidate(hub, hub->peers[i]) && hub->peers[i]->place < 0)
            list[count++] = hub->peers[i];

    if (placed == 0) {
        qsort(list, count, sizeof(*list), by_index);
        count = count < desired ? count : desired; /* the lowest indices, … */
        for (size_t i = 0; i < count; i++)
            list[i]->order = (uintptr_t)fleet_map_get(&hub->order, list[i]->pod_uid);
        qsort(list, count, sizeof(*list), by_order); /* … near ones beside each other */
        return count;
    }
    qsort(list, placed, sizeof(*list), by_index);
    placed = placed < desired ? placed : desired;
    qsort(list, placed, sizeof(*list), by_place);
    return count < desired ? count : desired;
}

/* Whose state counts: that of the newest generation that made a step, else the best there is. States
 * of two generations are never mixed. */
static void choose_state(struct hub *hub, struct hub_peer **list)
{
    const struct hub_peer *best;

    hub->chosen_step = -1;
    for (size_t i = 0; i < hub->chosen_count; i++) {
        list[i]->holds = hub_form_has_state(hub, list[i]);
        if (list[i]->holds && list[i]->status.step > hub->chosen_step)
            hub->chosen_step = list[i]->status.step;
    }
    best = hub->chosen_step < 0 ? hub_holder_best(hub, true) : NULL;
    for (size_t i = 0; best && i < hub->chosen_count; i++) {
        list[i]->holds = generation_compare(list[i]->status.state_generation,
                                            best->status.state_generation) == 0;
        if (list[i]->holds && list[i]->status.step > hub->chosen_step)
            hub->chosen_step = list[i]->status.step;
    }
}

static void choose(struct hub *hub)
{
    FLEET_AUTO_FREE struct hub_peer **list = calloc(hub->peer_count, sizeof(struct hub_peer *));
    FLEET_AUTO_FREE struct rank_member *ranks = calloc(hub->peer_count, sizeof(struct rank_member));
    int rc;

    hub->chosen = calloc(hub->peer_count, sizeof(struct hub_peer *));
    fleet_assert(list != NULL && ranks != NULL && hub->chosen != NULL);
    hub->chosen_count = pick(hub, list);
    for (size_t i = 0; i < hub->chosen_count; i++)
        ranks[i].last = list[i]->place >= 0 ? list[i]->place : RANK_NONE;
    choose_state(hub, list);
    rc = rank_assign(ranks, hub->chosen_count, NULL);
    fleet_assert(rc == 0); /* places of one generation differ */
    for (size_t i = 0; i < hub->chosen_count; i++)
        hub->chosen[ranks[i].rank] = list[i];
    hub->chosen_first_step = (hub->chosen_step >= 0 ? hub->chosen_step : hub->checkpoint_step) + 1;
}

/* A generation that trained under a hub before us, and no member of it has come. */
static void lose_all(struct hub *hub, struct hub_output *out)
{
    struct hub_cause cause = {.cause = "MemberLost",
                              .is_failure = true,
                              .is_explained = true,
                              .exit_code = -1,
                              .fault_ms = hub->now_ms};

    if (hub->has_trained && !hub->incident.is_open)
        hub_form_break(hub, &cause, out);
}

/* The pods of a scale-down leave after the others have gone on without them. */
static void propose(struct hub *hub, struct hub_output *out)
{
    lose_all(hub, out);
    hub_accuse_judge(hub, out);
    if (hub->phase != HUB_GATHERING || !may_form(hub, out)) /* somebody may have been evicted */
        return;
    choose(hub);
    if (hub->counter < hub->newest.counter)
        hub->counter = hub->newest.counter;
    hub->proposed = (struct generation){hub->epoch, ++hub->counter};
    hub->proposed_ms = hub->now_ms;
    hub->phase = HUB_RECORDING;
    hub->record_ms = INFINITY;
    hub_output_record(out, hub, hub->proposed, hub->chosen_first_step);
}

/* ---- resizing ---------------------------------------------------------------------------------- */

/* Newcomers that are ready join a running generation by a new one; so does a smaller wish. */
static void try_resize(struct hub *hub, struct hub_output *out)
{
    int room = hub->policy.desired - hub->newest_members, ready = 0;
    double last_ready_ms = -INFINITY;
    struct hub_cause cause = {
        .cause = "Resize", .is_explained = true, .exit_code = -1, .fault_ms = hub->now_ms};

    if (hub->is_finishing || hub->newest_members == 0 || hub->newest_heard < hub->newest_members)
        return;
    for (size_t i = 0; i < hub->peer_count; i++)
        if (is_candidate(hub, hub->peers[i]) && hub->peers[i]->place < 0) {
            ready++;
            last_ready_ms = fmax(last_ready_ms, hub->peers[i]->ready_ms);
        }
    if (room < 0 ||
        (room > 0 && ready > 0 && (ready >= room || has_come(hub, last_ready_ms + HUB_SETTLE_MS))))
        hub_form_break(hub, &cause, out);
}

/* One of the chosen has changed, or somebody has come since who holds what none of them does. */
static bool is_outdated(const struct hub *hub)
{
    for (size_t i = 0; i < hub->chosen_count; i++)
        if (!is_candidate(hub, hub->chosen[i]))
            return true;
    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        if (is_candidate(hub, peer) && peer->ready_ms > hub->proposed_ms &&
            hub_form_has_state(hub, peer) && peer->status.step > hub->chosen_step)
            return true;
    }
    return false;
}

/* A record is waited for, which may take long: is the proposal still the best there is? */
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

void hub_form_try(struct hub *hub, struct hub_output *out)
{
    hub->is_dirty = false;
    if (hub->phase == HUB_RUNNING)
        try_resize(hub, out);
    if (hub->phase == HUB_RECORDING)
        watch_record(hub, out);
    if (hub->phase == HUB_GATHERING && !hub->is_finishing && may_form(hub, out))
        propose(hub, out);
    if (!generation_is_none(hub->unrecorded) && hub->phase != HUB_RECORDING &&
        has_come(hub, hub->unrecorded_ms)) {
        hub->unrecorded_ms = INFINITY;
        hub_output_record(out, hub, hub->unrecorded, hub->unrecorded_first_step);
    }
}

/* ---- assigning --------------------------------------------------------------------------------- */

/* HMAC of the generation under the hub's secret: unpredictable, and needs no source of randomness. */
static void derive_key(const struct hub *hub, uint8_t out[MESSAGE_SECRET_SIZE])
{
    char what[128];

    hub_output_text(what, "%s/%" PRId64 "/%" PRId64, hub->job_uid, hub->newest.epoch,
                    hub->newest.counter);
    fleet_hmac_sha256(hub->secret, sizeof(hub->secret), what, strlen(what), out);
}

/* Step reports come from the member that has seen most: it missed none. */
static int choose_reporter(const struct hub *hub)
{
    for (size_t i = 0; i < hub->chosen_count; i++)
        if (hub->chosen_step >= 0 && hub->chosen[i]->holds &&
            hub->chosen[i]->status.step == hub->chosen_step)
            return (int)i;
    return 0;
}

static struct message_text *describe(const struct hub *hub, int *out_world)
{
    FLEET_AUTO_FREE struct message_member *members =
        calloc(hub->chosen_count, sizeof(struct message_member));
    struct message message = {.type = MESSAGE_ASSIGN};
    struct message_assign *assign = &message.assign;

    fleet_assert(members != NULL);
    *assign = (struct message_assign){.generation = hub->newest,
                                      .members = members,
                                      .member_count = hub->chosen_count,
                                      .plan_digest = hub->plan_digest,
                                      .level = MESSAGE_LEVEL_AMX,
                                      .lineage = hub->lineage,
                                      .lineage_count = hub->lineage_count,
                                      .step = hub->chosen_step,
                                      .reporter = choose_reporter(hub),
                                      .progress_step = hub->progress_step,
                                      .progress_interval_ms = hub->policy.progress_interval_ms,
                                      .restarts = hub->restarts_total};
    derive_key(hub, assign->key);
    for (size_t i = 0; i < hub->chosen_count; i++) {
        const struct hub_peer *peer = hub->chosen[i];
        members[i] = (struct message_member){.pod_uid = peer->pod_uid,
                                             .index = peer->index,
                                             .address = peer->address,
                                             .ports = peer->ports,
                                             .processes = peer->processes,
                                             .step = peer->holds ? peer->status.step : -1};
        assign->world += peer->processes;
        if (peer->level < assign->level)
            assign->level = peer->level;
    }
    *out_world = assign->world;
    return message_encode(&message);
}

/* Members of the last generation that a smaller wish leaves out may go; others stay as spares. */
static void drop_surplus(struct hub *hub, struct hub_output *out)
{
    struct message leave = {.type = MESSAGE_LEAVE, .leave = {.reason = "scaled down"}};

    for (size_t i = 0; i < hub->peer_count; i++) {
        struct hub_peer *peer = hub->peers[i];
        bool is_chosen = false;
        for (size_t c = 0; c < hub->chosen_count && !is_chosen; c++)
            is_chosen = hub->chosen[c] == peer;
        if (is_chosen || peer->place < 0 || !is_candidate(hub, peer))
            continue;
        peer->is_dropped = true;
        hub_output_message(out, peer, &leave);
    }
}

static void seat(struct hub *hub)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        hub->peers[i]->place = -1;
    for (size_t i = 0; i < hub->chosen_count; i++) {
        struct hub_peer *peer = hub->chosen[i];
        peer->place = (int)i;
        peer->assign_sent_ms = hub->now_ms;
        peer->is_finished = false;
        peer->left_for[0] = '\0';
        for (size_t phase = 0; phase < 4; phase++)
            peer->phase_ms[phase] = NAN;
    }
}

/* Steps that everybody was told of have to be made again because all who had them are gone: that is
 * never to happen quietly. */
static void tell_lost_state(struct hub *hub, struct hub_output *out)
{
    struct hub_event *event;
    bool is_held = false;
    int64_t from = hub->chosen_first_step - 1;

    for (size_t i = 0; i < hub->chosen_count; i++)
        is_held |= hub_form_has_state(hub, hub->chosen[i]);
    if (is_held || hub->progress_step <= from)
        return;
    event = hub_output_event(out, hub, HUB_EVENT_STATE_LOST, NULL);
    hub_output_text(event->cause, "StateLost");
    event->lost_steps = hub->progress_step - from;
    if (hub->chosen_step >= 0)
        hub_output_text(event->message,
                        "no worker holds the state of step %" PRId64
                        " any more: training goes on from step %" PRId64
                        ", which one that was left behind still holds; %" PRId64
                        " steps are computed again",
                        hub->progress_step, from, event->lost_steps);
    else if (hub->checkpoint_step > 0)
        hub_output_text(event->message,
                        "no worker holds the state of step %" PRId64
                        " any more: training goes on from the checkpoint of step %" PRId64
                        "; %" PRId64 " steps are computed again",
                        hub->progress_step, from, event->lost_steps);
    else
        hub_output_text(event->message,
                        "no worker holds the state of step %" PRId64
                        " any more, and there is no checkpoint: training begins again from the "
                        "start; %" PRId64 " steps are computed again",
                        hub->progress_step, event->lost_steps);
}

/* (6) As it was recorded. */
static void count_restart(struct hub *hub)
{
    bool is_restart = hub->incident.is_open && hub->incident.is_failure;

    hub->incident.is_open = false;
    hub->restarts += is_restart;
    hub->restarts_total += is_restart;
}

void hub_form_assign(struct hub *hub, struct hub_output *out)
{
    struct hub_record record = {.generation = hub->proposed, .first_step = hub->chosen_first_step};
    struct message_lineage lineage[MESSAGE_LINEAGE_MAX];
    struct hub_event *event;
    int world;

    tell_lost_state(hub, out);
    drop_surplus(hub, out);
    hub->newest = hub->proposed;
    hub->newest_members = hub->newest_heard = (int)hub->chosen_count;
    hub->is_broken = false;
    hub->phase = HUB_FORMING;
    hub->lineage_count = hub_record_lineage(hub, &record, lineage);
    memcpy(hub->lineage, lineage, hub->lineage_count * sizeof(lineage[0]));
    seat(hub);
    kv_begin(hub->kv, hub->newest);
    hub->accusation = (struct hub_pair){0};
    if (hub->checkpoint_due_step >= hub->chosen_first_step) { /* not on the lineage from here */
        free(hub->checkpoint_path);
        hub->checkpoint_path = NULL;
    }
    hub_timeline_begin(hub);
    count_restart(hub);
    hub->has_trained = false;
    hub->is_stalled = false;
    hub->progress_ms = hub->now_ms;

    message_text_release(hub->newest_text);
    hub->newest_text = describe(hub, &world);
    for (size_t i = 0; i < hub->chosen_count; i++)
        hub_output_send(out, hub->chosen[i], hub->newest_text);
    event = hub_output_event(out, hub, HUB_EVENT_ASSIGNED, NULL);
    event->world = world;
    event->step.step = hub->chosen_first_step;
    free(hub->chosen);
    hub->chosen = NULL;
    hub->chosen_count = 0;
    hub_wake_at(hub, hub->now_ms + hub->policy.timeout_ms);
}

void hub_form_resend_assign(struct hub *hub, struct hub_peer *peer, struct hub_output *out)
{
    if (!hub->newest_text)
        return; /* made by the hub before us, which told it */
    hub_output_send(out, peer, hub->newest_text);
    peer->assign_sent_ms = hub->now_ms;
}
