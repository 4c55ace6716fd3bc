/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One connection serves one request at a time. What it has to send waits in `output` and is written
 * piece by piece, each when the one before is through, so that cuts fall where the test wants them.
 */
#include "tests/fake/apiserver_http.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "tests/fake/apiserver.h"

struct connection {
    uv_tcp_t tcp;
    uv_write_t write;
    struct fake_apiserver_http *http;
    struct connection *next;
    struct fleet_strbuf input, output;
    struct fake_watch *watch;
    char chunk[65536]; /* read into */
    char *piece;       /* being written */
    bool writing, closing, close_when_sent;
};

struct fake_apiserver_http {
    uv_tcp_t listener;
    uv_loop_t *loop;
    struct fake_apiserver *server;
    struct connection *connections;
    size_t piece_size, accepted;
    int open_handles;
    bool ending;
};

static void free_when_closed(struct fake_apiserver_http *http)
{
    if (http->ending && http->open_handles == 0)
        free(http);
}

static void on_connection_closed(uv_handle_t *handle)
{
    struct connection *c = handle->data;
    struct fake_apiserver_http *http = c->http;

    for (struct connection **p = &http->connections; *p; p = &(*p)->next) {
        if (*p == c) {
            *p = c->next;
            break;
        }
    }
    fleet_strbuf_release(&c->input);
    fleet_strbuf_release(&c->output);
    free(c->piece);
    free(c);
    http->open_handles--;
    free_when_closed(http);
}

static void connection_close(struct connection *c)
{
    if (c->closing)
        return;
    c->closing = true;
    if (c->watch)
        fake_watch_close(c->watch);
    c->watch = NULL;
    uv_close((uv_handle_t *)&c->tcp, on_connection_closed);
}

static void flush(struct connection *c);

static void on_written(uv_write_t *write, int status)
{
    struct connection *c = write->data;

    free(c->piece);
    c->piece = NULL;
    c->writing = false;
    if (status < 0)
        connection_close(c);
    else
        flush(c);
}

static void flush(struct connection *c)
{
    size_t size = c->output.length;
    uv_buf_t buffer;

    if (c->writing || c->closing)
        return;
    if (size == 0) {
        if (c->close_when_sent)
            connection_close(c);
        return;
    }
    if (c->http->piece_size > 0 && size > c->http->piece_size)
        size = c->http->piece_size;
    c->piece = malloc(size);
    fleet_assert(c->piece != NULL);
    memcpy(c->piece, c->output.text, size);
    fleet_strbuf_consume(&c->output, size);
    buffer = uv_buf_init(c->piece, (unsigned int)size);
    c->write.data = c;
    c->writing = true;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &buffer, 1, on_written) < 0)
        connection_close(c);
}

/* What the connection's watch has, as one chunk. */
static void pump_watch(struct connection *c)
{
    struct fleet_strbuf lines = {0};
    bool open;

    if (!c->watch || c->closing)
        return;
    open = fake_watch_read(c->watch, &lines);
    if (lines.length > 0) {
        fleet_strbuf_appendf(&c->output, "%zx\r\n", lines.length);
        fleet_strbuf_append_bytes(&c->output, lines.text, lines.length);
        fleet_strbuf_append(&c->output, "\r\n");
    }
    fleet_strbuf_release(&lines);
    if (!open) {
        fleet_strbuf_append(&c->output, "0\r\n\r\n");
        fake_watch_close(c->watch);
        c->watch = NULL;
        c->close_when_sent = true;
    }
    flush(c);
}

static void on_change(void *user)
{
    struct fake_apiserver_http *http = user;

    for (struct connection *c = http->connections; c; c = c->next)
        pump_watch(c);
}

static void answer(struct connection *c, struct fake_response *response)
{
    fleet_strbuf_appendf(&c->output, "HTTP/1.1 %d Status\r\nContent-Type: application/json\r\n",
                         response->status);
    if (response->retry_after_s > 0)
        fleet_strbuf_appendf(&c->output, "Retry-After: %d\r\n", response->retry_after_s);
    if (response->watch) {
        fleet_strbuf_append(&c->output, "Transfer-Encoding: chunked\r\n\r\n");
        c->watch = response->watch;
        response->watch = NULL;
        pump_watch(c);
    } else {
        fleet_strbuf_appendf(&c->output, "Content-Length: %zu\r\n\r\n", response->body.length);
        fleet_strbuf_append_bytes(&c->output, fleet_strbuf_text(&response->body),
                                  response->body.length);
    }
    flush(c);
}

