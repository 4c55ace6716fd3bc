/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Replicas of the controller: the real one, with the fake API server for a world and hubs whose
 * network is in memory (hubs.c). A frozen replica does not run, its time goes on; when it wakes up,
 * all that was due is due at once, its hubs before or after the rest.
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
#include "tests/fake/cluster/rules.h"

#define STREAM_PAUSE_MS 20.0

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

/* A line of the log without the key of a job is about the controller itself, and names no job, also
 * not by a worker. */
static void check_job_key(struct cluster *c, const char *what, const char *job, const char *text)
{
    static const char *const own[] = {"Watch failed", "Leader election failed",
                                      "Hub could not be opened"};
    bool is_own = false;

    for (size_t i = 0; i < FLEET_COUNT(own); i++)
        is_own |= strcmp(what, own[i]) == 0;
    if (!job && !is_own)
        cluster_broken(c, "(12) the line \"%s: %.100s\" has no job", what, text);
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
                                          .open_network = cluster_network_open,
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
        cluster_hubs_tick(c, r);
    fake_io_turn(r->io, c->now_ms);
    if (!hubs_first && !r->is_over)
        cluster_hubs_tick(c, r);
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
            cluster_hubs_tick(c, r);
        bury(c, i);
    }
}
