/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub behind its network, for real: a server on a libuv loop and clients in an lws context, on
 * the loopback interface with TLS. Members come and go through the public API; bad peers are played
 * by a thread with a plain OpenSSL connection, which sends what no member would send.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>
#include <libwebsockets.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
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
    struct generation generation; /* last assigned */
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
    struct generation recorded;
    struct hub_event restart; /* the last */
    char refused_job[80], refused_reason[256];
    int refused;
};

static void note_refused(void *user, const struct hub_server_refusal *refusal)
{
    struct world *world = user;

    world->refused++;
    (void)snprintf(world->refused_job, sizeof(world->refused_job), "%s", refusal->job_uid);
    (void)snprintf(world->refused_reason, sizeof(world->refused_reason), "%s", refusal->reason);
}

static bool note_record(void *user, const struct hub_record *record)
{
    struct world *world = user;

    world->recorded = record->generation;
    return true;
}

static void note_event(void *user, const struct hub_event *event)
{
    struct world *world = user;

    world->events[event->type]++;
    if (event->type == HUB_EVENT_RESTART)
        world->restart = *event;
}

static struct hub_server_config server_config(struct world *world)
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

static void host_job(struct world *world, const char *uid, int members, struct generation recorded,
                     struct hub_server_job **out_job)
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

static void tell_token(const char *key, const char *job_uid, char out[FLEET_SHA256_HEX_SIZE])
{
    hub_server_token(key, strlen(key), job_uid, out);
}

static void make_identity(struct world *world)
{
    tls_identity_release(&world->ca);
    tls_identity_release(&world->leaf);
    assert_int_equal(tls_identity_make_ca("test CA", 1, &world->ca, NULL), 0);
    assert_int_equal(tls_identity_sign(&world->ca, TLS_IDENTITY_HUB_NAME, 1, &world->leaf, NULL),
                     0);
}

static struct world *world_new(int members, const struct hub_server_config *change)
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
    host_job(world, "job", members, (struct generation){0}, &world->job);
    world->context = lws_create_context(&info);
    assert_non_null(world->context);
    return world;
}

static void turn(struct world *world)
{
    uv_run(&world->loop, UV_RUN_NOWAIT);
    lws_service(world->context, -1);
    usleep(500);
}

