/* SPDX-License-Identifier: Apache-2.0 */

/* The list of actions that is a hub's answer. */
#include <math.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/hub_internal.h"

static struct hub_action *append(struct hub_output *out, enum hub_action_type type)
{
    out->items = fleet_reserve(out->items, out->count, &out->capacity, sizeof(*out->items));
    out->items[out->count] = (struct hub_action){.type = type};
    return &out->items[out->count++];
}

void hub_output_release(struct hub_output *out)
{
    for (size_t i = 0; i < out->count; i++) {
        message_text_release(out->items[i].text);
        free(out->items[i].reason);
        if (out->items[i].event)
            free(out->items[i].event->text);
        free(out->items[i].event);
    }
    free(out->items);
    *out = (struct hub_output){0};
}

struct hub_event *hub_output_stall(struct hub_output *out, const struct hub *hub,
                                   enum hub_event_type type, enum hub_stall stall)
{
    struct hub_event *event = hub_output_event(out, hub, type, NULL);

    event->stall = stall;
    hub_output_text(event->cause, "%s", hub_stall_word(stall));
    return event;
}

void hub_output_move(struct hub_output *to, struct hub_output *from)
{
    if (to->capacity == 0) {
        *to = *from;
        *from = (struct hub_output){0};
        return;
    }
    for (size_t i = 0; i < from->count; i++) {
        struct hub_action *action = append(to, HUB_CLOSE);
        *action = from->items[i]; /* what it owns moves along */
    }
    free(from->items);
    *from = (struct hub_output){0};
}

void hub_output_defect(struct hub_output *out, const char *text, double at_ms)
{
    struct hub_event *event = calloc(1, sizeof(*event));

    fleet_assert(event != NULL);
    event->type = HUB_EVENT_DEFECT;
    event->at_ms = at_ms;
    event->until_ms = INFINITY;
    event->member = -1;
    hub_output_text(event->message, "%s", text);
    append(out, HUB_EVENT)->event = event;
}

void hub_output_send(struct hub_output *out, const struct hub_peer *peer, struct message_text *text)
{
    struct hub_action *action;

    if (!peer->is_connected)
        return;
    action = append(out, HUB_SEND);
    action->connection = peer->connection;
    action->text = message_text_use(text);
}

void hub_output_message(struct hub_output *out, const struct hub_peer *peer,
                        const struct message *message)
{
    if (peer->is_connected)
        hub_output_reply(out, peer->connection, message);
}

void hub_output_reply(struct hub_output *out, uint64_t connection, const struct message *message)
{
    struct hub_action *action = append(out, HUB_SEND);

    action->connection = connection;
    action->text = message_encode(message);
}

void hub_output_close(struct hub_output *out, uint64_t connection, bool is_refusal,
                      const char *reason)
{
    struct hub_action *action = append(out, HUB_CLOSE);

    action->connection = connection;
    action->is_refusal = is_refusal;
    action->reason = fleet_dup_text(reason);
}

void hub_output_record(struct hub_output *out, struct hub *hub, struct fleet_generation generation,
                       int64_t first_step)
{
    bool is_proposed = hub->phase == HUB_RECORDING; /* else assigned and counted before */
    const struct hub_incident *incident = is_proposed ? &hub->incident : &hub->restart.incident;
    bool is_new = is_proposed && incident->is_open;
    bool is_restart = is_new && hub_restart_counts(hub, incident);
    struct hub_record *record = &append(out, HUB_RECORD)->record;
    int failures;

    *record =
        (struct hub_record){.generation = generation,
                            .members = is_proposed ? (int)hub->chosen_count : hub->newest_members,
                            .first_step = first_step,
                            .restarts = hub->restarts + is_restart,
                            .restarts_total = hub->restarts_total + is_restart,
                            .restarts_ignored = hub->restarts_ignored +
                                                (is_new && hub_restart_is_ignored(hub, incident)),
                            .member = incident->is_open ? incident->member : -1,
                            .exit_code = incident->is_open ? incident->exit_code : -1};
    if (incident->is_open)
        hub_output_text(record->cause, "%s", incident->cause);
    failures = record->restarts_total + record->restarts_ignored;
    record->untold = failures - hub->written_failures - (incident->is_open && incident->is_failure);
    if (record->untold < 0)
        record->untold = 0;
    hub->asked = generation;
    hub->asked_failures = failures;
}

struct hub_event *hub_output_event(struct hub_output *out, const struct hub *hub,
                                   enum hub_event_type type, const struct hub_peer *peer)
{
    struct hub_event *event = calloc(1, sizeof(*event));

    fleet_assert(event != NULL);
    *event = (struct hub_event){
        .type = type,
        .generation = hub->newest,
        .at_ms = hub->now_ms,
        .member = peer ? peer->index : -1,
        .attempt = peer ? peer->attempt : 0,
        .exit_code = -1,
        .restarts = hub->restarts,
        .members = hub->newest_members,
    };
    if (peer)
        hub_output_text(event->pod_uid, "%s", peer->pod_uid);
    append(out, HUB_EVENT)->event = event;
    return event;
}
