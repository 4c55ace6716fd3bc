/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One connection of a member, from its upgrade to its end. It lives in lws' memory; the hub
 * knows it by a number that is never used twice.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libwebsockets.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/limits.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/hub_server_internal.h"

#define JOB_NAME_MAX      253
#define CLOSE_TIMEOUT_MS  2000.0 /* for a peer that does not read its last messages */
#define FRAME_MAX         16384  /* bytes: see write_next() */
#define TOO_MANY_REQUESTS 429u   /* lws.h has no name for it */
#define JOB_CONNECTIONS   16     /* … and two for a member that comes back early */
#define JOB_RATE          200.0  /* reads a second … */
#define JOB_MEMBER_RATE   20.0   /* … and for each member */
#define JOB_BURST_SECONDS 10
#define PATH_PREFIX       "/rendezvous/"

/* lws_write() sends a close frame by this number, but lws.h of 4.1 leaves it out of the enum. */
#define WRITE_CLOSE ((enum lws_write_protocol)4)

/* ---- words ----------------------------------------------------------------------------------- */

static void peer_name(struct lws *wsi, char out[64])
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);

    (void)getpeername(lws_get_socket_fd(wsi), (struct sockaddr *)&address, &size);
    hub_accept_peer_name(&address, size, out);
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* The job's share depends on its policy, which may change at any time. */
static void refresh_share(struct hub_server_job *job)
{
    double members = hub_members_max(job->hub);

    job->share.connections_max = 2 * (size_t)members + JOB_CONNECTIONS;
    job->share.rate = JOB_RATE + JOB_MEMBER_RATE * members;
    job->share.burst = JOB_BURST_SECONDS * job->share.rate;
}

static void count_connection(struct hub_server_job *job, int change)
{
    job->share.connections += (size_t)change;
    if (job->tenant)
        job->tenant->share.connections += (size_t)change;
}

static bool is_full(const struct hub_share *share)
{
    return share->connections >= share->connections_max;
}

/* The session no longer belongs to its job: no messages, no counts. */
static void leave_job(struct session *session)
{
    if (!session->job)
        return;
    hub_held_leave(session);
    count_connection(session->job, -1);
    session->job = NULL;
}

/* ---- sessions -------------------------------------------------------------------------------- */

struct session *hub_session_of(const struct hub_server *server, uint64_t connection)
{
    size_t slot = connection & ((1u << HUB_SERVER_SLOT_BITS) - 1);
    struct session *session = slot < server->connections_max ? server->slots[slot] : NULL;

    return session && session->connection == connection ? session : NULL;
}

static void forget_queue(struct session *session)
{
    while (session->first) {
        struct queued *next = session->first->next;
        hub_held_pop(session, session->first->text);
        message_text_release(session->first->text);
        free(session->first);
        session->first = next;
    }
    session->last = NULL;
    session->queued_bytes = session->sent = 0;
}

/* Queued texts are still sent; the job gets nothing more from this session. */
void hub_session_close(struct session *session, const char *reason)
{
    if (session->is_closing)
        return;
    session->is_closing = true;
    leave_job(session);
    (void)snprintf(session->close_reason, sizeof(session->close_reason), "%s", reason);
    lws_set_timer_usecs(session->wsi, (lws_usec_t)(CLOSE_TIMEOUT_MS * 1000));
    lws_callback_on_writable(session->wsi);
}

void hub_session_queue(struct session *session, struct message_text *text)
{
    struct queued *queued;

    if (session->is_closing)
        return;
    if (session->queued_bytes + text->size > FLEET_HUB_PEER_BYTES) {
        hub_session_refuse(session, HUB_REFUSED_SLOW, "the member does not read what it is sent");
        return;
    }
    queued = calloc(1, sizeof(*queued));
    fleet_assert(queued != NULL);
    queued->text = message_text_use(text);
    if (session->last)
        session->last->next = queued;
    else
        session->first = queued;
    session->last = queued;
    session->queued_bytes += text->size;
    hub_held_push(session, text);
    lws_callback_on_writable(session->wsi);
    hub_held_relieve(session->server, session->job);
}

/* ---- the HTTP part --------------------------------------------------------------------------- */

/* The job uid of the path, "" if it is none. */
static void read_job_uid(struct lws *wsi, char out[MESSAGE_UID_MAX + 1])
{
    char path[sizeof(PATH_PREFIX) + MESSAGE_UID_MAX] = "";

    out[0] = '\0';
    if (lws_hdr_copy(wsi, path, sizeof(path), WSI_TOKEN_GET_URI) > 0 &&
        strncmp(path, PATH_PREFIX, strlen(PATH_PREFIX)) == 0)
        (void)snprintf(out, MESSAGE_UID_MAX + 1, "%s", path + strlen(PATH_PREFIX));
}

