/* SPDX-License-Identifier: Apache-2.0 */

/*
 *   accepted ── whole head, or too much ──▶ answered ── written, or failed ──▶ closed
 *      └────────────────── PROBE_TIME_MS ──────────────────────────────────────▶
 */
#include "controller/machinery/probe_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

struct connection {
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_write_t write;
    struct probe_server *server;
    struct connection *next, *previous;
    char input[PROBE_REQUEST_MAX + 1];
    size_t input_size;
    struct fleet_strbuf output;
    bool answered, closing;
    int open_handles;
};

struct probe_server {
    uv_tcp_t listener;
    uv_loop_t *loop;
    probe_answer *answer;
    void *user;
    struct connection *connections;
    int connection_count; /* those not freed yet */
    int port;
    bool listener_closed, ending;
};

static void free_when_closed(struct probe_server *server)
{
    if (server->ending && server->listener_closed && server->connection_count == 0)
        free(server);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct connection *c = handle->data;
    struct probe_server *server = c->server;

    if (--c->open_handles > 0)
        return;
    if (c->previous)
        c->previous->next = c->next;
    else
        server->connections = c->next;
    if (c->next)
        c->next->previous = c->previous;
    fleet_strbuf_release(&c->output);
    free(c);
    server->connection_count--;
    free_when_closed(server);
}

static void connection_close(struct connection *c)
{
    if (c->closing)
        return;
    c->closing = true;
    uv_close((uv_handle_t *)&c->tcp, on_handle_closed);
    uv_close((uv_handle_t *)&c->timer, on_handle_closed);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void on_written(uv_write_t *write, int status)
{
    (void)status;
    connection_close(write->data);
}

static const char *status_text(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 431:
        return "Request Header Fields Too Large";
    case 503:
        return "Service Unavailable";
    default:
        return "Error";
    }
}

static void send_answer(struct connection *c, int status, const char *content_type,
                        const struct fleet_strbuf *body, bool head_only)
{
    uv_buf_t buffer;

    c->answered = true;
    fleet_strbuf_appendf(&c->output,
                         "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                         "Connection: close\r\n\r\n",
                         status, status_text(status), content_type, body->length);
    if (!head_only)
        fleet_strbuf_append_bytes(&c->output, fleet_strbuf_text(body), body->length);
    buffer = uv_buf_init(c->output.text, (unsigned int)c->output.length);
    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &buffer, 1, on_written) < 0)
        connection_close(c);
}

static void refuse(struct connection *c, int status)
{
    struct fleet_strbuf body = {0};

    fleet_strbuf_appendf(&body, "%s\n", status_text(status));
    send_answer(c, status, "text/plain; charset=utf-8", &body, false);
    fleet_strbuf_release(&body);
}

