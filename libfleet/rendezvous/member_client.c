/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One vhost in the caller's context, with the CA of the installation and nothing else to trust; one
 * connection at a time. `wsi` is the current connection: callbacks of lws for an earlier one are
 * ignored. The member's actions go through one queue, because carrying one out may bring the next
 * ones (a handler calls the member, dialling fails at once).
 *
 * lws may call back for a connection after member_client_free(), so the struct is freed with the
 * vhost.
 */
#include "libfleet/rendezvous/member_client.h"

#include <errno.h>
#include <math.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libwebsockets.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/member_tls.h"
#include "libfleet/rendezvous/tls_identity.h"

#define JOB_NAME_MAX 253

struct queued {
    struct queued *next;
    struct message_text *text;
};

struct member_client {
    struct lws_context *context;
    struct lws_vhost *vhost;
    struct lws_protocols protocols[2];
    struct member_tls tls;
    struct member *member; /* NULL: freed by its owner; waits for lws */
    char *address, *ca_pem, *token;
    int port;
    char *tls_name, *job_uid, *job_name;
    bool (*look)(void *user, struct member_client_hub *out);
    void (*deliver)(void *user, const struct member_action *action);
    void (*connection)(void *user, bool is_connected, const char *detail);
    void *user;

    struct lws *wsi; /* being opened or open, NULL = none */
    bool is_dialling, is_open;
    char detail[256]; /* why the connection ended, as far as known */
    struct queued *first, *last;
    struct fleet_strbuf received; /* of a message that is not complete yet */
    struct fleet_strbuf scratch;  /* LWS_PRE bytes and the message being written */

    lws_sorted_usec_list_t timer;
    struct member_output pending; /* actions not carried out yet */
    size_t done;                  /* of them were */
    bool is_applying;
};

/* ---- timer ----------------------------------------------------------------------------------- */

static void on_timer(lws_sorted_usec_list_t *timer)
{
    struct member_client *client = lws_container_of(timer, struct member_client, timer);
    struct member_output out = {0};

    member_tick(client->member, fleet_monotonic_ms(), &out);
    member_client_apply(client, &out);
}

static void set_timer(struct member_client *client)
{
    double wait_ms = member_deadline(client->member) - fleet_monotonic_ms();

    if (isinf(wait_ms))
        lws_sul_cancel(&client->timer);
    else
        lws_sul_schedule(client->context, 0, &client->timer, on_timer,
                         wait_ms > 0 ? (lws_usec_t)(wait_ms * 1000) + 1 : 1);
}

/* ---- the connection -------------------------------------------------------------------------- */

static void forget_queue(struct member_client *client)
{
    while (client->first) {
        struct queued *next = client->first->next;
        message_text_release(client->first->text);
        free(client->first);
        client->first = next;
    }
    client->last = NULL;
}

/* From now on callbacks for this connection are ignored. */
static void forget_connection(struct member_client *client)
{
    client->wsi = NULL;
    client->is_dialling = client->is_open = false;
    forget_queue(client);
    fleet_strbuf_release(&client->received);
}

static void drop_connection(struct member_client *client)
{
    if (client->wsi)
        lws_set_timeout(client->wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_ASYNC);
    forget_connection(client);
}

static void lose_connection(struct member_client *client, const char *detail)
{
    struct member_output out = {0};

    if (client->is_dialling)
        member_tls_forget(&client->tls); /* perhaps its fault: the next handshake is full */
    if (client->connection)
        client->connection(client->user, false, detail);
    forget_connection(client);
    member_disconnected(client->member, fleet_monotonic_ms(), &out);
    member_client_apply(client, &out);
}

static void replace_text(char **text, const char *with)
{
    char *copy = with ? fleet_dup_text(with) : NULL;

    if (*text)
        OPENSSL_cleanse(*text, strlen(*text));
    free(*text);
    *text = copy;
}

