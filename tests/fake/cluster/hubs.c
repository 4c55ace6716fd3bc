/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hubs of a replica of the controller, and their network, which is in memory.
 */
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "tests/fake/cluster/rules.h"

#define WALL_START_MS INT64_C(1767225600000)

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
    cluster_excuse_hosted(spy->cluster, job);
}

static void on_hub_removing(void *user, struct fake_hub *hub)
{
    struct cluster_hosted *hosted = hosted_of(user, hub);

    cluster_trace(hosted->cluster, "replica %d ends the hub of job %d", hosted->replica,
                  hosted->job);
    hosted->cluster->jobs[hosted->job].unhosted_ms = hosted->cluster->now_ms;
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

int cluster_network_open(void *user, struct hub_network *out, struct fleet_error *err)
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

void cluster_hubs_tick(struct cluster *c, struct cluster_replica *replica)
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
