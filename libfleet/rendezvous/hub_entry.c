/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The ways into a hub: each call runs the machine (hub.c) behind a guard, so that a broken
 * invariant ends this hub and not the process of all hubs (docs/decisions/one-job-one-failure.md).
 *
 *   call ── an assertion fails ──▶ the actions of the call are dropped ──▶ the hub has a defect:
 *           HUB_EVENT_DEFECT once, no action after it ──▶ the owner ends it and makes another one
 *
 *  (1) A hub with a defect is never looked into again: its memory may be inconsistent. Calls do
 *      nothing, and questions get the answer of a hub without members.
 *  (2) It is not freed either. It stays in a list, so that a tool for leaks does not report it;
 *      hub_defects() counts.
 *  (3) A call that fails has no effect outside: its actions are handed over only when it has
 *      returned.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/rendezvous/hub_internal.h"

/* ---- the guard ------------------------------------------------------------------------------- */

enum call_kind {
    CALL_INIT,
    CALL_CONFIGURE,
    CALL_CONNECTED,
    CALL_RECEIVE,
    CALL_DISCONNECTED,
    CALL_RECORD_DONE,
    CALL_RECORD_FAILED,
    CALL_MEMBER_GONE,
    CALL_MEMBER_DEPARTS,
    CALL_ORDER,
    CALL_CHECKPOINT,
    CALL_END,
    CALL_TICK,
};

/* A call as a value; each kind uses the fields of its function. */
struct call {
    enum call_kind kind;
    struct hub *hub;
    const struct hub_start *start;
    const struct hub_policy *policy;
    const struct message *message;
    uint64_t connection;
    struct fleet_generation generation;
    const char *pod_uid, *text; /* reason */
    enum fleet_cause cause;
    const char *const *pod_uids;
    size_t count;
    int index, attempt;
    bool explains;
    bool has_succeeded;
    double now_ms;
    struct hub_output out; /* what it wants done */
};

static void run(void *user)
{
    struct call *c = user;

    switch (c->kind) {
    case CALL_INIT:
        hub_machine_init(c->hub, c->start, c->policy, c->now_ms);
        break;
    case CALL_CONFIGURE:
        hub_machine_configure(c->hub, c->policy, c->now_ms, &c->out);
        break;
    case CALL_CONNECTED:
        hub_machine_connected(c->hub, c->connection, c->now_ms, &c->out);
        break;
    case CALL_RECEIVE:
        hub_machine_receive(c->hub, c->connection, c->message, c->now_ms, &c->out);
        break;
    case CALL_DISCONNECTED:
        hub_machine_disconnected(c->hub, c->connection, c->now_ms, &c->out);
        break;
    case CALL_RECORD_DONE:
        hub_machine_record_done(c->hub, c->generation, c->now_ms, &c->out);
        break;
    case CALL_RECORD_FAILED:
        hub_machine_record_failed(c->hub, c->generation, c->now_ms, &c->out);
        break;
    case CALL_MEMBER_GONE:
        hub_machine_member_gone(c->hub, c->pod_uid, c->cause, c->now_ms, &c->out);
        break;
    case CALL_MEMBER_DEPARTS:
        hub_machine_member_departs(c->hub, c->pod_uid, c->index, c->attempt, c->cause, c->explains);
        break;
    case CALL_ORDER:
        hub_machine_order(c->hub, c->pod_uids, c->count);
        break;
    case CALL_CHECKPOINT:
        hub_machine_checkpoint(c->hub, c->now_ms, &c->out);
        break;
    case CALL_END:
        hub_machine_end(c->hub, c->has_succeeded, c->text, c->now_ms, &c->out);
        break;
    case CALL_TICK:
        hub_machine_tick(c->hub, c->now_ms, &c->out);
        break;
    }
}

static struct abandoned { /* (2) */
    struct abandoned *next;
    struct hub *hub;
    struct hub_output out; /* of the call that failed */
} * all_abandoned;
static size_t abandoned_count;

static void abandon(const struct call *c)
{
    struct abandoned *item = calloc(1, sizeof(*item));

    fleet_assert(item != NULL);
    *item = (struct abandoned){.next = all_abandoned, .hub = c->hub, .out = c->out};
    all_abandoned = item;
    abandoned_count++;
}

/* `out` is NULL if the call has no output. Then the next call with an output reports the defect,
 * and hub_deadline() asks for that call. */
