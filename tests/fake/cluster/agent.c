/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The agents: the real supervisor with a real member, and a connection to whichever hub the
 * endpoint names. Messages of a living connection arrive in order; a cut network holds them back.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/api/worker_name.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "tests/fake/cluster/rules.h"

/* ---- the network ----------------------------------------------------------------------------- */

void cluster_transmit(struct cluster *c, struct cluster_agent *a, enum cluster_event_type type,
                      uint64_t connection, struct message_text *text)
{
    int direction = type == CLUSTER_TO_HUB || type == CLUSTER_CUT_HUB ? 0 : 1;
    double at_ms = c->now_ms + cluster_uniform(c, 0.1, 3);

    at_ms = fmax(at_ms, a->cut_until_ms + cluster_uniform(c, 0, 2));
    at_ms = fmax(at_ms, a->last_arrival_ms[direction] + 0.001);
    a->last_arrival_ms[direction] = at_ms;
    cluster_push(c, at_ms,
                 (struct cluster_event){.type = type,
                                        .agent = a->number,
                                        .connection = connection,
                                        .text = text ? message_text_use(text) : NULL});
}

static void dial(struct cluster *c, struct cluster_agent *a)
{
    double at_ms = fmax(c->now_ms, a->cut_until_ms) + cluster_uniform(c, 1, 8);

    if (a->cut_until_ms > c->now_ms + 5000)
        cluster_push(c, c->now_ms + 5000, /* it gives up before */
                     (struct cluster_event){.type = CLUSTER_DIAL_FAILED, .agent = a->number});
    else
        cluster_push(c, at_ms, (struct cluster_event){.type = CLUSTER_DIAL, .agent = a->number});
}

static void close_connection(struct cluster *c, struct cluster_agent *a)
{
    if (a->connection)
        cluster_transmit(c, a, CLUSTER_CUT_HUB, a->connection, NULL);
    a->connection = 0;
}

/* ---- what its member wants ------------------------------------------------------------------- */

static void apply_member(struct cluster_agent *a, struct member_output *out)
{
    struct member_output taken = *out;
    struct cluster *c = a->cluster;

    *out = (struct member_output){0};
    for (size_t i = 0; i < taken.count; i++) {
        const struct member_action *action = &taken.items[i];
        switch (action->type) {
        case MEMBER_DIAL:
            dial(c, a);
            break;
        case MEMBER_SEND:
            if (a->connection)
                cluster_transmit(c, a, CLUSTER_TO_HUB, a->connection, action->text);
            break;
        case MEMBER_CLOSE:
            close_connection(c, a);
            break;
        default:
            if (action->type != MEMBER_VALUE)
                cluster_trace(c, "agent %s: %s %lld.%lld %s", a->pod,
                              action->type == MEMBER_ASSIGN       ? "assigned"
                              : action->type == MEMBER_ABORT      ? "aborts"
                              : action->type == MEMBER_CHECKPOINT ? "checkpoint"
                              : action->type == MEMBER_LEAVE      ? "told to leave"
                              : action->type == MEMBER_DONE       ? "done"
                                                                  : "refused",
                              (long long)action->generation.epoch,
                              (long long)action->generation.counter,
                              action->reason ? action->reason : "");
            if (action->type == MEMBER_ABORT && strcmp(action->reason, "Resize") == 0)
                cluster_restarts_resize(c, a->job, action->generation);
            supervisor_order(a->supervisor, action, c->now_ms);
            break;
        }
    }
    member_output_release(&taken);
}

/* ---- what its supervisor wants --------------------------------------------------------------- */

static int host_start(void *user, int local_rank, const struct supervisor_place *place,
                      struct fleet_error *err)
{
    struct cluster_agent *a = user;

    (void)err;
    if (place)
        cluster_own_start(a->cluster, a, local_rank, place);
    else
        cluster_trainer_start(a->cluster, a, local_rank);
    return 0;
}

static void host_signal(void *user, int local_rank, int signal_number)
{
    struct cluster_agent *a = user;

    if (a->cluster->jobs[a->job].is_own)
        cluster_own_signal(a->cluster, a, local_rank, signal_number);
    else
        cluster_trainer_die(a->cluster, a, local_rank, signal_number);
}

