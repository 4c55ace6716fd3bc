/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Replicas of the controller: the real one, with the fake API server for a world and the hubs'
 * network in memory. A frozen replica does not run, its time goes on; when it wakes up, all
 * that was due is due at once, its hubs before or after the rest.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/machinery/event_recorder.h"
#include "controller/machinery/leader_election.h"
#include "controller/machinery/metrics.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_io.h"
#include "tests/fake/cluster/cluster.h"

#define STREAM_PAUSE_MS 20.0
#define WALL_START_MS   INT64_C(1767225600000)

/* ---- its way to the API server --------------------------------------------------------------- */

static double spy_now(struct kube_io *io)
{
    return kube_now_ms(((struct cluster_spy *)io)->inner);
}

static int64_t spy_wall(struct kube_io *io)
{
    struct cluster_spy *spy = (struct cluster_spy *)io;

    return kube_wall_ms(spy->inner) + spy->cluster->replicas[spy->replica].wall_skew_ms +
           spy->cluster->passed_ms;
}

static uint64_t spy_random(struct kube_io *io)
{
    struct kube_io *inner = ((struct cluster_spy *)io)->inner;

    return inner->ops->random(inner);
}

static struct kube_call *spy_send(struct kube_io *io, const struct kube_request *request)
{
    struct cluster_spy *spy = (struct cluster_spy *)io;

    cluster_check_request(spy->cluster, spy->replica, request);
    return kube_send(spy->inner, request);
}

static struct kube_call *spy_after(struct kube_io *io, double delay_ms, void (*on_time)(void *),
                                   void *user)
{
    return kube_after(((struct cluster_spy *)io)->inner, delay_ms, on_time, user);
}

static void spy_cancel(struct kube_io *io, struct kube_call *call)
{
    struct kube_io *inner = ((struct cluster_spy *)io)->inner;

    inner->ops->cancel(inner, call);
}

static const struct kube_io_ops spy_ops = {.now_ms = spy_now,
                                           .wall_ms = spy_wall,
                                           .random = spy_random,
                                           .send = spy_send,
                                           .after = spy_after,
                                           .cancel = spy_cancel};

/* ---- the network of its hubs ----------------------------------------------------------------- */

static void close_connections(struct cluster_hosted *hosted)
{
    struct cluster *c = hosted->cluster;
    int place = (int)(hosted - c->replicas[hosted->replica].hubs);

    for (uint64_t i = 1; i <= c->connection_count; i++)
        if (c->connections[i].is_open && c->connections[i].replica == hosted->replica &&
            c->connections[i].hosted == place) {
            c->connections[i].is_open = false;
            if (!c->replicas[hosted->replica].is_silent)
                cluster_transmit(c, &c->agents[c->connections[i].agent], CLUSTER_CUT_MEMBER, i,
                                 NULL);
        }
}

static struct cluster_hosted *hosted_of(struct cluster_spy *spy, const struct fake_hub *hub)
{
    struct cluster_replica *replica = &spy->cluster->replicas[spy->replica];
    ptrdiff_t place = hub - replica->network.hubs;

    fleet_assert(place < CLUSTER_JOBS);
    return &replica->hubs[place];
}

static void on_hub_added(void *user, struct fake_hub *hub)
{
    struct cluster_spy *spy = user;
    int job = cluster_job_find(spy->cluster, hub->job_uid);

    fleet_assert(job >= 0);
    *hosted_of(spy, hub) = (struct cluster_hosted){
        .cluster = spy->cluster, .replica = spy->replica, .hub = hub->hub, .job = job};
    cluster_trace(spy->cluster, "replica %d hosts a hub of job %d", spy->replica, job);
}

static void on_hub_removing(void *user, struct fake_hub *hub)
{
    struct cluster_hosted *hosted = hosted_of(user, hub);

    cluster_trace(hosted->cluster, "replica %d ends the hub of job %d", hosted->replica,
                  hosted->job);
    close_connections(hosted);
    hosted->hub = NULL;
}

static void on_hub_answering(void *user, struct fake_hub *hub, struct fleet_generation generation,
                             bool is_done)
{
    struct cluster_hosted *hosted = hosted_of(user, hub);

    if (is_done)
        return;
    cluster_trace(hosted->cluster, "generation %lld.%lld of job %d cannot be recorded",
                  (long long)generation.epoch, (long long)generation.counter, hosted->job);
    hosted->is_record_stuck = true;
}

static void send_text(struct cluster_hosted *hosted, const struct hub_action *action)
{
    struct cluster *c = hosted->cluster;
    struct message message;

    if (!c->connections[action->connection].is_open)
        return;
    if (strncmp(action->text->text, "{\"type\":\"assign\"", 16) == 0) {
        int rc = message_decode(action->text->text, action->text->size, &message, NULL);
        fleet_assert(rc == 0);
        cluster_check_assign(c, hosted, &message.assign);
        message_release(&message);
    }
    cluster_transmit(c, &c->agents[c->connections[action->connection].agent], CLUSTER_TO_MEMBER,
                     action->connection, action->text);
}

