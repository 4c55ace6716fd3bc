/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_IO_H
#define LIBFLEET_KUBE_IO_H

/*
 * What a client of the API server needs from outside: requests, timers, time, randomness.
 *
 * All of it comes in through one table of functions, so that the same reflectors, queues and
 * elections run on sockets (http.h) and, from a seed, in a simulation.
 *
 * Rules for implementations and callers:
 *  (1) One thread. No callback runs inside send, after or cancel: only when the loop turns.
 *  (2) A call ends with its on_done, or with cancel; then its handle is dead. After cancel none of
 *      its callbacks runs. Any callback may cancel any call, its own too, and start new ones.
 *  (3) send copies the data of a request that it needs afterwards.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_error;
struct kube_call; /* a request or timer on its way; its content belongs to the implementation */
struct kube_io;

/* An answer, or why there is none. Borrowed for the call of on_done. */
struct kube_response {
    int status;       /* HTTP status; 0 when `err` is set */
    const char *body; /* [size], followed by a NUL; of a streaming request only if status >= 300 */
    size_t size;      /* bytes */
    double retry_after_ms;         /* what the server asked for; -1: nothing */
    const struct fleet_error *err; /* no complete answer: kube_is_unreachable(); else NULL */
};

struct kube_request {
    const char *method;       /* "GET", … */
    const char *path;         /* with query, as it goes over the wire: "/api/v1/pods?limit=500" */
    const char *accept;       /* forms of the answer; NULL: "application/json" */
    const char *content_type; /* of the body; NULL: there is none */
    const void *body;
    size_t body_size;
    double timeout_ms; /* for all of it, waiting for a free place included; 0: none */
    bool streaming;    /* the body goes to on_data as it comes; does not count as in flight */
    bool urgent;       /* does not wait behind the cap on requests in flight: lease renewal */
    /* Called each time before the request leaves, also after a wait. False ends the request with
     * KUBE_ERROR_NOT_LEADER. NULL: it may always leave. */
    bool (*may_leave)(void *user);
    void *may_leave_user;
    /* streaming only: bytes of an answer with status 2xx */
    void (*on_data)(void *user, const void *bytes, size_t size);
    void (*on_done)(void *user, const struct kube_response *response);
    void *user;
};

struct kube_io_ops {
    /* Milliseconds of a clock that never goes back, and of the wall clock since 1970. */
    double (*now_ms)(struct kube_io *io);
    int64_t (*wall_ms)(struct kube_io *io);

    /* 64 random bits. */
    uint64_t (*random)(struct kube_io *io);

    /* Start a request. Never fails: an error goes to on_done. */
    struct kube_call *(*send)(struct kube_io *io, const struct kube_request *request);

    /* Call on_time once, `delay_ms` (>= 0) from now. */
    struct kube_call *(*after)(struct kube_io *io, double delay_ms, void (*on_time)(void *user),
                               void *user);

    /* Forget a call. NULL is fine. */
    void (*cancel)(struct kube_io *io, struct kube_call *call);
};

struct kube_io { /* the head of an implementation's own struct */
    const struct kube_io_ops *ops;
};

/* Calls of the slots above. */
static inline double kube_now_ms(struct kube_io *io)
{
    return io->ops->now_ms(io);
}

static inline int64_t kube_wall_ms(struct kube_io *io)
{
    return io->ops->wall_ms(io);
}

/* Uniform in [0, 1). */
static inline double kube_random(struct kube_io *io)
{
    return (double)(io->ops->random(io) >> 11) / 9007199254740992.0;
}

static inline struct kube_call *kube_send(struct kube_io *io, const struct kube_request *request)
{
    return io->ops->send(io, request);
}

static inline struct kube_call *kube_after(struct kube_io *io, double delay_ms,
                                           void (*on_time)(void *user), void *user)
{
    return io->ops->after(io, delay_ms, on_time, user);
}

/* Cancel *call, if there is one, and forget it. */
static inline void kube_cancel(struct kube_io *io, struct kube_call **call)
{
    if (*call)
        io->ops->cancel(io, *call);
    *call = NULL;
}

#endif