#define run_until(world, condition)                            \
    do {                                                       \
        double end_ms = fleet_monotonic_ms() + PATIENCE_MS;    \
        while (!(condition)) {                                 \
            if (fleet_monotonic_ms() > end_ms)                 \
                fail_msg("waited in vain for %s", #condition); \
            turn(world);                                       \
        }                                                      \
    } while (0)

/* Every connected agent has the assignment of a generation. */
static bool has_joined(const struct world *world, int64_t counter)
{
    for (int i = 0; i < world->agent_count; i++)
        if (world->agents[i].client && world->agents[i].generation.counter != counter)
            return false;
    return world->events[HUB_EVENT_RUNNING] > 0;
}

static void run_for(struct world *world, double ms)
{
    double end_ms = fleet_monotonic_ms() + ms;

    while (fleet_monotonic_ms() < end_ms)
        turn(world);
}

static void close_agent(struct agent *agent)
{
    member_client_free(agent->client);
    agent->client = NULL;
}

static void world_free(struct world *world)
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

static void join(struct agent *agent, const struct member_action *action, struct member_output *out)
{
    struct member *member = member_client_member(agent->client);
    double now_ms = fleet_monotonic_ms();
    int64_t step = action->assign->step < 0 ? 0 : action->assign->step;
    struct message_step told = {.step = step + 1, .loss = 2};

    agent->generation = action->generation;
    agent->place = action->place;
    for (int phase = MESSAGE_PHASE_CONNECTED; phase <= MESSAGE_PHASE_RESTORED; phase++)
        member_trainer_phase(member, 0, action->generation, (enum message_phase)phase, step, now_ms,
                             now_ms, out);
    member_trainer_phase(member, 0, action->generation, MESSAGE_PHASE_FIRST_STEP, step + 1, now_ms,
                         now_ms, out);
    member_trainer_step(member, &told, now_ms, out);
}

static void deliver(void *user, const struct member_action *action)
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

static void note_connection(void *user, bool is_connected, const char *detail)
{
    struct agent *agent = user;

    agent->is_connected = is_connected;
    (void)snprintf(agent->detail, sizeof(agent->detail), "%s", detail);
}

static bool look(void *user, struct member_client_hub *out)
{
    const struct agent *agent = user;

    if (agent->world->moved.address)
        *out = agent->world->moved;
    return agent->world->moved.address != NULL;
}

static struct agent *add_agent(struct world *world, const char *ca_pem, const char *tls_name,
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

/* ---- a peer that does as it likes ------------------------------------------------------------ */

struct stranger {
    int port;
    const char *ca_pem;
    const char *path, *token, *protocol; /* NULL: the right one */
    const char *token_job;               /* whose token; NULL: "job" */
    bool speaks_tls;
    size_t fragments, fragment_size; /* sends so many of a message after the upgrade */
    char fill;
    const char *text;    /* or this */
    int opcode;          /* 1 text, 2 binary; 0: nothing is sent */
    atomic_bool is_deaf; /* reads nothing as long as this is so */
    /* what it saw */
    char status[32], reason[200];
    int close_code;
    double lasted_ms;
    atomic_bool is_over;
    pthread_t thread;
};

static int dial_port(int port, int receive_bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval patience = {.tv_sec = (time_t)(PATIENCE_MS / 1e3)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (receive_bytes > 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool read_exactly(SSL *ssl, void *out, size_t size)
{
    for (size_t done = 0; done < size;) {
        int got = SSL_read(ssl, (char *)out + done, (int)(size - done));
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

static void upgrade(struct stranger *s, SSL *ssl)
{
    char request[1024], token[FLEET_SHA256_HEX_SIZE], line[4096] = "";
    size_t length = 0;

    tell_token(first_key, s->token_job ? s->token_job : "job", token);
    (void)snprintf(request, sizeof(request),
                   "GET %s HTTP/1.1\r\nHost: fleetjob-hub\r\nUpgrade: websocket\r\n"
                   "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                   "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: %s\r\n"
                   "Authorization: Bearer %s\r\n\r\n",
                   s->path ? s->path : "/rendezvous/job",
                   s->protocol ? s->protocol : MESSAGE_PROTOCOL, s->token ? s->token : token);
    SSL_write(ssl, request, (int)strlen(request));
    while (length + 1 < sizeof(line) && !strstr(line, "\r\n\r\n") &&
           read_exactly(ssl, line + length, 1))
        line[++length] = '\0';
    (void)snprintf(s->status, sizeof(s->status), "%.3s", strlen(line) > 9 ? line + 9 : line);
}

/* A masked frame; the mask is zero, so that the payload stays as it is. */
static void append_frame(struct fleet_strbuf *out, int opcode, bool is_final, const char *payload,
                         size_t size)
{
    unsigned char head[14] = {(unsigned char)((is_final ? 0x80 : 0) | opcode), 0x80 | 127};

    for (int i = 0; i < 8; i++)
        head[2 + i] = (unsigned char)((uint64_t)size >> (56 - 8 * i));
    fleet_strbuf_append_bytes(out, (const char *)head, sizeof(head));
    fleet_strbuf_append_bytes(out, payload, size);
}

/* All in one write: small frames share a record of TLS. */
static void say(struct stranger *s, SSL *ssl)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf frames = {0};
    FLEET_AUTO_FREE char *payload = malloc(s->fragment_size + 1);

    memset(payload, s->fill, s->fragment_size);
    if (s->text)
        append_frame(&frames, s->opcode, true, s->text, strlen(s->text));
    for (size_t i = 0; i < s->fragments; i++)
        append_frame(&frames, i == 0 ? s->opcode : 0, i + 1 == s->fragments, payload,
                     s->fragment_size);
    (void)SSL_write(ssl, frames.text, (int)frames.length);
}

/* Reads until the server closes; keeps code and reason of the close frame. */
static void listen_to_the_end(struct stranger *s, SSL *ssl)
{
    unsigned char head[2], payload[70000];

    while (read_exactly(ssl, head, 2)) {
        size_t size = head[1] & 127;
        unsigned char more[8];
        if (size == 126 && read_exactly(ssl, more, 2))
            size = (size_t)more[0] << 8 | more[1];
        if (size > sizeof(payload) - 1 || !read_exactly(ssl, payload, size))
            return;
        payload[size] = '\0';
        if ((head[0] & 15) == 8 && size >= 2) {
            s->close_code = payload[0] << 8 | payload[1];
            (void)snprintf(s->reason, sizeof(s->reason), "%.190s", (char *)payload + 2);
        }
    }
}

static void *be_strange(void *user)
{
    struct stranger *s = user;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    double start_ms = fleet_monotonic_ms();
    int fd = dial_port(s->port, s->is_deaf ? 4096 : 0);
    char byte;

    if (fd >= 0 && !s->speaks_tls) {
        (void)recv(fd, &byte, 1, 0);
    } else if (fd >= 0) {
        SSL *ssl = SSL_new(context);
        SSL_set_fd(ssl, fd);
        if (SSL_connect(ssl) == 1) {
            upgrade(s, ssl);
            if (s->opcode)
                say(s, ssl);
            while (s->is_deaf)
                usleep(1000);
            if (strcmp(s->status, "101") == 0)
                listen_to_the_end(s, ssl);
        }
        SSL_free(ssl);
    }
    s->lasted_ms = fleet_monotonic_ms() - start_ms;
    if (fd >= 0)
        close(fd);
    SSL_CTX_free(context);
    atomic_store(&s->is_over, true);
    return NULL;
}

static void meet(struct world *world, struct stranger *s)
{
    s->port = hub_server_port(world->server);
    pthread_create(&s->thread, NULL, be_strange, s);
}

static void part(struct world *world, struct stranger *s)
{
    run_until(world, atomic_load(&s->is_over));
    pthread_join(s->thread, NULL);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_hub_server__members_form_lose_one_and_go_on(void **state)
{
    struct world *world = world_new(3, NULL);
    struct member_output out = {0};

    (void)state;
    for (int i = 0; i < 3; i++)
        add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(world->agents[i].generation.counter, 1);
        assert_int_equal(world->agents[i].place, i); /* a first generation is ordered by index */
    }
    assert_int_equal(world->recorded.counter, 1);
    run_until(world, world->events[HUB_EVENT_STEP] == 1);

    close_agent(&world->agents[1]);
    run_until(world, world->events[HUB_EVENT_RESTART] == 1);
    assert_string_equal(world->restart.cause, "MemberLost");
    assert_int_equal(world->restart.member, 1);
    assert_int_equal(world->restart.lost_steps, 0);
    assert_true(world->restart.timeline.resume_ms >= 500); /* the grace for a broken connection */
    assert_int_equal(world->agents[2].aborts, 1);
    assert_int_equal(world->agents[2].generation.counter, 2);
    assert_int_equal(world->agents[2].place, 1); /* the highest fills the hole */

    for (int i = 0; i < 3; i += 2) {
        struct agent *agent = &world->agents[i];
        member_trainer_finished(member_client_member(agent->client), 0, 2, 1.25,
                                i == 0 ? "abc" : "", fleet_monotonic_ms(), &out);
        member_client_apply(agent->client, &out);
    }
    run_until(world, world->agents[0].is_done && world->agents[2].is_done);
    assert_int_equal(world->events[HUB_EVENT_FINISHED], 1);
    world_free(world);
}

static void test_hub_server__the_store_carries_bytes_between_members(void **state)
{
    struct world *world = world_new(2, NULL);
    struct member_output out = {0};
    struct agent *a, *b;

    (void)state;
    a = add_agent(world, NULL, NULL, NULL);
    b = add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    assert_int_equal(
        member_get(member_client_member(b->client), 0, "id", fleet_monotonic_ms(), &out, NULL), 0);
    member_client_apply(b->client, &out);
    run_for(world, 50);
    assert_false(b->has_value);
    assert_int_equal(member_put(member_client_member(a->client), "id", "unique", 6,
                                fleet_monotonic_ms(), &out, NULL),
                     0);
    member_client_apply(a->client, &out);
    run_until(world, b->has_value);
    assert_string_equal(b->value, "unique");
    world_free(world);
}

/* As many frames as it takes, with what the members say meanwhile between them. */
static void test_hub_server__a_message_of_many_frames_arrives_whole(void **state)
{
    struct world *world = world_new(2, NULL);
    FLEET_AUTO_FREE char *value = malloc(LARGE);
    struct member_output out = {0};
    struct agent *a, *b;

    (void)state;
    assert_non_null(value);
    memset(value, 'x', LARGE);
    a = add_agent(world, NULL, NULL, NULL);
    b = add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    for (int round = 0; round < 2; round++) { /* whole, and then ready for the next */
        char key[16];
        snprintf(key, sizeof(key), "%d", round);
        b->has_value = false;
        assert_int_equal(member_put(member_client_member(a->client), key, value,
                                    LARGE - (size_t)round, fleet_monotonic_ms(), &out, NULL),
                         0);
        member_client_apply(a->client, &out);
        assert_int_equal(
            member_get(member_client_member(b->client), 0, key, fleet_monotonic_ms(), &out, NULL),
            0);
        member_client_apply(b->client, &out);
        run_until(world, b->has_value);
        assert_int_equal(b->value_size, LARGE - (size_t)round);
    }
    world_free(world);
}

static void test_hub_server__a_server_that_comes_back_disturbs_nothing(void **state)
{
    /* A port that the system gives nobody who asks for any: it must be free when the server
     * returns. */
    struct hub_server_config config, change = {.port = 10000 + (int)(getpid() % 15000)};
    struct world *world = world_new(2, &change);
    struct fleet_error err;

    (void)state;
    config = server_config(world);
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    config.port = hub_server_port(world->server);
    hub_server_free(world->server);
    run_until(world, !world->agents[0].is_connected && !world->agents[1].is_connected);
    run_for(world, 50);
    world->server = NULL; /* the socket of the one before closes within some turns of the loop */
    run_until(world, hub_server_new(&config, &world->server, &err) != -EADDRINUSE);
    if (!world->server)
        fail_msg("%s", err.text);
    host_job(world, "job", 2, world->recorded, &world->job);
    run_until(world, world->agents[0].is_connected && world->agents[1].is_connected);
    run_until(world, hub_phase(hub_server_hub(world->job)) == HUB_RUNNING);
    run_for(world, 1200);
    assert_int_equal(world->agents[0].aborts + world->agents[1].aborts, 0);
    assert_int_equal(hub_generation(hub_server_hub(world->job)).counter, 1);
    world_free(world);
}

/* Another CA, another key, another port; and a running generation that does not notice. */
static void test_hub_server__members_find_the_hub_of_another_installation(void **state)
{
    struct world *world = world_new(2, NULL);
    struct hub_server_config config;
    struct fleet_error err;
    char token[FLEET_SHA256_HEX_SIZE];

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    hub_server_free(world->server);
    run_until(world, !world->agents[0].is_connected && !world->agents[1].is_connected);
    run_for(world, 50); /* until all of the server has closed */
    world->install_key = "the key of another installation";
    make_identity(world);
    config = server_config(world);
    assert_int_equal(hub_server_new(&config, &world->server, &err), 0);
    host_job(world, "job", 2, world->recorded, &world->job);
    tell_token(world->install_key, "job", token);
    world->moved = (struct member_client_hub){.address = "127.0.0.1",
                                              .port = hub_server_port(world->server),
                                              .ca_pem = "half a file",
                                              .token = token};
    run_until(world, strcmp(world->agents[0].detail, "the CA is not a certificate in PEM") == 0);
    world->moved.ca_pem = world->ca.certificate_pem;
    run_until(world, world->agents[0].is_connected && world->agents[1].is_connected);
    run_until(world, hub_phase(hub_server_hub(world->job)) == HUB_RUNNING);
    assert_int_equal(world->agents[0].aborts + world->agents[1].aborts, 0);
    world_free(world);
}

static void test_hub_server__who_comes_back_resumes_its_session(void **state)
{
    struct world *world = world_new(1, NULL);
    struct agent *agent = add_agent(world, NULL, NULL, NULL);

    (void)state;
    for (int i = 0; i < 3; i++) {
        run_until(world, agent->is_connected);
        assert_string_equal(agent->detail, i == 0 ? "connected" : "connected, resumed");
        run_until(world, world->events[HUB_EVENT_JOINED] == i + 1);
        hub_server_remove(world->job);
        run_until(world, !agent->is_connected);
        host_job(world, "job", 1, (struct generation){0}, &world->job);
    }
    world_free(world);
}

static void test_hub_server__refuses_strangers_and_leaves_others_alone(void **state)
{
    static const struct {
        struct stranger stranger;
        const char *status, *job, *reason;
    } cases[] = {
        {{.token = "0123"}, "401", "job", "wrong token"},
        {{.token_job = "other"}, "401", "job", "wrong token"},
        {{.path = "/rendezvous/other", .token_job = "other"},
         "404",
         "other",
         "the job is not hosted here"},
        {{.path = "/rendezvous/other"}, "401", "other", "wrong token"},
        {{.path = "/elsewhere"}, "400", "", "it asked for another path or subprotocol"},
        {{.protocol = "chat"}, "400", "job", "it asked for another path or subprotocol"},
    };
    struct world *world = world_new(1, NULL);

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stranger stranger = cases[i].stranger;
        stranger.speaks_tls = true;
        meet(world, &stranger);
        part(world, &stranger);
        assert_string_equal(stranger.status, cases[i].status);
        assert_string_equal(world->refused_job, cases[i].job);
        assert_string_equal(world->refused_reason, cases[i].reason);
    }
    assert_true(world->agents[0].is_connected);
    assert_int_equal(world->agents[0].aborts, 0);
    world_free(world);
}

static void test_hub_server__closes_connections_that_talk_nonsense(void **state)
{
    static const struct {
        struct stranger stranger;
        const char *reason;
    } cases[] = {
        {{.opcode = 1, .text = "hello?"},
         "decode message: line 1, column 1: not JSON: no value starts like this"},
        {{.opcode = 1, .text = "{\"type\":\"dance\"}"},
         "decode message: type: \"dance\" is no message of fleetjob.rendezvous.v1"},
        {{.opcode = 1, .text = "{\"type\":\"left\"}"}, "the first message must be hello"},
        {{.opcode = 2, .text = "{}"}, "messages are text, this one is binary"},
        {{.opcode = 1, .fragments = 40, .fragment_size = 65536, .fill = ' '},
         "the message is larger than 2097152 bytes"},
        {{.opcode = 1, .fragments = 1, .fragment_size = 3 << 20, .fill = ' '},
         "the message is larger than 2097152 bytes"},
    };
    struct world *world = world_new(1, NULL);

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stranger stranger = cases[i].stranger;
        stranger.speaks_tls = true;
        world->refused_reason[0] = '\0';
        meet(world, &stranger);
        part(world, &stranger);
        assert_string_equal(world->refused_reason, cases[i].reason);
        if (stranger.fragments == 0) { /* else its own sending may break before it reads */
            assert_string_equal(stranger.reason, cases[i].reason);
            assert_int_equal(stranger.close_code, 1008);
        }
    }
    assert_true(world->agents[0].is_connected);
    assert_int_equal(world->agents[0].aborts, 0);
    world_free(world);
}

static void test_hub_server__closes_connections_that_say_nothing(void **state)
{
    struct hub_server_config change = {.hello_timeout_ms = 1000, .handshake_timeout_ms = 1000};
    struct world *world = world_new(1, &change);
    struct stranger upgraded = {.speaks_tls = true}, dumb = {.speaks_tls = false};

    (void)state;
    meet(world, &upgraded);
    part(world, &upgraded);
    assert_string_equal(upgraded.reason, "it said nothing");
    assert_true(upgraded.lasted_ms >= 900);
    meet(world, &dumb); /* not even TLS */
    part(world, &dumb);
    if (dumb.lasted_ms < 500)
        fail_msg("a connection without TLS lasted %.0f ms", dumb.lasted_ms);

    add_agent(world, NULL, NULL, NULL); /* an agent that says hello may stay */
    run_until(world, has_joined(world, 1));
    run_for(world, 1500);
    assert_true(world->agents[0].is_connected);
    world_free(world);
}

/* From another CA here, so that one can tell which of the two certificates a connection has met. */
static bool say_gone(void *user, const char *job_uid, const char *job_name)
{
    (void)user;
    return strcmp(job_uid, "job") == 0 && strcmp(job_name, "gpt") == 0;
}

/* Only with the right token, and only for a job that is not hosted. */
static void test_hub_server__a_member_hears_that_its_job_is_gone(void **state)
{
    struct hub_server_config change = {.is_gone = say_gone};
    struct world *world = world_new(1, &change);
    struct agent *agent, *stranger;

    (void)state;
    agent = add_agent(world, NULL, NULL, NULL);
    run_until(world, agent->is_connected);
    hub_server_remove(world->job);
    world->job = NULL;
    stranger = add_agent(world, NULL, NULL, "00");
    run_until(world, strstr(agent->detail, "the job is gone") != NULL);
    run_until(world, stranger->detail[0]);
    assert_null(strstr(stranger->detail, "gone"));
    world_free(world);
}

static void test_hub_server__a_renewed_certificate_is_for_new_connections(void **state)
{
    struct world *world = world_new(2, NULL);
    struct tls_identity ca = {0}, leaf = {0};
    struct agent *before;
    struct fleet_error err;

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    assert_int_equal(tls_identity_make_ca("next CA", 1, &ca, NULL), 0);
    assert_int_equal(tls_identity_sign(&ca, TLS_IDENTITY_HUB_NAME, 1, &leaf, NULL), 0);
    assert_int_equal(
        hub_server_renew(world->server, world->leaf.certificate_pem, leaf.key_pem, &err), -EINVAL);
    assert_int_equal(hub_server_renew(world->server, leaf.certificate_pem, leaf.key_pem, &err), 0);
    before = add_agent(world, NULL, NULL, NULL);
    run_until(world, before->detail[0]);
    assert_false(before->is_connected);
    if (!strstr(before->detail, "the hub's certificate: "))
        fail_msg("%s", before->detail);
    run_for(world, 1200);
    assert_true(world->agents[0].is_connected && world->agents[1].is_connected);
    assert_int_equal(world->agents[0].aborts + world->agents[1].aborts, 0);
    world->moved = (struct member_client_hub){0};
    tls_identity_release(&world->ca);
    world->ca = ca;
    assert_non_null(add_agent(world, NULL, NULL, NULL));
    run_until(world, world->agents[3].is_connected);
    tls_identity_release(&leaf);
    world_free(world);
}

static void test_hub_server__a_client_trusts_its_ca_and_the_fixed_name_only(void **state)
{
    struct world *world = world_new(1, NULL);
    struct tls_identity other = {0};
    struct agent *wrong_ca, *wrong_name, *wrong_token;

    (void)state;
    assert_int_equal(tls_identity_make_ca("test CA", 1, &other, NULL), 0);
    wrong_ca = add_agent(world, other.certificate_pem, NULL, NULL);
    wrong_name = add_agent(world, NULL, "another-hub", NULL);
    wrong_token = add_agent(world, NULL, NULL, "00");
    run_until(world, wrong_ca->detail[0] && wrong_name->detail[0] && wrong_token->detail[0]);
    assert_false(wrong_ca->is_connected);
    assert_false(wrong_name->is_connected);
    assert_false(wrong_token->is_connected);
    if (!strstr(wrong_ca->detail, "the hub's certificate: "))
        fail_msg("wrong CA: %s", wrong_ca->detail);
    if (!strstr(wrong_name->detail, "hostname"))
        fail_msg("wrong name: %s", wrong_name->detail);
    if (!strstr(wrong_token->detail, "unauthorized"))
        fail_msg("wrong token: %s", wrong_token->detail);
    assert_int_equal(world->events[HUB_EVENT_JOINED], 0);
    tls_identity_release(&other);
    world_free(world);
}

static void test_hub_server__accepts_no_more_connections_than_allowed(void **state)
{
    struct hub_server_config change = {.connections_max = 2};
    struct world *world = world_new(3, &change);

    (void)state;
    for (int i = 0; i < 3; i++)
        add_agent(world, NULL, NULL, NULL);
    run_until(world, world->events[HUB_EVENT_JOINED] == 2);
    run_for(world, 300);
    assert_int_equal(world->events[HUB_EVENT_JOINED], 2);
    close_agent(&world->agents[world->agents[0].is_connected ? 0 : 1]);
    run_until(world, world->events[HUB_EVENT_JOINED] == 3); /* the third had to wait */
    world_free(world);
}

/* ---- floods ---------------------------------------------------------------------------------- */

/* What a client of TLS says first, and a flood says only. */
static size_t client_hello(unsigned char *out, size_t capacity)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(context);
    BIO *sent = BIO_new(BIO_s_mem());
    int size;

    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), sent);
    assert_int_equal(SSL_connect(ssl), -1);
    size = BIO_read(sent, out, (int)capacity);
    assert_true(size > 0);
    SSL_free(ssl);
    SSL_CTX_free(context);
    return (size_t)size;
}

/* Opens a connection from 127.0.0.<source> and leaves it in the middle of its handshake. */
static int open_half(const struct world *world, int source, const void *hello, size_t size)
{
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr = {htonl(0x7f000000u + (uint32_t)source)}};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)hub_server_port(world->server)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){1}, sizeof(int));
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    (void)send(fd, hello, size, MSG_NOSIGNAL);
    return fd;
}

