/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The machine as a whole, and what comes in from outside: connections, time, orders of the owner.
 * hub_hello.c, hub_status.c and hub_message.c take what members say, hub_form.c makes generations,
 * hub_finish.c ends the job.
 *
 *               enough members                     recorded
 *  GATHERING ──────────────────▶ RECORDING ────────────────────▶ FORMING ── first step ──▶ RUNNING
 *    ▲   ▲                           │                              │                        │  │
 *    │   └──── one of them is gone ──┘                              │                        │  │
 *    └─────────────────── member lost or left, resize ──────────────┴────────────────────────┘  │
 *                                                                                               │
 *    FAILED ◀── restarts used up, fatal cause (from any)           FINISHED ◀── all steps done ─┘
 *
 *  GATHERING -> RECORDING  propose()            members chosen and ranked, record asked for
 *  RECORDING -> FORMING    hub_assign_send()    hub_record_done(), or a majority without it
 *  RECORDING -> GATHERING  hub_form_try()       one of the chosen is not ready any more, or one
 *                                               has come that holds more
 *  FORMING   -> RUNNING    hub_status_take()    a member has committed a step
 *  *         -> GATHERING  hub_form_break()     the first cause is kept; members get `abort`
 *  GATHERING -> RUNNING    adopt()              a new hub learns of a generation that runs
 *  *         -> FAILED     hub_finish_fail(), hub_end()
 *  *         -> FINISHED   hub_finish_try(), hub_end()
 *
 *  (1) Generations only grow; `newest` is the greatest pair that any member may know.
 *  (2) No member is assigned to a generation before its record is confirmed, except for a strict
 *  majority
 *      of the newest generation while the record cannot be written.
 *  (3) A generation is assigned only when each of its members has left all earlier ones, so no two
 *      generations share a member that takes part in both.
 *  (4) A new hub declares no member lost in its first 10 s + 1 ms a member, unless the owner
 *  reports that the pod is gone. It changes nothing in a generation that runs whole; nor while one
 *  makes steps, which need the votes of all its members, whether they have come or not. A member
 *  that it has never heard from, and that no other member misses, has 20 s, or as long as the owner
 *  says (hub_start.unheard_ms).
 *  (5) The places of the newest generation are held at most once; a survivor keeps its place, and
 *      with it its rank, unless it no longer exists.
 *  (6) An incident counts once against maxRestarts, however many causes it has until the next
 *      generation is assigned, and however many hubs see it: the count is recorded in one write
 *      with the generation that the incident leads to. A member that knows why its generation
 *      ended reports it to the next hub.
 *  (7) Each step is reported once, ascending.
 *  (8) What a member says about a generation that is not the newest changes nothing but its own
 *      entry; a repeated or overtaken message changes nothing at all.
 *  (9) Every status message carries the member's whole state, and the hub answers what does not fit
 *      by repeating itself: a lost message costs a heartbeat, never the job.
 */
#include "libfleet/rendezvous/hub.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/error.h"
#include "libfleet/rendezvous/hub_internal.h"
#include "libfleet/rendezvous/kv.h"

/* ---- life cycle ------------------------------------------------------------------------------ */

static void check_policy(const struct hub_policy *policy)
{
    fleet_assert(1 <= policy->min && policy->min <= policy->desired &&
                 policy->desired <= policy->max && policy->max <= MESSAGE_MEMBERS_MAX);
}

static int count_from(int restarts)
{
    return restarts < HUB_RESTARTS_MAX ? restarts : HUB_RESTARTS_MAX;
}

