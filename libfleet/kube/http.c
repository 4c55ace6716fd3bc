/* SPDX-License-Identifier: Apache-2.0 */

/*
 * curl must not be called from its own callbacks, and callers may do anything in theirs. So the two
 * never meet: curl's callbacks only put bytes into a call's buffer, and when curl has returned, the
 * calls that have something to say are delivered one by one (`deliver`), each taken off the list
 * before its callback runs.
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
#include "libfleet/kube/api_error.h"
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

static void on_handle_closed(uv_handle_t *handle)
{
    struct kube_http *http = handle->data;

    http->open_handles--;
    kube_http_free_when_closed(http);
}

static void on_call_timer_closed(uv_handle_t *handle)
{
    struct kube_call *call = handle->data;
    struct kube_http *http = call->http;

    free(call);
    http->open_handles--;
    kube_http_free_when_closed(http);
}

/* Takes the call out of curl and of every list and frees it. */
static void call_free(struct kube_call *call)
{
    struct kube_http *http = call->http;

    fleet_list_remove(&call->place);
    fleet_list_remove(&call->ready);
    if (call->easy) {
        (void)curl_multi_remove_handle(http->multi, call->easy);
        curl_easy_cleanup(call->easy);
    }
    curl_slist_free_all(call->headers);
    curl_slist_free_all(call->dial);
    fleet_strbuf_release(&call->answer);
    free(call->path);
    free(call->content_type);
    free(call->body);
    if (call->state == KUBE_CALL_TIMER)
        uv_close((uv_handle_t *)&call->timer, on_call_timer_closed);
    else
        free(call);
}

/* ---- deliver --------------------------------------------------------------------------------- */

void kube_call_make_ready(struct kube_call *call)
{
    if (fleet_list_is_empty(&call->ready))
        fleet_list_append(&call->http->ready, &call->ready);
}

static enum kube_error kind_of(const struct kube_call *call)
{
    if (call->result == CURLE_ABORTED_BY_CALLBACK)
        return KUBE_ERROR_NOT_LEADER;
    if (call->result == CURLE_LOGIN_DENIED)
        return KUBE_ERROR_CREDENTIAL;
    if (call->body && call->body_taken == 0)
        return KUBE_ERROR_NOT_SENT; /* no byte of its body was sent */
    return call->result == CURLE_OPERATION_TIMEDOUT ? KUBE_ERROR_TIMED_OUT : KUBE_ERROR_UNREACHABLE;
}

/* curl's errors in plain words. */
static const char *why(const struct kube_call *call)
{
    switch (call->result) {
    case CURLE_SEND_FAIL_REWIND:
        return "the connection broke before the answer came";
    case CURLE_ABORTED_BY_CALLBACK:
        return "it may not be sent any more";
    default:
        return *call->curl_text ? call->curl_text : curl_easy_strerror(call->result);
    }
}

static void fill_error(const struct kube_call *call, struct fleet_error *err)
{
    const char *server = call->http->config->server;

    if (call->too_large)
        (void)kube_error(err, KUBE_ERROR_ANSWER_TOO_LARGE, "%s: the answer is over %u bytes",
                         server, KUBE_RESPONSE_MAX);
    else
        (void)kube_error(err, kind_of(call), "%s: %s", server, why(call));
}

