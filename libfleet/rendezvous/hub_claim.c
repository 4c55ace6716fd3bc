/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Each index belongs to one pod. For a while the pod that it replaces may still live. Then a later
 * attempt takes the place of the earlier one. In two cases it must wait, so that no state is lost:
 *
 *   the earlier one is leaving       it ends its step, saves its state and says goodbye; the later
 *                                    one waits beside it and may join the next generation
 *   no other member has its state,   it goes on, and the later one waits behind it: it joins no
 *   and it has not said goodbye      generation until others hold that state, or the earlier one
 *                                    leaves or is lost
 *
 * The second case happens if a pod is deleted while its node does not answer. Its worker goes on,
 * and no kubelet asks it to save.
 */
#include <string.h>

#include "libfleet/base/cause.h"
#include "libfleet/rendezvous/hub_internal.h"

static bool is_leaving(const struct hub_peer *peer)
{
    return peer->is_connected &&
           (peer->is_departing || peer->is_dropped || peer->status.is_leaving);
}

static bool has_to_stay(const struct hub *hub, const struct hub_peer *earlier)
{
    return earlier->is_connected && !earlier->is_dropped && !earlier->status.is_leaving &&
           hub_holder_is_alone(hub, earlier);
}

static void make_way(struct hub *hub, struct hub_peer *earlier)
{
    earlier->is_replaced = true;
    hub_form_give_up(hub, earlier);
}

static void take_place(struct hub *hub, struct hub_peer *earlier, int attempt,
                       struct hub_output *out)
{
    char reason[MESSAGE_REASON_MAX + 1];

    hub_output_text(reason, "attempt %d of index %d takes its place", attempt, earlier->index);
    hub_peer_lose(hub, earlier, fleet_cause_word(FLEET_CAUSE_MEMBER_LOST), reason, true,
                  hub->now_ms, out);
}

static bool is_held_by(const struct hub_peer *other, const struct message_hello *hello)
{
    return other->attempt > hello->attempt ||
           (other->attempt == hello->attempt && other->is_connected);
}

bool hub_claim_index(struct hub *hub, const struct message_hello *hello, uint64_t connection,
                     bool *is_behind, struct hub_output *out)
{
    *is_behind = false;
    for (size_t i = 0; i < hub->peer_count; i++) {
        struct hub_peer *other = hub->peers[i];
        char reason[MESSAGE_REASON_MAX + 1];
        if (other->index != hello->index || strcmp(other->pod_uid, hello->pod_uid) == 0)
            continue;
        if (is_held_by(other, hello)) {
            hub_output_text(reason, "index %d is held by attempt %d of pod %s", hello->index,
                            other->attempt, other->pod_uid);
            hub_hello_refuse(connection, reason, out);
            hub_status_hear_refused(hub, hello, out);
            return false;
        }
        if (has_to_stay(hub, other)) {
            *is_behind = true;
            continue;
        }
        if (other->attempt < hello->attempt && is_leaving(other)) {
            make_way(hub, other);
            continue;
        }
        take_place(hub, other, hello->attempt, out);
        break;
    }
    return true;
}

static bool is_earlier(const struct hub_peer *other, const struct hub_peer *peer)
{
    return other->index == peer->index && other->attempt < peer->attempt && !other->is_replaced;
}

static struct hub_peer *find_earlier(const struct hub *hub, const struct hub_peer *peer)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        if (is_earlier(hub->peers[i], peer))
            return hub->peers[i];
    return NULL;
}

static bool has_to_wait(const struct hub *hub, const struct hub_peer *peer)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        if (is_earlier(hub->peers[i], peer) && has_to_stay(hub, hub->peers[i]))
            return true;
    return false;
}

static struct hub_peer *find_released(const struct hub *hub)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub->peers[i]->is_behind && !has_to_wait(hub, hub->peers[i]))
            return hub->peers[i];
    return NULL;
}

void hub_claim_again(struct hub *hub, struct hub_output *out)
{
    struct hub_peer *peer, *earlier;

    while (!hub_finish_is_over(hub) && (peer = find_released(hub)) != NULL) {
        peer->is_behind = false;
        while ((earlier = find_earlier(hub, peer)) != NULL)
            if (is_leaving(earlier))
                make_way(hub, earlier);
            else
                take_place(hub, earlier, peer->attempt, out);
    }
}
