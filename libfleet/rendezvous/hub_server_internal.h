/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_HUB_SERVER_INTERNAL_H
#define LIBFLEET_RENDEZVOUS_HUB_SERVER_INTERNAL_H

/*
 * A server of hubs, shared by the files that make it: hub_server.c (jobs, accepting, life) and
 * hub_session.c (one connection: its upgrade, its messages, its end). Nobody else includes this.
 */

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include <libwebsockets.h>

#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/hub_server.h"

#define HUB_SERVER_SLOT_BITS \
    16 /* of a connection's number; the rest counts, so that none is used twice */

struct queued {
    struct queued *next;
    struct message_text *text;
};

/* A WebSocket connection. Lives in lws' memory from ESTABLISHED to CLOSED. */
struct session {
    struct hub_server *server;
    struct hub_server_job *job; /* NULL once it is being closed */
    struct lws *wsi;
    uint64_t connection;
    bool is_greeted; /* has said something */
    bool is_closing, is_close_sent;
    char close_reason[124]; /* RFC 6455: a control frame has 125 bytes, 2 for the code */
    char peer[64];
    struct fleet_strbuf received; /* of a message that is not complete yet */
    struct queued *first, *last;
    size_t sent; /* bytes of the first */
    size_t queued_bytes;
};

struct hub_server_job {
    struct hub_server *server;
    char job_uid[MESSAGE_UID_MAX + 1];
    struct hub *hub;
    struct hub_server_handlers handlers;
    uv_timer_t timer;
    struct hub_output pending; /* actions not carried out yet */
    size_t done;               /* of them were */
    bool is_applying;
};

struct hub_server {
    struct lws_context *context;
    struct lws_vhost *vhost;
    struct lws_protocols protocols[3];
    SSL_CTX *unused; /* lws wants one for a vhost's clients, and leaks those it makes itself */
    uv_poll_t listener;
    uv_timer_t reaper; /* frees the server once lws has let go */
    int reap_count;
    int listen_fd;
    int port;
    bool is_paused; /* as many connections as allowed */
    bool is_freed;

    uint8_t *install_key;
    size_t install_key_size;
    size_t connections_max;
    double hello_timeout_ms;
    void (*refused)(void *user, const char *job_uid, const char *peer, const char *reason);
    void *user;

    struct fleet_map jobs;  /* uid -> struct hub_server_job */
    size_t socket_count;    /* accepted and not closed, WebSocket or not yet */
    struct session **slots; /* [connections_max] */
    uint64_t connection_count;
    struct fleet_strbuf scratch; /* LWS_PRE bytes and the frame being written */
};

/* ---- hub_server.c ------------------------------------------------------------------------------ */

/* Stop accepting while there is no room, go on when there is. */
void hub_server_gate(struct hub_server *server);

/* ---- hub_session.c ----------------------------------------------------------------------------- */

/* Tell the owner who was refused and why (struct hub_server_config, `refused`). */
void hub_session_tell_refused(const struct hub_server *server, const char *job_uid,
                              const char *peer, const char *reason);
/* NULL if it has ended. */
struct session *hub_session_of(const struct hub_server *server, uint64_t connection);
/* What is queued is still sent; the job hears nothing more of it. */
void hub_session_close(struct session *session, const char *reason);
/* Takes a use of its own. */
void hub_session_queue(struct session *session, struct message_text *text);

/* The two protocols of the server, as libwebsockets calls them. */
int hub_session_http(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                     size_t size);
int hub_session_websocket(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                          size_t size);

#endif
