/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_PROBE_SERVER_H
#define CONTROLLER_MACHINERY_PROBE_SERVER_H

/*
 * /healthz, /readyz and /metrics: a small HTTP/1.1 server on the program's own loop, so that it
 * answers exactly as long as the loop turns. That is what a liveness probe wants to know.
 *
 * GET and HEAD of short paths, one answer a connection. A request has PROBE_REQUEST_MAX bytes and
 * PROBE_TIME_MS to arrive and be answered; of more than PROBE_CONNECTIONS_MAX connections at once
 * the oldest are closed: a client that opens connections and sends nothing must not make a
 * kubelet believe that we hang.
 */

#include <uv.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;
struct probe_server;

#define PROBE_REQUEST_MAX     4096
#define PROBE_TIME_MS         10000
#define PROBE_CONNECTIONS_MAX 64

/*
 * Answer GET `path` (without query): append the body, return the HTTP status. 404 for what is not
 * known, 503 for not ready. `*content_type` is "text/plain; charset=utf-8" unless set to a
 * constant.
 */
typedef int probe_answer(void *user, const char *path, struct fleet_strbuf *body,
                         const char **content_type);

/*
 * Listen on `address` (NULL: all) and `port` (0: any free one). -EADDRINUSE and the like from bind,
 * -EINVAL: not an address.
 */
int probe_server_new(uv_loop_t *loop, const char *address, int port, probe_answer *answer,
                     void *user, struct probe_server **out, struct fleet_error *err);

/* Close everything; the memory goes when the loop has turned once more. NULL is fine. */
void probe_server_free(struct probe_server *server);

/* The port it listens on. */
int probe_server_port(const struct probe_server *server);

#endif