static bool has_token(const struct hub_server *server, struct lws *wsi, const char *job_uid)
{
    char given[sizeof("Bearer ") + FLEET_SHA256_HEX_SIZE] = "",
                                   expected[sizeof("Bearer ") + FLEET_SHA256_HEX_SIZE] = "Bearer ";

    hub_server_token(server->install_key, server->install_key_size, job_uid,
                     expected + strlen("Bearer "));
    if (lws_hdr_copy(wsi, given, sizeof(given), WSI_TOKEN_HTTP_AUTHORIZATION) <= 0)
        return false;
    return fleet_secret_equal(given, expected, sizeof(given));
}

static bool asks_protocol(struct lws *wsi)
{
    char protocol[sizeof(MESSAGE_PROTOCOL)] = "";

    return lws_hdr_copy(wsi, protocol, sizeof(protocol), WSI_TOKEN_PROTOCOL) > 0 &&
           strcmp(protocol, MESSAGE_PROTOCOL) == 0;
}

/* Is there no room for one more of this hosted job? Then *out_kind says where. */
static bool find_full_share(const struct hub_server *server, const char *job_uid,
                            enum hub_refusal *out_kind)
{
    struct hub_server_job *job = fleet_map_get(&server->jobs, job_uid);

    refresh_share(job);
    if (server->stats.connections >= server->connections_max)
        *out_kind = HUB_REFUSED_CONNECTIONS;
    else if (is_full(&job->share))
        *out_kind = HUB_REFUSED_JOB_SHARE;
    else if (job->tenant && is_full(&job->tenant->share))
        *out_kind = HUB_REFUSED_NAMESPACE_SHARE;
    else
        return false;
    return true;
}

static const struct {
    enum hub_refusal kind;
    unsigned status;
    const char *reason;
} upgrade_refusals[] = {
    {HUB_REFUSED_REQUEST, HTTP_STATUS_BAD_REQUEST, "it asked for another path or subprotocol"},
    {HUB_REFUSED_TOKEN, HTTP_STATUS_UNAUTHORIZED, "wrong token"},
    {HUB_REFUSED_JOB, HTTP_STATUS_NOT_FOUND, "the job is not hosted here"},
    {HUB_REFUSED_CONNECTIONS, HTTP_STATUS_SERVICE_UNAVAILABLE,
     "the hub has as many connections as it may have"},
    {HUB_REFUSED_JOB_SHARE, TOO_MANY_REQUESTS, "the job has as many connections as it may have"},
    {HUB_REFUSED_NAMESPACE_SHARE, TOO_MANY_REQUESTS,
     "the namespace has as many connections as it may have"},
};

/* The token is right, but the job is not hosted here. */
static bool is_gone(const struct hub_server *server, struct lws *wsi, const char *job_uid)
{
    static const char key[] = "job=";
    char argument[sizeof(key) + JOB_NAME_MAX] = "";
    bool has_name =
        lws_hdr_copy_fragment(wsi, argument, sizeof(argument), WSI_TOKEN_HTTP_URI_ARGS, 0) > 0 &&
        strncmp(argument, key, strlen(key)) == 0;

    return server->is_gone &&
           server->is_gone(server->user, job_uid, has_name ? argument + strlen(key) : "");
}

/* 0: go on; 1: answered with a refusal. */
static int check_upgrade(struct hub_server *server, struct lws *wsi)
{
    char job_uid[MESSAGE_UID_MAX + 1], peer[64];
    enum hub_refusal kind;
    unsigned status;
    size_t i = 0;

    read_job_uid(wsi, job_uid);
    if (job_uid[0] == '\0' || !asks_protocol(wsi))
        kind = HUB_REFUSED_REQUEST;
    else if (!has_token(server, wsi, job_uid))
        kind = HUB_REFUSED_TOKEN;
    else if (!fleet_map_get(&server->jobs, job_uid))
        kind = HUB_REFUSED_JOB;
    else if (!find_full_share(server, job_uid, &kind))
        return 0;
    while (upgrade_refusals[i].kind != kind)
        i++;
    peer_name(wsi, peer);
    hub_server_refuse(server, kind, job_uid, peer, upgrade_refusals[i].reason);
    status = upgrade_refusals[i].status;
    if (kind == HUB_REFUSED_JOB && is_gone(server, wsi, job_uid))
        status = HTTP_STATUS_GONE;
    (void)lws_return_http_status(wsi, status, NULL);
    return 1;
}

/* Settings that save memory: an idle connection holds no buffers, only clients keep sessions of
 * TLS, and there is no renegotiation. */
static void keep_little(SSL_CTX *context)
{
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
}

