/* SPDX-License-Identifier: Apache-2.0 */

/* A worker's connection to one server. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "distributed/ps/client.h"
#include "distributed/rpc/connect.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"

static const char another_secret[] =
    "it has another FLEET_WORLD_SECRET, FLEET_JOB_UID, FLEET_DATA_ENCRYPTION or list of servers";

/* ---- bytes ----------------------------------------------------------------------------------- */

static int wait_for(int fd, short events, double deadline, struct fleet_error *err)
{
    struct pollfd one = {.fd = fd, .events = events};
    double left;

    do {
        left = deadline - fleet_monotonic_ms();
        if (left <= 0)
            return fleet_error(err, -ETIMEDOUT, "no answer in time");
    } while (poll(&one, 1, left < 1e9 ? (int)left + 1 : 1000000000) <= 0);
    return 0;
}

/* A result of ps_wire_read() or ps_wire_write() that is not positive: wait, or the error. */
static int wait_or_fail(struct ps_link *link, ssize_t result, short wants, double deadline,
                        struct fleet_error *err)
{
    if (result == -EAGAIN)
        return wait_for(link->wire.fd, wants, deadline, err);
    if (result == -EACCES)
        return fleet_error(err, -EACCES, "%s", another_secret);
    return fleet_error(err, -ECONNRESET, "the connection has ended: %s",
                       result == 0 ? "the server closed it" : strerror((int)-result));
}

static int get(struct ps_link *link, void *out, size_t size, double deadline,
               struct fleet_error *err)
{
    short wants;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < size;) {
        ssize_t got = ps_wire_read(&link->wire, (uint8_t *)out + at, size - at, &wants);
        if (got > 0)
            at += (size_t)got;
        else
            rc = wait_or_fail(link, got, wants, deadline, err);
    }
    return rc;
}

/* Changes `parts`. */
static int put(struct ps_link *link, struct iovec *parts, size_t count, double deadline,
               struct fleet_error *err)
{
    short wants;
    int rc = 0;

    while (rc == 0 && count > 0) {
        ssize_t sent = parts->iov_len > 0 ? ps_wire_write(&link->wire, parts, count, &wants) : 0;
        if (parts->iov_len > 0 && sent <= 0) {
            rc = wait_or_fail(link, sent, wants, deadline, err);
            continue;
        }
        while (count > 0 && (size_t)sent >= parts->iov_len) {
            sent -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + sent;
            parts->iov_len -= (size_t)sent;
        }
    }
    return rc;
}

int ps_link_send(struct ps_link *link, const struct ps_header *header, const void *payload,
                 double deadline, struct fleet_error *err)
{
    uint8_t head[PS_HEADER_SIZE];
    struct iovec parts[2] = {{head, sizeof(head)}, {(void *)(uintptr_t)payload, header->bytes}};

    ps_header_encode(header, head);
    return put(link, parts, 2, deadline, err);
}

