/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_HUB_FIXTURE_H
#define TESTS_UNIT_HUB_FIXTURE_H

/*
 * One hub under a clock that the test advances, with its members. One call sends a member's message
 * (ready(1), fail_trainer(0)); the fixture counts the messages to the members.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/rendezvous/hub.h"

#define PEERS_MAX  8
#define EVENTS_MAX 256

/* ---- a hub, what it has said, and its members ------------------------------------------------ */

struct peer {
    uint64_t connection;
    int64_t sequence;
    int attempt, processes;
    struct message_status status;
    enum fleet_isa level;
    int place; /* of the last assign, -1 = not in it */
    int first_rank;
    int assigns, aborts, leaves, dones, refused, closed, values, checkpoints;
    struct fleet_generation aborted;         /* by the last abort */
    char abort_cause[MESSAGE_CAUSE_MAX + 1]; /* of the last one */
    const char *left_for;    /* cause for which a hub ended its generation, as reported; or NULL */
    int64_t checkpoint_step; /* that the hub has acknowledged */
    bool done_succeeded;
    char reason[MESSAGE_REASON_MAX + 1];
    struct message last_assign; /* a copy, if assigns > 0 */
    const char *backend;
};

static struct world {
    struct hub *hub;
    double now_ms;
    struct peer peers[PEERS_MAX];
    uint64_t connections;
    struct hub_event events[EVENTS_MAX]; /* texts are not kept */
    int event_count;
    struct hub_record record;
    int records;
    bool confirms; /* records are confirmed at once */
} w;

static inline struct peer *owner_of(uint64_t connection)
{
    for (int i = 0; i < PEERS_MAX; i++)
        if (w.peers[i].connection == connection)
            return &w.peers[i];
    return NULL;
}

static inline void take_assign(struct peer *peer, const struct message *message)
{
    char uid[32];

    if (peer->assigns++ > 0)
        message_release(&peer->last_assign);
    message_copy(message, &peer->last_assign);
    peer->place = -1;
    (void)snprintf(uid, sizeof(uid), "pod-%d-%d", (int)(peer - w.peers), peer->attempt);
    for (size_t i = 0; i < message->assign.member_count; i++)
        if (strcmp(message->assign.members[i].pod_uid, uid) == 0) {
            peer->place = (int)i;
            peer->first_rank = message_first_rank(&message->assign, (int)i);
        }
}

static inline void take_sent(struct peer *peer, const struct message_text *text)
{
    struct message message;

    assert_int_equal(message_decode(text->text, text->size, &message, NULL), 0);
    if (message.type == MESSAGE_ASSIGN) {
        take_assign(peer, &message);
    } else if (message.type == MESSAGE_DONE) {
        peer->dones++;
        peer->done_succeeded = message.done.succeeded;
        (void)snprintf(peer->reason, sizeof(peer->reason), "%s", message.done.reason);
    } else if (message.type == MESSAGE_REFUSED) {
        peer->refused++;
        (void)snprintf(peer->reason, sizeof(peer->reason), "%s", message.refused.reason);
    }
    if (message.type == MESSAGE_HEARTBEAT)
        peer->checkpoint_step = message.heartbeat.checkpoint_step;
    if (message.type == MESSAGE_ABORT) {
        peer->aborts++;
        peer->aborted = message.abort.generation;
        (void)snprintf(peer->abort_cause, sizeof(peer->abort_cause), "%s", message.abort.cause);
    }
    peer->leaves += message.type == MESSAGE_LEAVE;
    peer->values += message.type == MESSAGE_VALUE;
    peer->checkpoints += message.type == MESSAGE_CHECKPOINT;
    message_release(&message);
}

static inline void carry_out(struct hub_output *out)
{
    struct hub_output more = {0};

    for (size_t i = 0; i < out->count; i++) {
        const struct hub_action *action = &out->items[i];
        struct peer *peer = owner_of(action->connection);
        if (action->type == HUB_SEND && peer) {
            take_sent(peer, action->text);
        } else if (action->type == HUB_CLOSE && peer) {
            peer->closed++;
            peer->connection = 0;
        } else if (action->type == HUB_RECORD) {
            w.records++;
            w.record = action->record;
            if (w.confirms)
                hub_record_done(w.hub, action->record.generation, w.now_ms, &more);
        } else if (action->type == HUB_EVENT) {
            assert_true(w.event_count < EVENTS_MAX);
            w.events[w.event_count++] = *action->event;
        }
    }
    hub_output_release(out);
    if (more.count > 0)
        carry_out(&more);
}

static inline struct hub_policy policy(int min, int desired)
{
    return (struct hub_policy){.min = min,
                               .max = PEERS_MAX,
                               .desired = desired,
                               .rejoin_grace_ms = 500,
                               .timeout_ms = 30000,
                               .restarts_max = 3,
                               .reset_after_steps = 100};
}

