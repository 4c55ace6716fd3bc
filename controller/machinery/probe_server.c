/* SPDX-License-Identifier: Apache-2.0 */

/*
 *   accepted ── whole head, or too much ──▶ answered ── written, or failed ──▶ closed
 *      │   └── whole head ─▶ waiting ── probe_request_finish ──▲                  ▲
 *      └────────────────── PROBE_TIME_MS ────────────────────────────────────────┘
 *
 * In "waiting" the connection is read on, so that its end is noticed.
 */
#include "controller/machinery/probe_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "controller/machinery/tls_stream.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

#define TEXT       "text/plain; charset=utf-8"
#define CHUNK_SIZE 16384

struct connection {
    struct probe_request request; /* first member: probe_request_finish() finds the connection by
                                   * it */
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_write_t handshake_write, write;
    struct probe_server *server;
    struct connection *next, *previous;
    struct tls_stream *tls; /* NULL = plain HTTP */
    char input[PROBE_REQUEST_MAX + 1];
    size_t input_size;
    struct fleet_strbuf handshake, output; /* bytes that are being sent, and the next ones */
    bool has_begun;                        /* a byte has come */
    bool is_sending_handshake;
    bool head_only, waiting, answered, closing;
    int open_handles;
};

struct probe_server {
    uv_tcp_t listener;
    uv_loop_t *loop;
    struct probe_server_options options;
    char chunk[CHUNK_SIZE]; /* input of the connection that is being read */
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
    tls_stream_free(c->tls);
    fleet_strbuf_release(&c->handshake);
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
    if (c->waiting)
        c->server->options.gone(c->server->options.user, &c->request);
    uv_close((uv_handle_t *)&c->tcp, on_handle_closed);
    uv_close((uv_handle_t *)&c->timer, on_handle_closed);
}

/* ---- answers -------------------------------------------------------------------------------- */

static void on_written(uv_write_t *write, int status)
{
    (void)status;
    connection_close(write->data);
}

static const struct {
    int status;
    const char *text, *headers;
} statuses[] = {
    {200, "OK", ""},
    {400, "Bad Request", ""},
    {401, "Unauthorized", "WWW-Authenticate: Bearer\r\n"},
    {403, "Forbidden", ""},
    {404, "Not Found", ""},
    {405, "Method Not Allowed", "Allow: GET, HEAD\r\n"},
    {429, "Too Many Requests", "Retry-After: 1\r\n"},
    {431, "Request Header Fields Too Large", ""},
    {503, "Service Unavailable", ""},
};

static size_t find_status(int status)
{
    size_t i = 0;

    while (i < FLEET_COUNT(statuses) && statuses[i].status != status)
        i++;
    fleet_assert(i < FLEET_COUNT(statuses));
    return i;
}

static void send_output(struct connection *c)
{
    uv_buf_t buffer = uv_buf_init(c->output.text, (unsigned int)c->output.length);

    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &buffer, 1, on_written) < 0)
        connection_close(c);
}

/* Append `plain` in the form in which it goes over the wire. */
static void encrypt(struct connection *c, struct fleet_strbuf *plain)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf secret = {0};

    (void)tls_stream_write(c->tls, plain->text, plain->length); /* on failure, the client sees the
                                                                 * end of the stream */
    tls_stream_end(c->tls);
    tls_stream_take(c->tls, &secret);
    fleet_strbuf_clear(plain);
    fleet_strbuf_append_bytes(plain, secret.text, secret.length);
}

static void send_answer(struct connection *c, int status, const char *content_type,
                        const struct fleet_strbuf *body)
{
    size_t row = find_status(status);

    c->answered = true;
    fleet_strbuf_appendf(&c->output,
                         "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s"
                         "Connection: close\r\n\r\n",
                         status, statuses[row].text, content_type, body->length,
                         statuses[row].headers);
    if (!c->head_only)
        fleet_strbuf_append_bytes(&c->output, fleet_strbuf_text(body), body->length);
    if (c->tls)
        encrypt(c, &c->output);
    send_output(c);
}