static struct hub_server_stats stats(const struct world *world)
{
    struct hub_server_stats out;

    hub_server_stats(world->server, &out);
    return out;
}

static void test_hub_server__a_flood_leaves_room_for_members(void **state)
{
    enum {
        HALF = 120,
        SOURCES = 6,
        OPEN_MAX_ = 40,
        SOURCE_MAX = 10
    };
    struct hub_server_config change = {.handshakes_max = OPEN_MAX_,
                                       .source_handshakes_max = SOURCE_MAX,
                                       .handshake_timeout_ms = PATIENCE_MS};
    struct world *world = world_new(2, &change);
    unsigned char hello[4096];
    size_t size = client_hello(hello, sizeof(hello));
    int fds[HALF];

    (void)state;
    for (int i = 0; i < HALF; i++) {
        fds[i] = open_half(world, 2 + i % SOURCES, hello, size);
        turn(world);
        assert_true(stats(world).handshakes <= OPEN_MAX_);
    }
    run_until(world, stats(world).accepted == HALF);
    assert_true(stats(world).handshakes <= OPEN_MAX_);
    assert_true(stats(world).refused[HUB_REFUSED_SOURCE] +
                    stats(world).refused[HUB_REFUSED_HANDSHAKES] >=
                HALF - OPEN_MAX_);
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1)); /* no half-open connection has ended by itself */
    assert_int_equal(stats(world).connections, 2);
    assert_int_equal(stats(world).refused[HUB_REFUSED_HANDSHAKE_TIME], 0);
    for (int i = 0; i < HALF; i++)
        close(fds[i]);
    run_until(world, stats(world).handshakes == 0);
    world_free(world);
}

