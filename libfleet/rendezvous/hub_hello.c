/* SPDX-License-Identifier: Apache-2.0 */

/* A member's hello: the member is new, comes back, or was known to an earlier hub. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/cause.h"
#include "libfleet/rendezvous/hub_internal.h"

void hub_hello_refuse(uint64_t connection, const char *reason, struct hub_output *out)
{
    struct message message = {.type = MESSAGE_REFUSED, .refused = {.reason = reason}};

    hub_output_reply(out, connection, &message);
    hub_output_close(out, connection, true, reason);
}

struct message hub_hello_greeting(const struct hub *hub)
{
    const struct hub_peer *holder = hub_cells_are_whole(hub) ? hub_holder_best(hub, true) : NULL;
    int64_t held = holder ? holder->status.step : 0;

    return (struct message){
        .type = MESSAGE_HEARTBEAT,
        .heartbeat = {.status = {.generation = hub->newest, .step = -1},
                      .progress_step = hub->progress_step,
                      .checkpoint_step = hub->checkpoint_step,
                      .held_step = held > hub->checkpoint_step ? held : hub->checkpoint_step,
                      .interval_ms = hub_heartbeat_interval(hub)}};
}

/* A generation computes with one back end: the ranks' bits would differ, and a GPU's collectives do
 * not reach a processor. No restart mends that. True: the job has failed. */
static bool is_mixed(struct hub *hub, const struct message_hello *hello, struct hub_output *out)
{
    struct hub_cause cause = {.cause = fleet_cause_word(FLEET_CAUSE_MIXED_BACKENDS),
                              .exit_code = -1,
                              .fault_ms = hub->now_ms};
    char message[MESSAGE_REASON_MAX + 1];

    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *other = hub->peers[i];
        if (!other->is_connected || !other->backend[0] || !hello->backend || !hello->backend[0] ||
            other->index == hello->index || strcmp(other->backend, hello->backend) == 0)
            continue;
        hub_output_text(message,
                        "worker %d computes with %s and worker %d with %s: all workers of a job "
                        "need the same FLEET_BACKEND",
                        other->index, other->backend, hello->index, hello->backend);
        cause.message = message;
        hub_finish_fail(hub, &cause, out);
        return true;
    }
    return false;
}

static void describe_peer(struct hub_peer *peer, const struct message_hello *hello)
{
    peer->index = hello->index;
    peer->attempt = hello->attempt;
    peer->level = hello->level;
    hub_output_text(peer->backend, "%s", hello->backend ? hello->backend : "");
    hub_output_text(peer->left_for, "%s", hello->left_for);
    peer->processes = hello->processes;
    memcpy(peer->ports, hello->ports, (size_t)hello->processes * sizeof(peer->ports[0]));
    hub_output_text(peer->address, "%s", hello->address);
}

/* A generation that is newer than the record: an earlier hub made it and could not record it. */
static void learn_generation(struct hub *hub, const struct message_hello *hello,
                             struct hub_output *out)
{
    int restarts = hello->restarts < HUB_RESTARTS_MAX ? hello->restarts : HUB_RESTARTS_MAX;
    int more = restarts - hub->restarts_total;
    struct hub_record record = {.generation = hello->status.generation,
                                .first_step = hello->status.step >= 0 ? hello->status.step + 1 : 1};

    hub->restarts += more > 0 ? more : 0;
    hub->restarts_total += more > 0 ? more : 0;
    hub->restart = (struct hub_restart){
        .incident = {.is_open = more > 0, .is_failure = true, .member = -1, .exit_code = -1},
        .step = -1,
        .restored_step = -1};
    hub_output_text(hub->restart.incident.cause, "%s", fleet_cause_word(FLEET_CAUSE_UNKNOWN));
    hub->newest = hello->status.generation;
    hub->newest_members = hello->members;
    hub->newest_heard = 0;
    hub_places_clear(&hub->heard_places);
    hub->is_broken = false;
    hub_finish_forget(hub);
    message_text_release(hub->newest_text);
    hub->newest_text = NULL;
    for (size_t i = 0; i < hub->peer_count; i++)
        hub->peers[i]->place = -1;
    hub->unrecorded = hub->newest;
    hub->unrecorded_first_step = record.first_step;
    hub->unrecorded_ms = INFINITY;
    hub->lineage = hub_record_lineage(hub, &record);
    hub_output_record(out, hub, hub->unrecorded, hub->unrecorded_first_step);
}

