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
 * (401), a message above MESSAGE_SIZE_MAX or that is no message, more than `connections_max`
 * connections, a connection that has not said hello within `hello_timeout_ms`. Each is told to
 * `refused`.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/digest.h"
#include "libfleet/rendezvous/hub.h"

struct fleet_error;
struct hub_server;
struct hub_server_job;
struct uv_loop_s;

struct hub_server_config {
    struct uv_loop_s *loop;
    const char *address;         /* to listen on; NULL = all */
    int port;                    /* 0 = any free one, see hub_server_port() */
    const char *certificate_pem; /* of the hub, see tls_identity.h */
    const char *key_pem;
    const void *install_key; /* [install_key_size], tokens derive from it; copied */
    size_t install_key_size;
    size_t connections_max;  /* 0 = 8192 */
    double hello_timeout_ms; /* 0 = 10 000 */

    /* A connection was refused or closed for what it did. `job_uid` "" if unknown, `peer` its
     * address. NULL = nobody wants to know. */
    void (*refused)(void *user, const char *job_uid, const char *peer, const char *reason);
    void *user;
};

struct hub_server_handlers {
    /* Write the record; true = it is durable already. Else call hub_server_record_done() or
     * hub_server_record_failed() later. NULL = nothing to write. */
    bool (*record)(void *user, const struct hub_record *record);
    /* `event` is borrowed. The handler may call anything but hub_server_remove() and
     * hub_server_free(). */
    void (*event)(void *user, const struct hub_event *event);
    void *user;
};

/* Listens at once. -EADDRINUSE or another -errno if it cannot; -EINVAL: bad certificate or key. */
int hub_server_new(const struct hub_server_config *config, struct hub_server **out_server,
                   struct fleet_error *err);

/* Closes everything; the jobs' hubs are freed. Afterwards the loop must run until it has no more
 * handles of the server before it is closed (uv_run(loop, UV_RUN_DEFAULT) returns by itself). NULL
 * is fine. */
void hub_server_free(struct hub_server *server);

/* The port it listens on. */
int hub_server_port(const struct hub_server *server);

/* Host a job. Takes the hub. -EEXIST: the job is already hosted (the hub stays the caller's). */
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

void hub_server_record_done(struct hub_server_job *job, struct generation generation);
void hub_server_record_failed(struct hub_server_job *job, struct generation generation);

/* The token of a job: hexadecimal HMAC-SHA256(install key, job uid). */
void hub_server_token(const void *install_key, size_t install_key_size, const char *job_uid,
                      char out[FLEET_SHA256_HEX_SIZE]);

#endif
