/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_HTTP2_H
#define TESTS_FAKE_HTTP2_H

/*
 * A server that speaks HTTP/2 over TLS on 127.0.0.1 and misbehaves as the test orders. (The server
 * of apiserver_http.h speaks HTTP/1.1.) It has threads of its own, and no objects, only steps.
 *
 * The n-th complete request, on any connection, is served by the n-th step. Requests after the last
 * step get 200 and "{}".
 */

#include <stddef.h>

struct fake_http2;

enum fake_http2_kind {
    FAKE_HTTP2_ANSWER,     /* status, header, body */
    FAKE_HTTP2_STREAM,     /* the same, and the answer goes on: a watch */
    FAKE_HTTP2_ANSWER_END, /* answered; GOAWAY: the connection takes no further request */
    FAKE_HTTP2_REFUSE,     /* GOAWAY with the stream before this one: surely not processed */
    FAKE_HTTP2_CUT,        /* the connection is closed without GOAWAY: perhaps processed */
    FAKE_HTTP2_CUT_WITHIN, /* … within the answer's body */
};

struct fake_http2_step {
    enum fake_http2_kind kind;
    int status;                /* 0: 200 */
    const char *header, *text; /* one more header, lower case, each below 128 bytes; NULL: none */
    const char *body;          /* NULL: "{}"; lives as long as the server */
};

/* `steps` are borrowed. Aborts if it cannot start. */
struct fake_http2 *fake_http2_new(const char *certificate_pem, const char *key_pem,
                                  const struct fake_http2_step *steps, size_t count, int *out_port);

/* Close everything and wait for the threads. */
void fake_http2_free(struct fake_http2 *server);

/* Connections whose TLS handshake succeeded; requests that have arrived whole, and bytes of their
 * bodies. */
size_t fake_http2_connections(struct fake_http2 *server);
size_t fake_http2_requests(struct fake_http2 *server);
size_t fake_http2_body_bytes(struct fake_http2 *server);

#endif