/* The request line: METHOD SP PATH SP HTTP/1.x. */
static void answer_request(struct connection *c)
{
    const char *content_type = "text/plain; charset=utf-8";
    char *line = c->input, *method = strsep(&line, " "), *path = line ? strsep(&line, " ") : NULL;
    struct fleet_strbuf body = {0};
    bool head;
    int status;

    if (!path || *path != '/' || !line || strncmp(line, "HTTP/1.", 7) != 0) {
        refuse(c, 400);
        return;
    }
    head = strcmp(method, "HEAD") == 0;
    if (!head && strcmp(method, "GET") != 0) {
        refuse(c, 405);
        return;
    }
    path[strcspn(path, "?#")] = '\0';
    status = c->server->answer(c->server->user, path, &body, &content_type);
    send_answer(c, status, content_type, &body, head);
    fleet_strbuf_release(&body);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void on_room(uv_handle_t *handle, size_t size, uv_buf_t *buffer)
{
    struct connection *c = handle->data;

    (void)size;
    *buffer =
        uv_buf_init(c->input + c->input_size, (unsigned int)(PROBE_REQUEST_MAX - c->input_size));
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct connection *c = stream->data;

    (void)buffer;
    if (c->answered || c->closing)
        return;
    if (count < 0) {
        if (c->input_size == PROBE_REQUEST_MAX) { /* there was no room to read into */
            (void)uv_read_stop(stream);
            refuse(c, 431);
        } else {
            connection_close(c);
        }
        return;
    }
    c->input_size += (size_t)count;
    c->input[c->input_size] = '\0';
    if (!strstr(c->input, "\r\n\r\n"))
        return;
    (void)uv_read_stop(stream);
    answer_request(c);
}

static void on_time_up(uv_timer_t *timer)
{
    connection_close(timer->data);
}

/* The list begins with the newest. */
static void close_oldest(struct probe_server *server)
{
    struct connection *oldest = NULL;
    int open = 0;

    for (struct connection *c = server->connections; c; c = c->next)
        if (!c->closing) {
            oldest = c;
            open++;
        }
    if (open > PROBE_CONNECTIONS_MAX)
        connection_close(oldest);
}

static void on_connect(uv_stream_t *listener, int status)
{
    struct probe_server *server = listener->data;
    struct connection *c;

    if (status < 0)
        return;
    c = calloc(1, sizeof(*c));
    fleet_assert(c != NULL);
    c->server = server;
    (void)uv_tcp_init(server->loop, &c->tcp);
    (void)uv_timer_init(server->loop, &c->timer);
    c->tcp.data = c->timer.data = c;
    c->open_handles = 2;
    c->next = server->connections;
    if (c->next)
        c->next->previous = c;
    server->connections = c;
    server->connection_count++;
    close_oldest(server);
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) < 0 ||
        uv_read_start((uv_stream_t *)&c->tcp, on_room, on_read) < 0) {
        connection_close(c);
        return;
    }
    (void)uv_timer_start(&c->timer, on_time_up, PROBE_TIME_MS, 0);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int read_address(const char *address, int port, struct sockaddr_storage *out)
{
    if (!address) /* IPv6's any takes IPv4 too, where there is IPv6 */
        return uv_ip6_addr("::", port, (struct sockaddr_in6 *)out);
    if (uv_ip4_addr(address, port, (struct sockaddr_in *)out) == 0)
        return 0;
    return uv_ip6_addr(address, port, (struct sockaddr_in6 *)out);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct probe_server *server = handle->data;

    server->listener_closed = true;
    free_when_closed(server);
}

static int listen_on(struct probe_server *server, const char *address, int port)
{
    struct sockaddr_storage where = {0};
    int size = sizeof(where);
    int rc;

    if ((rc = read_address(address, port, &where)) < 0)
        return rc;
    rc = uv_tcp_bind(&server->listener, (struct sockaddr *)&where, 0);
    if (rc < 0 && !address) { /* a machine without IPv6 */
        (void)uv_ip4_addr("0.0.0.0", port, (struct sockaddr_in *)&where);
        rc = uv_tcp_bind(&server->listener, (struct sockaddr *)&where, 0);
    }
    if (rc < 0 || (rc = uv_listen((uv_stream_t *)&server->listener, 64, on_connect)) < 0)
        return rc;
    if ((rc = uv_tcp_getsockname(&server->listener, (struct sockaddr *)&where, &size)) < 0)
        return rc;
    server->port = where.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&where)->sin6_port)
                                               : ntohs(((struct sockaddr_in *)&where)->sin_port);
    return 0;
}

int probe_server_new(uv_loop_t *loop, const char *address, int port, probe_answer *answer,
                     void *user, struct probe_server **out, struct fleet_error *err)
{
    struct probe_server *server = calloc(1, sizeof(*server));
    int rc;

    fleet_assert(server != NULL);
    server->loop = loop;
    server->answer = answer;
    server->user = user;
    (void)uv_tcp_init(loop, &server->listener);
    server->listener.data = server;
    rc = listen_on(server, address, port);
    if (rc < 0) { /* libuv's errors are negative errno values */
        probe_server_free(server);
        return fleet_error(err, rc, "listen on %s port %d: %s", address ? address : "*", port,
                           uv_strerror(rc));
    }
    *out = server;
    return 0;
}

void probe_server_free(struct probe_server *server)
{
    if (!server)
        return;
    server->ending = true;
    for (struct connection *c = server->connections; c; c = c->next)
        connection_close(c);
    uv_close((uv_handle_t *)&server->listener, on_listener_closed);
}

int probe_server_port(const struct probe_server *server)
{
    return server->port;
}