static void close_connection(struct cluster *c, uint64_t connection)
{
    if (!c->connections[connection].is_open)
        return;
    c->connections[connection].is_open = false;
    cluster_transmit(c, &c->agents[c->connections[connection].agent], CLUSTER_CUT_MEMBER,
                     connection, NULL);
}

static void on_hub_action(void *user, struct fake_hub *hub, const struct hub_action *action)
{
    struct cluster_hosted *hosted = hosted_of(user, hub);

    if (action->type == HUB_SEND) {
        send_text(hosted, action);
    } else if (action->type == HUB_CLOSE) {
        cluster_trace(hosted->cluster, "hub of job %d closes connection %llu: %s", hosted->job,
                      (unsigned long long)action->connection, action->reason);
        close_connection(hosted->cluster, action->connection);
    } else if (action->type == HUB_EVENT) {
        cluster_check_event(hosted->cluster, hosted, action->event);
    }
}

int64_t cluster_wall_ms(const struct cluster *c)
{
    return WALL_START_MS + (int64_t)c->now_ms + c->passed_ms;
}

static double network_now(void *user)
{
    return ((struct cluster_spy *)user)->cluster->now_ms;
}

static int64_t network_wall(void *user)
{
    struct cluster_spy *spy = user;

    return cluster_wall_ms(spy->cluster) + spy->cluster->replicas[spy->replica].wall_skew_ms;
}

static int open_network(void *user, struct hub_network *out, struct fleet_error *err)
{
    struct cluster_spy *spy = user;
    struct cluster *c = spy->cluster;
    struct fake_hub_network *network = &c->replicas[spy->replica].network;

    (void)err;
    *network = (struct fake_hub_network){.now_ms = network_now,
                                         .wall_ms = network_wall,
                                         .added = on_hub_added,
                                         .removing = on_hub_removing,
                                         .action = on_hub_action,
                                         .answering = on_hub_answering,
                                         .user = spy};
    *out = fake_hub_network_table(network);
    c->leaders++;
    cluster_trace(c, "replica %d leads", spy->replica);
    cluster_excuse_led(c);
    if (c->world.is_whole) {
        cluster_door_open(c, spy->replica);
        return 0;
    }
    cluster_push(c, c->now_ms + cluster_uniform(c, 5, 100),
                 (struct cluster_event){.type = CLUSTER_ENDPOINT,
                                        .replica = spy->replica,
                                        .life = c->replicas[spy->replica].life});
    return 0;
}

/* ---- hubs ------------------------------------------------------------------------------------ */

struct cluster_hosted *cluster_hub_of(struct cluster *c, uint64_t connection)
{
    return c->connections[connection].is_open ? &c->replicas[c->connections[connection].replica]
                                                     .hubs[c->connections[connection].hosted]
                                              : NULL;
}

int cluster_hub_find(const struct cluster *c, int replica, int job)
{
    for (int i = 0; replica >= 0 && i < CLUSTER_JOBS; i++)
        if (c->replicas[replica].is_alive && c->replicas[replica].hubs[i].hub &&
            c->replicas[replica].hubs[i].job == job)
            return i;
    return -1;
}

void cluster_hub_apply(struct cluster_hosted *hosted, struct hub_output *out)
{
    struct cluster_replica *replica = &hosted->cluster->replicas[hosted->replica];

    fake_hub_apply(&replica->network.hubs[hosted - replica->hubs], out);
}

static void tick_hubs(struct cluster *c, struct cluster_replica *replica)
{
    for (int i = 0; i < CLUSTER_JOBS; i++) {
        struct cluster_hosted *hosted = &replica->hubs[i];
        struct hub_output out = {0};
        if (!hosted->hub || hub_deadline(hosted->hub) > c->now_ms)
            continue;
        hub_tick(hosted->hub, c->now_ms, &out);
        cluster_hub_apply(hosted, &out);
    }
}

/* Time never goes back, says an assertion at the beginning of each call: what the hub does for the
 * first one is dropped, the second one fails. */
void cluster_hub_break(struct cluster *c, int job)
{
    int leader = cluster_leader(c), place = cluster_hub_find(c, leader, job);
    struct hub_output out = {0};
    struct cluster_hosted *hosted;

    if (place < 0)
        return;
    hosted = &c->replicas[leader].hubs[place];
    cluster_trace(c, "an assertion fails in the hub of job %d on replica %d", job, leader);
    if (c->jobs[job].newest_run >= 0) /* what it was about to hear is lost (seed 2000011713) */
        c->runs[c->jobs[job].newest_run].must_count = false;
    hub_tick(hosted->hub, c->now_ms + 1e9, &out);
    hub_output_release(&out);
    hub_tick(hosted->hub, c->now_ms, &out);
    cluster_hub_apply(hosted, &out);
}