void hub_machine_init(struct hub *hub, const struct hub_start *start,
                      const struct hub_policy *policy, double now_ms)
{
    check_policy(policy);
    *hub =
        (struct hub){.policy = *policy,
                     .begun_ms = now_ms,
                     .restart_ms = -INFINITY,
                     .failures = start->failures,
                     .failed_step = start->progress_step,
                     .restarts_ignored = count_from(start->restarts_ignored),
                     .epoch = start->epoch > 0 ? start->epoch : 1,
                     .now_ms = now_ms,
                     .wake_ms = now_ms,
                     .newest = start->recorded,
                     .counter = start->counter > start->recorded.counter ? start->counter
                                                                         : start->recorded.counter,
                     .unheard_ms = fmax(start->unheard_ms, HUB_UNHEARD_MS),
                     .quiet_until_ms = -INFINITY,
                     .record_ms = INFINITY,
                     .unrecorded_ms = INFINITY,
                     .progress_gap_ms = INFINITY,
                     .has_trained = start->has_trained,
                     .recorded_members = start->recorded_members,
                     .restarts = count_from(start->restarts),
                     .restarts_total = count_from(start->restarts_total),
                     .gather_ms = now_ms,
                     .changed_ms = now_ms,
                     .heartbeat_ms = now_ms,
                     .progress_ms = now_ms,
                     .progress_step = start->progress_step,
                     .checkpoint_step = start->checkpoint_step,
                     .lineage = start->lineage,
                     .kv = kv_new()};
    hub->written_failures = hub->restarts_total + hub->restarts_ignored;
    failure_rules_copy(&policy->rules, &hub->policy.rules);
    hub_output_text(hub->job_uid, "%s", start->job_uid);
    hub->plan_digest = strdup(start->plan_digest ? start->plan_digest : "");
    hub->resume_path = strdup(start->checkpoint_path ? start->checkpoint_path : "");
    fleet_assert(hub->plan_digest != NULL && hub->resume_path != NULL);
    memcpy(hub->secret, start->secret, sizeof(hub->secret));
    if (fleet_generation_is_none(start->recorded) || start->is_alone) {
        hub->is_broken = true; /* nothing to preserve */
    } else {
        hub->quiet_until_ms = now_ms + HUB_QUIET_MS + policy->desired * HUB_QUIET_MEMBER_MS;
        hub_wake_at(hub, hub->quiet_until_ms);
    }
}

void hub_machine_free(struct hub *hub)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        free(hub->peers[i]);
    free(hub->peers);
    fleet_map_release(&hub->by_uid);
    fleet_map_release(&hub->by_connection);
    message_text_release(hub->newest_text);
    free(hub->chosen);
    free(hub->pairs);
    fleet_map_release(&hub->order);
    free(hub->absent);
    hub_leave_forget(hub);
    hub_places_clear(&hub->finished_gone);
    hub_places_clear(&hub->heard_places);
    kv_free(hub->kv);
    free(hub->plan_digest);
    free(hub->checkpoint_path);
    free(hub->resume_path);
    failure_rules_release(&hub->policy.rules);
    free(hub);
}

/* ---- time ------------------------------------------------------------------------------------ */

void hub_wake_at(struct hub *hub, double at_ms)
{
    hub->wake_ms = fmin(hub->wake_ms, at_ms);
}

double hub_heartbeat_interval(const struct hub *hub)
{
    double members = (double)hub->peer_count / HUB_HEARTBEAT_MEMBERS;

    return HUB_HEARTBEAT_MS * (members > 1 ? members : 1);
}

double hub_silence_max(const struct hub *hub)
{
    return HUB_HEARTBEATS_MISSED * hub_heartbeat_interval(hub);
}

/*
 * Every call begins here. If this process was stopped for a while, the members are not to blame for
 * the silence: the times when they were last heard move on by that while.
 */
static void enter(struct hub *hub, double now_ms)
{
    double late_ms = now_ms - hub->wake_ms;

    fleet_assert(now_ms >= hub->now_ms);
    hub->now_ms = now_ms;
    if (late_ms <= hub_heartbeat_interval(hub))
        return;
    for (size_t i = 0; i < hub->peer_count; i++) {
        hub->peers[i]->heard_ms = fmax(hub->peers[i]->heard_ms, now_ms - HUB_HEARTBEAT_MS);
        hub->peers[i]->disconnected_ms += late_ms;
    }
}

/* Every call ends here: the changes of this call may end, begin or finish a generation. */
static void leave(struct hub *hub, struct hub_output *out)
{
    if (hub->is_finishing && !hub->is_superseded)
        hub_finish_try(hub, out);
    while (hub->is_dirty && !hub_finish_is_over(hub) && !hub->is_superseded)
        hub_form_try(hub, out);
}