/* The last callback of a call. The call is freed first, so that on_done may do anything. */
static void deliver_end(struct kube_call *call)
{
    struct kube_request request = call->request;
    struct kube_response response = {.retry_after_ms = -1};
    struct fleet_strbuf answer = call->answer;
    struct fleet_error err;
    curl_off_t retry_after_s = 0;
    long status = 0;

    call->answer = (struct fleet_strbuf){0};
    if (call->result != CURLE_OK) {
        fill_error(call, &err);
        response.err = &err;
        if (call->result == CURLE_PEER_FAILED_VERIFICATION)
            kube_config_doubt(call->http->config); /* the CA may have been replaced */
    } else {
        (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
        if (curl_easy_getinfo(call->easy, CURLINFO_RETRY_AFTER, &retry_after_s) == CURLE_OK &&
            retry_after_s > 0)
            response.retry_after_ms = (double)retry_after_s * 1000.0;
        response.status = (int)status;
        if (status == 401)
            kube_config_doubt(call->http->config);
    }
    response.body = fleet_strbuf_text(&answer);
    response.size = answer.length;
    if (call->http->answered)
        call->http->answered(call->http->user, request.streaming ? "WATCH" : request.method,
                             (int)status);
    call_free(call);
    request.on_done(request.user, &response);
    fleet_strbuf_release(&answer);
}

static void deliver_data(struct kube_call *call)
{
    struct kube_request *request = &call->request;
    struct fleet_strbuf piece = call->answer;

    call->answer = (struct fleet_strbuf){0};
    if (call->state == KUBE_CALL_ENDED) /* its end is delivered in a later turn */
        kube_call_make_ready(call);
    request->on_data(request->user, piece.text, piece.length); /* may free the call */
    fleet_strbuf_release(&piece);
}

bool kube_call_may_leave(const struct kube_call *call)
{
    return !call->request.may_leave || call->request.may_leave(call->request.may_leave_user);
}

bool kube_call_is_success(const struct kube_call *call)
{
    long status = 0;

    if (call->easy)
        (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    return status >= 200 && status < 300;
}

static void on_kick(uv_idle_t *kick)
{
    struct kube_http *http = kick->data;

    (void)uv_idle_stop(kick);
    kube_http_deliver(http);
}

static void kick(struct kube_http *http)
{
    if (!fleet_list_is_empty(&http->ready) && !http->ending)
        (void)uv_idle_start(&http->kick, on_kick);
}

static void start_waiting(struct kube_http *http);

/* Callbacks may add to the list. Their additions wait for the next turn. */
void kube_http_deliver(struct kube_http *http)
{
    struct fleet_list batch;

    fleet_list_init(&batch);
    while (!fleet_list_is_empty(&http->ready)) {
        struct fleet_list *entry = http->ready.next;
        fleet_list_remove(entry);
        fleet_list_append(&batch, entry);
    }
    while (!fleet_list_is_empty(&batch)) {
        struct kube_call *call = FLEET_LIST_OF(batch.next, struct kube_call, ready);
        fleet_list_remove(&call->ready);
        if (call->request.streaming && call->answer.length > 0 && kube_call_is_success(call))
            deliver_data(call);
        else if (call->state == KUBE_CALL_ENDED)
            deliver_end(call);
    }
    start_waiting(http);
    kick(http);
}

/* ---- requests -------------------------------------------------------------------------------- */

void kube_call_end_early(struct kube_call *call, CURLcode result, const char *why)
{
    call->state = KUBE_CALL_ENDED;
    call->result = result;
    snprintf(call->curl_text, sizeof(call->curl_text), "%s", why);
    kube_call_make_ready(call);
    kick(call->http);
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

static void start_waiting(struct kube_http *http)
{
    while (!http->ending && http->in_flight < http->in_flight_max &&
           !fleet_list_is_empty(&http->waiting)) {
        http->waiting_count--;
        kube_call_start(FLEET_LIST_OF(http->waiting.next, struct kube_call, place));
    }
}

static void on_waiting_time(uv_timer_t *timer);

/* Let the timer of waiting calls end at `due_ms` at the latest. */
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
            kube_call_start(call); /* which says that it is too late */
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
        kube_call_start(call); /* which says that it is too late */
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

    call_free(call);
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
    call_free(call);
    if (http->in_flight < http->in_flight_max && http->waiting_count > 0)
        start_waiting(http);
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
        call_free(FLEET_LIST_OF(http->waiting.next, struct kube_call, place));
    while (!fleet_list_is_empty(&http->parked))
        call_free(FLEET_LIST_OF(http->parked.next, struct kube_call, place));
    if (http->plug_in)
        kube_exec_stop(http->plug_in);
    while (!fleet_list_is_empty(&http->calls))
        call_free(FLEET_LIST_OF(http->calls.next, struct kube_call, place));
    (void)curl_multi_cleanup(http->multi); /* closes the sockets, and with them their watches */
    uv_close((uv_handle_t *)&http->curl_timer, on_handle_closed);
    uv_close((uv_handle_t *)&http->waiting_timer, on_handle_closed);
    uv_close((uv_handle_t *)&http->kick, on_handle_closed);
}

void kube_http_load(struct kube_io *io, int *out_in_flight, int *out_waiting)
{
    const struct kube_http *http = (const struct kube_http *)io;

    *out_in_flight = http->in_flight;
    *out_waiting = http->waiting_count;
}