static void test_hub_server__a_handshake_has_its_time(void **state)
{
    struct hub_server_config change = {.handshake_timeout_ms = 300};
    struct world *world = world_new(1, &change);
    unsigned char hello[4096];
    size_t size = client_hello(hello, sizeof(hello));
    int half, silent;

    (void)state;
    half = open_half(world, 2, hello, size);
    silent = open_half(world, 3, hello, 0);
    run_until(world, stats(world).handshakes == 2);
    run_until(world, stats(world).refused[HUB_REFUSED_HANDSHAKE_TIME] == 2);
    assert_int_equal(stats(world).handshakes, 0);
    assert_string_equal(world->refused_reason, "the handshake was not complete in time");
    close(half);
    close(silent);
    world_free(world);
}

static size_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long all = 0, resident = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &all, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Memory of a sanitizer says nothing about memory of the server. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED true
#else
#define IS_SANITIZED false
#endif

static void test_hub_server__gives_memory_back_after_a_flood(void **state)
{
    enum {
        HALF = 900,
        ROUNDS = 3
    };
    struct hub_server_config change = {
        .handshakes_max = HALF, .source_handshakes_max = HALF, .handshake_timeout_ms = PATIENCE_MS};
    struct world *world = world_new(1, &change);
    unsigned char hello[4096];
    size_t size = client_hello(hello, sizeof(hello)), before, peak = 0;
    int fds[HALF];

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    before = resident_bytes();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < HALF; i++) {
            fds[i] = open_half(world, 2 + i % 9, hello, size);
            if (i % 10 == 0)
                turn(world);
        }
        run_until(world, stats(world).accepted == (uint64_t)HALF * (uint64_t)(round + 1) + 1);
        run_for(world, 50);
        if (resident_bytes() > peak)
            peak = resident_bytes();
        for (int i = 0; i < HALF; i++)
            close(fds[i]);
        run_until(world, stats(world).handshakes == 0);
    }
    print_message("resident: %zu KiB before, %zu at most\n", before >> 10, peak >> 10);
    if (!IS_SANITIZED) {
        assert_true(peak < before + (size_t)HALF * 100 * 1024);
        run_until(world, resident_bytes() < 2 * before);
    }
    print_message("resident: %zu KiB after\n", resident_bytes() >> 10);
    assert_true(world->agents[0].is_connected);
    world_free(world);
}

