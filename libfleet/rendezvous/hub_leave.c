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
 */
#include <stdio.h>
#include <string.h>

#include "libfleet/base/cause.h"
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

static void rename_incident(struct hub_incident *incident, int index, int attempt,
                            enum fleet_cause cause)
{
    if (incident->is_open && incident->member == index && incident->attempt == attempt &&
        fleet_cause_find(incident->cause) == FLEET_CAUSE_MEMBER_LEFT)
        hub_output_text(incident->cause, "%s", fleet_cause_word(cause));
}

void hub_machine_member_departs(struct hub *hub, const char *pod_uid, int index, int attempt,
                                enum fleet_cause cause)
{
    struct hub_peer *peer = fleet_map_get(&hub->by_uid, pod_uid);

    if (peer)
        hub_output_text(peer->departs_for, "%s", fleet_cause_word(cause));
    rename_incident(&hub->incident, index, attempt, cause);
    if (hub->restart.is_open)
        rename_incident(&hub->restart.incident, index, attempt, cause);
}

void hub_leave_note(struct hub *hub, struct hub_peer *peer, struct hub_output *out)
{
    struct hub_cause cause = hub_leave_cause(hub, peer);

    if (!peer->status.is_leaving || peer->is_dropped)
        return;
    peer->is_dropped = true;
    hub->is_dirty = true;
    hub_form_give_up(hub, peer);
    if (hub->policy.own_trainer && peer->place >= 0 && !peer->is_finished)
        hub_form_break(hub, &cause, out);
}
