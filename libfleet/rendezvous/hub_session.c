/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One connection of a member, from its upgrade (hub_session_http.c) to its end. It lives in lws'
 * memory; the hub knows it by a number that is never used twice.
 */
#include <errno.h>
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

#define CLOSE_TIMEOUT_MS 2000.0 /* for a peer that does not read its last messages */
#define FRAME_MAX        16384  /* bytes: see write_next() */

/* lws_write() sends a close frame by this number, but lws.h of 4.1 leaves it out of the enum. */
#define WRITE_CLOSE ((enum lws_write_protocol)4)

/* ---- words ----------------------------------------------------------------------------------- */

static void count_connection(struct hub_server_job *job, int change)
{
    job->share.connections += (size_t)change;
    if (job->tenant)
        job->tenant->share.connections += (size_t)change;
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

/* ---- the WebSocket part ---------------------------------------------------------------------- */

static int open_session(struct hub_server *server, struct session *session, struct lws *wsi)
{
    char job_uid[MESSAGE_UID_MAX + 1];
    struct hub_output out = {0};
    size_t slot = 0;

    *session = (struct session){.server = server, .wsi = wsi};
    server->stats.connections++;
    hub_accept_finish(server, wsi);
    hub_session_read_uid(wsi, job_uid);
    hub_session_peer_name(wsi, session->peer);
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

    hub_session_refresh_share(job);
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

    if (reason == LWS_CALLBACK_ESTABLISHED)
        return open_session(server, session, wsi);
    if (!session || !session->server)
        return 0; /* the peer went while it was answered: lws closes what it has not established */
    switch (reason) {
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