int hub_session_http(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                     size_t size)
{
    struct hub_server *server = lws_context_user(lws_get_context(wsi));

    (void)in;
    (void)size;
    switch (reason) {
    case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE:
        return check_upgrade(server, wsi);
    case LWS_CALLBACK_HTTP: /* no upgrade asked for */
        (void)lws_return_http_status(wsi, HTTP_STATUS_NOT_FOUND, NULL);
        return -1;
    case LWS_CALLBACK_WSI_DESTROY:
        if (lws_get_vhost(wsi) == server->vhost)
            hub_accept_closed(server, wsi);
        return 0;
    case LWS_CALLBACK_OPENSSL_LOAD_EXTRA_SERVER_VERIFY_CERTS: /* OpenSSL makes a context */
        keep_little(user);
        server->tls = user;
        return 0;
    default:
        return 0;
    }
}

/* ---- the WebSocket part ---------------------------------------------------------------------- */

static int open_session(struct hub_server *server, struct session *session, struct lws *wsi)
{
    char job_uid[MESSAGE_UID_MAX + 1];
    struct hub_output out = {0};
    size_t slot = 0;

    *session = (struct session){.server = server, .wsi = wsi};
    server->stats.connections++;
    hub_accept_finish(server, wsi);
    read_job_uid(wsi, job_uid);
    peer_name(wsi, session->peer);
    session->job = fleet_map_get(&server->jobs, job_uid);
    if (session->job)
        count_connection(session->job, 1);
    while (slot < server->connections_max && server->slots[slot])
        slot++;
    if (!session->job || slot == server->connections_max)
        return -1;
    server->slots[slot] = session;
    session->connection = ++server->connection_count << HUB_SERVER_SLOT_BITS | slot;
    lws_set_timer_usecs(wsi, (lws_usec_t)(server->hello_timeout_ms * 1000));
    hub_connected(session->job->hub, session->connection, fleet_monotonic_ms(), &out);
    hub_server_apply(session->job, &out);
    return 0;
}

static void end_session(struct session *session)
{
    struct hub_server_job *job = session->job;
    struct hub_output out = {0};

    if (session->connection)
        session->server->slots[session->connection & ((1u << HUB_SERVER_SLOT_BITS) - 1)] = NULL;
    session->server->stats.connections--;
    leave_job(session);
    forget_queue(session);
    fleet_strbuf_release(&session->received);
    if (!job)
        return;
    hub_disconnected(job->hub, session->connection, fleet_monotonic_ms(), &out);
    hub_server_apply(job, &out);
}

void hub_session_refuse(struct session *session, enum hub_refusal kind, const char *reason)
{
    struct hub_server_job *job = session->job;
    struct hub_output out = {0};

    if (!job)
        return;
    hub_server_refuse(session->server, kind, job->job_uid, session->peer, reason);
    forget_queue(session);
    fleet_strbuf_release(&session->received);
    hub_session_close(session, reason);
    hub_disconnected(job->hub, session->connection, fleet_monotonic_ms(), &out);
    hub_server_apply(job, &out);
}

struct decoding {
    const struct fleet_strbuf *text;
    struct message message;
    struct fleet_error err;
    int rc;
};

static void decode(void *user)
{
    struct decoding *d = user;

    d->rc = message_decode(fleet_strbuf_text(d->text), d->text->length, &d->message, &d->err);
}

/* If an assertion fails while a message is decoded, only its sender loses the connection. */
static bool decode_guarded(struct decoding *decoding)
{
    char text[sizeof(decoding->err.text)];

    if (!fleet_assert_guard(decode, decoding, text, sizeof(text)))
        decoding->rc = fleet_error(&decoding->err, -EPROTO, "%s", text);
    return decoding->rc == 0;
}

static void take_message(struct session *session)
{
    struct hub_server_job *job = session->job;
    struct decoding decoding = {.text = &session->received};
    struct hub_output out = {0};

    if (!decode_guarded(&decoding)) {
        hub_session_refuse(session, HUB_REFUSED_MESSAGE, decoding.err.text);
        return;
    }
    hub_held_message(session, 0);
    session->server->stats.messages++;
    fleet_strbuf_clear(&session->received);
    if (session->received.capacity > 65536)
        fleet_strbuf_release(&session->received);
    if (!session->is_greeted) {
        session->is_greeted = true;
        lws_set_timer_usecs(session->wsi, LWS_SET_TIMER_USEC_CANCEL);
    }
    hub_receive(job->hub, session->connection, &decoding.message, fleet_monotonic_ms(), &out);
    message_release(&decoding.message);
    hub_server_apply(job, &out);
}