static int use_hub(struct member_client *client, const struct member_client_hub *hub,
                   struct fleet_error *err)
{
    int rc;

    if (!client->ca_pem || strcmp(client->ca_pem, hub->ca_pem) != 0) {
        if ((rc = member_tls_trust(&client->tls, hub->ca_pem, err)) < 0)
            return rc;
    }
    replace_text(&client->address, hub->address);
    replace_text(&client->ca_pem, hub->ca_pem);
    replace_text(&client->token, hub->token);
    client->port = hub->port;
    return 0;
}

static int look(struct member_client *client, struct fleet_error *err)
{
    struct member_client_hub hub;

    return client->look && client->look(client->user, &hub) ? use_hub(client, &hub, err) : 0;
}

static void dial(struct member_client *client)
{
    char path[sizeof("/rendezvous/?job=") + MESSAGE_UID_MAX + JOB_NAME_MAX];
    struct lws_client_connect_info info = {
        .context = client->context,
        .vhost = client->vhost,
        .ssl_connection = LCCSCF_USE_SSL,
        .path = path,
        .host = client->tls_name,
        .origin = client->tls_name,
        .protocol = MESSAGE_PROTOCOL,
        .local_protocol_name = MESSAGE_PROTOCOL,
        .alpn = "http/1.1",
        .pwsi = &client->wsi,
    };
    struct fleet_error err;

    if (look(client, &err) < 0) {
        lose_connection(client, err.text);
        return;
    }
    info.address = client->address;
    info.port = client->port;
    (void)snprintf(path, sizeof(path), "/rendezvous/%s%s%.*s", client->job_uid,
                   client->job_name[0] ? "?job=" : "", JOB_NAME_MAX, client->job_name);
    drop_connection(client);
    client->detail[0] = '\0';
    client->is_dialling = true;
    if (!lws_client_connect_via_info(&info) && client->is_dialling) /* no callback came */
        lose_connection(client, client->detail[0] ? client->detail : "cannot dial");
}

static void queue_text(struct member_client *client, struct message_text *text)
{
    struct queued *queued;

    if (!client->is_open)
        return;
    queued = calloc(1, sizeof(*queued));
    fleet_assert(queued != NULL);
    queued->text = message_text_use(text);
    if (client->last)
        client->last->next = queued;
    else
        client->first = queued;
    client->last = queued;
    lws_callback_on_writable(client->wsi);
}

static int write_next(struct member_client *client)
{
    struct queued *queued = client->first;
    static const char room[LWS_PRE];
    int written;

    if (!queued)
        return 0;
    fleet_strbuf_clear(&client->scratch);
    fleet_strbuf_append_bytes(&client->scratch, room, sizeof(room));
    fleet_strbuf_append_bytes(&client->scratch, queued->text->text, queued->text->size);
    written = lws_write(client->wsi, (unsigned char *)client->scratch.text + LWS_PRE,
                        queued->text->size, LWS_WRITE_TEXT);
    client->first = queued->next;
    if (!client->first)
        client->last = NULL;
    message_text_release(queued->text);
    free(queued);
    if (written < 0)
        return -1;
    if (client->first)
        lws_callback_on_writable(client->wsi);
    return 0;
}

/* ---- actions --------------------------------------------------------------------------------- */

static void carry_out(struct member_client *client, const struct member_action *action)
{
    switch (action->type) {
    case MEMBER_DIAL:
        dial(client);
        break;
    case MEMBER_SEND:
        queue_text(client, action->text);
        break;
    case MEMBER_CLOSE:
        if (client->connection)
            client->connection(client->user, false, action->reason);
        drop_connection(client);
        break;
    default:
        client->deliver(client->user, action);
        break;
    }
}

