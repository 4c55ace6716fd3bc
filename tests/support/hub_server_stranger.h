/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_HUB_SERVER_STRANGER_H
#define TESTS_SUPPORT_HUB_SERVER_STRANGER_H

/*
 * A peer of a hub's server that does as it likes: a thread with a plain OpenSSL connection, which
 * sends bytes that a member never sends, and keeps what it receives.
 */
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/hub_server_world.h"

struct stranger {
    int port;
    const char *ca_pem;
    const char *path, *token, *protocol; /* NULL: the right one */
    const char *token_job;               /* whose token; NULL: "job" */
    bool speaks_tls;
    size_t fragments, fragment_size; /* sends so many of a message after the upgrade */
    char fill;
    const char *text;    /* or this */
    int opcode;          /* 1 text, 2 binary; 0: nothing is sent */
    atomic_bool is_deaf; /* reads nothing as long as this is so */
    /* what the peer received */
    char status[32], reason[200];
    int close_code;
    double lasted_ms;
    atomic_bool is_over;
    pthread_t thread;
};

static inline int dial_port(int port, int receive_bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval patience = {.tv_sec = (time_t)(PATIENCE_MS / 1e3)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (receive_bytes > 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline bool read_exactly(SSL *ssl, void *out, size_t size)
{
    for (size_t done = 0; done < size;) {
        int got = SSL_read(ssl, (char *)out + done, (int)(size - done));
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

static inline void upgrade(struct stranger *s, SSL *ssl)
{
    char request[1024], token[FLEET_SHA256_HEX_SIZE], line[4096] = "";
    size_t length = 0;

    tell_token(first_key, s->token_job ? s->token_job : "job", token);
    (void)snprintf(request, sizeof(request),
                   "GET %s HTTP/1.1\r\nHost: fleetjob-hub\r\nUpgrade: websocket\r\n"
                   "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                   "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: %s\r\n"
                   "Authorization: Bearer %s\r\n\r\n",
                   s->path ? s->path : "/rendezvous/job",
                   s->protocol ? s->protocol : MESSAGE_PROTOCOL, s->token ? s->token : token);
    SSL_write(ssl, request, (int)strlen(request));
    while (length + 1 < sizeof(line) && !strstr(line, "\r\n\r\n") &&
           read_exactly(ssl, line + length, 1))
        line[++length] = '\0';
    (void)snprintf(s->status, sizeof(s->status), "%.3s", strlen(line) > 9 ? line + 9 : line);
}

/* A masked frame; the mask is zero, so that the payload stays as it is. */
static inline void append_frame(struct fleet_strbuf *out, int opcode, bool is_final,
                                const char *payload, size_t size)
{
    unsigned char head[14] = {(unsigned char)((is_final ? 0x80 : 0) | opcode), 0x80 | 127};

    for (int i = 0; i < 8; i++)
        head[2 + i] = (unsigned char)((uint64_t)size >> (56 - 8 * i));
    fleet_strbuf_append_bytes(out, (const char *)head, sizeof(head));
    fleet_strbuf_append_bytes(out, payload, size);
}

/* All in one write: small frames share a record of TLS. */
static inline void say(struct stranger *s, SSL *ssl)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf frames = {0};
    FLEET_AUTO_FREE char *payload = malloc(s->fragment_size + 1);

    memset(payload, s->fill, s->fragment_size);
    if (s->text)
        append_frame(&frames, s->opcode, true, s->text, strlen(s->text));
    for (size_t i = 0; i < s->fragments; i++)
        append_frame(&frames, i == 0 ? s->opcode : 0, i + 1 == s->fragments, payload,
                     s->fragment_size);
    (void)SSL_write(ssl, frames.text, (int)frames.length);
}

/* Reads until the server closes; keeps code and reason of the close frame. */
static inline void listen_to_the_end(struct stranger *s, SSL *ssl)
{
    unsigned char head[2], payload[70000];

    while (read_exactly(ssl, head, 2)) {
        size_t size = head[1] & 127;
        unsigned char more[8];
        if (size == 126 && read_exactly(ssl, more, 2))
            size = (size_t)more[0] << 8 | more[1];
        if (size > sizeof(payload) - 1 || !read_exactly(ssl, payload, size))
            return;
        payload[size] = '\0';
        if ((head[0] & 15) == 8 && size >= 2) {
            s->close_code = payload[0] << 8 | payload[1];
            (void)snprintf(s->reason, sizeof(s->reason), "%.190s", (char *)payload + 2);
        }
    }
}

static inline void *be_strange(void *user)
{
    struct stranger *s = user;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    double start_ms = fleet_monotonic_ms();
    int fd = dial_port(s->port, s->is_deaf ? 4096 : 0);
    char byte;

    if (fd >= 0 && !s->speaks_tls) {
        (void)recv(fd, &byte, 1, 0);
    } else if (fd >= 0) {
        SSL *ssl = SSL_new(context);
        SSL_set_fd(ssl, fd);
        if (SSL_connect(ssl) == 1) {
            upgrade(s, ssl);
            if (s->opcode)
                say(s, ssl);
            while (s->is_deaf)
                usleep(1000);
            if (strcmp(s->status, "101") == 0)
                listen_to_the_end(s, ssl);
        }
        SSL_free(ssl);
    }
    s->lasted_ms = fleet_monotonic_ms() - start_ms;
    if (fd >= 0)
        close(fd);
    SSL_CTX_free(context);
    atomic_store(&s->is_over, true);
    return NULL;
}

static inline void meet(struct world *world, struct stranger *s)
{
    s->port = hub_server_port(world->server);
    pthread_create(&s->thread, NULL, be_strange, s);
}

static inline void part(struct world *world, struct stranger *s)
{
    run_until(world, atomic_load(&s->is_over));
    pthread_join(s->thread, NULL);
}

#endif
