/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_PROBE_SERVER_H
#define CONTROLLER_MACHINERY_PROBE_SERVER_H

/*
 * /healthz, /readyz and /metrics: a small HTTP/1.1 server on the program's own loop, so that it
 * answers exactly as long as the loop turns, which is the question of a liveness probe. With keys
 * it speaks TLS.
 *
 * GET and HEAD of short paths, one answer a connection. A request has PROBE_REQUEST_MAX bytes and
 * PROBE_TIME_MS to arrive and be answered. Of more than PROBE_CONNECTIONS_MAX connections at once
 * the oldest are closed, so that silent connections cannot keep a kubelet's probe out.
 */

#include <uv.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;
struct probe_server;
struct tls_keys;

#define PROBE_REQUEST_MAX     16384 /* a bearer token of an identity provider has a few kilobytes */
#define PROBE_TIME_MS         10000
#define PROBE_CONNECTIONS_MAX 64

/* A request that is being answered. Its texts live until its answer. */
struct probe_request {
    const char *path;          /* without query */
    const char *authorization; /* the value of that header; "" = there is none */
    void *later;               /* the answerer's own */
};

#define PROBE_LATER 0

/*
 * Answer GET `request->path`: append the body, return the HTTP status. 404 for what is not known,
 * 503 for not ready. `*content_type` is "text/plain; charset=utf-8" unless set to a constant.
 * PROBE_LATER: the answer comes by probe_request_finish(), and `body` and `content_type` are
 * ignored.
 */
typedef int probe_answer(void *user, struct probe_request *request, struct fleet_strbuf *body,
                         const char **content_type);

/* A request that was to be answered later has lost its connection: forget it. */
typedef void probe_gone(void *user, struct probe_request *request);

struct probe_server_options {
    const char *address;         /* NULL: all */
    int port;                    /* 0: any free one */
    const struct tls_keys *keys; /* NULL: plain HTTP; borrowed for its life */
    probe_answer *answer;
    probe_gone *gone; /* NULL if `answer` never returns PROBE_LATER */
    void *user;
};

/* -EADDRINUSE and other errors of bind, -EINVAL: not an address. */
int probe_server_new(uv_loop_t *loop, const struct probe_server_options *options,
                     struct probe_server **out, struct fleet_error *err);

/* The answer of a request for which `answer` returned PROBE_LATER; it is dead afterwards. */
void probe_request_finish(struct probe_request *request, int status, const char *content_type,
                          const struct fleet_strbuf *body);

/* Close everything; `gone` runs for what was to be answered later. The memory goes when the loop
 * has turned once more. NULL is fine. */
void probe_server_free(struct probe_server *server);

/* The port it listens on. */
int probe_server_port(const struct probe_server *server);

#endif
