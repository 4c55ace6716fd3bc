/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Requests to several servers at once. Each server's request is sent, then answered:
 *
 *     TO_SEND ── connected and sent ──▶ SENT ── answered ──▶ DONE
 *        ▲                               │
 *        └── the connection has ended ───┘   with the same sequence, until the time is over
 *
 * All connections with a request are watched together: a worker that waits at one server notices
 * at once that another one was replaced and waits for this worker's gradients.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "distributed/ps/client.h"
#include "libfleet/base/clock.h"

#define RETRY_MS            20
#define MEETING_PATIENCE_MS 30000

enum state {
    IDLE,
    TO_SEND,
    SENT,
    DONE
};

struct exchange {
    struct fleet_ps *ps;
    struct ps_request *requests;
    double deadline;
    enum state state[FLEET_PS_SERVERS_MAX];
    struct fleet_error lost;    /* the last connection's end */
    struct fleet_error refused; /* the first refusal */
    int refused_by;
};

static bool is_final(int rc)
{
    return rc == -EACCES || rc == -ECONNABORTED || rc == -EPROTO || rc == -ENOMEM;
}

/* The end of a connection: the request is sent again, or `rc` if that fails likewise. */
static int lose(struct exchange *x, int at, int rc, struct fleet_error *err)
{
    struct ps_link *link = &x->ps->links[at];

    ps_link_close(link);
    x->state[at] = TO_SEND;
    if (is_final(rc) || fleet_monotonic_ms() >= x->deadline) {
        *err = x->lost;
        err->code = is_final(rc) ? rc : -ETIMEDOUT;
        return fleet_error_wrap(err, "server %d at %s, given up after %d ms", at, link->endpoint,
                                x->ps->options.timeout_ms);
    }
    return 0;
}

static int send_one(struct exchange *x, int at, struct fleet_error *err)
{
    struct ps_request *request = &x->requests[at];
    int rc = ps_link_open(x->ps, at, x->deadline, &x->lost);

    if (rc == 0)
        rc = ps_link_send(&x->ps->links[at], &request->sent, request->payload, x->deadline,
                          &x->lost);
    if (rc < 0)
        return lose(x, at, rc, err);
    x->state[at] = SENT;
    return 0;
}

static int receive_one(struct exchange *x, int at, struct fleet_error *err)
{
    struct ps_request *request = &x->requests[at];
    struct fleet_error refused = {0};
    int rc = ps_link_receive(&x->ps->links[at], request->sent.sequence, x->deadline,
                             &request->result, &request->result_bytes, &refused, &x->lost);

    if (rc < 0)
        return lose(x, at, rc, err);
    x->state[at] = DONE;
    if (refused.code < 0 && x->refused.code == 0) {
        x->refused = refused;
        x->refused_by = at;
    }
    return 0;
}

/* Wait for answers, and read them. */
static int wait_some(struct exchange *x, bool some_to_send, struct fleet_error *err)
{
    struct pollfd fds[FLEET_PS_SERVERS_MAX];
    int of[FLEET_PS_SERVERS_MAX], count = 0, rc = 0;
    double left = x->deadline - fleet_monotonic_ms();

    for (int i = 0; i < x->ps->servers; i++)
        if (x->state[i] == SENT) {
            of[count] = i;
            fds[count++] = (struct pollfd){.fd = x->ps->links[i].wire.fd, .events = POLLIN};
        }
    if (left < 0)
        left = 0;
    if (some_to_send && left > RETRY_MS)
        left = RETRY_MS;
    if (poll(fds, (nfds_t)count, left < 1e9 ? (int)left + 1 : 1000000000) < 0)
        return 0;
    for (int i = 0; rc == 0 && i < count; i++)
        if (fds[i].revents)
            rc = receive_one(x, of[i], err);
    return rc;
}

static int count_state(const struct exchange *x, enum state state, int *first)
{
    int count = 0;

    for (int i = x->ps->servers - 1; i >= 0; i--)
        if (x->state[i] == state) {
            count++;
            *first = i;
        }
    return count;
}

static int carry_out(struct exchange *x, struct fleet_error *err)
{
    int first = 0, rc = 0;

    for (;;) {
        for (int i = 0; rc == 0 && i < x->ps->servers; i++)
            if (x->state[i] == TO_SEND)
                rc = send_one(x, i, err);
        if (rc < 0 || count_state(x, TO_SEND, &first) + count_state(x, SENT, &first) == 0)
            return rc;
        rc = wait_some(x, count_state(x, TO_SEND, &first) > 0, err);
        if (rc == 0 && fleet_monotonic_ms() >= x->deadline && count_state(x, SENT, &first) > 0)
            return fleet_error(err, -ETIMEDOUT, "server %d at %s did not answer for %d ms", first,
                               x->ps->links[first].endpoint, x->ps->options.timeout_ms);
    }
}

int ps_exchange(struct fleet_ps *ps, struct ps_request *requests, int patience_ms,
                struct fleet_error *err)
{
    struct exchange x = {.ps = ps, .requests = requests};
    struct fleet_error own;
    int rc;

    (void)pthread_mutex_lock(&ps->wire);
    x.deadline = fleet_monotonic_ms() + ps->options.timeout_ms + patience_ms;
    for (int i = 0; i < ps->servers; i++) {
        if (!requests[i].is_wanted)
            continue;
        x.state[i] = TO_SEND;
        requests[i].result = NULL;
        requests[i].sent = (struct ps_header){.kind = requests[i].kind,
                                              .table = requests[i].table,
                                              .sequence = ++ps->sequence,
                                              .step = ps->step > 0 ? ps->step : 0,
                                              .bytes = requests[i].bytes,
                                              .code = requests[i].code};
    }
    rc = carry_out(&x, &own);
    if (rc == 0 && x.refused.code < 0) {
        own = x.refused;
        rc = fleet_error_wrap(&own, "server %d", x.refused_by);
    }
    for (int i = 0; i < ps->servers; i++) {
        if (x.state[i] == SENT || x.state[i] == TO_SEND) /* its answer would come later */
            ps_link_close(&ps->links[i]);
        if (x.state[i] == DONE && ps->options.mode != FLEET_PS_SYNC &&
            (requests[i].kind == PS_PUSH || requests[i].kind == PS_PUSH_DENSE))
            ps->links[i].updates++;
        if (rc < 0 && requests[i].is_wanted) {
            free(requests[i].result);
            requests[i].result = NULL;
        }
    }
    (void)pthread_mutex_unlock(&ps->wire);
    if (rc < 0 && err)
        *err = own;
    return rc;
}

int ps_ask_all(struct fleet_ps *ps, enum ps_kind kind, int table, int code, const void *payload,
               size_t bytes, struct fleet_error *err)
{
    struct ps_request *requests = calloc((size_t)ps->servers, sizeof(*requests));
    bool is_meeting = kind == PS_END || kind == PS_BARRIER;
    int rc;

    if (!requests)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int i = 0; i < (kind == PS_BARRIER ? 1 : ps->servers); i++)
        requests[i] = (struct ps_request){.is_wanted = true,
                                          .kind = kind,
                                          .table = table,
                                          .code = code,
                                          .payload = payload,
                                          .bytes = bytes};
    /* The server's own limit ends first: the server knows which worker is missing. */
    rc = ps_exchange(ps, requests, is_meeting ? MEETING_PATIENCE_MS : 0, err);
    for (int i = 0; i < ps->servers; i++)
        if (requests[i].is_wanted)
            free(requests[i].result);
    free(requests);
    return rc;
}
