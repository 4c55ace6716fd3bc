/* SPDX-License-Identifier: Apache-2.0 */

/*
 * RFC 9113 by hand, as little as curl needs: settings are acknowledged, windows are opened wide,
 * headers are not read, and what is answered is written in HPACK literals (RFC 7541). One thread
 * accepts, one serves each connection.
 */
#include "tests/fake/http2.h"

#include <arpa/inet.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libfleet/base/assert.h"

#define CONNECTIONS_MAX 64
#define PREFACE_SIZE    24
#define FRAME_MAX       16384
#define WINDOW          (1u << 28)

enum frame_type {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6,
    FRAME_GOAWAY = 7,
    FRAME_WINDOW_UPDATE = 8,
};

#define FLAG_ACK         0x1 /* SETTINGS, PING */
#define FLAG_END_STREAM  0x1 /* DATA, HEADERS */
#define FLAG_END_HEADERS 0x4

struct connection {
    struct fake_http2 *server;
    pthread_t thread;
    int fd;
    SSL *tls;
    uint32_t served; /* the last stream that was */
};

struct fake_http2 {
    SSL_CTX *tls;
    int listen_fd;
    pthread_t thread;
    const struct fake_http2_step *steps;
    size_t step_count;

    pthread_mutex_t lock; /* of all below */
    struct connection *accepted[CONNECTIONS_MAX];
    size_t accepted_count, connections, requests, body_bytes;
    bool is_ending;
};

/* ---- frames ---------------------------------------------------------------------------------- */

