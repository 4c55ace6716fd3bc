/* SPDX-License-Identifier: Apache-2.0 */

/*
 * curl must not be called from its own callbacks, and callers may do anything in theirs. So the two
 * never meet: curl's callbacks only put bytes into a call's buffer, and when curl has returned, the
 * calls that have something to say are delivered one by one (http_deliver.c), each taken off
 * the list before its callback runs.
 *
 *   send ──▶ waiting ──place free──▶ active (in curl) ──bytes, end──▶ ready ──▶ on_data, on_done
 *                          │             ▲
 *                          └─▶ parked ───┘   while a credential plug-in runs, on another thread
 */
#include "libfleet/kube/http.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/exec.h"
#include "libfleet/kube/http_internal.h"

#define IN_FLIGHT_DEFAULT 128 /* 1000 pods in 2.0 s, with 32 in 2.4 s (docs/status.md) */

/* ---- the end of things ----------------------------------------------------------------------- */

void kube_http_free_when_closed(struct kube_http *http)
{
    if (http->ending && http->open_handles == 0) {
        free(http->user_agent);
        free(http);
    }
}

void kube_http_on_closed(uv_handle_t *handle)
{
    struct kube_http *http = handle->data;

    http->open_handles--;
    kube_http_free_when_closed(http);
}

/* ---- requests -------------------------------------------------------------------------------- */

void kube_call_end_early(struct kube_call *call, CURLcode result, const char *why)
{
    call->state = KUBE_CALL_ENDED;
    call->result = result;
    (void)snprintf(call->curl_text, sizeof(call->curl_text), "%.*s",
                   (int)sizeof(call->curl_text) - 1, why);
    kube_call_make_ready(call);
    kube_http_kick(call->http);
}

static void wake_waiting(struct kube_http *http, double due_ms);

static void park(struct kube_call *call)
{
    struct kube_http *http = call->http;

    fleet_list_remove(&call->place);
    fleet_list_append(&http->parked, &call->place);
    call->state = KUBE_CALL_PARKED;
    wake_waiting(http, call->deadline_ms);
}

void kube_call_start(struct kube_call *call)
{
    struct kube_http *http = call->http;
    double now_ms = fleet_monotonic_ms();
    struct fleet_error err;

    fleet_list_remove(&call->place);
    fleet_list_append(&http->calls, &call->place);
    if (call->deadline_ms > 0 && call->deadline_ms <= now_ms) {
        kube_call_end_early(call, CURLE_OPERATION_TIMEDOUT, "timed out before it could be sent");
        return;
    }
    if (!kube_call_may_leave(call)) { /* it has waited */
        kube_call_end_early(call, CURLE_ABORTED_BY_CALLBACK, "");
        return;
    }
    if (kube_config_refresh_files(http->config, now_ms, &err) < 0) {
        kube_call_end_early(call, CURLE_LOGIN_DENIED, err.text);
        return;
    }
    if (!kube_http_has_credential(http, now_ms)) {
        park(call);
        return;
    }
    kube_call_make_easy(call, now_ms);
    call->state = KUBE_CALL_ACTIVE;
    if (curl_multi_add_handle(http->multi, call->easy) != CURLM_OK) {
        kube_call_end_early(call, CURLE_FAILED_INIT, "curl refused the request");
        return;
    }
    if (!call->request.streaming)
        http->in_flight++;
}

void kube_http_start_waiting(struct kube_http *http)
{
    while (!http->ending && http->in_flight < http->in_flight_max &&
           !fleet_list_is_empty(&http->waiting)) {
        http->waiting_count--;
        kube_call_start(FLEET_LIST_OF(http->waiting.next, struct kube_call, place));
    }
}

static void on_waiting_time(uv_timer_t *timer);

