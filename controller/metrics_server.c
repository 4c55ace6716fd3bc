/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/metrics_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/leaf_certificate.h"
#include "controller/machinery/access_review.h"
#include "controller/machinery/metrics.h"
#include "controller/machinery/probe_server.h"
#include "controller/machinery/tls_stream.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/log.h"
#include "libfleet/rendezvous/tls_identity.h"

#define PATH     "/metrics"
#define PEM_MAX  65536 /* bytes of a file */
#define NO_TOKEN "a bearer token is needed: Authorization: Bearer TOKEN\n"

struct metrics_server {
    struct metrics_server_options options;
    struct tls_keys *keys;
    struct leaf_certificate *certificate; /* signed by the CA; NULL = from files */
    uint8_t digest[FLEET_SHA256_SIZE];    /* digest of the certificate and key in use */
    char trouble[FLEET_ERROR_SIZE];       /* the last problem of the folder; "" = none */
    struct kube_call *timer;              /* interval of reading the folder again */
    struct access_review *review;
    struct probe_server *probes;
};

/* ---- certificate ---------------------------------------------------------------------------- */

static int renew(void *user, const struct tls_identity *leaf, struct fleet_error *err)
{
    struct metrics_server *server = user;

    return tls_keys_set(server->keys, leaf->certificate_pem, leaf->key_pem, err);
}

static void on_certificate_trouble(void *user, const char *what, const struct fleet_error *err)
{
    const struct metrics_server *server = user;

    server->options.on_trouble(server->options.user, what, err);
}

static int sign(struct metrics_server *server, struct fleet_error *err)
{
    struct leaf_certificate_options options = {.io = server->options.io,
                                               .name = server->options.name,
                                               .ca = server->options.ca,
                                               .renew = renew,
                                               .on_trouble = on_certificate_trouble,
                                               .user = server};
    int rc = leaf_certificate_new(&options, &server->certificate, err);

    return rc < 0 ? rc : renew(server, leaf_certificate_get(server->certificate), err);
}

static int read_file(const char *folder, const char *name, char **out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, name);
    size_t size;

    return fleet_file_read(path, PEM_MAX, out, &size, err);
}

/* While certificate and key are being replaced, they may not match. Then the folder is read again
 * soon. */
static int read_folder(struct metrics_server *server, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *certificate = NULL, *key = NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf both = {0};
    uint8_t digest[FLEET_SHA256_SIZE];
    const char *folder = server->options.certificate_folder;
    int rc;

    if ((rc = read_file(folder, "tls.crt", &certificate, err)) < 0 ||
        (rc = read_file(folder, "tls.key", &key, err)) < 0)
        return rc;
    fleet_strbuf_appendf(&both, "%s\n%s", certificate, key);
    fleet_sha256(both.text, both.length, digest);
    if (memcmp(digest, server->digest, sizeof(digest)) == 0)
        return 0;
    if ((rc = tls_keys_set(server->keys, certificate, key, err)) < 0)
        return fleet_error_wrap(err, "tls.crt and tls.key in %s", folder);
    memcpy(server->digest, digest, sizeof(digest));
    fleet_log_info("Read the certificate of /metrics", FLEET_STR("folder", folder));
    return 0;
}

static void look_into_folder(void *user)
{
    struct metrics_server *server = user;
    struct fleet_error err = {.text = ""};

    server->timer =
        kube_after(server->options.io, METRICS_CERTIFICATE_MS, look_into_folder, server);
    if (read_folder(server, &err) < 0 && strcmp(err.text, server->trouble) != 0)
        server->options.on_trouble(server->options.user, "Certificate of /metrics was not read",
                                   &err);
    (void)snprintf(server->trouble, sizeof(server->trouble), "%s", err.text);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Append the body of the answer and count the request. Returns the HTTP status. */
static int answer_verdict(struct metrics_server *server, const struct access_verdict *verdict,
                          struct fleet_strbuf *body, const char **content_type)
{
    int status = 503;
    char code[16];

    switch (verdict->access) {
    case ACCESS_ALLOWED:
        server->options.print(server->options.user, body);
        *content_type = METRICS_CONTENT_TYPE;
        status = 200;
        break;
    case ACCESS_UNAUTHENTICATED:
        fleet_strbuf_append(body, "the API server does not know this bearer token: it has expired, "
                                  "or it is of another cluster\n");
        status = 401;
        break;
    case ACCESS_FORBIDDEN:
        fleet_strbuf_appendf(body,
                             "\"%s\" may not get the non-resource URL " PATH
                             ": bind the account to a ClusterRole with this right\n",
                             verdict->user);
        status = 403;
        break;
    case ACCESS_BUSY:
        fleet_strbuf_append(body, "too many unknown bearer tokens: ask again later\n");
        status = 429;
        break;
    case ACCESS_PENDING:
    case ACCESS_FAILED:
        fleet_strbuf_append(body, "the API server did not review the bearer token: the "
                                  "controller's log says why\n");
        break;
    }
    (void)snprintf(code, sizeof(code), "%d", status);
    metric_add(server->options.requests, 1, code);
    return status;
}

/* A request whose token is under review. */
struct pending {
    struct metrics_server *server;
    struct probe_request *request;
    struct access_wait *wait;
};

static void on_verdict(void *user, const struct access_verdict *verdict)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf body = {0};
    struct pending *pending = user;
    const char *content_type = NULL;
    int status = answer_verdict(pending->server, verdict, &body, &content_type);

    probe_request_finish(pending->request, status, content_type, &body);
    free(pending);
}