static void host_send(void *user, int local_rank, const struct link_message *message)
{
    struct cluster_agent *a = user;

    if (a->trainers[local_rank].is_alive)
        cluster_trainer_told(a->cluster, a, local_rank, message);
}

static void host_rank(void *user, int local_rank, int rank)
{
    (void)user;
    (void)local_rank;
    (void)rank;
}

static struct member *host_member(void *user, enum fleet_isa level)
{
    struct cluster_agent *a = user;
    static const int ports[CLUSTER_PROCESSES] = {7000, 7001};
    struct member_config config = {.job_uid = a->cluster->jobs[a->job].uid,
                                   .pod_uid = a->uid,
                                   .index = a->index,
                                   .attempt = a->attempt,
                                   .address = a->address,
                                   .ports = ports,
                                   .processes = a->cluster->jobs[a->job].processes,
                                   .devices = "",
                                   .level = level,
                                   .version = "1",
                                   .own_trainer = a->cluster->jobs[a->job].is_own,
                                   .seed = cluster_random(a->cluster)};

    if (!a->member)
        a->member = member_new(&config, a->cluster->now_ms);
    return a->member;
}

static double host_now(void *user)
{
    return ((struct cluster_agent *)user)->cluster->now_ms;
}

static void host_apply(void *user, struct member_output *out)
{
    apply_member(user, out);
}