void member_client_apply(struct member_client *client, struct member_output *out)
{
    member_output_move(&client->pending, out);
    if (client->is_applying)
        return;
    client->is_applying = true;
    while (client->done < client->pending.count) {
        struct member_action action = client->pending.items[client->done++];
        carry_out(client, &action); /* a copy: handlers may make the list move */
    }
    member_output_release(&client->pending);
    client->done = 0;
    client->is_applying = false;
    set_timer(client);
}

/* ---- what lws says --------------------------------------------------------------------------- */

static int add_token(const struct member_client *client, struct lws *wsi, void *in, size_t size)
{
    unsigned char **p = in;
    char value[sizeof("Bearer ") + 128];
    int length = snprintf(value, sizeof(value), "Bearer %s", client->token);

    if (length < 0 || (size_t)length >= sizeof(value))
        return -1;
    return lws_add_http_header_by_token(wsi, WSI_TOKEN_HTTP_AUTHORIZATION, (unsigned char *)value,
                                        length, p, *p + size);
}

static void on_opened(struct member_client *client)
{
    struct member_output out = {0};

    client->is_dialling = false;
    client->is_open = true;
    if (client->connection)
        client->connection(client->user, true,
                           SSL_session_reused(lws_get_ssl(client->wsi)) ? "connected, resumed"
                                                                        : "connected");
    member_connected(client->member, fleet_monotonic_ms(), &out);
    member_client_apply(client, &out);
}

/* 0, or -1: not a message of a hub; close the connection. */
static int receive(struct member_client *client, const char *bytes, size_t size)
{
    struct message message;
    struct fleet_error err;
    struct member_output out = {0};

    if (client->received.length + size > MESSAGE_SIZE_MAX) {
        (void)snprintf(client->detail, sizeof(client->detail), "the hub's message is too large");
        return -1;
    }
    fleet_strbuf_append_bytes(&client->received, bytes, size);
    if (!lws_is_final_fragment(client->wsi) || lws_remaining_packet_payload(client->wsi) > 0)
        return 0;
    if (message_decode(fleet_strbuf_text(&client->received), client->received.length, &message,
                       &err) < 0) {
        (void)snprintf(client->detail, sizeof(client->detail), "%.250s", err.text);
        return -1;
    }
    fleet_strbuf_clear(&client->received);
    member_receive(client->member, &message, fleet_monotonic_ms(), &out);
    message_release(&message);
    member_client_apply(client, &out);
    return 0;
}

/* Note why a certificate is refused: lws only reports that TLS failed. Nonzero refuses it. */
static int check_certificate(struct member_client *client, X509_STORE_CTX *chain, bool is_fine)
{
    if (!is_fine)
        (void)snprintf(client->detail, sizeof(client->detail), "the hub's certificate: %s",
                       X509_verify_cert_error_string(X509_STORE_CTX_get_error(chain)));
    return !is_fine;
}

/* A close frame: two bytes of code, then the hub's reason. */
static void note_close(struct member_client *client, const char *bytes, size_t size)
{
    if (size > 2)
        (void)snprintf(client->detail, sizeof(client->detail), "the hub closed it: %.*s",
                       (int)(size - 2), bytes + 2);
}

static void free_client(struct member_client *client)
{
    member_tls_release(&client->tls);
    fleet_strbuf_release(&client->scratch);
    free(client);
}

/* 410: the hub has checked our token, and does not know the job any more. */
static void note_gone(struct member_client *client, struct lws *wsi)
{
    struct member_output out = {0};

    if (lws_http_client_http_response(wsi) != HTTP_STATUS_GONE)
        return;
    (void)snprintf(client->detail, sizeof(client->detail), "the hub says that the job is gone");
    member_job_gone(client->member, fleet_monotonic_ms(), &out);
    member_client_apply(client, &out);
}

