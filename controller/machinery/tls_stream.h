/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_TLS_STREAM_H
#define CONTROLLER_MACHINERY_TLS_STREAM_H

/*
 * The server's side of TLS 1.2 and 1.3 between two buffers: no socket, no loop, no thread.
 *
 *   socket ── tls_stream_feed ──▶ [TLS] ── tls_stream_read ──▶ program
 *   socket ◀─ tls_stream_take ─── [TLS] ◀─ tls_stream_write ── program
 *
 * After each feed, read and write the caller sends what tls_stream_take() gives: handshakes and
 * alerts, too. Sessions are not resumed and not renegotiated. Clients show no certificate.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;
struct tls_keys;
struct tls_stream;

/* The identity of a server: a certificate with the chain above it, and its key. None at first. */
struct tls_keys *tls_keys_new(void);
void tls_keys_free(struct tls_keys *keys); /* NULL is fine; streams that are open go on */

/*
 * Show these from the next stream on: `certificate_pem` is the server's certificate, then those
 * above it. -EINVAL: one of the two is not PEM, or they do not belong together; what was shown
 * before stays.
 */
int tls_keys_set(struct tls_keys *keys, const char *certificate_pem, const char *key_pem,
                 struct fleet_error *err);

/* A stream that waits for the client's first bytes; NULL if `keys` have no certificate yet. */
struct tls_stream *tls_stream_new(const struct tls_keys *keys);
void tls_stream_free(struct tls_stream *stream); /* NULL is fine */

/* Bytes that came from the client. */
void tls_stream_feed(struct tls_stream *stream, const void *bytes, size_t size);

/*
 * The client's input, decrypted: 1 … `size` bytes; 0: nothing yet; -EPIPE: the client has ended the
 * stream; -EPROTO: this is no TLS, or the handshake failed. After an error the stream is only to be
 * taken from and freed.
 */
ssize_t tls_stream_read(struct tls_stream *stream, void *bytes, size_t size);

/* Encrypt all of `bytes`, after the handshake. -EPROTO: the stream is broken. */
int tls_stream_write(struct tls_stream *stream, const void *bytes, size_t size);

/* Nothing is written after this. */
void tls_stream_end(struct tls_stream *stream);

/* Append the bytes that must be sent to the client. */
void tls_stream_take(struct tls_stream *stream, struct fleet_strbuf *out);

#endif