static void guard(struct call *c, struct hub_output *out)
{
    struct hub *hub = c->hub;

    if (!hub->defect[0] && !fleet_assert_guard(run, c, hub->defect, sizeof(hub->defect)))
        abandon(c);
    else if (!hub->defect[0] && out)
        hub_output_move(out, &c->out); /* (3) */
    if (hub->defect[0] && out && !hub->is_defect_told) {
        hub->is_defect_told = true;
        hub_output_defect(out, hub->defect, c->now_ms);
    }
}

const char *hub_defect(const struct hub *hub)
{
    return hub->defect[0] ? hub->defect : NULL;
}

size_t hub_defects(void)
{
    return abandoned_count;
}

/* ---- life cycle ------------------------------------------------------------------------------ */

struct hub *hub_new(const struct hub_start *start, const struct hub_policy *policy, double now_ms)
{
    struct hub *hub = calloc(1, sizeof(*hub));
    struct call call = {
        .kind = CALL_INIT, .hub = hub, .start = start, .policy = policy, .now_ms = now_ms};

    fleet_assert(hub != NULL);
    guard(&call, NULL);
    return hub;
}

void hub_free(struct hub *hub)
{
    if (hub && !hub->defect[0]) /* (2) */
        hub_machine_free(hub);
}

/* ---- what comes in --------------------------------------------------------------------------- */

void hub_configure(struct hub *hub, const struct hub_policy *policy, double now_ms,
                   struct hub_output *out)
{
    guard(&(struct call){.kind = CALL_CONFIGURE, .hub = hub, .policy = policy, .now_ms = now_ms},
          out);
}

void hub_connected(struct hub *hub, uint64_t connection, double now_ms, struct hub_output *out)
{
    guard(
        &(struct call){
            .kind = CALL_CONNECTED, .hub = hub, .connection = connection, .now_ms = now_ms},
        out);
}

void hub_receive(struct hub *hub, uint64_t connection, const struct message *message, double now_ms,
                 struct hub_output *out)
{
    guard(&(struct call){.kind = CALL_RECEIVE,
                         .hub = hub,
                         .connection = connection,
                         .message = message,
                         .now_ms = now_ms},
          out);
}

void hub_disconnected(struct hub *hub, uint64_t connection, double now_ms, struct hub_output *out)
{
    guard(
        &(struct call){
            .kind = CALL_DISCONNECTED, .hub = hub, .connection = connection, .now_ms = now_ms},
        out);
}

void hub_record_done(struct hub *hub, struct fleet_generation generation, double now_ms,
                     struct hub_output *out)
{
    guard(
        &(struct call){
            .kind = CALL_RECORD_DONE, .hub = hub, .generation = generation, .now_ms = now_ms},
        out);
}

void hub_record_failed(struct hub *hub, struct fleet_generation generation, double now_ms,
                       struct hub_output *out)
{
    guard(
        &(struct call){
            .kind = CALL_RECORD_FAILED, .hub = hub, .generation = generation, .now_ms = now_ms},
        out);
}

void hub_member_gone(struct hub *hub, const char *pod_uid, enum fleet_cause cause, double now_ms,
                     struct hub_output *out)
{
    guard(&(struct call){.kind = CALL_MEMBER_GONE,
                         .hub = hub,
                         .pod_uid = pod_uid,
                         .cause = cause,
                         .now_ms = now_ms},
          out);
}

void hub_member_departs(struct hub *hub, const char *pod_uid, int index, int attempt,
                        enum fleet_cause cause, bool explains)
{
    guard(&(struct call){.kind = CALL_MEMBER_DEPARTS,
                         .hub = hub,
                         .pod_uid = pod_uid,
                         .index = index,
                         .attempt = attempt,
                         .cause = cause,
                         .explains = explains},
          NULL);
}

void hub_order(struct hub *hub, const char *const *pod_uids, size_t count)
{
    guard(&(struct call){.kind = CALL_ORDER, .hub = hub, .pod_uids = pod_uids, .count = count},
          NULL);
}

void hub_checkpoint(struct hub *hub, double now_ms, struct hub_output *out)
{
    guard(&(struct call){.kind = CALL_CHECKPOINT, .hub = hub, .now_ms = now_ms}, out);
}

void hub_end(struct hub *hub, bool succeeded, const char *reason, double now_ms,
             struct hub_output *out)
{
    guard(&(struct call){.kind = CALL_END,
                         .hub = hub,
                         .has_succeeded = succeeded,
                         .text = reason,
                         .now_ms = now_ms},
          out);
}

