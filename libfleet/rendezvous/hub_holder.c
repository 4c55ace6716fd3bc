/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The holder of the job's state when no member that is ready has it.
 *
 * Normally the members of the newest generation hold it, and go on. If all of them have lost it,
 * two things are better than the last checkpoint: an older state on the lineage in the memory of a
 * member that was left behind (it was frozen, and is back), and, while it lasts, waiting for a
 * member that is out of reach but not known to be dead (it is frozen, and may come back), or that
 * is on its way out: it saves what it holds before it goes.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/hub_internal.h"

#define ABSENT_MAX          64
#define PATIENCE_CHECKPOINT 20000.0 /* ms; some member holds a state */

static double patience_ms(const struct hub *hub)
{
    return hub->checkpoint_step > 0 ? fmin(PATIENCE_CHECKPOINT, hub->policy.timeout_ms)
                                    : hub->policy.timeout_ms;
}

/* Is this state newer than the last checkpoint? */
static bool is_worth(const struct hub *hub, struct fleet_generation generation, int64_t step)
{
    return !hub->policy.own_trainer && step > hub->checkpoint_step &&
           !fleet_generation_is_none(generation) &&
           fleet_lineage_has(&hub->lineage, generation, step);
}

void hub_holder_miss(struct hub *hub, const struct hub_peer *peer)
{
    const struct message_status *s = &peer->status;
    struct hub_absent *absent;

    if (!is_worth(hub, s->state_generation, s->step))
        return;
    if (hub->absent_count == ABSENT_MAX)
        memmove(hub->absent, hub->absent + 1, --hub->absent_count * sizeof(hub->absent[0]));
    hub->absent = fleet_grow(hub->absent, hub->absent_count, sizeof(hub->absent[0]));
    absent = &hub->absent[hub->absent_count++];
    *absent = (struct hub_absent){.index = peer->index,
                                  .generation = s->state_generation,
                                  .step = s->step,
                                  .part = hub_cells_part(hub, peer),
                                  .since_ms = hub->now_ms};
    hub_output_text(absent->pod_uid, "%s", peer->pod_uid);
}

void hub_holder_forget(struct hub *hub, const char *pod_uid)
{
    size_t kept = 0;

    for (size_t i = 0; i < hub->absent_count; i++)
        if (strcmp(hub->absent[i].pod_uid, pod_uid) != 0)
            hub->absent[kept++] = hub->absent[i];
    hub->is_dirty |= kept != hub->absent_count;
    hub->absent_count = kept;
}

const struct hub_peer *hub_holder_best(const struct hub *hub, bool only_ready)
{
    const struct hub_peer *best = NULL;

    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        const struct message_status *s = &peer->status;
        bool is_ready =
            hub_form_is_present(peer) && !peer->is_replaced && s->state == MESSAGE_STATE_WAITING;
        if ((only_ready && !is_ready) || !is_worth(hub, s->state_generation, s->step))
            continue;
        if (!best || s->step > best->status.step)
            best = peer;
    }
    return best;
}

/* ---- line by line of the ownership map ------------------------------------------------------- */

/* Parts that are held, of the members that count. */
struct parts {
    struct fleet_part *items; /* [count] */
    size_t count;
};

static void parts_init(const struct hub *hub, struct parts *parts)
{
    *parts = (struct parts){
        .items = calloc(hub->peer_count + hub->absent_count + 1, sizeof(*parts->items))};
    fleet_assert(parts->items != NULL);
}

int hub_holder_lost_shard(const struct hub *hub, struct hub_peer *const *list, size_t count)
{
    struct parts parts;
    int lost;

    parts_init(hub, &parts);
    for (size_t i = 0; i < count; i++)
        if (hub_form_has_state(hub, list[i]))
            parts.items[parts.count++] = list[i]->status.part;
    lost = fleet_parts_lost(parts.items, parts.count);
    free(parts.items);
    return lost;
}