static void test_hub_server__a_job_and_a_namespace_have_shares(void **state)
{
    struct hub_server_config change = {.connections_max = 8, .namespace_connections_max = 2};
    struct world *world = world_new(1, &change);
    struct hub_server_job *other;
    struct stranger third = {.speaks_tls = true, .path = "/rendezvous/mine", .token_job = "mine"};

    (void)state;
    world->namespace_ = "team";
    hub_server_remove(world->job);
    host_job(world, "job", 1, (struct generation){0}, &world->job);
    host_job(world, "mine", 1, (struct generation){0}, &other);
    add_agent(world, NULL, NULL, NULL);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, stats(world).connections == 2);
    meet(world, &third);
    part(world, &third);
    assert_string_equal(third.status, "429");
    assert_string_equal(world->refused_reason,
                        "the namespace has as many connections as it may have");
    assert_int_equal(stats(world).refused[HUB_REFUSED_NAMESPACE_SHARE], 1);
    world->namespace_ = "others";
    hub_server_remove(other);
    host_job(world, "mine", 1, (struct generation){0}, &other);
    third = (struct stranger){.speaks_tls = true,
                              .path = "/rendezvous/mine",
                              .token_job = "mine",
                              .opcode = 1,
                              .text = "{}"};
    meet(world, &third);
    part(world, &third);
    assert_string_equal(third.status, "101"); /* another namespace has its own share */
    world_free(world);
}