static int serve(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                 size_t size)
{
    struct lws_vhost *vhost = lws_get_vhost(wsi);
    struct member_client *client = vhost ? lws_vhost_user(vhost) : NULL;

    if (reason == LWS_CALLBACK_PROTOCOL_DESTROY && client && !client->member) {
        free_client(client);
        return 0;
    }
    if (!client || !client->member || wsi != client->wsi)
        return 0;
    switch (reason) {
    case LWS_CALLBACK_CLIENT_APPEND_HANDSHAKE_HEADER:
        return add_token(client, wsi, in, size);
    case LWS_CALLBACK_CLIENT_ESTABLISHED:
        on_opened(client);
        return 0;
    case LWS_CALLBACK_OPENSSL_PERFORM_SERVER_CERT_VERIFICATION:
        return check_certificate(client, user, size != 0);
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
        note_gone(client, wsi);
        lose_connection(client, client->detail[0] ? client->detail : in ? in : "refused");
        return 0;
    case LWS_CALLBACK_CLIENT_RECEIVE:
        return receive(client, in, size);
    case LWS_CALLBACK_CLIENT_WRITEABLE:
        return write_next(client);
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
        note_close(client, in, size);
        return 0;
    case LWS_CALLBACK_CLIENT_CLOSED:
        lose_connection(client, client->detail[0] ? client->detail : "the connection broke");
        return 0;
    default:
        return 0;
    }
}

/* ---- life cycle ------------------------------------------------------------------------------ */

static int make_vhost(struct member_client *client, const struct member_client_hub *hub,
                      struct fleet_error *err)
{
    struct lws_context_creation_info info = {
        .options = LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT,
        .port = CONTEXT_PORT_NO_LISTEN,
        .protocols = client->protocols,
        .vhost_name = "fleetjob-rendezvous",
        .timeout_secs = 10,
        .user = client,
    };

    member_tls_init(&client->tls);
    if (use_hub(client, hub, err) < 0)
        return -EINVAL;
    info.provided_client_ssl_ctx = client->tls.context;
    client->vhost = lws_create_vhost(client->context, &info);
    if (!client->vhost)
        return fleet_error(err, -EIO, "libwebsockets refused the vhost");
    return 0;
}

int member_client_new(const struct member_client_config *config, struct member *member,
                      struct member_client **out_client, struct fleet_error *err)
{
    struct member_client *client = calloc(1, sizeof(*client));
    int rc;

    fleet_assert(client != NULL);
    *client = (struct member_client){
        .context = config->context,
        .member = member,
        .tls_name = fleet_dup_text(config->tls_name ? config->tls_name : TLS_IDENTITY_HUB_NAME),
        .job_uid = fleet_dup_text(config->job_uid),
        .job_name = fleet_dup_text(config->job_name ? config->job_name : ""),
        .look = config->look,
        .deliver = config->deliver,
        .connection = config->connection,
        .user = config->user,
        .protocols = {{.name = MESSAGE_PROTOCOL, .callback = serve, .rx_buffer_size = 16384}},
    };
    rc = make_vhost(client, &config->hub, err);
    if (rc < 0) {
        member_client_free(client);
        return fleet_error_wrap(err, "connect to the hub");
    }
    set_timer(client);
    *out_client = client;
    return 0;
}

void member_client_free(struct member_client *client)
{
    if (!client)
        return;
    fleet_assert(!client->is_applying);
    lws_sul_cancel(&client->timer);
    forget_connection(client);
    member_output_release(&client->pending);
    member_free(client->member);
    client->member = NULL;
    replace_text(&client->address, NULL);
    replace_text(&client->ca_pem, NULL);
    replace_text(&client->token, NULL);
    free(client->tls_name);
    free(client->job_uid);
    free(client->job_name);
    if (client->vhost)
        lws_vhost_destroy(client->vhost); /* ends in LWS_CALLBACK_PROTOCOL_DESTROY */
    else
        free_client(client);
}

struct member *member_client_member(struct member_client *client)
{
    return client->member;
}

bool member_client_is_flushed(const struct member_client *client)
{
    return !client->first &&
           (!client->wsi || !client->is_open || !lws_partial_buffered(client->wsi));
}