/* Make the timer of waiting calls fire at `due_ms` at the latest. */
static void wake_waiting(struct kube_http *http, double due_ms)
{
    bool is_set = uv_is_active((uv_handle_t *)&http->waiting_timer);

    if (due_ms <= 0 || (is_set && http->waiting_due_ms <= due_ms))
        return;
    http->waiting_due_ms = due_ms;
    uv_update_time(http->loop);
    (void)uv_timer_start(&http->waiting_timer, on_waiting_time,
                         (uint64_t)(fmax(due_ms - fleet_monotonic_ms(), 0) + 0.999), 0);
}

/* End the waiting calls whose deadline has passed. */
static void on_waiting_time(uv_timer_t *timer)
{
    struct kube_http *http = timer->data;
    double now_ms = fleet_monotonic_ms();
    struct fleet_list *next;

    for (struct fleet_list *p = http->parked.next; p != &http->parked; p = next) {
        struct kube_call *call = FLEET_LIST_OF(p, struct kube_call, place);
        next = p->next;
        if (call->deadline_ms > 0 && call->deadline_ms <= now_ms)
            kube_call_start(call); /* which reports the passed deadline */
        else
            wake_waiting(http, call->deadline_ms);
    }
    for (struct fleet_list *p = http->waiting.next; p != &http->waiting; p = next) {
        struct kube_call *call = FLEET_LIST_OF(p, struct kube_call, place);
        next = p->next;
        if (call->deadline_ms <= 0 || call->deadline_ms > now_ms) {
            wake_waiting(http, call->deadline_ms);
            continue;
        }
        http->waiting_count--;
        kube_call_start(call); /* which reports the passed deadline */
    }
}

static struct kube_call *http_send(struct kube_io *io, const struct kube_request *request)
{
    struct kube_http *http = (struct kube_http *)io;
    struct kube_call *call = calloc(1, sizeof(*call));

    fleet_assert(call != NULL && request->path[0] == '/' && request->on_done);
    fleet_assert(!request->streaming || request->on_data);
    call->http = http;
    call->state = KUBE_CALL_WAITING;
    call->request = *request;
    call->path = strdup(request->path);
    call->accept = strdup(request->accept ? request->accept : "application/json");
    call->content_type = request->content_type ? strdup(request->content_type) : NULL;
    if (request->content_type) {
        call->body = malloc(request->body_size + 1);
        fleet_assert(call->body != NULL);
        memcpy(call->body, request->body_size > 0 ? request->body : "", request->body_size);
    }
    call->deadline_ms = request->timeout_ms > 0 ? fleet_monotonic_ms() + request->timeout_ms : 0;
    fleet_list_init(&call->ready);
    fleet_list_append(&http->waiting, &call->place);
    if (request->streaming || request->urgent ||
        (http->in_flight < http->in_flight_max && http->waiting_count == 0)) {
        kube_call_start(call);
        return call;
    }
    http->waiting_count++;
    wake_waiting(http, call->deadline_ms);
    return call;
}

/* ---- timers, time, the rest ------------------------------------------------------------------ */

static void on_time(uv_timer_t *timer)
{
    struct kube_call *call = timer->data;
    void (*callback)(void *user) = call->on_time;
    void *user = call->on_time_user;

    kube_call_free(call);
    callback(user);
}

static struct kube_call *http_after(struct kube_io *io, double delay_ms,
                                    void (*callback)(void *user), void *user)
{
    struct kube_http *http = (struct kube_http *)io;
    struct kube_call *call = calloc(1, sizeof(*call));

    fleet_assert(call != NULL && delay_ms >= 0);
    call->http = http;
    call->state = KUBE_CALL_TIMER;
    call->on_time = callback;
    call->on_time_user = user;
    fleet_list_init(&call->ready);
    fleet_list_append(&http->calls, &call->place);
    (void)uv_timer_init(http->loop, &call->timer);
    call->timer.data = call;
    http->open_handles++;
    uv_update_time(http->loop);
    (void)uv_timer_start(&call->timer, on_time, (uint64_t)(delay_ms + 0.999), 0);
    return call;
}

