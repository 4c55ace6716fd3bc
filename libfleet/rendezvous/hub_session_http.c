/* SPDX-License-Identifier: Apache-2.0 */

/* The upgrade of a connection: which peer may come in, and what the others are answered. */
#include <stdio.h>
#include <string.h>

#include <libwebsockets.h>

#include "libfleet/rendezvous/hub_server_internal.h"

#define JOB_NAME_MAX      253
#define TOO_MANY_REQUESTS 429u  /* lws.h has no name for it */
#define JOB_CONNECTIONS   16    /* … and two for a member that comes back early */
#define JOB_RATE          200.0 /* reads a second … */
#define JOB_MEMBER_RATE   20.0  /* … and for each member */
#define JOB_BURST_SECONDS 10
#define PATH_PREFIX       "/rendezvous/"

void hub_session_peer_name(struct lws *wsi, char out[64])
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);

    (void)getpeername(lws_get_socket_fd(wsi), (struct sockaddr *)&address, &size);
    hub_accept_peer_name(&address, size, out);
}

/* ---- shares ---------------------------------------------------------------------------------- */

void hub_session_refresh_share(struct hub_server_job *job)
{
    double members = hub_members_max(job->hub);

    job->share.connections_max = 2 * (size_t)members + JOB_CONNECTIONS;
    job->share.rate = JOB_RATE + JOB_MEMBER_RATE * members;
    job->share.burst = JOB_BURST_SECONDS * job->share.rate;
}

static bool is_full(const struct hub_share *share)
{
    return share->connections >= share->connections_max;
}

/* ---- the HTTP part --------------------------------------------------------------------------- */

void hub_session_read_uid(struct lws *wsi, char out[MESSAGE_UID_MAX + 1])
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

    hub_session_refresh_share(job);
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

    hub_session_read_uid(wsi, job_uid);
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
    hub_session_peer_name(wsi, peer);
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
