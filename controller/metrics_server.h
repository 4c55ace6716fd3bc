/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_METRICS_SERVER_H
#define CONTROLLER_METRICS_SERVER_H

/*
 * /metrics for readers with the right to it: HTTPS on a port of its own, and a bearer token whose
 * holder may `get` the non-resource URL /metrics. The API server judges the token
 * (machinery/access_review.h).
 *
 * The certificate is signed by the installation's CA, or it is read from a folder with tls.crt and
 * tls.key (a mounted Secret of the type kubernetes.io/tls) and read again every
 * METRICS_CERTIFICATE_MS. While there is none, connections are closed.
 *
 * Answers: 200; 401 without a token, or with one that the API server does not know; 403 to a
 * holder without the right; 404 to another path; 429 to unknown tokens while too many come; 503 if
 * the API server does not answer.
 */

#include <uv.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;
struct kube_io;
struct metric;
struct metrics_server;
struct tls_identity;

#define METRICS_CERTIFICATE_MS 10000.0

struct metrics_server_options { /* texts are borrowed for its life */
    struct kube_io *io;
    struct metric *requests;        /* a counter with the label "code" */
    int port;                       /* 0: any free one */
    const char *name;               /* the DNS name of a certificate that `ca` signs */
    const struct tls_identity *ca;  /* borrowed for its life */
    const char *certificate_folder; /* NULL: signed by `ca` */
    void (*print)(void *user, struct fleet_strbuf *out); /* all metrics, as text */
    void (*on_trouble)(void *user, const char *what, const struct fleet_error *err);
    void *user;
};

/* -EADDRINUSE and other errors of bind; -EINVAL: `ca` or `name` is unusable. A bad folder is
 * trouble, not an error. */
int metrics_server_new(uv_loop_t *loop, const struct metrics_server_options *options,
                       struct metrics_server **out, struct fleet_error *err);

/* Before the loop's last turn. NULL is fine. */
void metrics_server_free(struct metrics_server *server);

int metrics_server_port(const struct metrics_server *server);

#endif
