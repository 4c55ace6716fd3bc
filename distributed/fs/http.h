/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_HTTP_H
#define DISTRIBUTED_FS_HTTP_H

/*
 * HTTP requests for S3 (with AWS' signatures) and WebHDFS, by libcurl. If a connection breaks, a
 * request times out, or the answer is 429, 500, 502, 503 or 504, the request is tried again. A
 * redirect is returned like any other answer, not followed.
 *
 * Threads: several threads may use one client at once.
 */

#include <stddef.h>
#include <stdint.h>

#include "distributed/distributed.h"

#define HTTP_ANSWER_MAX ((size_t)32 << 20) /* default limit of a body in memory, in bytes */

struct http_settings {
    int timeout_ms; /* of one try */
    int attempts, pause_ms;
    const char *signature; /* value of CURLOPT_AWS_SIGV4; NULL: requests are not signed */
    const char *user;      /* "key:secret" for the signature */
    const char *ca;        /* file of trusted certificates; NULL: the system's */
};

struct http_client;

/* Make a client; the settings are copied. -ENOMEM; -ENOTSUP: libcurl cannot be used. */
int http_client_new(const struct http_settings *settings, struct http_client **out,
                    struct fleet_error *err);
void http_client_free(struct http_client *client); /* NULL is fine */

struct http_request {
    const char *method; /* "GET", "HEAD", "PUT", "POST", "DELETE" */
    const char *url;
    const char *const *headers; /* "Name: value", NULL at the end; NULL: none */
    const void *body;           /* [bytes]: the body to send, if `source` is 0 */
    uint64_t bytes;             /* size of the body to send */
    int source;      /* file descriptor: send its bytes [offset, offset + bytes); 0: send `body` */
    uint64_t offset; /* in the source */
    int sink;        /* file descriptor: the body of an answer 2xx is written there, from
                        sink_offset, after the file was cut off there; 0: it is kept in memory */
    uint64_t sink_offset;
    size_t size_max; /* limit of a body in memory, in bytes; 0: HTTP_ANSWER_MAX */
    int attempts;    /* 0: those of the client */
};

struct http_answer {
    int status;
    char *body;                     /* with a NUL behind it; "" if it was written to the sink */
    size_t bytes;                   /* of the body */
    char *location, *etag, *length; /* values of the headers Location, ETag and Content-Length;
                                       NULL: not there */
};

/*
 * Send a request, with all its tries. Returns 0 for an answer of any status that is not tried
 * again; then release *answer. If all tries fail: -ETIMEDOUT (the last one timed out) or -EIO.
 * -EFBIG: the body is longer than size_max. -errno: of the source or the sink.
 */
int http_send(struct http_client *client, const struct http_request *request,
              struct http_answer *answer, struct fleet_error *err);
void http_answer_release(struct http_answer *answer);

void http_pause_ms(int ms);

/* Append `text` for a URL: each byte becomes %XX, except letters, digits and "-._~". "/" becomes
 * %2F unless keep_slash. */
struct fleet_strbuf;
void http_escape(struct fleet_strbuf *out, const char *text, bool keep_slash);

#endif
