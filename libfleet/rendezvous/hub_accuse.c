/* SPDX-License-Identifier: Apache-2.0 */

/*
 * When a collective breaks, each end reports the other as lost. The accusations cascade: a member
 * that stops is accused by its next neighbour. So only the first accusation of a generation counts,
 * and only if no member was seen to fail meanwhile, because that failure would explain it. What
 * remains is a broken link between two healthy members. The first time, the hub makes the
 * generation again. If the same two accuse each other a second time, the member with fewer working
 * links has to go (rule 7 of docs/decisions/safety-rules.md), or the accused one if both have as
 * many.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cause.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/hub_internal.h"

#define PAIRS_MAX 4096

void hub_accuse_note(struct hub *hub, const struct hub_peer *accuser,
                     const struct hub_peer *accused)
{
    if (hub->accusation.accuser[0] != '\0')
        return;
    hub_output_text(hub->accusation.accuser, "%s", accuser->pod_uid);
    hub_output_text(hub->accusation.accused, "%s", accused->pod_uid);
}

static bool is_same_pair(const struct hub_pair *a, const struct hub_pair *b)
{
    return (strcmp(a->accuser, b->accuser) == 0 && strcmp(a->accused, b->accused) == 0) ||
           (strcmp(a->accuser, b->accused) == 0 && strcmp(a->accused, b->accuser) == 0);
}

static struct hub_pair *obtain_pair(struct hub *hub, const struct hub_pair *wanted)
{
    for (size_t i = 0; i < hub->pair_count; i++)
        if (is_same_pair(&hub->pairs[i], wanted))
            return &hub->pairs[i];
    if (hub->pair_count == PAIRS_MAX)
        hub->pair_count = 0; /* with that many broken links, no single member is at fault */
    hub->pairs = fleet_grow(hub->pairs, hub->pair_count, sizeof(*hub->pairs));
    hub->pairs[hub->pair_count] = *wanted;
    hub->pairs[hub->pair_count].count = 0;
    return &hub->pairs[hub->pair_count++];
}

static int broken_links(const struct hub *hub, const char *pod_uid)
{
    int count = 0;

    for (size_t i = 0; i < hub->pair_count; i++)
        if (strcmp(hub->pairs[i].accuser, pod_uid) == 0 ||
            strcmp(hub->pairs[i].accused, pod_uid) == 0)
            count++;
    return count;
}

void hub_accuse_judge(struct hub *hub, struct hub_output *out)
{
    struct hub_pair accusation = hub->accusation, *pair;
    struct hub_peer *accuser = fleet_map_get(&hub->by_uid, accusation.accuser);
    struct hub_peer *accused = fleet_map_get(&hub->by_uid, accusation.accused);
    struct hub_peer *guilty, *other;
    struct message leave = {.type = MESSAGE_LEAVE};
    char reason[MESSAGE_REASON_MAX + 1];

    hub->accusation = (struct hub_pair){0};
    if (hub->incident.is_explained || !accuser || !accused)
        return;
    pair = obtain_pair(hub, &accusation);
    if (++pair->count < 2)
        return;

    guilty = broken_links(hub, accuser->pod_uid) > broken_links(hub, accused->pod_uid) ? accuser
                                                                                       : accused;
    other = guilty == accuser ? accused : accuser;
    hub_output_text(
        reason,
        "workers %d and %d lost each other %d times; worker %d is removed: it has lost %d "
        "workers, the other one %d",
        accuser->index, accused->index, pair->count, guilty->index,
        broken_links(hub, guilty->pod_uid), broken_links(hub, other->pod_uid));
    hub_output_text(hub_output_event(out, hub, HUB_EVENT_ISOLATED, guilty)->message, "%s", reason);
    leave.leave.reason = reason;
    hub_output_message(out, guilty, &leave);
    hub_peer_lose(hub, guilty, fleet_cause_word(FLEET_CAUSE_ISOLATED), reason, false, hub->now_ms,
                  out);
}

void hub_accuse_forget(struct hub *hub, const char *pod_uid)
{
    size_t kept = 0;

    for (size_t i = 0; i < hub->pair_count; i++) {
        const struct hub_pair *pair = &hub->pairs[i];
        if (pod_uid && strcmp(pair->accuser, pod_uid) != 0 && strcmp(pair->accused, pod_uid) != 0)
            hub->pairs[kept++] = *pair;
    }
    hub->pair_count = kept;
}
