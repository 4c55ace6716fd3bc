/* SPDX-License-Identifier: Apache-2.0 */

/* The members of a hub: by pod UID, by connection, coming and going. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/hub_internal.h"
#include "libfleet/rendezvous/kv.h"

#define CONNECTION_KEY_SIZE 24

static const char *connection_key(uint64_t connection, char out[CONNECTION_KEY_SIZE])
{
    (void)snprintf(out, CONNECTION_KEY_SIZE, "%" PRIu64, connection);
    return out;
}

struct hub_peer *hub_peer_of(const struct hub *hub, uint64_t connection)
{
    char key[CONNECTION_KEY_SIZE];

    return fleet_map_get(&hub->by_connection, connection_key(connection, key));
}

void hub_peer_unbind(struct hub *hub, struct hub_peer *peer)
{
    char key[CONNECTION_KEY_SIZE];

    if (!peer->is_connected)
        return;
    fleet_map_remove(&hub->by_connection, connection_key(peer->connection, key));
    kv_forget(hub->kv, peer->connection);
    peer->is_connected = false;
    peer->disconnected_ms = hub->now_ms;
    hub->is_dirty = true;
}

void hub_peer_bind(struct hub *hub, struct hub_peer *peer, uint64_t connection)
{
    char key[CONNECTION_KEY_SIZE];

    fleet_map_set(&hub->by_connection, connection_key(connection, key), peer);
    peer->connection = connection;
    peer->is_connected = true;
    peer->heard_ms = peer->connected_ms = hub->now_ms;
    hub_wake_at(hub, hub->now_ms + hub_silence_max(hub));
    hub->is_dirty = true;
}

struct hub_peer *hub_peer_add(struct hub *hub, const char *pod_uid)
{
    struct hub_peer *peer = calloc(1, sizeof(*peer));

    fleet_assert(peer != NULL);
    hub->peers =
        fleet_reserve(hub->peers, hub->peer_count, &hub->peer_capacity, sizeof(struct hub_peer *));
    hub->peers[hub->peer_count++] = peer;
    hub_output_text(peer->pod_uid, "%s", pod_uid);
    fleet_map_set(&hub->by_uid, pod_uid, peer);
    peer->place = -1;
    peer->status.step = -1;
    peer->abort_sent_ms = peer->assign_sent_ms = -INFINITY;
    for (size_t phase = 0; phase < FLEET_PHASE_COUNT; phase++)
        peer->phase_ms[phase] = NAN;
    hub->changed_ms = hub->now_ms;
    return peer;
}

/* Remove the peer from all lists. The caller frees it. */
static void detach(struct hub *hub, struct hub_peer *peer, const char *reason,
                   struct hub_output *out)
{
    size_t kept = 0;

    if (peer->is_connected)
        hub_output_close(out, peer->connection, false, reason);
    hub_peer_unbind(hub, peer);
    hub_form_give_up(hub, peer);
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub->peers[i] != peer)
            hub->peers[kept++] = hub->peers[i];
    hub->peer_count = kept;
    fleet_map_remove(&hub->by_uid, peer->pod_uid);
    hub_accuse_forget(hub, peer->pod_uid);
    hub->changed_ms = hub->now_ms;
    hub->is_dirty = true;
}

void hub_peer_remove(struct hub *hub, struct hub_peer *peer, const char *reason,
                     struct hub_output *out)
{
    detach(hub, peer, reason, out);
    free(peer);
}

void hub_peer_lose(struct hub *hub, struct hub_peer *peer, const char *cause, const char *message,
                   bool is_failure, double fault_ms, struct hub_output *out)
{
    struct hub_cause c = {.cause = cause,
                          .peer = peer,
                          .is_failure = is_failure,
                          .is_explained = true,
                          .exit_code = -1,
                          .fault_ms = fault_ms,
                          .message = message};
    struct hub_event *event;

    if (peer->is_dropped || peer->departs_for[0] ||
        fleet_cause_find(cause) == FLEET_CAUSE_MEMBER_LEFT) /* was asked to leave */
        c = hub_leave_cause(hub, peer);
    event = hub_output_event(out, hub, HUB_EVENT_LOST, peer);
    hub_output_text(event->cause, "%s", c.cause);
    hub_output_text(event->message, "%s", message);
    detach(hub, peer, message, out);
    if (peer->place >= 0 && hub_finish_is_decided(hub))
        hub_finish_try(hub, out);
    else if (peer->place >= 0 && peer->is_finished)
        hub_finish_keep(hub, peer->place, out);
    else if (peer->place >= 0)
        hub_form_break(hub, &c, out);
    free(peer);
}