/* A peer with the right token that never stops talking is closed; the job's member is not
 * disturbed. */
static void test_hub_server__who_says_too_much_is_closed(void **state)
{
    struct world *world = world_new(1, NULL);
    static const int port = 7000;
    struct message hello = {.type = MESSAGE_HELLO,
                            .hello = {.job_uid = "job",
                                      .pod_uid = "talker",
                                      .address = "127.0.0.1",
                                      .ports = &port,
                                      .processes = 1,
                                      .index = 5,
                                      .devices = "cpu",
                                      .version = "test"}};
    struct message_text *text = message_encode(&hello);
    struct stranger talker = {.speaks_tls = true,
                              .opcode = 1,
                              .text = text->text,
                              .fragments = 20000, /* 3600 may come at once */
                              .fragment_size = 100,
                              .fill = ' '};

    (void)state;
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    meet(world, &talker);
    part(world, &talker);
    assert_string_equal(world->refused_reason, "the job's members say too much");
    assert_true(stats(world).refused[HUB_REFUSED_JOB_SHARE] >=
                1); /* a member that says something just then dials again */
    run_until(world, world->agents[0].is_connected);
    assert_int_equal(world->agents[0].aborts, 0);
    message_text_release(text);
    world_free(world);
}

/* ---- peers that do not read -------------------------------------------------------------------- */

#define MIB ((size_t)1 << 20)

/* The first `count` connections that there ever were are sent one text of `size` bytes. */
static void send_text(struct hub_server_job *job, const int *connections, int count, size_t size)
{
    struct message_text *text = calloc(1, sizeof(*text) + size + 1);
    struct hub_output out = {.items = calloc((size_t)count, sizeof(*out.items)),
                             .count = (size_t)count,
                             .capacity = (size_t)count};

    assert_non_null(text);
    assert_non_null(out.items);
    text->size = size;
    memset(text->text, 'x', size);
    for (int i = 0; i < count;
         i++) /* numbers as hub_session.c gives them, in slots one after the other */
        out.items[i] =
            (struct hub_action){.type = HUB_SEND,
                                .connection = (uint64_t)(connections[i] + 1) << 16 | connections[i],
                                .text = message_text_use(text)};
    hub_server_apply(job, &out);
}

static void send_one(struct hub_server_job *job, int connection, size_t size)
{
    send_text(job, &connection, 1, size);
}

/* Comes to a hosted job, and reads nothing. */
static void meet_deaf(struct world *world, struct stranger *s, const char *path, const char *job)
{
    size_t before = stats(world).connections;

    *s = (struct stranger){.speaks_tls = true, .path = path, .token_job = job, .is_deaf = true};
    meet(world, s);
    run_until(world, stats(world).connections == before + 1);
}

static void part_deaf(struct world *world, struct stranger *s)
{
    s->is_deaf = false;
    part(world, s);
}