/* ---- what comes in --------------------------------------------------------------------- */

void hub_machine_connected(struct hub *hub, uint64_t connection, double now_ms,
                           struct hub_output *out)
{
    (void)connection; /* nothing is known of it before its hello */
    enter(hub, now_ms);
    leave(hub, out);
}

void hub_machine_receive(struct hub *hub, uint64_t connection, const struct message *message,
                         double now_ms, struct hub_output *out)
{
    struct hub_peer *peer;

    enter(hub, now_ms);
    if (hub->is_superseded)
        return;
    peer = hub_peer_of(hub, connection);
    if (peer && message->sequence > 0) {
        if (message->sequence <= peer->sequence)
            return; /* (8) */
        peer->sequence = message->sequence;
    }
    if (peer)
        peer->heard_ms = now_ms;
    if (message->type == MESSAGE_HELLO)
        hub_hello_receive(hub, connection, message, out);
    else if (!peer && !hub_finish_is_over(hub))
        hub_output_close(out, connection, true, "the first message must be hello");
    else if (peer && hub_finish_is_over(hub))
        hub_finish_take_late(hub, peer, message, out);
    else if (peer)
        hub_message_take(hub, peer, message, out);
    leave(hub, out);
}

/*
 * How long a member may be without a connection. If most members have none, the hub was probably
 * out of reach, so the time is longer.
 */
static double disconnected_max(const struct hub *hub)
{
    int gone = 0;

    for (size_t i = 0; i < hub->peer_count; i++)
        gone += hub->peers[i]->place >= 0 && !hub->peers[i]->is_connected;
    if (2 * gone > hub->newest_members)
        return fmax(hub->policy.rejoin_grace_ms, hub_silence_max(hub));
    return hub->policy.rejoin_grace_ms;
}

void hub_machine_disconnected(struct hub *hub, uint64_t connection, double now_ms,
                              struct hub_output *out)
{
    struct hub_peer *peer = hub_peer_of(hub, connection);

    enter(hub, now_ms);
    if (peer) {
        hub_peer_unbind(hub, peer);
        hub_wake_at(hub, now_ms + hub->policy.rejoin_grace_ms);
        hub_finish_try(hub, out);
    }
    leave(hub, out);
}

bool hub_machine_has_policy(const struct hub *hub, const struct hub_policy *policy)
{
    const struct hub_policy *own = &hub->policy;

    return own->min == policy->min && own->max == policy->max && own->desired == policy->desired &&
           own->rejoin_grace_ms == policy->rejoin_grace_ms &&
           own->timeout_ms == policy->timeout_ms && own->replacement_ms == policy->replacement_ms &&
           own->restarts_max == policy->restarts_max &&
           own->reset_after_steps == policy->reset_after_steps &&
           own->progress_interval_ms == policy->progress_interval_ms &&
           own->own_trainer == policy->own_trainer &&
           own->ranks_of_member == policy->ranks_of_member &&
           topology_equal(&own->grid, &policy->grid) &&
           failure_rules_equal(&own->rules, &policy->rules);
}

void hub_machine_configure(struct hub *hub, const struct hub_policy *policy, double now_ms,
                           struct hub_output *out)
{
    struct failure_rules rules;

    enter(hub, now_ms);
    check_policy(policy);
    failure_rules_copy(&policy->rules, &rules);
    failure_rules_release(&hub->policy.rules);
    hub->policy = *policy;
    hub->policy.rules = rules;
    hub->is_dirty = true;
    leave(hub, out);
}

void hub_machine_record_done(struct hub *hub, struct fleet_generation generation, double now_ms,
                             struct hub_output *out)
{
    enter(hub, now_ms);
    if (hub->is_superseded || hub_finish_is_over(hub))
        return;
    if (fleet_generation_compare(generation, hub->unrecorded) >= 0)
        hub->unrecorded = (struct fleet_generation){0}; /* a later record includes it */
    if (fleet_generation_compare(generation, hub->asked) == 0)
        hub->written_failures = hub->asked_failures;
    if (hub->phase == HUB_RECORDING && fleet_generation_compare(generation, hub->proposed) == 0)
        hub_assign_send(hub, out);
    leave(hub, out);
}