static void http_cancel(struct kube_io *io, struct kube_call *call)
{
    struct kube_http *http = (struct kube_http *)io;

    if (call->state == KUBE_CALL_WAITING)
        http->waiting_count--;
    if (call->state == KUBE_CALL_ACTIVE && !call->request.streaming)
        http->in_flight--;
    kube_call_free(call);
    if (http->in_flight < http->in_flight_max && http->waiting_count > 0)
        kube_http_start_waiting(http);
}

static double http_now_ms(struct kube_io *io)
{
    (void)io;
    return fleet_monotonic_ms();
}

static int64_t http_wall_ms(struct kube_io *io)
{
    (void)io;
    return fleet_wall_ms();
}

static uint64_t http_random(struct kube_io *io)
{
    uint64_t bits;

    (void)io;
    fleet_random_bytes(&bits, sizeof(bits));
    return bits;
}

static const struct kube_io_ops http_ops = {
    .now_ms = http_now_ms,
    .wall_ms = http_wall_ms,
    .random = http_random,
    .send = http_send,
    .after = http_after,
    .cancel = http_cancel,
};

/* ---- life ------------------------------------------------------------------------------------ */

int kube_http_new(uv_loop_t *loop, struct kube_config *config,
                  const struct kube_http_options *options, struct kube_io **out,
                  struct fleet_error *err)
{
    struct kube_http *http;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return fleet_error(err, -EIO, "start curl");
    http = calloc(1, sizeof(*http));
    fleet_assert(http != NULL);
    http->io.ops = &http_ops;
    http->loop = loop;
    http->config = config;
    http->user_agent =
        strdup(options && options->user_agent ? options->user_agent : "fleetjob/" FLEET_VERSION);
    http->in_flight_max =
        options && options->in_flight_max > 0 ? options->in_flight_max : IN_FLIGHT_DEFAULT;
    http->stall_s = options && options->stall_s > 0 ? options->stall_s : KUBE_STALL_S;
    http->answered = options ? options->answered : NULL;
    http->user = options ? options->user : NULL;
    fleet_list_init(&http->waiting);
    fleet_list_init(&http->parked);
    fleet_list_init(&http->calls);
    fleet_list_init(&http->ready);
    http->multi = curl_multi_init();
    fleet_assert(http->multi != NULL);
    (void)curl_multi_setopt(http->multi, CURLMOPT_PIPELINING, CURLPIPE_MULTIPLEX);
    (void)uv_idle_init(loop, &http->kick);
    (void)uv_timer_init(loop, &http->waiting_timer);
    http->kick.data = http->waiting_timer.data = http;
    http->open_handles = 2;
    kube_http_watch(http);
    *out = &http->io;
    return 0;
}

void kube_http_free(struct kube_io *io)
{
    struct kube_http *http = (struct kube_http *)io;

    if (!http)
        return;
    fleet_assert(!http->ending);
    http->ending = true;
    while (!fleet_list_is_empty(&http->waiting))
        kube_call_free(FLEET_LIST_OF(http->waiting.next, struct kube_call, place));
    while (!fleet_list_is_empty(&http->parked))
        kube_call_free(FLEET_LIST_OF(http->parked.next, struct kube_call, place));
    if (http->plug_in)
        kube_exec_stop(http->plug_in);
    while (!fleet_list_is_empty(&http->calls))
        kube_call_free(FLEET_LIST_OF(http->calls.next, struct kube_call, place));
    (void)curl_multi_cleanup(http->multi); /* closes the sockets, and with them their watches */
    uv_close((uv_handle_t *)&http->curl_timer, kube_http_on_closed);
    uv_close((uv_handle_t *)&http->waiting_timer, kube_http_on_closed);
    uv_close((uv_handle_t *)&http->kick, kube_http_on_closed);
}

void kube_http_load(struct kube_io *io, int *out_in_flight, int *out_waiting)
{
    const struct kube_http *http = (const struct kube_http *)io;

    *out_in_flight = http->in_flight;
    *out_waiting = http->waiting_count;
}