static void test_hub_server__what_waits_for_a_slow_member_counts_for_its_job(void **state)
{
    struct hub_server_config change = {.job_bytes_max = 8 * MIB};
    struct world *world = world_new(1, &change);
    static const int both[] = {0, 1};
    struct stranger slow, slower;

    (void)state;
    meet_deaf(world, &slow, "/rendezvous/job", "job");
    meet_deaf(world, &slower, "/rendezvous/job", "job");
    send_text(world->job, both, 2, 5 * MIB); /* once in memory */
    assert_in_range(stats(world).held_bytes, 5 * MIB, 5 * MIB + 1000);
    send_one(world->job, 1, MIB);
    assert_in_range(stats(world).held_bytes, 6 * MIB, 6 * MIB + 1000);
    assert_int_equal(world->refused, 0);
    send_one(world->job, 0, 2 * MIB + MIB / 2); /* now the first holds most */
    assert_int_equal(world->refused, 1);
    assert_int_equal(stats(world).refused[HUB_REFUSED_JOB_SHARE], 1);
    assert_string_equal(world->refused_reason,
                        "too much is held for the job's members, most of it for this one");
    assert_in_range(stats(world).held_bytes, 6 * MIB, 6 * MIB + 1000); /* the other stays */
    part_deaf(world, &slow);
    assert_string_equal(slow.reason, world->refused_reason);
    hub_server_remove(world->job);
    part_deaf(world, &slower);
    run_until(world, stats(world).connections == 0);
    assert_int_equal(stats(world).held_bytes, 0);
    host_job(world, "job", 1, (struct generation){0}, &world->job);
    world_free(world);
}

/* Three jobs, the first two of them in one namespace, each with a peer that reads nothing. */
static struct world *meet_three(struct hub_server_job *jobs[3], struct stranger strangers[3])
{
    static const char *const uids[] = {"a", "b", "c"}, *const paths[] = {"/rendezvous/a",
                                                                         "/rendezvous/b",
                                                                         "/rendezvous/c"};
    struct hub_server_config change = {
        .job_bytes_max = 12 * MIB, .namespace_bytes_max = 14 * MIB, .bytes_max = 20 * MIB};
    struct world *world = world_new(1, &change);

    for (int i = 0; i < 3; i++) {
        world->namespace_ = i < 2 ? "team" : "others";
        host_job(world, uids[i], 1, (struct generation){0}, &jobs[i]);
        meet_deaf(world, &strangers[i], paths[i], uids[i]);
    }
    return world;
}

static void part_three(struct world *world, struct stranger strangers[3])
{
    for (int i = 0; i < 3; i++)
        strangers[i].is_deaf = false;
    hub_server_free(world->server); /* which ends those that are still there */
    for (int i = 0; i < 3; i++)
        part(world, &strangers[i]);
    world->server = NULL;
    world_free(world);
}

static void test_hub_server__what_waits_counts_for_the_namespace(void **state)
{
    struct hub_server_job *jobs[3];
    struct stranger strangers[3];
    struct world *world = meet_three(jobs, strangers);

    (void)state;
    send_one(jobs[0], 0, 8 * MIB);
    send_one(jobs[2], 2, 9 * MIB);
    assert_int_equal(world->refused, 0);
    send_one(jobs[1], 1, 7 * MIB); /* 15 of 14 MiB, and the first has most of them */
    assert_int_equal(stats(world).refused[HUB_REFUSED_NAMESPACE_SHARE], 1);
    assert_string_equal(world->refused_job, "a");
    assert_int_equal(world->refused, 1);
    assert_in_range(stats(world).held_bytes, 16 * MIB, 16 * MIB + 1000);
    part_three(world, strangers);
}

/* Whoever is the last to be sent something: it is the namespace that holds most which pays. */
static void test_hub_server__what_waits_counts_in_all(void **state)
{
    struct hub_server_job *jobs[3];
    struct stranger strangers[3];
    struct world *world = meet_three(jobs, strangers);

    (void)state;
    send_one(jobs[0], 0, 5 * MIB);
    send_one(jobs[1], 1, 6 * MIB);
    send_one(jobs[2], 2, 8 * MIB);
    assert_int_equal(world->refused, 0);
    send_one(jobs[2], 2, 2 * MIB); /* 21 of 20 MiB: team has 11 of them */
    assert_int_equal(stats(world).refused[HUB_REFUSED_MEMORY], 1);
    assert_string_equal(world->refused_job, "b");
    assert_int_equal(world->refused, 1);
    assert_in_range(stats(world).held_bytes, 15 * MIB, 15 * MIB + 1000);
    part_three(world, strangers);
}

/* A member that takes nothing any more is closed before its queue is larger than it may be, and its hub knows. */
static void test_hub_server__a_member_that_does_not_read_is_lost(void **state)
{
    struct world *world = world_new(1, NULL);
    struct stranger slow;

    (void)state;
    meet_deaf(world, &slow, "/rendezvous/job", "job");
    for (int i = 0; i < 40 && world->refused == 0; i++) {
        send_one(world->job, 0, MIB);
        run_for(world, 5); /* the kernel takes some of it */
    }
    assert_int_equal(stats(world).refused[HUB_REFUSED_SLOW], 1);
    assert_string_equal(world->refused_reason, "the member does not read what it is sent");
    assert_int_equal(stats(world).held_bytes, 0);
    part_deaf(world, &slow);
    world_free(world);
}

static void test_hub_server__serves_many_jobs_and_stops_serving_one(void **state)
{
    struct world *world = world_new(1, NULL);
    struct hub_server_job *other, *again = NULL;
    struct hub_start start = {.job_uid = "job"};
    struct hub_policy policy = {.min = 1, .max = 1, .desired = 1};
    struct hub *hub = hub_new(&start, &policy, fleet_monotonic_ms());
    struct hub_server_handlers handlers = {0};
    struct fleet_error err;

    (void)state;
    host_job(world, "other", 1, (struct generation){0}, &other);
    assert_int_equal(hub_server_add(world->server, "job", hub, &handlers, &again, &err), -EEXIST);
    assert_string_equal(err.text, "job job is hosted already");
    hub_free(hub);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    hub_server_remove(other);
    run_for(world, 50);
    assert_true(world->agents[0].is_connected);
    hub_server_remove(world->job);
    run_until(world, !world->agents[0].is_connected);
    assert_string_equal(world->agents[0].detail,
                        "the hub closed it: the job is not hosted here any more");
    world_free(world);
}

