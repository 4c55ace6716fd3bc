/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Members that leave because they were asked to: by the hub (a smaller desired size), or by the end
 * of their pod (a drain, a suspend, Ctrl-C). Such a member says so in its status and goes on until
 * its trainers reach the end of a step; then they save their state and leave. The hub aborts no
 * generation for that: the other members notice at their next collective, and the end of that
 * generation is no member's failure. The leaving member stays connected until the hub knows its
 * last checkpoint, then it says `left`.
 *
 * The hub does not connect own trainers with each other. All of them get the order to end at once,
 * so that they can save together, and one generation follows.
 *
 * Kubernetes may take a pod away while no hub is there to hear its member. The owner of the next
 * hub says which pods go, before any member comes. Until that hub has made a generation of its own
 * it remembers those whose members it does not know: a survivor that only saw a peer vanish may
 * come first, and what the former hub had heard is lost with it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cause.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/hub_internal.h"

const struct hub_peer *hub_leave_find(const struct hub *hub)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub->peers[i]->place >= 0 && hub->peers[i]->is_dropped)
            return hub->peers[i];
    return NULL;
}

struct hub_cause hub_leave_cause(const struct hub *hub, const struct hub_peer *peer)
{
    return (struct hub_cause){.cause = peer->departs_for[0] ? peer->departs_for
                                       : peer->index >= hub->policy.desired
                                           ? fleet_cause_word(FLEET_CAUSE_RESIZE)
                                           : fleet_cause_word(FLEET_CAUSE_MEMBER_LEFT),
                              .peer = peer,
                              .is_explained = true,
                              .exit_code = -1,
                              .fault_ms = hub->now_ms};
}

/* ---- pods that are taken away ---------------------------------------------------------------- */

/* `member` -1: the hub before us knew who it was. */
static void rename_incident(struct hub_incident *incident, int index, int attempt,
                            enum fleet_cause cause)
{
    bool is_it = incident->member == index && incident->attempt == attempt;

    if (!incident->is_open || !(is_it || incident->member < 0) ||
        fleet_cause_find(incident->cause) != FLEET_CAUSE_MEMBER_LEFT)
        return;
    hub_output_text(incident->cause, "%s", fleet_cause_word(cause));
    incident->member = index;
    incident->attempt = attempt;
}

static struct hub_departure *find_departure(const struct hub *hub, const char *pod_uid)
{
    for (size_t i = 0; i < hub->departure_count; i++)
        if (strcmp(hub->departures[i].pod_uid, pod_uid) == 0)
            return &hub->departures[i];
    return NULL;
}

static void remember(struct hub *hub, const char *pod_uid, int index, int attempt,
                     enum fleet_cause cause, bool explains)
{
    struct hub_departure *departure = find_departure(hub, pod_uid);

    if (hub->newest_text || (departure && departure->cause == FLEET_CAUSE_NONE) ||
        (!departure && hub->departure_count >= MESSAGE_MEMBERS_MAX))
        return;
    if (!departure) {
        hub->departures =
            fleet_grow(hub->departures, hub->departure_count, sizeof(*hub->departures));
        departure = &hub->departures[hub->departure_count++];
        *departure = (struct hub_departure){0};
    }
    explains = explains || (cause != FLEET_CAUSE_NONE && departure->explains);
    *departure = (struct hub_departure){
        .index = index, .attempt = attempt, .cause = cause, .explains = explains};
    hub_output_text(departure->pod_uid, "%s", pod_uid);
}

void hub_machine_member_departs(struct hub *hub, const char *pod_uid, int index, int attempt,
                                enum fleet_cause cause, bool explains)
{
    struct hub_peer *peer = fleet_map_get(&hub->by_uid, pod_uid);

    if (peer)
        peer->is_departing = true;
    if (!peer)
        remember(hub, pod_uid, index, attempt, cause, explains);
    else if (cause != FLEET_CAUSE_MEMBER_LEFT) /* that it has to say itself */
        hub_output_text(peer->departs_for, "%s", fleet_cause_word(cause));
    rename_incident(&hub->incident, index, attempt, cause);
    if (hub->restart.is_open)
        rename_incident(&hub->restart.incident, index, attempt, cause);
}

void hub_leave_hear_refused(struct hub *hub, const struct message_hello *hello,
                            struct hub_output *out)
{
    struct hub_cause cause;

    remember(hub, hello->pod_uid, hello->index, hello->attempt, FLEET_CAUSE_MEMBER_LEFT, true);
    if (hub->incident.is_open && !hub->incident.is_explained && hub_leave_explains(hub, 1, &cause))
        hub_form_break(hub, &cause, out);
}

bool hub_leave_explains(const struct hub *hub, int missing, struct hub_cause *cause)
{
    const struct hub_departure *first = NULL;
    int count = 0;

    for (size_t i = 0; i < hub->departure_count; i++) {
        if (!hub->departures[i].explains)
            continue;
        first = first ? first : &hub->departures[i];
        count++;
    }
    if (!first || count < missing)
        return false;
    *cause = (struct hub_cause){.cause = fleet_cause_word(first->cause),
                                .departure = first,
                                .is_explained = true,
                                .exit_code = -1,
                                .fault_ms = hub->now_ms};
    return true;
}

void hub_leave_join(struct hub *hub, struct hub_peer *peer)
{
    const struct hub_departure *departure = find_departure(hub, peer->pod_uid);

    peer->is_departing |= departure && departure->cause != FLEET_CAUSE_NONE;
    if (departure && departure->cause != FLEET_CAUSE_NONE &&
        departure->cause != FLEET_CAUSE_MEMBER_LEFT)
        hub_output_text(peer->departs_for, "%s", fleet_cause_word(departure->cause));
    remember(hub, peer->pod_uid, peer->index, peer->attempt, FLEET_CAUSE_NONE, false);
}

void hub_leave_forget(struct hub *hub)
{
    free(hub->departures);
    hub->departures = NULL;
    hub->departure_count = 0;
}

/* ---- members that say that they go ----------------------------------------------------------- */

void hub_leave_note(struct hub *hub, struct hub_peer *peer, struct hub_output *out)
{
    struct hub_cause cause = hub_leave_cause(hub, peer);

    if (!peer->status.is_leaving || peer->is_dropped)
        return;
    peer->is_dropped = true;
    hub->is_dirty = true;
    hub_form_give_up(hub, peer);
    if (peer->place < 0 || peer->is_finished)
        return;
    /* A survivor may have come first, and no failure was seen: this is what it has lost. */
    if (hub->policy.own_trainer || (hub->incident.is_open && !hub->incident.is_explained))
        hub_form_break(hub, &cause, out);
}
