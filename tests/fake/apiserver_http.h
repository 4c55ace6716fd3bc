/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_APISERVER_HTTP_H
#define TESTS_FAKE_APISERVER_HTTP_H

/*
 * The fake API server on a real socket: HTTP/1.1 without TLS on 127.0.0.1, keep-alive, chunked
 * watches, on a libuv loop. TLS and HTTP/2 are tested against a real cluster.
 */

#include <uv.h>

struct fake_apiserver;
struct fake_apiserver_http;

/* Listen on a port that the system chooses, *out_port. Aborts if that fails. */
struct fake_apiserver_http *fake_apiserver_http_new(uv_loop_t *loop, struct fake_apiserver *server,
                                                    int *out_port);

/* Close everything, as in a crash. The memory is freed while the loop runs. */
void fake_apiserver_http_free(struct fake_apiserver_http *http);

/* Close all connections but keep listening. */
void fake_apiserver_http_drop(struct fake_apiserver_http *http);

/* Send all data in pieces of at most this many bytes (0: as they are). */
void fake_apiserver_http_cut(struct fake_apiserver_http *http, size_t piece_size);

/* Connections accepted so far. */
size_t fake_apiserver_http_accepted(const struct fake_apiserver_http *http);

#endif