void hub_tick(struct hub *hub, double now_ms, struct hub_output *out)
{
    guard(&(struct call){.kind = CALL_TICK, .hub = hub, .now_ms = now_ms}, out);
}

double hub_deadline(const struct hub *hub)
{
    if (hub->defect[0])
        return hub->is_defect_told ? INFINITY : -INFINITY;
    return hub_machine_deadline(hub);
}

bool hub_has_policy(const struct hub *hub, const struct hub_policy *policy)
{
    return hub->defect[0] || hub_machine_has_policy(hub, policy);
}

/* ---- what may be seen ------------------------------------------------------------------------ */

int hub_members_max(const struct hub *hub)
{
    return hub->policy.max;
}

enum hub_phase hub_phase(const struct hub *hub)
{
    return hub->phase;
}

struct fleet_generation hub_generation(const struct hub *hub)
{
    return hub->newest;
}

int hub_generation_members(const struct hub *hub)
{
    return hub->newest_members;
}

int hub_spares(const struct hub *hub)
{
    int spares = 0;

    for (size_t i = 0; i < hub->peer_count; i++)
        spares += hub_form_is_candidate(hub, hub->peers[i]) && hub->peers[i]->place < 0;
    return hub_cells_are_used(hub) && hub->phase == HUB_RUNNING ? spares : 0;
}

int64_t hub_epoch(const struct hub *hub)
{
    return hub->epoch;
}

struct fleet_generation hub_trained(const struct hub *hub)
{
    return hub->live;
}

bool hub_is_deserted(const struct hub *hub)
{
    if (!hub->is_broken || !hub->incident.is_open || hub->incident.is_failure)
        return false;
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub->peers[i]->place >= 0)
            return false;
    return true;
}

bool hub_is_learning(const struct hub *hub)
{
    return hub->phase == HUB_GATHERING && !hub->is_broken && hub->now_ms < hub->quiet_until_ms;
}

int hub_restarts_total(const struct hub *hub)
{
    return hub->restarts_total;
}

int hub_restarts_ignored(const struct hub *hub)
{
    return hub->restarts_ignored;
}

int hub_restarts(const struct hub *hub)
{
    return hub->restarts;
}

bool hub_begun(const struct hub *hub, struct hub_record *out)
{
    const struct hub_incident *incident = &hub->restart.incident;

    if (hub->defect[0] || !hub->restart.is_open)
        return false;
    *out = (struct hub_record){
        .generation = hub->newest, .member = incident->member, .exit_code = incident->exit_code};
    hub_output_text(out->cause, "%s", incident->cause);
    return true;
}

struct fleet_lineage hub_lineage(const struct hub *hub)
{
    return hub->defect[0] ? (struct fleet_lineage){0} : hub->lineage;
}

size_t hub_members(const struct hub *hub, struct hub_member *out, size_t capacity)
{
    if (hub->defect[0])
        return 0;
    for (size_t i = 0; i < hub->peer_count && i < capacity; i++) {
        const struct hub_peer *peer = hub->peers[i];
        out[i] = (struct hub_member){.pod_uid = peer->pod_uid,
                                     .index = peer->index,
                                     .attempt = peer->attempt,
                                     .place = peer->place,
                                     .is_connected = peer->is_connected,
                                     .state = peer->status.state,
                                     .step = peer->status.step,
                                     .was_ready = peer->status.state == MESSAGE_STATE_WAITING &&
                                                  peer->ready_ms <= hub->proposed_ms};
    }
    return hub->peer_count;
}

const char *hub_phase_name(enum hub_phase phase)
{
    static const char *const names[] = {"Gathering", "Recording", "Forming",
                                        "Running",   "Finished",  "Failed"};

    return phase < FLEET_COUNT(names) ? names[phase] : "Unknown";
}

const char *hub_event_name(enum hub_event_type type)
{
    static const char *const names[] = {
        "Joined",  "Lost",   "TrainerFailed", "Isolated",   "Assigned",         "Running",
        "Restart", "Step",   "Evaluation",    "Checkpoint", "CheckpointFailed", "StateLost",
        "Stalled", "Failed", "Finished",      "Waiting",    "Superseded",       "Defect"};

    return type < FLEET_COUNT(names) ? names[type] : "Unknown";
}

const char *hub_stall_word(enum hub_stall stall)
{
    static const char *const words[HUB_STALLS] = {
        "", "TooFewMembers", "Forming", "StepTooLong", "HolderAway", "HubSuperseded"};

    return words[stall];
}