/* Take the place that the member remembers: this hub is new, or had given the member up. */
static void adopt(struct hub *hub, struct hub_peer *peer, const struct message_hello *hello)
{
    if (peer->place >= 0 || hello->place < 0 || hello->place >= hello->members ||
        fleet_generation_compare(hello->status.generation, hub->newest) != 0 ||
        (hub->newest_members > 0 && hub->newest_members != hello->members))
        return;
    if (hub->newest_text && !hub->is_broken)
        return; /* the generation is whole without it */
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub->peers[i]->place == hello->place)
            return; /* (5) */
    hub->newest_members = hello->members;
    peer->place = hello->place;
    hub->newest_heard += hub_places_add(&hub->heard_places, peer->place);
    hub_places_remove(&hub->finished_gone, peer->place); /* it says so itself */
    if (hub->phase == HUB_GATHERING && !hub->is_broken &&
        hello->status.state == MESSAGE_STATE_RUNNING) {
        hub->phase = hello->status.phase == FLEET_PHASE_FIRST_STEP ? HUB_RUNNING : HUB_FORMING;
        hub->progress_ms = hub->begun_ms = hub->now_ms;
    }
}

/* The job is over, but the member may still have something to report: its last checkpoint. No hub
 * has it if this one is new and the job was suspended before the member had found it. */
static void receive_late(struct hub *hub, uint64_t connection, const struct message *message,
                         struct hub_output *out)
{
    struct message greeting = hub_hello_greeting(hub);
    struct message done = {.type = MESSAGE_DONE,
                           .done = {.succeeded = hub->has_ended_well, .reason = hub->end_reason}};
    struct hub_peer *peer = fleet_map_get(&hub->by_uid, message->hello.pod_uid);

    if (!peer && hub->peer_count < MESSAGE_MEMBERS_MAX) {
        peer = hub_peer_add(hub, message->hello.pod_uid);
        describe_peer(peer, &message->hello);
        peer->status = message->hello.status;
        adopt(hub, peer, &message->hello);
    }
    if (peer) {
        hub_peer_unbind(hub, peer);
        hub_peer_bind(hub, peer, connection);
        peer->sequence = message->sequence;
        hub_output_reply(out, connection, &greeting);
    }
    hub_output_reply(out, connection, &done);
}

/* Another hub, unknown to this one, has assigned a newer generation: the job's status or the Lease
 * was lost or restored, or another replica leads. Only the owner can tell. */
static void supersede(struct hub *hub, const struct message_hello *hello, struct hub_output *out)
{
    struct hub_event *event =
        hub_output_stall(out, hub, HUB_EVENT_SUPERSEDED, HUB_STALL_SUPERSEDED);

    hub->is_superseded = true;
    event->generation = hello->status.generation;
    event->member = hello->index;
    hub_output_text(event->message,
                    "worker %d holds generation %" PRId64 " of epoch %" PRId64
                    ", but the status and the Lease give this hub epoch %" PRId64,
                    hello->index, hello->status.generation.counter, hello->status.generation.epoch,
                    hub->epoch);
}

void hub_hello_receive(struct hub *hub, uint64_t connection, const struct message *message,
                       struct hub_output *out)
{
    const struct message_hello *hello = &message->hello;
    struct hub_peer *peer;
    struct message greeting;
    bool is_new, is_behind;

    if (strcmp(hello->job_uid, hub->job_uid) != 0) {
        hub_hello_refuse(connection, "this hub serves another job", out);
        return;
    }
    if (hub_finish_is_over(hub)) {
        receive_late(hub, connection, message, out);
        return;
    }
    if (hello->status.generation.epoch > hub->epoch) {
        supersede(hub, hello, out);
        return;
    }
    if (!hub_claim_index(hub, hello, connection, &is_behind, out) || hub_finish_is_over(hub))
        return;
    peer = fleet_map_get(&hub->by_uid, hello->pod_uid);
    is_new = peer == NULL;
    if (is_new && hub->peer_count >= MESSAGE_MEMBERS_MAX) {
        hub_hello_refuse(connection, "the job has as many members as a hub can hold", out);
        return;
    }
    if (is_new)
        peer = hub_peer_add(hub, hello->pod_uid);
    if (peer->is_connected && peer->connection != connection)
        hub_output_close(out, peer->connection, false, "the member has opened another connection");
    hub_peer_unbind(hub, peer);
    hub_peer_bind(hub, peer, connection);
    peer->sequence = message->sequence;
    describe_peer(peer, hello);
    peer->is_behind = is_behind;
    hub_leave_join(hub, peer);
    hub_holder_forget(hub, hello->pod_uid);
    if (is_new)
        hub_output_event(out, hub, HUB_EVENT_JOINED, peer);
    greeting = hub_hello_greeting(hub);
    hub_output_message(out, peer, &greeting);
    if (fleet_generation_compare(hello->status.generation, hub->newest) > 0)
        learn_generation(hub, hello, out);
    if (is_mixed(hub, hello, out))
        return;
    adopt(hub, peer, hello);
    hub_status_take(hub, peer, &hello->status, 0, true, out);
}