void cluster_clocks_right(struct cluster *c)
{
    for (int i = 0; i < CLUSTER_REPLICAS; i++)
        c->replicas[i].wall_skew_ms = 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void on_end(void *user, enum manager_end end)
{
    struct cluster_spy *spy = user;

    cluster_trace(spy->cluster, "replica %d ends: %s", spy->replica,
                  end == MANAGER_STOPPED ? "stopped" : "it lost the lease");
    spy->cluster->replicas[spy->replica].is_over = true;
}

/* A line of the log that names a job, by its own name or by that of a worker, has its key. */
static void check_job_key(struct cluster *c, const char *what, const char *job, const char *text)
{
    for (int i = 0; !job && i < c->job_count; i++)
        if (strstr(text, c->jobs[i].name))
            cluster_broken(c, "(12) the line \"%s: %.100s\" names job %d and has no key", what,
                           text, i);
}

static void on_trouble(void *user, const char *what, const char *job, const struct fleet_error *err)
{
    struct cluster_spy *spy = user;

    check_job_key(spy->cluster, what, job, err->text);
    cluster_trace(spy->cluster, "replica %d: %s%s%s: %.100s", spy->replica, what, job ? " of " : "",
                  job ? job : "", err->text);
}

static void set_weather(const struct cluster *c, struct fake_weather *w)
{
    w->latency_max_ms = c->world.latency_max_ms;
    if (!c->is_fault_over) {
        w->lost_request = w->lost_answer = c->world.loss;
        w->cut_stream = c->world.loss / 10;
    }
}

void cluster_replica_cut(struct cluster *c, int number, double duration_ms)
{
    struct cluster_replica *r = &c->replicas[number];

    cluster_trace(c, "replica %d does not reach the API server for %.0f ms", number, duration_ms);
    fake_io_weather(r->io)->unreachable = true;
    cluster_push(c, c->now_ms + duration_ms,
                 (struct cluster_event){
                     .type = CLUSTER_REPLICA_REACHABLE, .replica = number, .life = r->life});
}

void cluster_replicas_calm(struct cluster *c)
{
    for (int i = 0; i < CLUSTER_REPLICAS; i++)
        if (c->replicas[i].is_alive)
            *fake_io_weather(c->replicas[i].io) = (struct fake_weather){
                .latency_min_ms = 1, .latency_max_ms = c->world.latency_max_ms};
}

void cluster_replica_start(struct cluster *c, int number)
{
    static char certificate[] = "CA";
    static struct install_identity identity = {.ca = {.certificate_pem = certificate}};
    struct cluster_replica *r = &c->replicas[number];
    struct reconciler_options options;
    struct event_recorder_options events = {.controller = "fleetjob.dev/controller",
                                            .instance = r->identity};
    int life = r->life + 1;

    *r = (struct cluster_replica){.is_alive = true, .life = life};
    (void)snprintf(r->identity, sizeof(r->identity), "controller-%d-%d", number, life);
    cluster_trace(c, "replica %d starts as %s", number, r->identity);
    r->io = fake_io_new(c->server, cluster_random(c));
    fake_io_turn(r->io, c->now_ms);
    set_weather(c, fake_io_weather(r->io));
    fake_io_set_stream_pause(r->io, STREAM_PAUSE_MS);
    r->spy = (struct cluster_spy){{&spy_ops}, fake_io_kube(r->io), c, number};
    r->metrics = metrics_new();
    r->events = event_recorder_new(&r->spy.io, &events);
    r->election = (struct leader_election_options){.namespace_ = "system",
                                                   .name = "fleetjob",
                                                   .identity = r->identity,
                                                   .lease_duration_ms = c->world.lease_ms,
                                                   .renew_deadline_ms = c->world.lease_ms * 2 / 3,
                                                   .retry_ms = c->world.lease_ms / 8};
    options = (struct reconciler_options){.io = &r->spy.io,
                                          .metrics = r->metrics,
                                          .election = &r->election,
                                          .runtime_image = "runtime:1",
                                          .hub_address = "10.0.0.1:7443",
                                          .identity = &identity,
                                          .events = r->events,
                                          .open_network = open_network,
                                          .on_end = on_end,
                                          .on_trouble = on_trouble,
                                          .user = &r->spy};
    r->reconciler = reconciler_new(&options);
}

void cluster_replica_kill(struct cluster *c, int number)
{
    struct cluster_replica *r = &c->replicas[number];

    cluster_trace(c, "replica %d is gone", number);
    if (reconciler_is_leading(r->reconciler) || r->is_over) {
        c->unled_ms = c->now_ms;
        cluster_excuse_unled(c, number);
    }
    cluster_door_close(r);
    reconciler_free(r->reconciler);
    event_recorder_free(r->events);
    metrics_free(r->metrics);
    fake_io_free(r->io);
    r->is_alive = false;
}

void cluster_replica_freeze(struct cluster *c, int number, double duration_ms)
{
    struct cluster_replica *r = &c->replicas[number];

    cluster_trace(c, "replica %d is frozen for %.0f ms", number, duration_ms);
    r->frozen_until_ms = c->now_ms + duration_ms;
    cluster_push(
        c, r->frozen_until_ms,
        (struct cluster_event){.type = CLUSTER_REPLICA_THAW, .replica = number, .life = r->life});
}

static void thaw(struct cluster *c, int number)
{
    struct cluster_replica *r = &c->replicas[number];
    bool hubs_first = cluster_chance(c, 0.5);

    cluster_trace(c, "replica %d wakes up", number);
    fake_io_freeze(r->io, c->now_ms - fake_io_now_ms(r->io));
    if (hubs_first)
        tick_hubs(c, r);
    fake_io_turn(r->io, c->now_ms);
    if (!hubs_first && !r->is_over)
        tick_hubs(c, r);
}

/* Its clock stands until it wakes up. */
static bool is_awake(const struct cluster_replica *r)
{
    return r->is_alive && r->frozen_until_ms <= fake_io_now_ms(r->io);
}

bool cluster_replica_runs(const struct cluster *c, int replica)
{
    return is_awake(&c->replicas[replica]);
}

int cluster_leader(const struct cluster *c)
{
    for (int i = 0; i < CLUSTER_REPLICAS; i++)
        if (cluster_replica_runs(c, i) && reconciler_is_leading(c->replicas[i].reconciler))
            return i;
    return -1;
}

void cluster_replica_event(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_replica *r = &c->replicas[event->replica];

    if (event->type == CLUSTER_REPLICA_START && !r->is_alive) {
        cluster_replica_start(c, event->replica);
    } else if (event->type == CLUSTER_REPLICA_LOST && r->is_alive && r->life == event->life) {
        cluster_replica_kill(c, event->replica);
        cluster_push(
            c, c->now_ms + cluster_uniform(c, 500, 20000),
            (struct cluster_event){.type = CLUSTER_REPLICA_START, .replica = event->replica});
    } else if (event->type == CLUSTER_REPLICA_THAW && r->is_alive && r->life == event->life) {
        thaw(c, event->replica);
    } else if (event->type == CLUSTER_REPLICA_REACHABLE && r->is_alive && r->life == event->life) {
        cluster_trace(c, "replica %d reaches the API server again", event->replica);
        fake_io_weather(r->io)->unreachable = false;
    } else if (event->type == CLUSTER_ENDPOINT) {
        c->endpoint = event->replica;
        c->endpoint_life = event->life;
    }
}

double cluster_controllers_next(struct cluster *c)
{
    double next_ms = INFINITY;
    bool is_burial_due = false; /* at the next look at a stream, by any reader */

    for (int i = 0; i < CLUSTER_REPLICAS; i++)
        is_burial_due |= c->replicas[i].is_alive && c->replicas[i].is_over;
    for (int i = 0; i < CLUSTER_REPLICAS; i++) {
        struct cluster_replica *r = &c->replicas[i];
        if (!is_awake(r))
            continue;
        next_ms =
            fmin(next_ms, is_burial_due ? fake_io_next_look_ms(r->io) : fake_io_next_ms(r->io));
        for (int j = 0; j < CLUSTER_JOBS; j++)
            if (r->hubs[j].hub)
                next_ms = fmin(next_ms, hub_deadline(r->hubs[j].hub));
    }
    return next_ms;
}

/* A process whose manager has ended goes, and comes back under another name. */
static void bury(struct cluster *c, int number)
{
    struct cluster_replica *r = &c->replicas[number];

    if (!r->is_alive || !r->is_over)
        return;
    cluster_replica_kill(c, number);
    cluster_push(c, c->now_ms + cluster_uniform(c, 500, 4000),
                 (struct cluster_event){.type = CLUSTER_REPLICA_START, .replica = number});
}

void cluster_controllers_turn(struct cluster *c)
{
    for (int i = 0; i < CLUSTER_REPLICAS; i++)
        if (is_awake(&c->replicas[i]))
            fake_io_pass_looks(c->replicas[i].io, c->now_ms);
    for (int i = 0; i < CLUSTER_REPLICAS; i++) {
        struct cluster_replica *r = &c->replicas[i];
        if (!is_awake(r))
            continue;
        fake_io_turn(r->io, c->now_ms);
        if (!r->is_over)
            tick_hubs(c, r);
        bury(c, i);
    }
}