static inline void start(int min, int desired, const struct hub_start *change)
{
    struct hub_start s = change ? *change : (struct hub_start){0};
    struct hub_policy p = policy(min, desired);

    memset(&w, 0, sizeof(w));
    w.now_ms = 1000;
    w.confirms = true;
    s.job_uid = "job";
    w.hub = hub_new(&s, &p, w.now_ms);
    for (int i = 0; i < PEERS_MAX; i++)
        w.peers[i] = (struct peer){
            .processes = 1, .place = -1, .level = FLEET_ISA_AMX, .status = {.step = -1}};
}

static inline void stop(void)
{
    for (int i = 0; i < PEERS_MAX; i++)
        if (w.peers[i].assigns > 0)
            message_release(&w.peers[i].last_assign);
    hub_free(w.hub);
}

static inline void send_to_hub(struct peer *peer, struct message *message)
{
    struct hub_output out = {0};

    message->sequence = ++peer->sequence;
    hub_receive(w.hub, peer->connection, message, w.now_ms, &out);
    carry_out(&out);
}

static inline void hello(int index)
{
    struct peer *peer = &w.peers[index];
    char uid[32];
    int ports[MESSAGE_PROCESSES_MAX] = {7000, 7001};
    struct message message = {
        .type = MESSAGE_HELLO,
        .hello = {.job_uid = "job",
                  .pod_uid = uid,
                  .index = index,
                  .attempt = peer->attempt,
                  .address = "10.0.0.1",
                  .ports = ports,
                  .processes = peer->processes,
                  .devices = "cpu",
                  .backend = peer->backend ? peer->backend : "",
                  .level = peer->level,
                  .version = "1",
                  .status = peer->status,
                  .place = peer->place,
                  .members = peer->assigns ? (int)peer->last_assign.assign.member_count : 0,
                  .restarts = peer->assigns ? peer->last_assign.assign.restarts : 0,
                  .left_for = peer->left_for ? peer->left_for : ""}};
    struct hub_output out = {0};

    (void)snprintf(uid, sizeof(uid), "pod-%d-%d", index, peer->attempt);
    if (!peer->connection) {
        peer->connection = ++w.connections;
        hub_connected(w.hub, peer->connection, w.now_ms, &out);
        carry_out(&out);
    }
    send_to_hub(peer, &message);
}

static inline void ready(int index)
{
    w.peers[index].status.state = MESSAGE_STATE_WAITING;
    hello(index);
}

static inline void tell_phase(int index, enum fleet_phase phase, int64_t step, double age_ms)
{
    struct peer *peer = &w.peers[index];
    struct message message = {.type = MESSAGE_READY};

    peer->status.state = MESSAGE_STATE_RUNNING;
    peer->status.generation = peer->last_assign.assign.generation;
    peer->status.phase = phase;
    peer->status.step = step;
    if (phase >= FLEET_PHASE_RESTORED)
        peer->status.state_generation = peer->status.generation;
    message.ready = (struct message_ready){.status = peer->status, .age_ms = age_ms};
    send_to_hub(peer, &message);
}

/* It has left its generation, holding what it held. */
static inline void left_generation(int index)
{
    struct peer *peer = &w.peers[index];
    struct message message = {.type = MESSAGE_READY};

    peer->status.state = MESSAGE_STATE_WAITING;
    peer->status.generation = hub_generation(w.hub);
    peer->status.phase = FLEET_PHASE_WAITING;
    message.ready.status = peer->status;
    send_to_hub(peer, &message);
}

/* From now on the job's trainers are the user's own. */
static inline void make_own(void)
{
    struct hub_policy p = policy(1, 2);
    struct hub_output out = {0};

    p.own_trainer = true;
    hub_configure(w.hub, &p, w.now_ms, &out);
    carry_out(&out);
}

static inline void heartbeat(int index)
{
    struct message message = {.type = MESSAGE_HEARTBEAT,
                              .heartbeat = {.status = w.peers[index].status}};

    send_to_hub(&w.peers[index], &message);
}

static inline void tick(double ms)
{
    struct hub_output out = {0};

    w.now_ms += ms;
    hub_tick(w.hub, w.now_ms, &out);
    carry_out(&out);
}

/* Let time pass. With heartbeats, every connected member sends them. */
static inline void wait_quietly(double ms, bool with_heartbeats)
{
    for (double end_ms = w.now_ms + ms; w.now_ms < end_ms;) {
        tick(fmin(250, end_ms - w.now_ms));
        for (int i = 0; with_heartbeats && i < PEERS_MAX; i++)
            if (w.peers[i].connection)
                heartbeat(i);
    }
}

static inline void progress(int index, int64_t first, int64_t last)
{
    struct message_step steps[MESSAGE_STEPS_MAX];
    struct message message = {.type = MESSAGE_PROGRESS,
                              .progress = {.generation = hub_generation(w.hub), .steps = steps}};

    for (int64_t s = first; s <= last; s++)
        steps[message.progress.count++] = (struct message_step){
            .step = s, .generation = hub_generation(w.hub).counter, .loss = 2, .tokens = 1};
    message.progress.steps_from = first;
    w.peers[index].status.step = last;
    send_to_hub(&w.peers[index], &message);
}

/* All assigned members connect, restore and commit the step after the one agreed upon, or after
 * `step`, if none was. */