static void refuse(struct connection *c, int status)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf body = {0};

    fleet_strbuf_appendf(&body, "%s\n", statuses[find_status(status)].text);
    send_answer(c, status, TEXT, &body);
}

/* ---- requests ------------------------------------------------------------------------------- */

/* The value of the header `name` among the lines of `head`; cuts the text there. NULL if there is
 * none, or two. */
static const char *cut_header(char *head, const char *name, bool *out_repeated)
{
    size_t length = strlen(name);
    char *value = NULL, *line;

    *out_repeated = false;
    while ((line = strsep(&head, "\n"))) {
        if (strncasecmp(line, name, length) != 0 || line[length] != ':')
            continue;
        *out_repeated = value != NULL;
        value = line + length + 1;
        value += strspn(value, " \t");
        for (size_t end = strlen(value); end > 0 && strchr(" \t\r", value[end - 1]);)
            value[--end] = '\0';
    }
    return value;
}

/* The request line: METHOD SP PATH SP HTTP/1.x. 0, or the status of the refusal. */
static int read_request(struct connection *c)
{
    char *line = c->input, *head = strstr(c->input, "\r\n") + 2;
    char *method = strsep(&line, " "), *path = line ? strsep(&line, " ") : NULL;
    bool is_repeated;

    if (!path || *path != '/' || !line || line > head || strncmp(line, "HTTP/1.", 7) != 0)
        return 400;
    c->head_only = strcmp(method, "HEAD") == 0;
    if (!c->head_only && strcmp(method, "GET") != 0)
        return 405;
    path[strcspn(path, "?#")] = '\0';
    c->request.path = path;
    c->request.authorization = cut_header(head, "Authorization", &is_repeated);
    if (!c->request.authorization)
        c->request.authorization = "";
    return is_repeated ? 400 : 0;
}

static void answer_request(struct connection *c)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf body = {0};
    const struct probe_server_options *options = &c->server->options;
    const char *content_type = TEXT;
    int status = read_request(c);

    if (status != 0) {
        refuse(c, status);
        return;
    }
    status = options->answer(options->user, &c->request, &body, &content_type);
    c->waiting = status == PROBE_LATER;
    if (!c->waiting)
        send_answer(c, status, content_type, &body);
}

void probe_request_finish(struct probe_request *request, int status, const char *content_type,
                          const struct fleet_strbuf *body)
{
    struct connection *c = (struct connection *)request;

    fleet_assert(c->waiting);
    c->waiting = false;
    send_answer(c, status, content_type ? content_type : TEXT, body);
}

/* ---- connections ---------------------------------------------------------------------------- */

static void on_room(uv_handle_t *handle, size_t size, uv_buf_t *buffer)
{
    const struct connection *c = handle->data;

    (void)size;
    *buffer = uv_buf_init(c->server->chunk, CHUNK_SIZE);
}

static void send_handshake(struct connection *c);

static void on_handshake_sent(uv_write_t *write, int status)
{
    struct connection *c = write->data;

    c->is_sending_handshake = false;
    fleet_strbuf_clear(&c->handshake);
    if (status == 0)
        send_handshake(c);
}

/* Send TLS records. Only one write is in flight; the next one sends the data collected
 * meanwhile. */
static void send_handshake(struct connection *c)
{
    uv_buf_t buffer;

    if (c->is_sending_handshake || c->answered || c->closing)
        return;
    tls_stream_take(c->tls, &c->handshake);
    if (c->handshake.length == 0)
        return;
    buffer = uv_buf_init(c->handshake.text, (unsigned int)c->handshake.length);
    c->handshake_write.data = c;
    c->is_sending_handshake = true;
    if (uv_write(&c->handshake_write, (uv_stream_t *)&c->tcp, &buffer, 1, on_handshake_sent) < 0)
        connection_close(c);
}