static void add_ready(const struct hub *hub, struct parts *parts)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub_form_is_candidate(hub, hub->peers[i]) && hub_form_has_state(hub, hub->peers[i]))
            parts->items[parts->count++] = hub->peers[i]->status.part;
}

int hub_holder_missing_shard(const struct hub *hub)
{
    struct parts parts;
    int missing;

    if (hub_cells_are_used(hub))
        return FLEET_DIVISION_WHOLE; /* hub_cells.c knows lines, not shards alone */
    parts_init(hub, &parts);
    add_ready(hub, &parts);
    missing = fleet_parts_lost(parts.items, parts.count);
    free(parts.items);
    return missing;
}

/* A shard is missing, and a member that is out of reach has it: *out is that member. False also
 * where another shard would still be missing with all of them. */
static bool is_out_of_reach(const struct hub *hub, int shard, const struct hub_absent **out)
{
    struct parts parts;
    int lost;

    *out = NULL;
    parts_init(hub, &parts);
    add_ready(hub, &parts);
    for (size_t i = 0; i < hub->absent_count; i++) {
        const struct hub_absent *absent = &hub->absent[i];
        const struct fleet_part *part = &absent->part;
        if (!fleet_lineage_has(&hub->lineage, absent->generation, absent->step))
            continue;
        parts.items[parts.count++] = *part;
        for (int r = part->first; r < part->first + part->count; r++)
            if (fleet_division_holds(&part->division, shard, r))
                *out = absent;
    }
    lost = fleet_parts_lost(parts.items, parts.count);
    free(parts.items);
    return *out && lost < 0;
}

/* Members of a generation that trains hold the same steps, though one may not have said so yet. */
static bool holds_as_much(const struct hub *hub, const struct hub_peer *other,
                          const struct hub_peer *peer)
{
    const struct message_status *o = &other->status, *p = &peer->status;
    bool train_together = other->place >= 0 && peer->place >= 0 && hub->phase == HUB_RUNNING &&
                          o->state == MESSAGE_STATE_RUNNING && p->state == MESSAGE_STATE_RUNNING;

    return hub_form_is_present(other) && !other->is_replaced && hub_form_has_state(hub, other) &&
           (train_together || o->step >= p->step);
}

bool hub_holder_is_alone(const struct hub *hub, const struct hub_peer *peer)
{
    struct parts parts;
    bool is_alone;

    if (!is_worth(hub, peer->status.state_generation, peer->status.step))
        return false;
    if (hub_cells_are_used(hub))
        return true;
    parts_init(hub, &parts);
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub->peers[i] != peer && holds_as_much(hub, hub->peers[i], peer))
            parts.items[parts.count++] = hub->peers[i]->status.part;
    is_alone = parts.count == 0 || fleet_parts_lost(parts.items, parts.count) >= 0;
    free(parts.items);
    return is_alone;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Of the members that are not ready: those that are do not have a whole state together. */
static const struct hub_peer *best_away(const struct hub *hub)
{
    const struct hub_peer *best = NULL;

    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        if (!hub_form_is_candidate(hub, peer) &&
            is_worth(hub, peer->status.state_generation, peer->status.step) &&
            (!best || peer->status.step > best->status.step))
            best = peer;
    }
    return best;
}

/* Report, once, the member that all others wait for. */
static void report_waiting(struct hub *hub, int index, int64_t step, bool is_quiet,
                           struct hub_output *out)
{
    struct hub_event *event;

    hub_output_text(hub->wait.message,
                    "waits for worker %d, which alone holds the state of step %" PRId64
                    "; training goes on from an older state if it does not come back",
                    index, step);
    if (hub->is_stalled || is_quiet)
        return;
    hub->is_stalled = true;
    event = hub_output_stall(out, hub, HUB_EVENT_STALLED, HUB_STALL_HOLDER_AWAY);
    hub_output_text(event->message,
                    "worker %d alone holds the state of step %" PRId64
                    " and does not answer; if it does not come back within %.0f s, training goes "
                    "on from an older state",
                    index, step, patience_ms(hub) / 1000);
}