static inline void run(int64_t step)
{
    for (int i = 0; i < PEERS_MAX; i++)
        if (w.peers[i].assigns > 0 && w.peers[i].last_assign.assign.step >= 0 &&
            fleet_generation_compare(w.peers[i].last_assign.assign.generation,
                                     hub_generation(w.hub)) == 0)
            step = w.peers[i].last_assign.assign.step;
    for (enum fleet_phase phase = FLEET_PHASE_CONNECTED; phase <= FLEET_PHASE_FIRST_STEP; phase++)
        for (int i = 0; i < PEERS_MAX; i++)
            if (w.peers[i].place >= 0 && w.peers[i].connection)
                tell_phase(i, phase, phase == FLEET_PHASE_FIRST_STEP ? step + 1 : step, 0);
}

static inline void form(int count)
{
    for (int i = 0; i < count; i++)
        ready(i);
    run(0);
    progress(0, 1, 1);
}

static inline void fail_trainer_with(int index, int exit_code, int signal, const char *cause,
                                     bool fatal)
{
    struct peer *peer = &w.peers[index];
    struct message message = {.type = MESSAGE_FAILED,
                              .failed = {.generation = peer->status.generation,
                                         .exit_code = exit_code,
                                         .signal = signal,
                                         .cause = cause,
                                         .fatal = fatal,
                                         .lines = "last lines",
                                         .age_ms = 4}};

    peer->status = (struct message_status){.generation = peer->status.generation, .step = -1};
    send_to_hub(peer, &message);
}

static inline void fail_trainer(int index)
{
    fail_trainer_with(index, -1, 9, "", false);
}

static inline void checkpoint(int index, int64_t counter, int64_t step)
{
    struct message message = {
        .type = MESSAGE_CHECKPOINT_DONE,
        .checkpoint_done = {.generation = {1, counter}, .step = step, .path = "/c"}};

    send_to_hub(&w.peers[index], &message);
}

static inline void leave(int index)
{
    struct message message = {.type = MESSAGE_LEFT, .left = {.reason = "Signal15"}};

    send_to_hub(&w.peers[index], &message);
}

static inline void accuse(int accuser, int rank)
{
    struct message message = {.type = MESSAGE_PEER_LOST,
                              .peer_lost = {.generation = hub_generation(w.hub), .rank = rank}};

    send_to_hub(&w.peers[accuser], &message);
}

static inline void disconnect(int index)
{
    struct hub_output out = {0};

    hub_disconnected(w.hub, w.peers[index].connection, w.now_ms, &out);
    w.peers[index].connection = 0;
    carry_out(&out);
}

static inline void gone(int index)
{
    char uid[32];
    struct hub_output out = {0};

    (void)snprintf(uid, sizeof(uid), "pod-%d-%d", index, w.peers[index].attempt);
    hub_member_gone(w.hub, uid, FLEET_CAUSE_MEMBER_LOST, w.now_ms, &out);
    w.peers[index].connection = 0;
    carry_out(&out);
}

static inline int count_events(enum hub_event_type type)
{
    int count = 0;

    for (int i = 0; i < w.event_count; i++)
        count += w.events[i].type == type;
    return count;
}

static const struct hub_event *last_event(enum hub_event_type type)
{
    for (int i = w.event_count - 1; i >= 0; i--)
        if (w.events[i].type == type)
            return &w.events[i];
    fail_msg("no event %s", hub_event_name(type));
    return NULL;
}

#define assert_generation(n) assert_int_equal(hub_generation(w.hub).counter, (n))

#define assert_phase(p) assert_string_equal(hub_phase_name(hub_phase(w.hub)), hub_phase_name(p))

static inline void restart_all(int count, int64_t step)
{
    for (int i = 0; i < count; i++)
        if (w.peers[i].connection)
            left_generation(i);
    run(step);
}

/* A member of generation (1, 5) with `count` members that runs, as a hub learns of it later. */
static inline void remember(int index, int count)
{
    static const int port = 1;
    static const struct message_member nobody = {
        .pod_uid = "x", .address = "a", .ports = &port, .processes = 1};
    struct message_member members[PEERS_MAX];
    struct message message = {.type = MESSAGE_ASSIGN,
                              .assign = {.generation = {1, 5},
                                         .members = members,
                                         .member_count = (size_t)count,
                                         .world = count,
                                         .plan_digest = ""}};

    for (int i = 0; i < count; i++)
        members[i] = nobody;
    w.peers[index].assigns = 1;
    message_copy(&message, &w.peers[index].last_assign);
    w.peers[index].place = index;
    w.peers[index].status = (struct message_status){.state = MESSAGE_STATE_RUNNING,
                                                    .generation = {1, 5},
                                                    .phase = FLEET_PHASE_FIRST_STEP,
                                                    .step = 40,
                                                    .state_generation = {1, 5}};
}

static inline void departs_as(int index, enum fleet_cause cause, bool explains)
{
    char uid[32];

    (void)snprintf(uid, sizeof(uid), "pod-%d-%d", index, w.peers[index].attempt);
    hub_member_departs(w.hub, uid, index, w.peers[index].attempt, cause, explains);
}

static inline void departs(int index, enum fleet_cause cause)
{
    departs_as(index, cause, true);
}

#endif