void hub_machine_record_failed(struct hub *hub, struct fleet_generation generation, double now_ms,
                               struct hub_output *out)
{
    int survivors = 0;

    enter(hub, now_ms);
    if (hub->is_superseded || hub_finish_is_over(hub))
        return;
    if (fleet_generation_compare(generation, hub->unrecorded) == 0)
        hub->unrecorded_ms = now_ms + HUB_RECORD_RETRY_MS;
    if (hub->phase == HUB_RECORDING && fleet_generation_compare(generation, hub->proposed) == 0) {
        for (size_t i = 0; i < hub->chosen_count; i++)
            survivors += hub->chosen[i]->place >= 0;
        hub->record_ms = now_ms + HUB_RECORD_RETRY_MS;
        if (2 * survivors > hub->newest_members && hub->newest_members > 0) { /* (2) */
            hub->unrecorded = hub->proposed;
            hub->unrecorded_first_step = hub->chosen_first_step;
            hub->unrecorded_ms = now_ms + HUB_RECORD_RETRY_MS;
            hub_assign_send(hub, out);
        }
    }
    hub->is_dirty = true;
    leave(hub, out);
}

void hub_machine_member_gone(struct hub *hub, const char *pod_uid, enum fleet_cause cause,
                             double now_ms, struct hub_output *out)
{
    struct hub_peer *peer = fleet_map_get(&hub->by_uid, pod_uid);

    enter(hub, now_ms);
    hub_holder_forget(hub, pod_uid);
    if (peer && hub_finish_is_over(hub))
        hub_peer_remove(hub, peer, "its pod is gone", out);
    else if (peer && !hub->is_superseded)
        hub_peer_lose(hub, peer, fleet_cause_word(cause), "its pod is gone", true, now_ms, out);
    leave(hub, out);
}

void hub_machine_order(struct hub *hub, const char *const *pod_uids, size_t count)
{
    fleet_map_release(&hub->order);
    for (size_t i = 0; i < count; i++)
        fleet_map_set(&hub->order, pod_uids[i], (void *)(uintptr_t)(i + 1));
}

void hub_machine_checkpoint(struct hub *hub, double now_ms, struct hub_output *out)
{
    struct message message = {.type = MESSAGE_CHECKPOINT,
                              .checkpoint = {.generation = hub->newest}};

    enter(hub, now_ms);
    for (size_t i = 0; hub->phase == HUB_RUNNING && i < hub->peer_count; i++)
        if (hub->peers[i]->place >= 0)
            hub_output_message(out, hub->peers[i], &message);
    leave(hub, out);
}

void hub_machine_end(struct hub *hub, bool succeeded, const char *reason, double now_ms,
                     struct hub_output *out)
{
    enter(hub, now_ms);
    hub->is_superseded =
        false; /* no generation follows: every member may hear that the job is over */
    if (!hub_finish_is_over(hub))
        hub_finish_end(hub, succeeded, reason, out);
}

/* ---- time passes ----------------------------------------------------------------------------- */

double hub_machine_deadline(const struct hub *hub)
{
    if (hub->is_superseded)
        return INFINITY;
    if (!hub_finish_is_over(hub))
        return hub->wake_ms;
    return hub->peer_count > 0 ? hub->heartbeat_ms : INFINITY; /* members that still save */
}

static void send_heartbeats(struct hub *hub, struct hub_output *out)
{
    if (hub->now_ms >= hub->heartbeat_ms) {
        struct message message = hub_hello_greeting(hub);
        struct message_text *text = message_encode(&message);
        hub->heartbeat_ms = hub->now_ms + hub_heartbeat_interval(hub);
        for (size_t i = 0; i < hub->peer_count; i++)
            hub_output_send(out, hub->peers[i], text);
        message_text_release(text);
    }
    hub_wake_at(hub, hub->heartbeat_ms);
}

/* The first member that is overdue, and the cause as a text; NULL if there is none. */
static struct hub_peer *find_overdue(struct hub *hub, char reason[MESSAGE_REASON_MAX + 1])
{
    double silence_ms = hub_silence_max(hub), gone_ms = disconnected_max(hub);