/* Account for a read. False: the share is used up, and the session is refused for it. */
static bool spend(struct session *session)
{
    struct hub_server_job *job = session->job;
    double now_ms = fleet_monotonic_ms();

    refresh_share(job);
    if (!hub_share_spend(&job->share, now_ms))
        hub_session_refuse(session, HUB_REFUSED_JOB_SHARE, "the job's members say too much");
    else if (job->tenant && !hub_share_spend(&job->tenant->share, now_ms))
        hub_session_refuse(session, HUB_REFUSED_NAMESPACE_SHARE,
                           "the namespace's members say too much");
    return session->job != NULL;
}

static void receive(struct session *session, const char *bytes, size_t size)
{
    char reason[100];

    if (!session->job || !spend(session))
        return;
    if (lws_frame_is_binary(session->wsi)) {
        hub_session_refuse(session, HUB_REFUSED_MESSAGE, "messages are text, this one is binary");
        return;
    }
    if (session->received.length + size > MESSAGE_SIZE_MAX) {
        (void)snprintf(reason, sizeof(reason), "the message is larger than %u bytes",
                       MESSAGE_SIZE_MAX);
        hub_session_refuse(session, HUB_REFUSED_MESSAGE, reason);
        return;
    }
    fleet_strbuf_append_bytes(&session->received, bytes, size);
    if (lws_is_final_fragment(session->wsi) && lws_remaining_packet_payload(session->wsi) == 0) {
        take_message(session);
    } else {
        hub_held_message(session, session->received.length);
        hub_held_relieve(session->server, session->job);
    }
}

/* Write `size` bytes as one frame of `kind`. -1: the connection is broken. */
static int write_frame(struct session *session, const void *bytes, size_t size,
                       enum lws_write_protocol kind)
{
    struct fleet_strbuf *scratch = &session->server->scratch;
    static const char room[LWS_PRE];

    fleet_strbuf_clear(scratch);
    fleet_strbuf_append_bytes(scratch, room, sizeof(room));
    fleet_strbuf_append_bytes(scratch, bytes, size);
    return lws_write(session->wsi, (unsigned char *)scratch->text + LWS_PRE, size, kind) < 0 ? -1
                                                                                             : 0;
}

/*
 * The close frame with its reason is written here: lws_close_reason() has no effect on a libuv loop
 * with Debian's lws 4.1, which calls its close twice there (a leftover check of a debug build). The
 * peer answers by closing; if it does not, the timer ends the connection.
 */
static int write_close(struct session *session)
{
    unsigned char frame[2 + sizeof(session->close_reason)] = {
        LWS_CLOSE_STATUS_POLICY_VIOLATION >> 8, LWS_CLOSE_STATUS_POLICY_VIOLATION & 255};
    size_t length = strlen(session->close_reason);

    if (session->is_close_sent)
        return 0;
    session->is_close_sent = true;
    memcpy(frame + 2, session->close_reason, length);
    return write_frame(session, frame, 2 + length, WRITE_CLOSE);
}

static void drop_first(struct session *session)
{
    struct queued *queued = session->first;

    session->first = queued->next;
    if (!session->first)
        session->last = NULL;
    session->queued_bytes -= queued->text->size;
    session->sent = 0;
    hub_held_pop(session, queued->text);
    message_text_release(queued->text);
    free(queued);
}

/*
 * Send the next frame of the queue. lws copies the bytes that a socket does not take, and a
 * generation of thousands is hundreds of kilobytes for thousands of members at once: in small
 * frames the copies stay small.
 * 0, or -1: the connection is broken.
 */
static int write_next(struct session *session)
{
    const struct queued *queued = session->first;
    size_t left = queued ? queued->text->size - session->sent : 0;
    size_t size = left < FRAME_MAX ? left : FRAME_MAX;
    int rc;

    if (!queued)
        return session->is_closing ? write_close(session) : 0;
    rc = write_frame(session, queued->text->text + session->sent, size,
                     (enum lws_write_protocol)lws_write_ws_flags(LWS_WRITE_TEXT, session->sent == 0,
                                                                 size == left));
    session->sent += size;
    if (size == left)
        drop_first(session);
    if (session->first || session->is_closing)
        lws_callback_on_writable(session->wsi);
    return rc;
}

int hub_session_websocket(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                          size_t size)
{
    struct hub_server *server = lws_context_user(lws_get_context(wsi));
    struct session *session = user;

    switch (reason) {
    case LWS_CALLBACK_ESTABLISHED:
        return open_session(server, session, wsi);
    case LWS_CALLBACK_RECEIVE:
        receive(session, in, size);
        return 0;
    case LWS_CALLBACK_SERVER_WRITEABLE:
        return write_next(session);
    case LWS_CALLBACK_TIMER:
        if (session->is_closing)
            return -1;
        if (!session->is_greeted)
            hub_session_refuse(session, HUB_REFUSED_SILENT, "it said nothing");
        return 0;
    case LWS_CALLBACK_CLOSED:
        end_session(session);
        return 0;
    default:
        return 0;
    }
}
