/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Assign a generation that was proposed, and recorded unless a majority made it. All members get
 * one text with places, key and reporter. Then the rest of the state follows: surplus members,
 * whether state was lost, whether the generation counts as a restart.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/hub_internal.h"
#include "libfleet/rendezvous/kv.h"

/* The generation's key is an HMAC under the hub's secret: unpredictable without a source of
 * randomness. */
static void derive_key(const struct hub *hub, uint8_t out[MESSAGE_SECRET_SIZE])
{
    char what[128];

    hub_output_text(what, "%s/%" PRId64 "/%" PRId64, hub->job_uid, hub->newest.epoch,
                    hub->newest.counter);
    fleet_hmac_sha256(hub->secret, sizeof(hub->secret), what, strlen(what), out);
}

/* The member with the most steps reports steps, because it has missed none. */
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
                                      .level = FLEET_ISA_AMX,
                                      .lineage = hub->lineage.entries,
                                      .lineage_count = hub->lineage.count,
                                      .step = hub->chosen_step,
                                      .reporter = choose_reporter(hub),
                                      .progress_step = hub->progress_step,
                                      .progress_interval_ms = hub->policy.progress_interval_ms,
                                      .restarts = hub->restarts_total,
                                      .checkpoint_path = ""};
    if (hub->policy.own_trainer) {
        assign->checkpoint_step = hub->checkpoint_step;
        assign->checkpoint_path = hub->resume_path;
    }
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

/*
 * Members of the last generation leave if the desired size is smaller now; others stay as spares.
 */
static void drop_surplus(struct hub *hub, struct hub_output *out)
{
    struct message leave = {.type = MESSAGE_LEAVE, .leave = {.reason = "scaled down"}};

    for (size_t i = 0; i < hub->peer_count; i++) {
        struct hub_peer *peer = hub->peers[i];
        bool is_chosen = false;
        for (size_t c = 0; c < hub->chosen_count && !is_chosen; c++)
            is_chosen = hub->chosen[c] == peer;
        if (is_chosen || peer->place < 0 || peer->index < hub->policy.desired ||
            !hub_form_is_candidate(hub, peer))
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
        for (size_t phase = 0; phase < FLEET_PHASE_COUNT; phase++)
            peer->phase_ms[phase] = NAN;
    }
}

/* A shard that the ranks, or the hub, have found to be lost; -1 = none. */
static int find_lost_shard(const struct hub *hub)
{
    int lost = hub->lost_shard;

    for (size_t i = 0; i < hub->chosen_count && lost < 0; i++)
        lost = hub->chosen[i]->status.part.lost - 1;
    return lost;
}

/* Some of the chosen members still hold a part of the state. */
static bool is_part_left(const struct hub *hub)
{
    for (size_t i = 0; i < hub->chosen_count; i++)
        if (hub_form_has_state(hub, hub->chosen[i]))
            return true;
    return false;
}

/* What is no longer there, "the state of step 7 is lost". */
static void describe_loss(const struct hub *hub, int64_t step, struct fleet_strbuf *out)
{
    int shard = find_lost_shard(hub);

    if (shard >= 0 && hub->lost_cell > 0)
        fleet_strbuf_appendf(out,
                             "shard %d of cell %d of the model of step %" PRId64
                             " is lost with the workers that held it",
                             shard, hub->lost_cell, step);
    else if (shard < 0 && hub->lost_cell >= 0 && is_part_left(hub))
        fleet_strbuf_appendf(
            out, "cell %d of the model of step %" PRId64 " is lost with the workers that held it",
            hub->lost_cell, step);
    else if (shard >= 0)
        fleet_strbuf_appendf(out,
                             "shard %d of the optimizer state of step %" PRId64
                             " is lost with the workers that held it",
                             shard, step);
    else
        fleet_strbuf_appendf(out, "no worker holds the state of step %" PRId64 " any more", step);
}

/* All members that held some reported steps are gone, or those that held one shard of it. So these
 * steps have to be made again. The hub always reports that. */
static void report_lost_state(struct hub *hub, struct hub_output *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct hub_event *event;
    bool is_held = false;
    int64_t from = hub->chosen_first_step - 1;

    for (size_t i = 0; i < hub->chosen_count && hub->lost_shard < 0; i++)
        is_held |= hub_cells_are_used(hub) ? hub->chosen[i]->holds
                                           : hub_form_has_state(hub, hub->chosen[i]);
    if (is_held || hub->policy.own_trainer ||
        (hub->progress_step <= from && (find_lost_shard(hub) < 0 || hub->lost_cell >= 0)))
        return;
    event = hub_output_event(out, hub, HUB_EVENT_STATE_LOST, NULL);
    hub_output_text(event->cause, "%s", fleet_cause_word(FLEET_CAUSE_STATE_LOST));
    event->lost_steps = hub->progress_step > from ? hub->progress_step - from : 0;
    describe_loss(hub, hub->progress_step, &text);
    if (hub->chosen_step >= 0)
        fleet_strbuf_appendf(&text,
                             ": training goes on from step %" PRId64
                             ", which one that was left behind still holds; ",
                             from);
    else if (hub->checkpoint_step > 0)
        fleet_strbuf_appendf(&text, ": training goes on from the checkpoint of step %" PRId64 "; ",
                             from);
    else
        fleet_strbuf_append(&text,
                            ", and there is no checkpoint: training begins again from the start; ");
    hub_output_text(event->message, "%s%" PRId64 " steps are computed again", text.text,
                    event->lost_steps);
}

/* (6) As it was recorded. */
static void count_restart(struct hub *hub)
{
    const struct hub_incident *incident = &hub->incident;
    bool is_restart = incident->is_open && hub_restart_counts(hub, incident);

    hub->restarts_ignored += incident->is_open && hub_restart_is_ignored(hub, incident);
    hub->restarts += is_restart;
    hub->restarts_total += is_restart;
    hub->incident.is_open = false;
}

void hub_assign_send(struct hub *hub, struct hub_output *out)
{
    struct hub_record record = {.generation = hub->proposed, .first_step = hub->chosen_first_step};
    struct hub_event *event;
    int world;

    report_lost_state(hub, out);
    drop_surplus(hub, out);
    hub->newest = hub->proposed;
    hub->newest_members = hub->newest_heard = (int)hub->chosen_count;
    hub->is_broken = false;
    hub->phase = HUB_FORMING;
    hub->lineage = hub_record_lineage(hub, &record);
    hub_finish_forget(hub);
    seat(hub);
    kv_begin(hub->kv, hub->newest);
    hub->accusation = (struct hub_pair){0};
    if (hub->checkpoint_due_step >= hub->chosen_first_step) { /* not on the lineage from here on */
        free(hub->checkpoint_path);
        hub->checkpoint_path = NULL;
    }
    hub_timeline_begin(hub);
    count_restart(hub);
    hub->has_trained = false;
    hub->begun_ms = hub->now_ms;
    hub->is_stalled = false;
    hub->wait = hub->wait_reported = (struct hub_wait){0}; /* the assignment says so */
    hub->progress_ms = hub->now_ms;

    message_text_release(hub->newest_text);
    hub->newest_text = describe(hub, &world);
    hub_leave_forget(hub);
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

void hub_assign_repeat(struct hub *hub, struct hub_peer *peer, struct hub_output *out)
{
    if (!hub->newest_text)
        return; /* made by an earlier hub, which reported it */
    hub_output_send(out, peer, hub->newest_text);
    peer->assign_sent_ms = hub->now_ms;
}
