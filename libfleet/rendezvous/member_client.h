/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_MEMBER_CLIENT_H
#define LIBFLEET_RENDEZVOUS_MEMBER_CLIENT_H

/*
 * A member behind a network: a WebSocket client over TLS inside the caller's lws_context. It dials
 * when the member says so, verifies the hub's certificate against the given CA and a fixed name
 * (the address is only dialled, no DNS is asked), and runs the member's timers with lws_sul. Before
 * each dial it asks where the hub is by now: a new installation has another address, CA and key.
 *
 *     member_trainer_up(member, 0, -1, fleet_monotonic_ms(), &out);
 *     member_client_apply(client, &out);
 *
 * The context must have been made with LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT |
 * LWS_SERVER_OPTION_EXPLICIT_VHOSTS. All calls and callbacks happen on its thread.
 */

#include "libfleet/rendezvous/member.h"

struct fleet_error;
struct lws_context;
struct member_client;

/* The address of the hub, and the secrets with which both sides identify each other. */
struct member_client_hub {
    const char *address; /* an IP address or a name of the hosts file */
    int port;
    const char *ca_pem;
    const char *token; /* of the job; never logged */
};

struct member_client_config {
    struct lws_context *context;
    struct member_client_hub hub;
    const char *tls_name; /* NULL = TLS_IDENTITY_HUB_NAME */
    const char *job_uid;
    /* lets the hub find out whether a job that it does not know is gone; NULL = "" */
    const char *job_name;

    /* Before each dial: true fills `out` (copied) with the hub as it is now, false leaves it as it
     * was. One without a certificate for its CA is not dialled. May be NULL: it never changes. */
    bool (*look)(void *user, struct member_client_hub *out);
    /* An action for the trainers or the supervisor: ASSIGN … REFUSED. Borrowed for the call. The
     * handler may call member_* and member_client_apply(). */
    void (*deliver)(void *user, const struct member_action *action);
    /* For the log: "connected" (or "connected, resumed": by the TLS session it had), or why
     * dialling or the connection failed. May be NULL. */
    void (*connection)(void *user, bool is_connected, const char *detail);
    void *user;
};

/* Takes `member`, also on failure. Everything in `config` is copied. It dials on the next turn of
 * the loop. */
int member_client_new(const struct member_client_config *config, struct member *member,
                      struct member_client **out_client, struct fleet_error *err);

/* Before lws_context_destroy(). Frees the member. NULL is fine. */
void member_client_free(struct member_client *client);

/* The member that it carries, borrowed. */
struct member *member_client_member(struct member_client *client);

/* Carry out what a direct call on the member has answered, and release the list. */
void member_client_apply(struct member_client *client, struct member_output *out);

/* True once everything that was sent has left this process; ask before exiting. */
bool member_client_is_flushed(const struct member_client *client);

#endif