/* Its members' messages and its timer find a hub that says nothing; another job's member trains
 * on. */
static void test_hub_server__a_hub_that_breaks_disturbs_no_other(void **state)
{
    struct world *world = world_new(1, NULL);
    struct stranger first = {
        .speaks_tls = true, .path = "/rendezvous/other", .token_job = "other", .opcode = 1};
    struct message heartbeat = {.type = MESSAGE_HEARTBEAT, .heartbeat = {.status = {.step = -1}}};
    struct message_text *text = message_encode(&heartbeat);
    struct hub_output out = {0};
    struct hub_server_job *other;

    (void)state;
    first.text = text->text;
    host_job(world, "other", 1, (struct generation){0}, &other);
    add_agent(world, NULL, NULL, NULL);
    run_until(world, has_joined(world, 1));
    /* Each call begins with the assertion that time has not gone back: the next one fails. */
    hub_tick(hub_server_hub(other), fleet_monotonic_ms() + 1e9, &out);
    hub_output_release(&out);
    meet(world, &first);
    run_until(world, world->events[HUB_EVENT_DEFECT] == 1);
    assert_non_null(hub_defect(hub_server_hub(other)));
    run_for(world, 100);
    assert_int_equal(world->events[HUB_EVENT_DEFECT], 1);
    hub_server_remove(other);
    part(world, &first);
    assert_string_equal(first.reason, "the job is not hosted here any more");
    host_job(world, "other", 1, (struct generation){0}, &other);
    first = (struct stranger){.speaks_tls = true,
                              .path = "/rendezvous/other",
                              .token_job = "other",
                              .opcode = 1,
                              .text = text->text};
    meet(world, &first);
    part(world, &first);
    assert_string_equal(first.reason, "the first message must be hello"); /* it works */
    assert_true(world->agents[0].is_connected);
    assert_int_equal(world->agents[0].aborts, 0);
    message_text_release(text);
    world_free(world);
}

static void test_hub_server__says_why_it_cannot_start(void **state)
{
    struct world *world = world_new(1, NULL);
    struct hub_server_config config = server_config(world);
    struct hub_server *server = NULL;
    struct fleet_error err;
    char expected[200];

    (void)state;
    config.port = hub_server_port(world->server);
    assert_int_equal(hub_server_new(&config, &server, &err), -EADDRINUSE);
    (void)snprintf(expected, sizeof(expected),
                   "start the hub's server: listen on 127.0.0.1 port %d: Address already in use",
                   config.port);
    assert_string_equal(err.text, expected);
    config.port = 0;
    config.key_pem = world->ca.key_pem;
    assert_int_equal(hub_server_new(&config, &server, &err), -EINVAL);
    assert_non_null(strstr(err.text, "key does not belong to the certificate"));
    config.certificate_pem = "nonsense";
    assert_int_equal(hub_server_new(&config, &server, &err), -EINVAL);
    assert_non_null(strstr(err.text, "certificate is not PEM"));
    config = server_config(world);
    config.address = "nowhere";
    assert_int_equal(hub_server_new(&config, &server, &err), -EINVAL);
    assert_null(server);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_server__members_form_lose_one_and_go_on),
        cmocka_unit_test(test_hub_server__the_store_carries_bytes_between_members),
        cmocka_unit_test(test_hub_server__a_message_of_many_frames_arrives_whole),
        cmocka_unit_test(test_hub_server__a_server_that_comes_back_disturbs_nothing),
        cmocka_unit_test(test_hub_server__members_find_the_hub_of_another_installation),
        cmocka_unit_test(test_hub_server__who_comes_back_resumes_its_session),
        cmocka_unit_test(test_hub_server__refuses_strangers_and_leaves_others_alone),
        cmocka_unit_test(test_hub_server__closes_connections_that_talk_nonsense),
        cmocka_unit_test(test_hub_server__closes_connections_that_say_nothing),
        cmocka_unit_test(test_hub_server__a_member_hears_that_its_job_is_gone),
        cmocka_unit_test(test_hub_server__a_renewed_certificate_is_for_new_connections),
        cmocka_unit_test(test_hub_server__a_client_trusts_its_ca_and_the_fixed_name_only),
        cmocka_unit_test(test_hub_server__accepts_no_more_connections_than_allowed),
        cmocka_unit_test(test_hub_server__a_flood_leaves_room_for_members),
        cmocka_unit_test(test_hub_server__a_handshake_has_its_time),
        cmocka_unit_test(test_hub_server__gives_memory_back_after_a_flood),
        cmocka_unit_test(test_hub_server__a_job_and_a_namespace_have_shares),
        cmocka_unit_test(test_hub_server__who_says_too_much_is_closed),
        cmocka_unit_test(test_hub_server__what_waits_for_a_slow_member_counts_for_its_job),
        cmocka_unit_test(test_hub_server__what_waits_counts_for_the_namespace),
        cmocka_unit_test(test_hub_server__what_waits_counts_in_all),
        cmocka_unit_test(test_hub_server__a_member_that_does_not_read_is_lost),
        cmocka_unit_test(test_hub_server__serves_many_jobs_and_stops_serving_one),
        cmocka_unit_test(test_hub_server__a_hub_that_breaks_disturbs_no_other),
        cmocka_unit_test(test_hub_server__says_why_it_cannot_start),
    };
    return cmocka_run_group_tests_name("hub_server", tests, NULL, NULL);
}