/* A client that speaks plain HTTP gets an answer that it can read. */
static void refuse_plain(struct connection *c)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf body = {0};

    tls_stream_free(c->tls);
    c->tls = NULL;
    fleet_strbuf_append(&body, "this port speaks HTTPS: use https://\n");
    send_answer(c, 400, TEXT, &body);
}

static bool is_http(const char *bytes, size_t size)
{
    return size >= 4 && (memcmp(bytes, "GET ", 4) == 0 || memcmp(bytes, "HEAD", 4) == 0 ||
                         memcmp(bytes, "POST", 4) == 0);
}

/* The client has ended the stream, or does not speak TLS: send the alert, if any, then close. */
static void end_tls(struct connection *c)
{
    tls_stream_take(c->tls, &c->output);
    c->answered = true;
    if (c->output.length > 0)
        send_output(c);
    else
        connection_close(c);
}

/* Decrypt into the connection's input, as far as it has room. False: the stream has ended. */
static bool decrypt(struct connection *c, const char *bytes, size_t size)
{
    ssize_t count = 0;

    tls_stream_feed(c->tls, bytes, size);
    while (c->input_size < PROBE_REQUEST_MAX &&
           (count = tls_stream_read(c->tls, c->input + c->input_size,
                                    PROBE_REQUEST_MAX - c->input_size)) > 0)
        c->input_size += (size_t)count;
    if (count < 0) {
        end_tls(c);
        return false;
    }
    send_handshake(c);
    return !c->closing;
}

static void copy_input(struct connection *c, const char *bytes, size_t size)
{
    size_t room = PROBE_REQUEST_MAX - c->input_size;
    size_t part = size < room ? size : room;

    memcpy(c->input + c->input_size, bytes, part);
    c->input_size += part;
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct connection *c = stream->data;

    if (c->closing || count == 0)
        return;
    if (count < 0) {
        if (!c->answered)
            connection_close(c);
        return;
    }
    if (c->answered || c->waiting)
        return;
    if (c->tls && !c->has_begun && is_http(buffer->base, (size_t)count)) {
        refuse_plain(c);
        return;
    }
    c->has_begun = true;
    if (!c->tls)
        copy_input(c, buffer->base, (size_t)count);
    else if (!decrypt(c, buffer->base, (size_t)count))
        return;
    c->input[c->input_size] = '\0';
    if (strstr(c->input, "\r\n\r\n"))
        answer_request(c);
    else if (c->input_size == PROBE_REQUEST_MAX)
        refuse(c, 431);
}

static void on_time_up(uv_timer_t *timer)
{
    connection_close(timer->data);
}

/* The list begins with the newest connection. */
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
    if (server->options.keys)
        c->tls = tls_stream_new(server->options.keys);
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) < 0 || (server->options.keys && !c->tls) ||
        uv_read_start((uv_stream_t *)&c->tcp, on_room, on_read) < 0) {
        connection_close(c);
        return;
    }
    (void)uv_timer_start(&c->timer, on_time_up, PROBE_TIME_MS, 0);
}

/* ---- life ----------------------------------------------------------------------------------- */

static int read_address(const char *address, int port, struct sockaddr_storage *out)
{
    if (!address) /* where IPv6 exists, its wildcard address also accepts IPv4 */
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

int probe_server_new(uv_loop_t *loop, const struct probe_server_options *options,
                     struct probe_server **out, struct fleet_error *err)
{
    struct probe_server *server = calloc(1, sizeof(*server));
    int rc;

    fleet_assert(server != NULL);
    server->loop = loop;
    server->options = *options;
    (void)uv_tcp_init(loop, &server->listener);
    server->listener.data = server;
    rc = listen_on(server, options->address, options->port);
    if (rc < 0) { /* libuv's errors are negative errno values */
        probe_server_free(server);
        return fleet_error(err, rc, "listen on %s port %d: %s",
                           options->address ? options->address : "*", options->port,
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
