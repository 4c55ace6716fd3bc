/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_HUB_SERVER_H
#define LIBFLEET_RENDEZVOUS_HUB_SERVER_H

/*
 * Hubs behind a network: a WebSocket server over TLS on the caller's libuv loop, for any number of
 * jobs. Agents connect to /rendezvous/<job uid> with "Authorization: Bearer <token>".
 *
 * The server carries out SEND and CLOSE of its hubs, runs their timers, and hands RECORD and EVENT
 * to the owner. All calls and callbacks happen on the loop's thread.
 *
 * Refused before anything reaches a hub, others undisturbed: an unknown job (404), a wrong token
 * (401), a message above MESSAGE_SIZE_MAX or that is no message, a connection that has not said
 * hello within `hello_timeout_ms`, and what is above a limit. hub_refusal.h has the list. Each is
 * counted and reported to `refused`.
 *
 * Limits, so that neither unknown clients nor one tenant use up the server:
 *   before the token is checked   open handshakes in all and of one source address, handshakes a
 *                                 second of one source (hub_admission.h), and their time
 *   a job                         2 × its members + 16 connections, 200 + 20 × its members frames
 *                                 of at most 16 KiB a second, ten times as many at once,
 *                                 `job_bytes_max`
 *   a namespace                   `namespace_connections_max`, 10 000 frames a second,
 *                                 `namespace_bytes_max`
 *   all                           `connections_max`, `bytes_max`
 * Bytes are what is held: unfinished messages, and messages that a member does not take, at most
 * FLEET_HUB_PEER_BYTES for each. Above a limit, the server closes the member for which it holds
 * most. An agent that is refused or closed because of a limit dials again later and loses nothing.
 * After many connections have ended, free memory goes back to the system.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/digest.h"
#include "libfleet/rendezvous/hub.h"
#include "libfleet/rendezvous/hub_refusal.h"

struct fleet_error;
struct hub_server;
struct hub_server_job;
struct uv_loop_s;

/* Borrowed for the call. */
struct hub_server_refusal {
    enum hub_refusal kind;
    const char *job_uid; /* as asked for, "" if unknown; any client may write anything here */
    const char *job;  /* hub_server_handlers.name of the job that is hosted under this UID, or "" */
    const char *peer; /* address and port */
    const char *reason;
};

struct hub_server_stats {
    size_t connections; /* of members */
    size_t handshakes;  /* open */
    size_t held_bytes;  /* for members, which do not read or have not said all */
    uint64_t accepted, messages;
    uint64_t refused[HUB_REFUSALS];
};

struct hub_server_config {
    struct uv_loop_s *loop;
    const char *address;         /* to listen on; NULL = all */
    int port;                    /* 0 = any free one, see hub_server_port() */
    const char *certificate_pem; /* of the hub, see tls_identity.h */
    const char *key_pem;
    const void *install_key; /* [install_key_size], tokens derive from it; copied */
    size_t install_key_size;
    size_t connections_max;           /* of members; 0 = 8192 */
    size_t namespace_connections_max; /* of one namespace's members; 0 = three quarters of them */
    size_t job_bytes_max, namespace_bytes_max, bytes_max; /* held; 0 = as in limits.h */
    size_t handshakes_max;                                /* open in all; 0 = 1024 */
    size_t source_handshakes_max;                         /* open of one source address; 0 = 256 */
    double handshake_timeout_ms; /* from accept to the checked token; 0 = 5000 */
    double hello_timeout_ms;     /* from there to the hello; 0 = 10 000 */

    /* Is this job, which is not hosted here, gone for good? Its member has the right token;
     * `job_name` is what it says its name is, "" = nothing. If true, it is answered 410 instead of
     * 404. NULL: unknown. */
    bool (*is_gone)(void *user, const char *job_uid, const char *job_name);
    /* A connection was refused or closed for what it did. NULL: not reported. */
    void (*refused)(void *user, const struct hub_server_refusal *refusal);
    void *user;
};

struct hub_server_handlers {
    /* Write the record; true = it is durable already. Else call hub_server_answer_record() later.
     * NULL = nothing to write. */
    bool (*record)(void *user, const struct hub_record *record);
    /* `event` is borrowed. The handler may call anything but hub_server_remove() and
     * hub_server_free(). */
    void (*event)(void *user, const struct hub_event *event);
    void *user;
    const char *namespace_; /* whose share it uses; NULL or "" = only its own */
    const char *name;       /* for refusals: "namespace/name"; NULL = "" */
};

/* Listens at once. -EADDRINUSE or another -errno if it cannot; -EINVAL: bad certificate or key. */
int hub_server_new(const struct hub_server_config *config, struct hub_server **out_server,
                   struct fleet_error *err);

/* Closes everything; the jobs' hubs are freed. Afterwards the loop must run until it has no more
 * handles of the server before it is closed (uv_run(loop, UV_RUN_DEFAULT) returns by itself). NULL
 * is fine. */
void hub_server_free(struct hub_server *server);

/* New connections get this certificate; those that are open stay as they are. -EINVAL: bad
 * certificate or key. */
int hub_server_renew(struct hub_server *server, const char *certificate_pem, const char *key_pem,
                     struct fleet_error *err);

/* The port it listens on. */
int hub_server_port(const struct hub_server *server);

/* What it has done since it began, and what is open now. */
void hub_server_stats(const struct hub_server *server, struct hub_server_stats *out);

/* Host a job. Takes the hub; copies the handlers' texts. -EEXIST: the job is already hosted (the
 * hub stays the caller's). */
int hub_server_add(struct hub_server *server, const char *job_uid, struct hub *hub,
                   const struct hub_server_handlers *handlers, struct hub_server_job **out_job,
                   struct fleet_error *err);

/* Stop hosting it: what was sent is flushed, then its connections are closed, and the hub freed. */
void hub_server_remove(struct hub_server_job *job);

/* The job's hub, borrowed: to look at, or to call directly and hand the answer to
 * hub_server_apply(). */
struct hub *hub_server_hub(struct hub_server_job *job);

/*
 * Carry out what a direct call on the job's hub has answered, and release the list:
 *
 *     struct hub_output out = {0};
 *     hub_configure(hub_server_hub(job), &policy, fleet_monotonic_ms(), &out);
 *     hub_server_apply(job, &out);
 */
void hub_server_apply(struct hub_server_job *job, struct hub_output *out);

/* The record of this generation is written (hub_record_done()), or could not be
 * (hub_record_failed()). */
void hub_server_answer_record(struct hub_server_job *job, struct fleet_generation generation,
                              bool is_done);

/* The token of a job: hexadecimal HMAC-SHA256(install key, job uid). */
void hub_server_token(const void *install_key, size_t install_key_size, const char *job_uid,
                      char out[FLEET_SHA256_HEX_SIZE]);

#endif
