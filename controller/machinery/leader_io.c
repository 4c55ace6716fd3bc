/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A refused request ends like any other: its on_done runs in a later turn of the loop, so callers
 * need only one path.
 */
#include "controller/machinery/leader_io.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/kube/api_error.h"

/* A refused request whose callback is pending, because send() itself calls no callback. */
struct refusal {
    struct refusal *next, **previous;
    struct kube_call *timer; /* the caller's handle */
    char *what;
    void (*on_done)(void *user, const struct kube_response *response);
    void *user;
};

struct leader_io {
    struct kube_io io; /* first member: this is the handle that callers get */
    struct kube_io *inner;
    bool (*may_write)(void *user);
    void *user;
    struct refusal *refusals;
};

static struct leader_io *led(struct kube_io *io)
{
    return (struct leader_io *)io;
}

static void free_refusal(struct refusal *refusal)
{
    *refusal->previous = refusal->next;
    if (refusal->next)
        refusal->next->previous = refusal->previous;
    free(refusal->what);
    free(refusal);
}

static void on_refused(void *user)
{
    struct refusal *refusal = user, own = *refusal;
    struct kube_response response = {.body = "", .retry_after_ms = -1};
    struct fleet_error err;

    (void)kube_error(&err, KUBE_ERROR_NOT_LEADER, "%s: this replica does not lead any more",
                     own.what);
    response.err = &err;
    free_refusal(refusal);
    own.on_done(own.user, &response);
}

static struct kube_call *refuse(struct leader_io *l, const struct kube_request *request)
{
    struct refusal *refusal = calloc(1, sizeof(*refusal));

    fleet_assert(refusal);
    *refusal = (struct refusal){.next = l->refusals,
                                .previous = &l->refusals,
                                .what = strdup(request->path),
                                .on_done = request->on_done,
                                .user = request->user};
    fleet_assert(refusal->what);
    if (l->refusals)
        l->refusals->previous = &refusal->next;
    l->refusals = refusal;
    refusal->timer = kube_after(l->inner, 0, on_refused, refusal);
    return refusal->timer;
}

static struct kube_call *led_send(struct kube_io *io, const struct kube_request *request)
{
    struct leader_io *l = led(io);
    struct kube_request asked = *request;

    if (strcmp(request->method, "GET") == 0)
        return kube_send(l->inner, request);
    if (!l->may_write(l->user))
        return refuse(l, request);
    asked.may_leave = l->may_write; /* it may have to wait first */
    asked.may_leave_user = l->user;
    return kube_send(l->inner, &asked);
}

static void led_cancel(struct kube_io *io, struct kube_call *call)
{
    struct leader_io *l = led(io);

    for (struct refusal *r = l->refusals; r; r = r->next)
        if (r->timer == call) {
            free_refusal(r);
            break;
        }
    l->inner->ops->cancel(l->inner, call);
}

static struct kube_call *led_after(struct kube_io *io, double delay_ms, void (*on_time)(void *user),
                                   void *user)
{
    return kube_after(led(io)->inner, delay_ms, on_time, user);
}

static double led_now_ms(struct kube_io *io)
{
    return kube_now_ms(led(io)->inner);
}

static int64_t led_wall_ms(struct kube_io *io)
{
    return kube_wall_ms(led(io)->inner);
}

static uint64_t led_random(struct kube_io *io)
{
    struct kube_io *inner = led(io)->inner;

    return inner->ops->random(inner);
}

static const struct kube_io_ops led_ops = {.now_ms = led_now_ms,
                                           .wall_ms = led_wall_ms,
                                           .random = led_random,
                                           .send = led_send,
                                           .after = led_after,
                                           .cancel = led_cancel};

struct leader_io *leader_io_new(struct kube_io *inner, bool (*may_write)(void *user), void *user)
{
    struct leader_io *l = calloc(1, sizeof(*l));

    fleet_assert(l);
    *l = (struct leader_io){{&led_ops}, inner, may_write, user, NULL};
    return l;
}

void leader_io_free(struct leader_io *io)
{
    while (io && io->refusals) {
        kube_cancel(io->inner, &io->refusals->timer);
        free_refusal(io->refusals);
    }
    free(io);
}

struct kube_io *leader_io_kube(struct leader_io *io)
{
    return &io->io;
}
