/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_HTTP_H
#define LIBFLEET_KUBE_HTTP_H

/*
 * The outside world on sockets: `struct kube_io` by libcurl on a libuv loop.
 *
 * All requests of a program share one multi handle: HTTP/2 where the server has it, so hundreds of
 * requests and watches travel over one connection. The loop watches curl's sockets and timers;
 * nothing blocks. The number of plain requests in flight is limited, the others wait in order.
 * Their rate is not limited.
 *
 * A plain request has two limits: the time for all of it (kube_request.timeout_ms), and the time in
 * which no byte of it moves, KUBE_STALL_S. The second one is for lists. A page of a large cluster
 * may travel for longer than 30 s, but its bytes move: an API server lets a request wait 15 s in
 * its queue, then answers. If an answer is lost between it and us, the list is asked for again
 * after 30 s, and a new leader does not wait for the whole limit. Both ends are
 * KUBE_ERROR_TIMED_OUT.
 */

#include <uv.h>

#include "libfleet/kube/io.h"

struct fleet_error;
struct kube_config;

#define KUBE_RESPONSE_MAX (64u << 20) /* bytes of one answer that is not streamed */
#define KUBE_STALL_S      30          /* seconds in which no byte of a plain request moves */

struct kube_http_options {
    const char *user_agent; /* NULL: "fleetjob/VERSION" */
    int in_flight_max;      /* plain requests at once; 0: 128 */
    int stall_s; /* a plain request without a byte for so many seconds ends; 0: KUBE_STALL_S */
    /* For metrics: a request has ended. `verb` is its method, or "WATCH"; status 0: no answer. */
    void (*answered)(void *user, const char *verb, int status);
    void *user;
};

/*
 * A world on `loop`. `config` is borrowed and kept up to date (kube_config_refresh); `options`,
 * NULL for the defaults, are copied. *out ends with kube_http_free(). -EIO: curl does not start.
 */
int kube_http_new(uv_loop_t *loop, struct kube_config *config,
                  const struct kube_http_options *options, struct kube_io **out,
                  struct fleet_error *err);

/*
 * End it: every call is cancelled, every connection closed. The memory goes when the loop has
 * turned once more: run it before closing it. NULL is fine.
 */
void kube_http_free(struct kube_io *io);

/* For metrics: requests on their way, and waiting for a free place. */
void kube_http_load(struct kube_io *io, int *out_in_flight, int *out_waiting);

#endif
