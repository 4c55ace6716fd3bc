/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_HTTP_H
#define DISTRIBUTED_FS_HTTP_H

/*
 * Requests of file systems that lie behind HTTP, through libcurl: S3 with AWS' signatures, and
 * WebHDFS. A request is tried again after broken connections, timeouts, and the answers 429, 500,
 * 502, 503 and 504. Redirects are not followed: they are answers like others.
 *
 * Threads: several may use one client at once.
 */

#include <stddef.h>
#include <stdint.h>

#include "distributed/distributed.h"

#define HTTP_ANSWER_MAX ((size_t)32 << 20) /* bytes of an answer for the program itself */

struct http_settings {
    int timeout_ms; /* of one try */
    int attempts, pause_ms;
    const char *signature; /* of CURLOPT_AWS_SIGV4; NULL: not signed */
    const char *user;      /* "key:secret" of the signature */
    const char *ca;        /* file of certificates; NULL: those of the system */
};

struct http_client;

/* The settings are copied. -ENOMEM; -ENOTSUP: libcurl cannot be used. */
int http_client_new(const struct http_settings *settings, struct http_client **out,
                    struct fleet_error *err);
void http_client_free(struct http_client *client); /* NULL is fine */

struct http_request {
    const char *method; /* "GET", "HEAD", "PUT", "POST", "DELETE" */
    const char *url;
    const char *const *headers; /* "Name: value", NULL at the end; NULL: none */
    const void *body;           /* [bytes], sent; or with `source` > 0 */
    uint64_t bytes;
    int source;      /* a file: its bytes offset … offset + bytes - 1 are sent; 0: `body` is */
    uint64_t offset; /* in the source */
    int sink;        /* a file that gets the body of a good answer (2xx), from its beginning; 0: the
                        body goes to memory */
    size_t size_max; /* of a body in memory; 0: HTTP_ANSWER_MAX */
};

struct http_answer {
    int status;
    char *body; /* with a NUL behind it; "" if it went to the sink */
    size_t bytes;
    char *location, *etag; /* headers; NULL: there is none */
};

/*
 * Send until there is an answer that another try would not change; *answer may have any other
 * status, and is released by the caller. -ETIMEDOUT, -EIO: the last try failed so, or its answer
 * was one of the list above. -EFBIG: the body is longer than size_max. -errno of source and sink.
 */
int http_send(struct http_client *client, const struct http_request *request,
              struct http_answer *answer, struct fleet_error *err);
void http_answer_release(struct http_answer *answer);

/* Append `text` with every byte but letters, digits and "-._~/" as %XX; "/" too unless
 * keep_slash. */
struct fleet_strbuf;
void http_escape(struct fleet_strbuf *out, const char *text, bool keep_slash);

#endif