static void on_gone(void *user, struct probe_request *request)
{
    struct pending *pending = request->later;

    (void)user;
    access_wait_cancel(&pending->wait);
    free(pending);
}

static int review(struct metrics_server *server, struct probe_request *request, const char *token,
                  struct fleet_strbuf *body, const char **content_type)
{
    struct pending *pending = calloc(1, sizeof(*pending));
    struct access_verdict verdict;

    fleet_assert(pending);
    *pending = (struct pending){.server = server, .request = request};
    pending->wait = access_review_ask(server->review, token, on_verdict, pending, &verdict);
    if (pending->wait) {
        request->later = pending;
        return PROBE_LATER;
    }
    free(pending);
    return answer_verdict(server, &verdict, body, content_type);
}

/* The token of "Bearer TOKEN"; NULL if the text has another form. */
static const char *bearer_token(const char *authorization)
{
    if (strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    authorization += 7 + strspn(authorization + 7, " ");
    return authorization[0] ? authorization : NULL;
}

static int on_request(void *user, struct probe_request *request, struct fleet_strbuf *body,
                      const char **content_type)
{
    struct metrics_server *server = user;
    const char *token = bearer_token(request->authorization);

    if (strcmp(request->path, PATH) != 0) {
        fleet_strbuf_append(body, "only " PATH " is here\n");
        return 404;
    }
    if (token)
        return review(server, request, token, body, content_type);
    fleet_strbuf_append(body, NO_TOKEN);
    metric_add(server->options.requests, 1, "401");
    return 401;
}

static void on_review_trouble(void *user, const struct fleet_error *err)
{
    const struct metrics_server *server = user;

    server->options.on_trouble(server->options.user, "Bearer token of /metrics was not reviewed",
                               err);
}

/* ---- life ----------------------------------------------------------------------------------- */

static int open_server(struct metrics_server *server, uv_loop_t *loop, struct fleet_error *err)
{
    struct access_review_options access = {.io = server->options.io,
                                           .verb = "get",
                                           .path = PATH,
                                           .on_trouble = on_review_trouble,
                                           .user = server};
    struct probe_server_options probes = {.port = server->options.port,
                                          .keys = server->keys,
                                          .answer = on_request,
                                          .gone = on_gone,
                                          .user = server};
    int rc = 0;

    if (server->options.certificate_folder)
        look_into_folder(server);
    else
        rc = sign(server, err);
    if (rc < 0)
        return rc;
    server->review = access_review_new(&access);
    return probe_server_new(loop, &probes, &server->probes, err);
}

int metrics_server_new(uv_loop_t *loop, const struct metrics_server_options *options,
                       struct metrics_server **out, struct fleet_error *err)
{
    struct metrics_server *server = calloc(1, sizeof(*server));
    int rc;

    fleet_assert(server);
    server->options = *options;
    server->keys = tls_keys_new();
    if ((rc = open_server(server, loop, err)) < 0) {
        metrics_server_free(server);
        return fleet_error_wrap(err, "serve " PATH);
    }
    *out = server;
    return 0;
}

void metrics_server_free(struct metrics_server *server)
{
    if (!server)
        return;
    probe_server_free(server->probes); /* cancels requests that wait for a review */
    access_review_free(server->review);
    kube_cancel(server->options.io, &server->timer);
    leaf_certificate_free(server->certificate);
    tls_keys_free(server->keys);
    free(server);
}

int metrics_server_port(const struct metrics_server *server)
{
    return probe_server_port(server->probes);
}