/* Until when to wait for a shard that no ready member has. */
static double wait_for_shard(struct hub *hub, int shard, struct hub_output *out)
{
    const struct hub_absent *absent;
    double until_ms;

    if (!is_out_of_reach(hub, shard, &absent))
        return -INFINITY;
    until_ms = absent->since_ms + patience_ms(hub);
    if (until_ms > hub->now_ms) {
        hub_wait_note(hub, HUB_WAIT_HOLDER, until_ms);
        report_waiting(hub, absent->index, absent->step, false, out);
    }
    return until_ms;
}

/* Until when to wait, -INFINITY = not at all. */
static double wait_until(struct hub *hub, struct hub_output *out)
{
    const struct hub_peer *ready = hub_cells_are_whole(hub) ? hub_holder_best(hub, true) : NULL;
    const struct hub_peer *any =
        hub_cells_are_whole(hub) ? hub_holder_best(hub, false) : best_away(hub);
    int64_t step = ready ? ready->status.step : hub->checkpoint_step;
    double until_ms = -INFINITY;
    bool is_quiet = false; /* expected to end soon; not reported */
    int index = -1;

    if (hub_cells_are_used(hub) && !ready && !hub_cells_may_become_whole(hub))
        return until_ms;                  /* what is missing is lost */
    if (any && any->status.step > step) { /* alive: leaving, or its trainer is silent */
        until_ms =
            fmax(fmax(any->down_ms, any->ready_ms), fmax(any->connected_ms, hub->gather_ms)) +
            patience_ms(hub); /* it may be just back */
        is_quiet = any->is_dropped || !any->is_connected;
        index = any->index;
        step = any->status.step;
    }
    for (size_t i = 0; i < hub->absent_count; i++) {
        const struct hub_absent *absent = &hub->absent[i];
        if (absent->step <= step ||
            !fleet_lineage_has(&hub->lineage, absent->generation, absent->step))
            continue;
        until_ms = absent->since_ms + patience_ms(hub);
        is_quiet = false;
        index = absent->index;
        step = absent->step;
    }
    if (until_ms > hub->now_ms) {
        hub_wait_note(hub, HUB_WAIT_HOLDER, until_ms);
        report_waiting(hub, index, step, is_quiet, out);
    }
    return until_ms;
}

bool hub_holder_is_awaited(struct hub *hub, struct hub_output *out)
{
    int missing = hub_holder_missing_shard(hub);
    double until_ms = missing >= 0 ? wait_for_shard(hub, missing, out) : wait_until(hub, out);

    if (hub->now_ms >= until_ms)
        return false;
    hub_wake_at(hub, until_ms);
    return true;
}

/* If its trainer is down, another one of its pod may hold the state: then the job waits for it, as
 * for any holder. It also waits for a member that comes back while its trainers still run. */
static bool is_newcomer(const struct hub *hub, const struct hub_peer *peer)
{
    if (hub_form_is_candidate(hub, peer))
        return peer->ready_ms > hub->proposed_ms;
    if (!hub_form_is_present(peer))
        return false;
    return peer->connected_ms > hub->proposed_ms ||
           (peer->status.state == MESSAGE_STATE_STARTING && peer->down_ms > hub->proposed_ms);
}

bool hub_holder_has_come(const struct hub *hub)
{
    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        if (is_newcomer(hub, peer) && hub_form_has_state(hub, peer) &&
            peer->status.step > hub->chosen_step)
            return true;
    }
    return false;
}

bool hub_is_awaited(const struct hub *hub, const char *pod_uid)
{
    for (size_t i = 0; !hub->defect[0] && i < hub->absent_count; i++)
        if (strcmp(hub->absent[i].pod_uid, pod_uid) == 0)
            return hub->phase == HUB_GATHERING && hub->is_stalled &&
                   hub->now_ms < hub->absent[i].since_ms + patience_ms(hub);
    return false;
}
