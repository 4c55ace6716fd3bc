/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_HUB_SERVER_WORLD_H
#define TESTS_SUPPORT_HUB_SERVER_WORLD_H

/*
 * The hub with its real network: a server on a libuv loop and clients in an lws context, on the
 * loopback interface with TLS. Members connect and leave through the public API.
 * hub_server_stranger.h has a peer that breaks the rules.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>
#include <libwebsockets.h>

#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/rendezvous/hub_server.h"
#include "libfleet/rendezvous/member_client.h"
#include "libfleet/rendezvous/tls_identity.h"

#define LARGE       700000   /* bytes of a value */
#define PATIENCE_MS 120000.0 /* sanitizers on a busy machine */
#define MEMBERS_MAX 8

static const char first_key[] = "the key of this installation";

/* ---- a server with one job ------------------------------------------------------------------- */

struct agent {
    struct world *world;
    struct member_client *client;
    bool is_connected;
    char detail[256];
    struct fleet_generation generation; /* last assigned */
    int place;
    int aborts;
    bool is_done, has_value;
    char value[16]; /* its first bytes */
    size_t value_size;
};

struct world {
    uv_loop_t loop;
    struct tls_identity ca, leaf;
    const char *install_key;
    const char *namespace_; /* of jobs that are hosted from now on; NULL = none */
    struct hub_server *server;
    struct hub_server_job *job;
    struct member_client_hub moved; /* where agents find the hub by now, if it has an address */
    struct lws_context *context;    /* of the agents */
    struct agent agents[MEMBERS_MAX];
    int agent_count;
    int events[HUB_EVENT_DEFECT + 1];
    struct fleet_generation recorded;
    struct hub_event restart; /* the last */
    char refused_job[80], refused_reason[256];
    int refused;
};

static inline void note_refused(void *user, const struct hub_server_refusal *refusal)
{
    struct world *world = user;

    world->refused++;
    (void)snprintf(world->refused_job, sizeof(world->refused_job), "%s", refusal->job_uid);
    (void)snprintf(world->refused_reason, sizeof(world->refused_reason), "%s", refusal->reason);
}

static inline bool note_record(void *user, const struct hub_record *record)
{
    struct world *world = user;

    world->recorded = record->generation;
    return true;
}

static inline void note_event(void *user, const struct hub_event *event)
{
    struct world *world = user;

    world->events[event->type]++;
    if (event->type == HUB_EVENT_RESTART)
        world->restart = *event;
}

static inline struct hub_server_config server_config(struct world *world)
{
    return (struct hub_server_config){.loop = &world->loop,
                                      .address = "127.0.0.1",
                                      .certificate_pem = world->leaf.certificate_pem,
                                      .key_pem = world->leaf.key_pem,
                                      .install_key = world->install_key,
                                      .install_key_size = strlen(world->install_key),
                                      .refused = note_refused,
                                      .user = world};
}

static inline void host_job(struct world *world, const char *uid, int members,
                            struct fleet_generation recorded, struct hub_server_job **out_job)
{
    struct hub_start start = {.job_uid = uid, .recorded = recorded, .secret = {1}};
    struct hub_policy policy = {.min = 1,
                                .max = MEMBERS_MAX,
                                .desired = members,
                                .rejoin_grace_ms = 500,
                                .timeout_ms = PATIENCE_MS,
                                .restarts_max = 10};
    struct hub_server_handlers handlers = {
        .record = note_record, .event = note_event, .user = world, .namespace_ = world->namespace_};
    struct fleet_error err;
    struct hub *hub = hub_new(&start, &policy, fleet_monotonic_ms());

    if (hub_server_add(world->server, uid, hub, &handlers, out_job, &err) < 0)
        fail_msg("%s", err.text);
}

static inline void tell_token(const char *key, const char *job_uid, char out[FLEET_SHA256_HEX_SIZE])
{
    hub_server_token(key, strlen(key), job_uid, out);
}

static inline void make_identity(struct world *world)
{
    tls_identity_release(&world->ca);
    tls_identity_release(&world->leaf);
    assert_int_equal(tls_identity_make_ca("test CA", 1, &world->ca, NULL), 0);
    assert_int_equal(tls_identity_sign(&world->ca, TLS_IDENTITY_HUB_NAME, 1, &world->leaf, NULL),
                     0);
}

static inline struct world *world_new(int members, const struct hub_server_config *change)
{
    struct world *world = calloc(1, sizeof(*world));
    struct hub_server_config config;
    struct fleet_error err = {.text = ""};
    struct lws_context_creation_info info = {.options = LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT |
                                                        LWS_SERVER_OPTION_EXPLICIT_VHOSTS,
                                             .port = CONTEXT_PORT_NO_LISTEN};

    uv_loop_init(&world->loop);
    world->install_key = first_key;
    make_identity(world);
    config = server_config(world);
    if (change) {
        config.hello_timeout_ms = change->hello_timeout_ms;
        config.connections_max = change->connections_max;
        config.namespace_connections_max = change->namespace_connections_max;
        config.handshakes_max = change->handshakes_max;
        config.source_handshakes_max = change->source_handshakes_max;
        config.handshake_timeout_ms = change->handshake_timeout_ms;
        config.job_bytes_max = change->job_bytes_max;
        config.namespace_bytes_max = change->namespace_bytes_max;
        config.bytes_max = change->bytes_max;
        config.port = change->port;
        config.is_gone = change->is_gone;
    }
    while (hub_server_new(&config, &world->server, &err) < 0) /* from a given port upwards */
        if (config.port == 0 || ++config.port >= change->port + 1000)
            fail_msg("%s", err.text);
    host_job(world, "job", members, (struct fleet_generation){0}, &world->job);
    world->context = lws_create_context(&info);
    assert_non_null(world->context);
    return world;
}

