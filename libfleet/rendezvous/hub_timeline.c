/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How long a restart took, phase by phase, on the hub's clock:
 *
 *     fault ─ detect ─ aborted ─ agree ─ assigned ─ connect ─ restore ─ restored ─ first step
 *
 * A phase that all members go through ends when the last member has reached it. Members report
 * times as ages, so a slow connection to the hub does not count as a slow restart.
 */
#include <math.h>
#include <stdio.h>

#include "libfleet/rendezvous/hub_internal.h"

void hub_timeline_begin(struct hub *hub)
{
    hub->restart = (struct hub_restart){
        .is_open = hub->incident.is_open,
        .incident = hub->incident,
        .assigned_ms = hub->now_ms,
        .connected_ms = NAN,
        .restored_ms = NAN,
        .first_step_ms = NAN,
        .step = hub->chosen_step,
        .restored_step = -1,
    };
}

/* When the last member reached `phase`, NAN if one has not. */
static double last_to_reach(const struct hub *hub, enum fleet_phase phase)
{
    double last = -INFINITY;
    int reached = 0;

    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        if (peer->place < 0 || isnan(peer->phase_ms[phase]))
            continue;
        reached++;
        last = fmax(last, peer->phase_ms[phase]);
    }
    return reached > 0 && reached == hub->newest_members ? last : NAN;
}

void hub_timeline_phase(struct hub *hub)
{
    struct hub_restart *restart = &hub->restart;

    if (isnan(restart->connected_ms))
        restart->connected_ms = last_to_reach(hub, FLEET_PHASE_CONNECTED);
    if (isnan(restart->restored_ms))
        restart->restored_ms = last_to_reach(hub, FLEET_PHASE_RESTORED);
}

void hub_timeline_step(struct hub *hub, double at_ms)
{
    if (isnan(hub->restart.first_step_ms))
        hub->restart.first_step_ms = at_ms;
}

/* to - from, at least 0 (ages are rounded and late), -1 if one of them is not known. */
static double span(double from, double to)
{
    return isnan(from) || isnan(to) ? -1 : fmax(to - from, 0);
}

static struct hub_timeline measure(const struct hub_restart *restart)
{
    const struct hub_incident *incident = &restart->incident;
    struct hub_timeline t = {
        .detect_ms = span(incident->fault_ms, incident->aborted_ms),
        .agree_ms = span(incident->aborted_ms, restart->assigned_ms),
        .connect_ms = span(restart->assigned_ms, restart->connected_ms),
        .restore_ms = span(restart->connected_ms, restart->restored_ms),
        .resume_ms = -1,
        .first_step_ms = span(restart->restored_ms, restart->first_step_ms),
    };

    if (t.restore_ms >= 0)
        t.resume_ms = t.detect_ms + t.agree_ms + t.connect_ms + t.restore_ms;
    return t;
}

/*
 * Steps that are computed again, -1 = unknown. Members without a state may have loaded a
 * checkpoint; they report where they went on. An own trainer may not report it.
 */
static int64_t lost_steps(const struct hub *hub)
{
    const struct hub_restart *restart = &hub->restart;
    int64_t progress_step = restart->incident.progress_step;
    int64_t from = restart->step >= 0            ? restart->step
                   : restart->restored_step >= 0 ? restart->restored_step
                                                 : hub->checkpoint_step;

    if (hub->policy.own_trainer && (progress_step == 0 || restart->restored_step < 0))
        return -1;
    return from < progress_step ? progress_step - from : 0;
}

/* If an own trainer reports nothing, the hub does not know when it restored its state or made a
 * step. */
static void forget_unreported(const struct hub *hub, struct hub_timeline *t)
{
    if (!hub->policy.own_trainer || hub->restart.incident.progress_step > 0)
        return;
    t->restore_ms = t->resume_ms = t->first_step_ms = -1;
}

void hub_timeline_report(struct hub *hub, bool is_over, struct hub_output *out)
{
    struct hub_restart *restart = &hub->restart;
    const struct hub_incident *incident = &restart->incident;
    struct hub_event *event;

    if (!restart->is_open)
        return;
    if (!is_over && (isnan(restart->restored_ms) || isnan(restart->first_step_ms)))
        return;
    restart->is_open = false;
    event = hub_output_event(out, hub, HUB_EVENT_RESTART, NULL);
    event->member = incident->member;
    event->attempt = incident->attempt;
    hub_output_text(event->cause, "%s", incident->cause);
    event->exit_code = incident->exit_code;
    event->signal = incident->signal;
    event->counted = hub_restart_counts(hub, incident);
    event->timeline = measure(restart);
    forget_unreported(hub, &event->timeline);
    event->lost_steps = lost_steps(hub);
    event->is_before_first_step = incident->progress_step == 0 && hub->checkpoint_step == 0;
}