static void host_failed(void *user, const struct member_failure *failure, const char *text)
{
    struct cluster_agent *a = user;

    cluster_trace(a->cluster, "agent %s: trainer %d failed: exit %d signal %d %s", a->pod,
                  failure->local_rank, failure->exit_code, failure->signal, text);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct cluster_agent *cluster_agent_find(struct cluster *c, const char *pod_uid)
{
    for (int i = c->agent_count - 1; i >= 0; i--)
        if (strcmp(c->agents[i].uid, pod_uid) == 0)
            return &c->agents[i];
    return NULL;
}

void cluster_agent_start(struct cluster *c, int node, const cJSON *pod)
{
    struct cluster_agent *a = &c->agents[c->agent_count];
    static const int ports[CLUSTER_PROCESSES] = {7000, 7001};
    struct supervisor_config config = {.ports = ports};
    struct supervisor_host host = {.start = host_start,
                                   .signal = host_signal,
                                   .send = host_send,
                                   .rank = host_rank,
                                   .member = host_member,
                                   .now = host_now,
                                   .apply = host_apply,
                                   .failed = host_failed,
                                   .user = a};
    bool is_named;

    fleet_assert(c->agent_count < CLUSTER_AGENTS);
    *a = (struct cluster_agent){.cluster = c,
                                .is_alive = true,
                                .number = c->agent_count++,
                                .node = node,
                                .kill_at_ms = INFINITY,
                                .exit_code = -1,
                                .last_place = -1,
                                .killed_in = -1};
    a->job = cluster_job_find(
        c, cJSON_GetStringValue(fleet_json_at(pod, "metadata.ownerReferences[0].uid")));
    (void)snprintf(a->pod, sizeof(a->pod), "%s",
                   cJSON_GetStringValue(fleet_json_at(pod, "metadata.name")));
    is_named = worker_name_parse(a->pod, c->jobs[a->job].name, &a->index, &a->attempt);
    fleet_assert(is_named); /* its labels may have been removed */
    (void)snprintf(a->uid, sizeof(a->uid), "%s",
                   cJSON_GetStringValue(fleet_json_at(pod, "metadata.uid")));
    (void)snprintf(a->address, sizeof(a->address), "10.1.%d.%d", a->number / 250,
                   a->number % 250 + 1);
    cluster_trace(c, "agent %s (%s) starts on node %d", a->pod, a->uid + 30, node);
    config.hub_may_move = c->world.has_drains;
    config.grace_ms = c->world.has_drains ? CLUSTER_GRACE_MS : 8000;
    config.processes = c->jobs[a->job].processes;
    config.has_own_trainer = c->jobs[a->job].is_own;
    config.seed = cluster_random(c);
    for (int i = 0; i < CLUSTER_PROCESSES; i++)
        a->trainers[i] = (struct cluster_trainer){.run = -1, .step = -1};
    a->supervisor = supervisor_new(&config, &host);
    supervisor_start(a->supervisor, c->now_ms);
}

void cluster_agent_kill(struct cluster *c, struct cluster_agent *a, int exit_code, bool is_silent)
{
    cluster_trace(c, "agent %s has ended: %d%s", a->pod, exit_code, is_silent ? ", silently" : "");
    if (exit_code == 137)
        cluster_restarts_hurt(c, a, c->now_ms);
    a->is_alive = false;
    a->ended_ms = c->now_ms;
    a->exit_code = exit_code;
    if (!is_silent)
        close_connection(c, a);
    a->connection = 0;
    for (int i = 0; i < CLUSTER_PROCESSES; i++)
        a->trainers[i].is_alive = false;
    supervisor_free(a->supervisor);
    member_free(a->member);
    a->supervisor = NULL;
    a->member = NULL;
    cluster_kubelet_soon(c, a->node);
}

void cluster_agent_settle(struct cluster *c, struct cluster_agent *a)
{
    int exit_code;

    if (!a->is_alive || !supervisor_is_over(a->supervisor, &exit_code))
        return;
    if (c->world.has_drains && a->member && !member_has_left(a->member) &&
        supervisor_patience_ms(a->supervisor, c->now_ms) > 0)
        return; /* as the agent's program does */
    cluster_agent_kill(c, a, exit_code, false);
}

void cluster_agent_term(struct cluster *c, struct cluster_agent *a, double grace_ms)
{
    if (a->is_termed)
        return;
    a->is_termed = true;
    a->kill_at_ms = c->now_ms + grace_ms;
    if (a->stopped_until_ms > c->now_ms)
        return; /* a stopped process does not get the signal; SIGKILL follows */
    cluster_restarts_term(c, a);
    supervisor_signal(a->supervisor, SIGTERM, c->now_ms);
    cluster_agent_settle(c, a);
}

void cluster_agent_say(struct cluster_agent *a, int process, const struct link_message *message)
{
    supervisor_message(a->supervisor, process, message, a->cluster->now_ms);
}

/* ---- time ------------------------------------------------------------------------------------ */

double cluster_agent_next(const struct cluster_agent *a)
{
    double next_ms = supervisor_deadline(a->supervisor);

    if (a->member)
        next_ms = fmin(next_ms, member_deadline(a->member));
    return fmin(fmax(next_ms, a->stopped_until_ms), a->kill_at_ms);
}

void cluster_agent_tick(struct cluster *c, struct cluster_agent *a)
{
    struct link_message beat = {.kind = LINK_HEARTBEAT};
    struct member_output out = {0};

    if (a->kill_at_ms <= c->now_ms) {
        cluster_agent_kill(c, a, 137, false);
        return;
    }
    for (int i = 0; i < c->jobs[a->job].processes; i++)
        if (a->trainers[i].is_alive && !c->jobs[a->job].is_own)
            cluster_agent_say(a, i, &beat);
    if (supervisor_deadline(a->supervisor) <= c->now_ms)
        supervisor_tick(a->supervisor, c->now_ms);
    if (a->member && member_deadline(a->member) <= c->now_ms) {
        member_tick(a->member, c->now_ms, &out);
        apply_member(a, &out);
    }
    cluster_agent_settle(c, a);
}

/* ---- what arrives ---------------------------------------------------------------------------- */

static void on_dial(struct cluster *c, struct cluster_agent *a)
{
    struct hub_output hub_out = {0};
    struct member_output out = {0};
    int replica = c->endpoint, hosted;
    bool is_same = replica >= 0 && c->replicas[replica].is_alive &&
                   c->replicas[replica].life == c->endpoint_life;

    if (is_same && !cluster_replica_runs(c, replica)) { /* no answer comes */
        cluster_push(c, c->now_ms + 5000,
                     (struct cluster_event){.type = CLUSTER_DIAL_FAILED, .agent = a->number});
        return;
    }
    hosted = is_same ? cluster_hub_find(c, replica, a->job) : -1;
    if (hosted < 0 || !cluster_door_is_trusted(c, replica)) {
        if (c->world.is_whole)
            c->thawed_ms = c->now_ms; /* its hub may take it to be lost */
        member_disconnected(a->member, c->now_ms, &out);
        apply_member(a, &out);
        return;
    }
    fleet_assert(c->connection_count + 1 < CLUSTER_CONNECTIONS);
    a->connection = ++c->connection_count;
    c->connections[a->connection].agent = a->number;
    c->connections[a->connection].replica = replica;
    c->connections[a->connection].hosted = hosted;
    c->connections[a->connection].is_open = true;
    hub_connected(c->replicas[replica].hubs[hosted].hub, a->connection, c->now_ms, &hub_out);
    cluster_hub_apply(&c->replicas[replica].hubs[hosted], &hub_out);
    member_connected(a->member, c->now_ms, &out);
    apply_member(a, &out);
}

static void take_message(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_agent *a = &c->agents[event->agent];
    struct cluster_hosted *hosted = cluster_hub_of(c, event->connection);
    struct hub_output hub_out = {0};
    struct member_output out = {0};
    struct message message;
    struct fleet_error err;

    if (message_decode(event->text->text, event->text->size, &message, &err) < 0)
        cluster_broken(c, "%s: %s", err.text, event->text->text);
    if (event->type == CLUSTER_TO_HUB && hosted) {
        a->heard_by = c->leaders;
        if (message.type == MESSAGE_LEFT) {
            a->left_to = c->leaders;
            a->left_ms = c->now_ms;
        }
        hub_receive(hosted->hub, event->connection, &message, c->now_ms, &hub_out);
        cluster_hub_apply(hosted, &hub_out);
    } else if (event->type == CLUSTER_TO_MEMBER && a->is_alive &&
               a->connection == event->connection) {
        member_receive(a->member, &message, c->now_ms, &out);
        apply_member(a, &out);
    }
    message_release(&message);
}

static void take_cut(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_agent *a = &c->agents[event->agent];
    struct cluster_hosted *hosted = cluster_hub_of(c, event->connection);
    struct hub_output hub_out = {0};
    struct member_output out = {0};

    if (event->type == CLUSTER_CUT_HUB && hosted) {
        c->connections[event->connection].is_open = false;
        hub_disconnected(hosted->hub, event->connection, c->now_ms, &hub_out);
        cluster_hub_apply(hosted, &hub_out);
    } else if (event->type == CLUSTER_CUT_MEMBER && a->is_alive &&
               a->connection == event->connection) {
        a->connection = 0;
        member_disconnected(a->member, c->now_ms, &out);
        apply_member(a, &out);
    }
}

/* A sleeping process gets it when it wakes up. */
static bool is_held_back(struct cluster *c, const struct cluster_event *event)
{
    const struct cluster_agent *a = &c->agents[event->agent];
    bool is_for_hub = event->type == CLUSTER_TO_HUB || event->type == CLUSTER_CUT_HUB;
    double until_ms = a->is_alive ? a->stopped_until_ms : 0;
    struct cluster_event later = *event;

    if (is_for_hub) {
        int replica = c->connections[event->connection].replica;
        until_ms = c->connections[event->connection].is_open && !cluster_replica_runs(c, replica)
                       ? c->replicas[replica].frozen_until_ms + 0.001
                       : 0;
    }
    if (until_ms <= c->now_ms)
        return false;
    later.text = event->text ? message_text_use(event->text) : NULL;
    cluster_push(c, until_ms, later);
    return true;
}

void cluster_agent_event(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_agent *a = &c->agents[event->agent];
    struct member_output out = {0};

    if (is_held_back(c, event))
        return;
    if (event->type <= CLUSTER_TO_MEMBER)
        take_message(c, event);
    else if (event->type <= CLUSTER_CUT_MEMBER)
        take_cut(c, event);
    else if (!a->is_alive || !a->member || a->connection)
        return;
    else if (event->type == CLUSTER_DIAL)
        on_dial(c, a);
    else {
        member_disconnected(a->member, c->now_ms, &out);
        apply_member(a, &out);
    }
    cluster_agent_settle(c, a);
}