static size_t content_length(const char *head)
{
    const char *at = strcasestr(head, "\r\ncontent-length:");

    return at ? strtoul(at + 17, NULL, 10) : 0;
}

/* The request at the start of `input`, if it is complete. */
static bool serve_one(struct connection *c)
{
    char *end = c->input.length > 0 ? strstr(c->input.text, "\r\n\r\n") : NULL;
    struct fake_response response = {0};
    char method[16] = "", path[4096] = "";
    size_t head_size, body_size;

    if (!end || c->watch)
        return false;
    head_size = (size_t)(end + 4 - c->input.text);
    *end = '\0';
    body_size = content_length(c->input.text);
    if (c->input.length < head_size + body_size) {
        *end = '\r';
        return false;
    }
    if (sscanf(c->input.text, "%15s %4095s", method, path) == 2) {
        struct fake_request request = {method, path, c->input.text + head_size, body_size};
        fake_apiserver_handle(c->http->server, &request, &response);
    } else {
        response.drop = true;
    }
    fleet_strbuf_consume(&c->input, head_size + body_size);
    if (response.drop)
        connection_close(c);
    else if (!c->closing)
        answer(c, &response);
    fake_response_release(&response);
    return !c->closing;
}

static void on_room(uv_handle_t *handle, size_t size, uv_buf_t *buffer)
{
    struct connection *c = handle->data;

    (void)size;
    *buffer = uv_buf_init(c->chunk, sizeof(c->chunk));
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct connection *c = stream->data;

    if (count < 0) {
        connection_close(c);
        return;
    }
    fleet_strbuf_append_bytes(&c->input, buffer->base, (size_t)count);
    while (serve_one(c))
        ;
}

static void on_connect(uv_stream_t *listener, int status)
{
    struct fake_apiserver_http *http = listener->data;
    struct connection *c = calloc(1, sizeof(*c));

    fleet_assert(c != NULL && status == 0);
    c->http = http;
    fleet_assert(uv_tcp_init(http->loop, &c->tcp) == 0);
    c->tcp.data = c;
    http->open_handles++;
    http->accepted++;
    c->next = http->connections;
    http->connections = c;
    fleet_assert(uv_accept(listener, (uv_stream_t *)&c->tcp) == 0);
    (void)uv_tcp_nodelay(&c->tcp, 1);
    fleet_assert(uv_read_start((uv_stream_t *)&c->tcp, on_room, on_read) == 0);
}

struct fake_apiserver_http *fake_apiserver_http_new(uv_loop_t *loop, struct fake_apiserver *server,
                                                    int *out_port)
{
    struct fake_apiserver_http *http = calloc(1, sizeof(*http));
    struct sockaddr_in address;
    int size = sizeof(address);

    fleet_assert(http != NULL);
    http->loop = loop;
    http->server = server;
    fleet_assert(uv_tcp_init(loop, &http->listener) == 0);
    http->listener.data = http;
    http->open_handles = 1;
    fleet_assert(uv_ip4_addr("127.0.0.1", 0, &address) == 0);
    fleet_assert(uv_tcp_bind(&http->listener, (struct sockaddr *)&address, 0) == 0);
    fleet_assert(uv_listen((uv_stream_t *)&http->listener, 128, on_connect) == 0);
    fleet_assert(uv_tcp_getsockname(&http->listener, (struct sockaddr *)&address, &size) == 0);
    *out_port = ntohs(address.sin_port);
    fake_apiserver_on_change(server, on_change, http);
    return http;
}

void fake_apiserver_http_drop(struct fake_apiserver_http *http)
{
    for (struct connection *c = http->connections; c; c = c->next)
        connection_close(c);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct fake_apiserver_http *http = handle->data;

    http->open_handles--;
    free_when_closed(http);
}

void fake_apiserver_http_free(struct fake_apiserver_http *http)
{
    if (!http)
        return;
    fake_apiserver_on_change(http->server, NULL, NULL);
    http->ending = true;
    fake_apiserver_http_drop(http);
    uv_close((uv_handle_t *)&http->listener, on_listener_closed);
}

void fake_apiserver_http_cut(struct fake_apiserver_http *http, size_t piece_size)
{
    http->piece_size = piece_size;
}

size_t fake_apiserver_http_accepted(const struct fake_apiserver_http *http)
{
    return http->accepted;
}