static inline void turn(struct world *world)
{
    uv_run(&world->loop, UV_RUN_NOWAIT);
    lws_service(world->context, -1);
    usleep(500);
}

#define run_until(world, condition)                               \
    do {                                                          \
        double end_ms = fleet_monotonic_ms() + PATIENCE_MS;       \
        while (!(condition)) {                                    \
            if (fleet_monotonic_ms() > end_ms)                    \
                fail_msg("timed out waiting for %s", #condition); \
            turn(world);                                          \
        }                                                         \
    } while (0)

/* Every connected agent has the assignment of a generation. */
static inline bool has_joined(const struct world *world, int64_t counter)
{
    for (int i = 0; i < world->agent_count; i++)
        if (world->agents[i].client && world->agents[i].generation.counter != counter)
            return false;
    return world->events[HUB_EVENT_RUNNING] > 0;
}

static inline void run_for(struct world *world, double ms)
{
    double end_ms = fleet_monotonic_ms() + ms;

    while (fleet_monotonic_ms() < end_ms)
        turn(world);
}

static inline void close_agent(struct agent *agent)
{
    member_client_free(agent->client);
    agent->client = NULL;
}

static inline void world_free(struct world *world)
{
    for (int i = 0; i < world->agent_count; i++)
        close_agent(&world->agents[i]);
    lws_context_destroy(world->context);
    hub_server_free(world->server);
    uv_run(&world->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&world->loop), 0);
    tls_identity_release(&world->ca);
    tls_identity_release(&world->leaf);
    free(world);
}

/* ---- agents with a trainer that does everything at once -------------------------------------- */

static inline void join(struct agent *agent, const struct member_action *action,
                        struct member_output *out)
{
    struct member *member = member_client_member(agent->client);
    double now_ms = fleet_monotonic_ms();
    int64_t step = action->assign->step < 0 ? 0 : action->assign->step;
    struct message_step told = {.step = step + 1, .loss = 2};

    agent->generation = action->generation;
    agent->place = action->place;
    for (enum fleet_phase phase = FLEET_PHASE_CONNECTED; phase <= FLEET_PHASE_RESTORED; phase++)
        member_trainer_phase(member, 0, action->generation, phase, step, now_ms, now_ms, out);
    member_trainer_phase(member, 0, action->generation, FLEET_PHASE_FIRST_STEP, step + 1, now_ms,
                         now_ms, out);
    member_trainer_step(member, &told, now_ms, out);
}

static inline void deliver(void *user, const struct member_action *action)
{
    struct agent *agent = user;
    struct member *member = member_client_member(agent->client);
    struct member_output out = {0};

    switch (action->type) {
    case MEMBER_ASSIGN:
        join(agent, action, &out);
        break;
    case MEMBER_ABORT:
        agent->aborts++;
        member_trainer_up(member, 0, 1, fleet_monotonic_ms(), &out);
        break;
    case MEMBER_VALUE:
        agent->has_value = true;
        agent->value_size = action->value_size;
        (void)snprintf(agent->value, sizeof(agent->value), "%.*s", (int)action->value_size,
                       (const char *)action->value);
        break;
    case MEMBER_DONE:
        agent->is_done = action->succeeded;
        break;
    default:
        break;
    }
    member_client_apply(agent->client, &out);
}

static inline void note_connection(void *user, bool is_connected, const char *detail)
{
    struct agent *agent = user;

    agent->is_connected = is_connected;
    (void)snprintf(agent->detail, sizeof(agent->detail), "%s", detail);
}

static inline bool look(void *user, struct member_client_hub *out)
{
    const struct agent *agent = user;

    if (agent->world->moved.address)
        *out = agent->world->moved;
    return agent->world->moved.address != NULL;
}

static inline struct agent *add_agent(struct world *world, const char *ca_pem, const char *tls_name,
                                      const char *token)
{
    struct agent *agent = &world->agents[world->agent_count];
    char uid[32], expected[FLEET_SHA256_HEX_SIZE];
    static const int port = 7000;
    struct member_config config = {.job_uid = "job",
                                   .pod_uid = uid,
                                   .index = world->agent_count,
                                   .address = "127.0.0.1",
                                   .ports = &port,
                                   .processes = 1,
                                   .devices = "cpu",
                                   .version = "test",
                                   .seed = (uint64_t)world->agent_count};
    struct member_client_config client = {
        .context = world->context,
        .hub = {.address = "127.0.0.1",
                .port = hub_server_port(world->server),
                .ca_pem = ca_pem ? ca_pem : world->ca.certificate_pem,
                .token = token ? token : expected},
        .look = look,
        .tls_name = tls_name,
        .job_uid = "job",
        .job_name = "gpt",
        .deliver = deliver,
        .connection = note_connection,
        .user = agent};
    struct member_output out = {0};
    struct fleet_error err;
    struct member *member;

    (void)snprintf(uid, sizeof(uid), "pod-%d", world->agent_count);
    tell_token(world->install_key, "job", expected);
    world->agent_count++;
    agent->world = world;
    member = member_new(&config, fleet_monotonic_ms());
    if (member_client_new(&client, member, &agent->client, &err) < 0)
        fail_msg("%s", err.text);
    member_trainer_up(member, 0, -1, fleet_monotonic_ms(), &out);
    member_client_apply(agent->client, &out);
    return agent;
}

#endif
