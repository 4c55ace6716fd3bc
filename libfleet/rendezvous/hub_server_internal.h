/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_HUB_SERVER_INTERNAL_H
#define LIBFLEET_RENDEZVOUS_HUB_SERVER_INTERNAL_H

/*
 * A server of hubs, shared by the files that make it: hub_server.c (jobs, life), hub_held.c (bytes
 * that are held), hub_accept.c (connections until their token is checked) and
 * hub_session.c (one connection: its messages, its end), hub_session_http.c (its upgrade). No other
 * file includes this.
 */

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include <libwebsockets.h>

#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/hub_admission.h"
#include "libfleet/rendezvous/hub_server.h"
#include "libfleet/rendezvous/hub_share.h"

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
    size_t counted_bytes;         /* of it, in the shares (hub_held.c) */
    struct queued *first, *last;
    size_t sent; /* bytes of the first */
    size_t queued_bytes;
};

/* A namespace with hosted jobs. */
struct hub_tenant {
    struct hub_share share;
    size_t jobs;
};

struct hub_server_job {
    struct hub_server *server;
    char job_uid[MESSAGE_UID_MAX + 1];
    char *name, *namespace_; /* as in the handlers; "" = none */
    struct hub_share share;
    struct hub_tenant *tenant; /* NULL without a namespace */
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
    SSL_CTX *tls;    /* of the vhost, which owns it */
    SSL_CTX *unused; /* lws wants one for a vhost's clients, and leaks those it makes itself */
    uv_poll_t listener;
    uv_timer_t reaper; /* frees the server once lws has let go */
    int reap_count;
    uv_timer_t keeper; /* hub_accept.c: overdue handshakes, free memory */
    void (*accept_is_closed)(struct hub_server *server);
    int listen_fd;
    int port;
    bool is_paused;        /* as many connections as allowed */
    bool is_out_of_memory; /* accept() had no descriptor or memory: try again later */
    bool is_freed;

    uint8_t *install_key;
    size_t install_key_size;
    size_t connections_max, namespace_connections_max;
    double hello_timeout_ms;
    bool (*is_gone)(void *user, const char *job_uid, const char *job_name);
    void (*refused)(void *user, const struct hub_server_refusal *refusal);
    void *user;

    struct fleet_map jobs;    /* uid -> struct hub_server_job */
    struct fleet_map tenants; /* namespace -> struct hub_tenant, owned */
    struct hub_admission *admission;
    size_t handshakes_max;
    struct hub_server_stats stats;
    size_t socket_count; /* accepted and not closed, WebSocket or not yet */
    size_t held_bytes, held_bytes_max, namespace_bytes_max, job_bytes_max; /* hub_held.c */
    size_t closed_count;    /* since memory was given back */
    size_t closed_before;   /* `closed_count` at the keeper's last turn */
    int quiet_turns;        /* of the keeper, without a closed connection */
    struct session **slots; /* [connections_max] */
    uint64_t connection_count;
    struct fleet_strbuf scratch; /* LWS_PRE bytes and the frame being written */
};

/* ---- hub_server.c ---------------------------------------------------------------------------- */

/* Count a refusal and report it to the owner (struct hub_server_config, `refused`). */
void hub_server_refuse(struct hub_server *server, enum hub_refusal kind, const char *job_uid,
                       const char *peer, const char *reason);

/* ---- hub_accept.c ---------------------------------------------------------------------------- */

/* Open the listening socket; its port is in server->port. -errno. */
int hub_accept_open(struct hub_server *server, const char *address, int port,
                    struct fleet_error *err);
/* Make the handles on the loop; begin to accept, and to watch what is accepted. */
void hub_accept_init(struct hub_server *server, struct uv_loop_s *loop);
void hub_accept_start(struct hub_server *server);
/* Stop accepting. hub_accept_close() also closes the handles and the socket, then calls
 * `closed`. */
void hub_accept_stop(struct hub_server *server);
void hub_accept_close(struct hub_server *server, void (*closed)(struct hub_server *server));
/* The token of the connection is checked: its handshake is over. */
void hub_accept_finish(struct hub_server *server, struct lws *wsi);
/* A connection has been closed. */
void hub_accept_closed(struct hub_server *server, struct lws *wsi);
/* Address and port of a peer, numeric. */
void hub_accept_peer_name(const struct sockaddr_storage *address, socklen_t size, char out[64]);

/* ---- hub_session.c --------------------------------------------------------------------------- */

/* NULL if it has ended. */
struct session *hub_session_of(const struct hub_server *server, uint64_t connection);
/* The queue is still sent; the job hears nothing more of it. */
void hub_session_close(struct session *session, const char *reason);
/* The peer broke a rule: it and its job get the reason, others are not touched. */
void hub_session_refuse(struct session *session, enum hub_refusal kind, const char *reason);
/* Takes a use of its own. */
void hub_session_queue(struct session *session, struct message_text *text);

/* The protocol of messages, as libwebsockets calls it. */
int hub_session_websocket(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                          size_t size);

/* ---- hub_session_http.c ---------------------------------------------------------------------- */

/* The protocol of upgrades, as libwebsockets calls it. */
int hub_session_http(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                     size_t size);

/* The job's UID from the path of an upgrade, "" if the path is another one. */
void hub_session_read_uid(struct lws *wsi, char out[MESSAGE_UID_MAX + 1]);

/* Address and port of the peer. */
void hub_session_peer_name(struct lws *wsi, char out[64]);

/* The job's share depends on its policy, which may change at any time. */
void hub_session_refresh_share(struct hub_server_job *job);

/* ---- hub_held.c ------------------------------------------------------------------------------ */

/* The unfinished message of a session, which has a job, has `size` bytes by now. */
void hub_held_message(struct session *session, size_t size);
/* The text was put into the queue of a session that has a job; has been taken out. */
void hub_held_push(struct session *session, struct message_text *text);
void hub_held_pop(struct session *session, struct message_text *text);
/* The session is about to lose its job. */
void hub_held_leave(struct session *session);
/* Close the peers that have to go, now that more is held for this job. */
void hub_held_relieve(struct hub_server *server, struct hub_server_job *job);

#endif