int ps_link_receive(struct ps_link *link, uint64_t sequence, double deadline, void **out,
                    size_t *bytes, struct fleet_error *refused, struct fleet_error *err)
{
    uint8_t head[PS_HEADER_SIZE];
    struct ps_header header;
    char *payload;
    int rc = get(link, head, sizeof(head), deadline, err);

    if (rc == 0)
        rc = ps_header_decode(head, &header, err);
    if (rc < 0)
        return rc;
    if (header.sequence != sequence || (header.kind != PS_OK && header.kind != PS_ERROR))
        return fleet_error(err, -EBADMSG, "the server sent another message than the answer");
    payload = malloc(header.bytes + 1);
    if (!payload)
        return fleet_error(err, -ENOMEM, "no memory for an answer of %zu bytes", header.bytes);
    rc = get(link, payload, header.bytes, deadline, err);
    if (rc == 0 && header.kind == PS_ERROR) {
        payload[header.bytes] = '\0';
        (void)fleet_error(refused, header.code < 0 ? header.code : -EPROTO, "%s", payload);
    }
    if (rc < 0 || header.kind == PS_ERROR) {
        free(payload);
        return rc;
    }
    *out = payload;
    *bytes = header.bytes;
    return 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int prove(struct fleet_ps *ps, struct ps_link *link, double deadline,
                 struct fleet_error *err)
{
    uint8_t theirs[PS_NONCE_SIZE], ours[PS_NONCE_SIZE + PS_PROOF_SIZE], proof[PS_PROOF_SIZE],
        expected[PS_PROOF_SIZE];
    struct iovec part = {ours, sizeof(ours)};
    int rc = get(link, theirs, sizeof(theirs), deadline, err);

    if (rc == 0 && ps->key.tls)
        rc = ps_wire_encrypt(&link->wire, ps->key.tls, false, err);
    if (rc < 0)
        return rc;
    fleet_random_bytes(ours, PS_NONCE_SIZE);
    ps_proof_make(ps->key.proof, "worker", theirs, ours, ours + PS_NONCE_SIZE);
    ps_proof_make(ps->key.proof, "server", theirs, ours, expected);
    rc = put(link, &part, 1, deadline, err);
    if (rc == 0)
        rc = get(link, proof, sizeof(proof), deadline, err);
    if (rc == 0 && !fleet_secret_equal(proof, expected, sizeof(proof)))
        rc = fleet_error(err, -EACCES, "%s", another_secret);
    return rc;
}

/* Send one frame and wait for its answer. A refusal is an error like others. */
static int ask(struct fleet_ps *ps, struct ps_link *link, struct ps_header *header,
               const void *payload, double deadline, void **out, size_t *bytes,
               struct fleet_error *err)
{
    struct fleet_error refused = {0};
    int rc;

    if (header->sequence == 0)
        header->sequence = ++ps->sequence;
    rc = ps_link_send(link, header, payload, deadline, err);
    if (rc == 0)
        rc = ps_link_receive(link, header->sequence, deadline, out, bytes, &refused, err);
    if (rc == 0 && refused.code < 0)
        rc = fleet_error(err, refused.code == -ECONNABORTED ? -ECONNABORTED : -EPROTO, "%s",
                         refused.text);
    return rc;
}

/* What the server's greeting says about this worker's place. */
static void learn(struct fleet_ps *ps, int server, const struct ps_welcome *welcome)
{
    struct ps_link *link = &ps->links[server];
    bool is_first = link->process == 0;
    int64_t lost = ps->options.mode == FLEET_PS_SYNC ? ps->step - 1 - welcome->step
                                                     : link->updates - (int64_t)welcome->updates;

    if (!is_first && link->process != welcome->process) {
        if (lost > 0)
            ps->replaced++;
        (void)fprintf(stderr,
                      "fleet_ps: server %d at %s was replaced, and begins with the state after "
                      "%lld %s; at least %lld are lost\n",
                      server, link->endpoint,
                      (long long)(ps->options.mode == FLEET_PS_SYNC ? welcome->step
                                                                    : (int64_t)welcome->updates),
                      ps->options.mode == FLEET_PS_SYNC ? "steps" : "pushes",
                      (long long)(lost > 0 ? lost : 0));
    }
    link->process = welcome->process;
    link->updates = (int64_t)welcome->updates;
    if ((int)welcome->barriers > ps->barriers && is_first)
        ps->barriers = (int)welcome->barriers;
}

static int greet(struct fleet_ps *ps, int server, double deadline, struct fleet_error *err)
{
    struct ps_link *link = &ps->links[server];
    struct ps_hello hello = {.worker = (uint32_t)ps->worker,
                             .workers = (uint32_t)ps->workers,
                             .server = (uint32_t)server,
                             .servers = (uint32_t)ps->servers,
                             .mode = (uint32_t)ps->options.mode,
                             .process = ps->process,
                             .step = ps->step};
    struct ps_header header = {.kind = PS_HELLO, .bytes = sizeof(hello)};
    struct ps_welcome welcome;
    void *answer = NULL;
    size_t bytes = 0;
    int rc = ask(ps, link, &header, &hello, deadline, &answer, &bytes, err);

    if (rc == 0 && bytes != sizeof(welcome))
        rc = fleet_error(err, -EPROTO, "its greeting has %zu bytes", bytes);
    if (rc == 0) {
        memcpy(&welcome, answer, sizeof(welcome));
        learn(ps, server, &welcome);
        if (ps->options.mode == FLEET_PS_SYNC && ps->step < 0) /* fleet_worker_start() */
            link->updates = welcome.step + (welcome.has_ended ? 1 : 0);
    }
    free(answer);
    return rc;
}

/* Tables and first values that the server may not have. */
static int send_tables(struct fleet_ps *ps, int server, double deadline, struct fleet_error *err)
{
    struct ps_link *link = &ps->links[server];
    int rc = 0;

    for (int i = 0; rc == 0 && i < FLEET_PS_TABLES_MAX; i++) {
        const struct ps_client_table *t = ps->tables[i];
        struct ps_header header = {.kind = PS_TABLE, .table = i, .bytes = PS_TABLE_BYTES};
        uint8_t spec[PS_TABLE_BYTES];
        void *answer = NULL;
        size_t bytes;
        int64_t first, count;
        if (!t)
            continue;
        ps_table_encode(&t->spec, spec);
        rc = ask(ps, link, &header, spec, deadline, &answer, &bytes, err);
        free(answer);
        if (rc < 0 || !t->first_values)
            continue;
        ps_dense_block(t->spec.length, server, ps->servers, &first, &count);
        header = (struct ps_header){
            .kind = PS_SET_DENSE, .table = i, .bytes = (size_t)count * sizeof(float)};
        answer = NULL;
        rc = ask(ps, link, &header, t->first_values + first, deadline, &answer, &bytes, err);
        free(answer);
    }
    return rc;
}

static int send_steps(struct fleet_ps *ps, struct ps_link *link, struct ps_sent *list,
                      double deadline, struct fleet_error *err)
{
    int rc = 0;

    for (; rc == 0 && list; list = list->next) {
        void *answer = NULL;
        size_t bytes;
        rc = ask(ps, link, &list->header, list->payload, deadline, &answer, &bytes, err);
        free(answer);
    }
    return rc;
}

/* Sync mode: the step before and this one. */
static int repeat_steps(struct fleet_ps *ps, struct ps_link *link, double deadline,
                        struct fleet_error *err)
{
    const struct ps_header end = {.kind = PS_END, .step = ps->step - 1, .code = 1, .bytes = 4};
    const uint32_t unused = 0;
    int rc = send_steps(ps, link, link->before, deadline, err);

    if (rc == 0 && ps->step > 0)
        rc = ps_link_send(link, &end, &unused, deadline, err);
    return rc < 0 ? rc : send_steps(ps, link, link->now, deadline, err);
}

int ps_link_open(struct fleet_ps *ps, int server, double deadline, struct fleet_error *err)
{
    struct ps_link *link = &ps->links[server];
    int one = 1, rc;

    if (link->wire.fd >= 0)
        return 0;
    rc = link->wire.fd = rpc_connect(link->endpoint, server, deadline, err);
    if (rc < 0) {
        link->wire.fd = -1;
        return rc == -EINVAL ? -EPROTO : rc;
    }
    (void)setsockopt(link->wire.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    rc = prove(ps, link, deadline, err);
    if (rc == 0)
        rc = greet(ps, server, deadline, err);
    if (rc == 0)
        rc = send_tables(ps, server, deadline, err);
    if (rc == 0 && ps->options.mode == FLEET_PS_SYNC && ps->step >= 0)
        rc = repeat_steps(ps, link, deadline, err);
    if (rc < 0)
        ps_link_close(link);
    return rc < 0 ? rc : 0;
}

void ps_link_close(struct ps_link *link)
{
    ps_wire_close(&link->wire);
}

/* ---- what was sent --------------------------------------------------------------------------- */

static void drop(struct ps_sent *list)
{
    while (list) {
        struct ps_sent *next = list->next;
        free(list->payload);
        free(list);
        list = next;
    }
}

void ps_link_keep(struct ps_link *link, const struct ps_header *header, uint8_t *payload)
{
    struct ps_sent *sent = malloc(sizeof(*sent));

    if (!sent) { /* a server that is replaced will lack it */
        free(payload);
        return;
    }
    *sent = (struct ps_sent){.header = *header, .payload = payload};
    if (!link->now)
        link->now_end = &link->now;
    *link->now_end = sent;
    link->now_end = &sent->next;
}

void ps_link_next_step(struct ps_link *link)
{
    drop(link->before);
    link->before = link->now;
    link->now = NULL;
}

void ps_link_release(struct ps_link *link)
{
    ps_link_close(link);
    drop(link->before);
    drop(link->now);
    free(link->endpoint);
}