    for (size_t i = 0; i < hub->peer_count; i++) {
        struct hub_peer *peer = hub->peers[i];
        double since_ms = peer->is_connected ? peer->heard_ms : peer->disconnected_ms;
        double due_ms = since_ms + (peer->is_connected ? silence_ms : gone_ms);
        if (hub->now_ms >= due_ms) {
            (void)snprintf(reason, MESSAGE_REASON_MAX + 1, "%s for %.1f s",
                           peer->is_connected ? "silent" : "without a connection",
                           (hub->now_ms - since_ms) / 1000);
            return peer;
        }
        hub_wake_at(hub, due_ms);
    }
    return NULL;
}

static void lose_overdue(struct hub *hub, struct hub_output *out)
{
    char reason[MESSAGE_REASON_MAX + 1];
    struct hub_peer *peer;

    if (hub->now_ms < hub->quiet_until_ms) { /* (4) */
        hub_wake_at(hub, hub->quiet_until_ms);
        return;
    }
    while (!hub_finish_is_over(hub) && (peer = find_overdue(hub, reason)) != NULL) {
        hub_holder_miss(hub, peer);
        hub_peer_lose(hub, peer, fleet_cause_word(FLEET_CAUSE_MEMBER_LOST), reason, true,
                      peer->is_connected ? peer->heard_ms : peer->disconnected_ms, out);
    }
}

/* A new hub gives up members that it has never heard from after `unheard_ms` without a step,
 * although their pods exist and no other member misses them. */
static void lose_unheard(struct hub *hub, struct hub_output *out)
{
    double due_ms = fmax(hub->quiet_until_ms, hub->progress_ms + hub->unheard_ms); /* (4) */
    struct hub_cause cause = {.cause = fleet_cause_word(FLEET_CAUSE_MEMBER_LOST),
                              .is_failure = true,
                              .is_explained = true,
                              .exit_code = -1,
                              .fault_ms = hub->now_ms};

    if ((hub->phase != HUB_FORMING && hub->phase != HUB_RUNNING) || hub_finish_is_decided(hub) ||
        hub->newest_heard >= hub->newest_members)
        return;
    if (hub->now_ms < due_ms) {
        hub_wake_at(hub, due_ms);
        return;
    }
    (void)hub_leave_explains(hub, hub->newest_members - hub->newest_heard, &cause);
    hub->newest_heard = hub->newest_members;
    hub_form_break(hub, &cause, out);
}

static void watch_progress(struct hub *hub, struct hub_output *out)
{
    struct hub_event *event;
    double limit_ms = hub->phase == HUB_FORMING
                          ? hub->policy.timeout_ms
                          : fmax(HUB_STALL_FACTOR * hub->step_ms_mean, HUB_STALL_MS_MIN);

    if (hub->is_stalled || hub->is_finishing ||
        (hub->phase != HUB_FORMING && !(hub->phase == HUB_RUNNING && hub->step_ms_mean > 0)))
        return;
    if (hub->now_ms < hub->progress_ms + limit_ms) {
        hub_wake_at(hub, hub->progress_ms + limit_ms);
        return;
    }
    hub->is_stalled = true;
    event =
        hub_output_stall(out, hub, HUB_EVENT_STALLED,
                         hub->phase == HUB_FORMING ? HUB_STALL_FORMING : HUB_STALL_STEP_TOO_LONG);
    hub_output_text(event->message, "no progress since step %" PRId64 " for %.1f s",
                    hub->progress_step, (hub->now_ms - hub->progress_ms) / 1000);
}

void hub_machine_tick(struct hub *hub, double now_ms, struct hub_output *out)
{
    enter(hub, now_ms);
    if (hub->is_superseded)
        return;
    hub->wake_ms = INFINITY;
    send_heartbeats(hub, out);
    if (hub_finish_is_over(hub))
        return;
    lose_overdue(hub, out);
    lose_unheard(hub, out);
    watch_progress(hub, out);
    hub->is_dirty = true; /* some wait may be over now */
    leave(hub, out);
}
