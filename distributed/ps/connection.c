/* SPDX-License-Identifier: Apache-2.0 */

/* A worker's connection, as the server sees it. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "distributed/ps/server_internal.h"
#include "libfleet/base/digest.h"

#define KEEP_BYTES ((size_t)1 << 20) /* a larger payload's memory is given back */

void ps_connection_free(struct ps_connection *c)
{
    ps_wire_close(&c->wire);
    free(c->payload);
    fleet_strbuf_release(&c->out);
    free(c);
}

/* Make room for one more: give up a connection that has proved nothing. */
static bool have_room(struct fleet_server *s)
{
    if (s->connection_count < s->connections_max)
        return true;
    for (int i = 0; i < s->connection_count; i++)
        if (s->connections[i]->state == PS_UNPROVEN) {
            s->connections[i]->is_broken = true;
            break;
        }
    return false; /* the next one finds it */
}

/* A few bytes in the clear, on a connection that has sent next to nothing before. */
static bool send_raw(const struct ps_connection *c, const void *bytes, size_t size)
{
    return send(c->wire.fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

void ps_connection_accept(struct fleet_server *server)
{
    int one = 1, fd;

    while ((fd = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct ps_connection *c = have_room(server) ? calloc(1, sizeof(*c)) : NULL;
        if (!c) {
            (void)close(fd);
            continue;
        }
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        c->wire.fd = fd;
        c->worker = -1;
        fleet_random_bytes(c->nonce, sizeof(c->nonce));
        c->is_broken = !send_raw(c, c->nonce, sizeof(c->nonce));
        if (server->key.tls && ps_wire_encrypt(&c->wire, server->key.tls, true, NULL) < 0)
            c->is_broken = true;
        server->connections[server->connection_count++] = c;
    }
}

void ps_connection_write(struct ps_connection *c)
{
    while (!c->is_broken && c->out_at < c->out.length) {
        const struct iovec rest = {c->out.text + c->out_at, c->out.length - c->out_at};
        short wants;
        ssize_t sent = ps_wire_write(&c->wire, &rest, 1, &wants);
        if (sent > 0)
            c->out_at += (size_t)sent;
        else if (sent == -EAGAIN)
            return;
        else
            c->is_broken = true;
    }
    c->out_at = 0;
    if (c->out.capacity > KEEP_BYTES)
        fleet_strbuf_release(&c->out);
    else
        fleet_strbuf_clear(&c->out);
}

void *ps_answer_room(struct ps_connection *c, uint64_t sequence, size_t bytes)
{
    struct ps_header header = {.kind = PS_OK, .sequence = sequence, .bytes = bytes};
    uint8_t head[PS_HEADER_SIZE];
    void *room;

    ps_header_encode(&header, head);
    fleet_strbuf_append_bytes(&c->out, head, sizeof(head));
    fleet_strbuf_reserve(&c->out, bytes);
    room = c->out.text + c->out.length;
    c->out.length += bytes;
    c->out.text[c->out.length] = '\0';
    return room;
}

void ps_answer(struct ps_connection *c, uint64_t sequence, const void *data, size_t bytes)
{
    void *room;

    if (!c || c->is_broken)
        return;
    room = ps_answer_room(c, sequence, bytes);
    if (bytes > 0)
        memcpy(room, data, bytes);
    ps_connection_write(c);
}

void ps_answer_error(struct ps_connection *c, uint64_t sequence, const struct fleet_error *err)
{
    struct ps_header header = {
        .kind = PS_ERROR, .sequence = sequence, .code = err->code, .bytes = strlen(err->text)};
    uint8_t head[PS_HEADER_SIZE];

    if (!c || c->is_broken)
        return;
    ps_header_encode(&header, head);
    fleet_strbuf_append_bytes(&c->out, head, sizeof(head));
    fleet_strbuf_append_bytes(&c->out, err->text, header.bytes);
    ps_connection_write(c);
}

/* Fill `to` up to `size`. 1: it is full, 0: not yet, -1: the connection has ended. */
static int fill(struct ps_connection *c, void *to, size_t *used, size_t size)
{
    uint8_t wrong[PS_PROOF_SIZE];
    short wants;

    while (*used < size) {
        ssize_t got = ps_wire_read(&c->wire, (uint8_t *)to + *used, size - *used, &wants);
        if (got > 0)
            *used += (size_t)got;
        else if (got == -EAGAIN)
            return 0;
        else if (got != -EACCES)
            return -1;
        if (got != -EACCES)
            continue;
        fleet_random_bytes(wrong, sizeof(wrong)); /* so that a worker without TLS knows, too */
        (void)send_raw(c, wrong, sizeof(wrong));
        return -1;
    }
    return 1;
}

/* The worker's proof has come. */
static bool prove(struct fleet_server *s, struct ps_connection *c)
{
    uint8_t proof[PS_PROOF_SIZE];

    ps_proof_make(s->key.proof, "worker", c->nonce, c->head, proof);
    if (!fleet_secret_equal(proof, c->head + PS_NONCE_SIZE, sizeof(proof))) {
        fleet_random_bytes(proof, sizeof(proof)); /* so that the worker knows why it ends */
        fleet_strbuf_append_bytes(&c->out, proof, sizeof(proof));
        ps_connection_write(c);
        return false;
    }
    ps_proof_make(s->key.proof, "server", c->nonce, c->head, proof);
    fleet_strbuf_append_bytes(&c->out, proof, sizeof(proof));
    ps_connection_write(c);
    c->state = PS_PROVEN;
    c->head_used = 0;
    return true;
}

/* A header has come: make room for the payload. */
static bool begin_payload(struct ps_connection *c)
{
    uint8_t *payload;

    if (ps_header_decode(c->head, &c->header, NULL) < 0)
        return false;
    c->payload_used = 0;
    if (c->payload && c->header.bytes <= c->payload_room && c->payload_room <= KEEP_BYTES)
        return true;
    free(c->payload);
    payload = malloc(c->header.bytes + 1);
    c->payload = payload;
    c->payload_room = payload ? c->header.bytes : 0;
    return payload != NULL;
}

/* One piece: a proof, a header or a payload. 1: go on, 0: wait for bytes or a step, -1: broken. */
static int read_piece(struct fleet_server *s, struct ps_connection *c)
{
    size_t head = c->state == PS_UNPROVEN ? sizeof(c->head) : PS_HEADER_SIZE;
    int rc;

    if (c->head_used < head) {
        rc = fill(c, c->head, &c->head_used, head);
        if (rc == 1 && c->state == PS_UNPROVEN)
            return prove(s, c) ? 1 : -1;
        if (rc == 1 && !begin_payload(c))
            return -1;
        if (rc != 1)
            return rc;
    }
    rc = fill(c, c->payload, &c->payload_used, c->header.bytes);
    if (rc != 1)
        return rc;
    if (!ps_serve(s, c)) {
        c->is_parked = true;
        return 0;
    }
    c->head_used = 0;
    return 1;
}

void ps_connection_read(struct fleet_server *server, struct ps_connection *c)
{
    int rc = 1;

    while (rc == 1 && !c->is_broken && !c->is_parked)
        rc = read_piece(server, c);
    if (rc < 0)
        c->is_broken = true;
}

void ps_connection_resume(struct fleet_server *server, struct ps_connection *c)
{
    if (!c->is_parked || c->is_broken)
        return;
    c->is_parked = false;
    ps_connection_read(server, c);
}