static bool read_all(struct connection *c, void *out, size_t size)
{
    for (size_t done = 0; done < size;) {
        int got = SSL_read(c->tls, (char *)out + done, (int)(size - done));
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

static void put_number(uint8_t out[4], uint32_t value)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(value >> (24 - 8 * i));
}

static uint32_t get_number(const uint8_t in[4])
{
    return (uint32_t)in[0] << 24 | (uint32_t)in[1] << 16 | (uint32_t)in[2] << 8 | in[3];
}

static void send_frame(struct connection *c, enum frame_type type, int flags, uint32_t stream,
                       const void *payload, size_t size)
{
    uint8_t head[9] = {(uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size, (uint8_t)type,
                       (uint8_t)flags};

    put_number(head + 5, stream);
    (void)SSL_write(c->tls, head, sizeof(head)); /* the peer may have gone away */
    if (size > 0)
        (void)SSL_write(c->tls, payload, (int)size);
}

static void send_window(struct connection *c, uint32_t stream, uint32_t more)
{
    uint8_t payload[4];

    put_number(payload, more);
    send_frame(c, FRAME_WINDOW_UPDATE, 0, stream, payload, sizeof(payload));
}

static void send_goaway(struct connection *c, uint32_t last)
{
    uint8_t payload[8] = {0};

    put_number(payload, last);
    send_frame(c, FRAME_GOAWAY, 0, 0, payload, sizeof(payload));
}

/* A literal without indexing; `name` NULL: the indexed name 8, ":status". */
static size_t put_header(uint8_t *out, const char *name, const char *text)
{
    size_t size = 0;

    fleet_assert((!name || strlen(name) < 128) && strlen(text) < 128);
    out[size++] = name ? 0 : 8;
    if (name) {
        out[size++] = (uint8_t)strlen(name);
        memcpy(out + size, name, strlen(name));
        size += strlen(name);
    }
    out[size++] = (uint8_t)strlen(text);
    memcpy(out + size, text, strlen(text));
    return size + strlen(text);
}

static void send_body(struct connection *c, uint32_t stream, const char *body, size_t size,
                      bool is_end)
{
    do {
        size_t part = size < FRAME_MAX ? size : FRAME_MAX;
        send_frame(c, FRAME_DATA, is_end && part == size ? FLAG_END_STREAM : 0, stream, body, part);
        body += part;
        size -= part;
    } while (size > 0);
}

/* ---- serving --------------------------------------------------------------------------------- */

/* False: the connection is over. */
static bool serve(struct connection *c, uint32_t stream, const struct fake_http2_step *step)
{
    const char *body = step->body ? step->body : "{}";
    size_t size = strlen(body);
    uint8_t headers[512];
    char status[16];
    size_t used;

    if (step->kind == FAKE_HTTP2_CUT)
        return false;
    if (step->kind == FAKE_HTTP2_REFUSE) {
        send_goaway(c, c->served);
        return true;
    }
    (void)snprintf(status, sizeof(status), "%d", step->status > 0 ? step->status : 200);
    used = put_header(headers, NULL, status);
    if (step->header)
        used += put_header(headers + used, step->header, step->text);
    send_frame(c, FRAME_HEADERS, FLAG_END_HEADERS, stream, headers, used);
    if (step->kind == FAKE_HTTP2_CUT_WITHIN) {
        send_body(c, stream, body, size / 2, false);
        return false;
    }
    send_body(c, stream, body, size, step->kind != FAKE_HTTP2_STREAM);
    c->served = stream;
    if (step->kind == FAKE_HTTP2_ANSWER_END)
        send_goaway(c, stream);
    return true;
}

static bool on_request(struct connection *c, uint32_t stream)
{
    static const struct fake_http2_step plain = {.kind = FAKE_HTTP2_ANSWER};
    struct fake_http2 *server = c->server;
    size_t number;

    pthread_mutex_lock(&server->lock);
    number = server->requests++;
    pthread_mutex_unlock(&server->lock);
    return serve(c, stream, number < server->step_count ? &server->steps[number] : &plain);
}

static bool on_frame(struct connection *c, enum frame_type type, int flags, uint32_t stream,
                     const uint8_t *payload, size_t size)
{
    switch (type) {
    case FRAME_SETTINGS:
        if (!(flags & FLAG_ACK))
            send_frame(c, FRAME_SETTINGS, FLAG_ACK, 0, NULL, 0);
        return true;
    case FRAME_PING:
        if (!(flags & FLAG_ACK))
            send_frame(c, FRAME_PING, FLAG_ACK, 0, payload, size);
        return true;
    case FRAME_DATA:
        pthread_mutex_lock(&c->server->lock);
        c->server->body_bytes += size;
        pthread_mutex_unlock(&c->server->lock);
        return !(flags & FLAG_END_STREAM) || on_request(c, stream);
    case FRAME_HEADERS:
        return !(flags & FLAG_END_STREAM) || on_request(c, stream);
    default:
        return true;
    }
}

static bool read_frame(struct connection *c)
{
    uint8_t head[9], payload[FRAME_MAX];
    size_t size;

    if (!read_all(c, head, sizeof(head)))
        return false;
    size = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    if (size > sizeof(payload) || !read_all(c, payload, size))
        return false;
    return on_frame(c, (enum frame_type)head[3], head[4], get_number(head + 5) & 0x7fffffff,
                    payload, size);
}

static void *serve_connection(void *user)
{
    static const uint8_t window[6] = {0, 4, WINDOW >> 24 & 255, WINDOW >> 16 & 255, 0, 0};
    struct connection *c = user;
    char preface[PREFACE_SIZE];

    if (SSL_accept(c->tls) == 1) {
        pthread_mutex_lock(&c->server->lock);
        c->server->connections++;
        pthread_mutex_unlock(&c->server->lock);
        if (read_all(c, preface, sizeof(preface))) {
            send_frame(c, FRAME_SETTINGS, 0, 0, window, sizeof(window));
            send_window(c, 0, WINDOW);
            while (read_frame(c))
                ;
        }
    }
    (void)shutdown(c->fd, SHUT_RDWR);
    return NULL;
}

static void *accept_all(void *user)
{
    struct fake_http2 *server = user;
    int fd;

    while ((fd = accept(server->listen_fd, NULL, NULL)) >= 0) {
        struct connection *c = calloc(1, sizeof(*c));
        fleet_assert(c != NULL);
        *c = (struct connection){.server = server, .fd = fd, .tls = SSL_new(server->tls)};
        fleet_assert(c->tls != NULL && SSL_set_fd(c->tls, fd) == 1);
        pthread_mutex_lock(&server->lock);
        fleet_assert(server->accepted_count < CONNECTIONS_MAX);
        server->accepted[server->accepted_count++] = c;
        fleet_assert(pthread_create(&c->thread, NULL, serve_connection, c) == 0);
        if (server->is_ending)
            (void)shutdown(fd, SHUT_RDWR);
        pthread_mutex_unlock(&server->lock);
    }
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int choose_http2(SSL *tls, const unsigned char **out, unsigned char *out_size,
                        const unsigned char *in, unsigned int size, void *user)
{
    static const unsigned char protocol[] = "\x02h2";

    (void)tls;
    (void)user;
    return SSL_select_next_proto((unsigned char **)out, out_size, protocol, sizeof(protocol) - 1,
                                 in, size) == OPENSSL_NPN_NEGOTIATED
               ? SSL_TLSEXT_ERR_OK
               : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static SSL_CTX *make_tls(const char *certificate_pem, const char *key_pem)
{
    BIO *certificate_bio = BIO_new_mem_buf(certificate_pem, -1),
        *key_bio = BIO_new_mem_buf(key_pem, -1);
    X509 *certificate = PEM_read_bio_X509(certificate_bio, NULL, NULL, NULL);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(key_bio, NULL, NULL, NULL);
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());

    fleet_assert(tls != NULL && SSL_CTX_use_certificate(tls, certificate) == 1 &&
                 SSL_CTX_use_PrivateKey(tls, key) == 1);
    SSL_CTX_set_alpn_select_cb(tls, choose_http2, NULL);
    X509_free(certificate);
    EVP_PKEY_free(key);
    BIO_free(certificate_bio);
    BIO_free(key_bio);
    return tls;
}

struct fake_http2 *fake_http2_new(const char *certificate_pem, const char *key_pem,
                                  const struct fake_http2_step *steps, size_t count, int *out_port)
{
    struct fake_http2 *server = calloc(1, sizeof(*server));
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);

    fleet_assert(server != NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    server->tls = make_tls(certificate_pem, key_pem);
    server->steps = steps;
    server->step_count = count;
    pthread_mutex_init(&server->lock, NULL);
    server->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fleet_assert(bind(server->listen_fd, (struct sockaddr *)&address, size) == 0 &&
                 listen(server->listen_fd, 16) == 0 &&
                 getsockname(server->listen_fd, (struct sockaddr *)&address, &size) == 0);
    *out_port = ntohs(address.sin_port);
    fleet_assert(pthread_create(&server->thread, NULL, accept_all, server) == 0);
    return server;
}

void fake_http2_free(struct fake_http2 *server)
{
    if (!server)
        return;
    pthread_mutex_lock(&server->lock);
    server->is_ending = true;
    for (size_t i = 0; i < server->accepted_count; i++)
        (void)shutdown(server->accepted[i]->fd, SHUT_RDWR);
    pthread_mutex_unlock(&server->lock);
    (void)shutdown(server->listen_fd, SHUT_RDWR);
    (void)pthread_join(server->thread, NULL);
    for (size_t i = 0; i < server->accepted_count; i++) {
        struct connection *c = server->accepted[i];
        (void)pthread_join(c->thread, NULL);
        SSL_free(c->tls);
        (void)close(c->fd);
        free(c);
    }
    (void)close(server->listen_fd);
    SSL_CTX_free(server->tls);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

static size_t read_count(struct fake_http2 *server, const size_t *count)
{
    size_t value;

    pthread_mutex_lock(&server->lock);
    value = *count;
    pthread_mutex_unlock(&server->lock);
    return value;
}

size_t fake_http2_connections(struct fake_http2 *server)
{
    return read_count(server, &server->connections);
}

size_t fake_http2_requests(struct fake_http2 *server)
{
    return read_count(server, &server->requests);
}

size_t fake_http2_body_bytes(struct fake_http2 *server)
{
    return read_count(server, &server->body_bytes);
}
