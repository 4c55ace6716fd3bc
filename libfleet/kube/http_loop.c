/* SPDX-License-Identifier: Apache-2.0 */

/*
 * curl's multi socket interface on a libuv loop. curl names the sockets to watch, and when to call
 * it; the loop reports events to curl. After each turn of curl, the calls with news are delivered
 * (http.c).
 */
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/kube/http_internal.h"

struct socket_watch { /* one of curl's sockets, watched by the loop */
    uv_poll_t poll;
    struct kube_http *http;
    curl_socket_t fd;
};

static void on_socket_closed(uv_handle_t *handle)
{
    struct socket_watch *watch = handle->data;
    struct kube_http *http = watch->http;

    free(watch);
    http->open_handles--;
    kube_http_free_when_closed(http);
}

static int on_curl_wants_timer(CURLM *multi, long timeout_ms, void *user);

static void take_finished(struct kube_http *http)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(http->multi, &left))) {
        struct kube_call *call = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&call);
        call->result = message->data.result;
        call->state = KUBE_CALL_ENDED;
        if (!call->request.streaming)
            http->in_flight--;
        kube_call_make_ready(call);
    }
}

/*
 * curl asks for a timer only once. If the timer fires a fraction of a millisecond early, curl finds
 * nothing to do and does not ask again. A stream whose bytes wait inside curl would then wait
 * forever. So whenever curl has worked and no timer runs, we ask curl for its next time.
 */
static void keep_timer(struct kube_http *http)
{
    long timeout_ms = -1;

    if (http->ending || uv_is_active((uv_handle_t *)&http->curl_timer))
        return;
    if (curl_multi_timeout(http->multi, &timeout_ms) == CURLM_OK && timeout_ms >= 0)
        (void)on_curl_wants_timer(http->multi, timeout_ms, http);
}

static void let_curl_work(struct kube_http *http, curl_socket_t fd, int events)
{
    int running;

    (void)curl_multi_socket_action(http->multi, fd, events, &running);
    keep_timer(http);
    take_finished(http);
    kube_http_deliver(http);
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct socket_watch *watch = poll->data;
    int flags = 0;

    if (status < 0)
        flags = CURL_CSELECT_ERR;
    if (events & UV_READABLE)
        flags |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE)
        flags |= CURL_CSELECT_OUT;
    let_curl_work(watch->http, watch->fd, flags);
}

static int on_curl_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *socket_user)
{
    struct kube_http *http = user;
    struct socket_watch *watch = socket_user;
    int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (watch) {
            (void)uv_poll_stop(&watch->poll);
            (void)curl_multi_assign(http->multi, fd, NULL);
            uv_close((uv_handle_t *)&watch->poll, on_socket_closed);
        }
        return 0;
    }
    if (!watch) {
        watch = calloc(1, sizeof(*watch));
        fleet_assert(watch != NULL);
        watch->http = http;
        watch->fd = fd;
        if (uv_poll_init_socket(http->loop, &watch->poll, fd) < 0) {
            free(watch);
            return -1;
        }
        watch->poll.data = watch;
        http->open_handles++;
        (void)curl_multi_assign(http->multi, fd, watch);
    }
    (void)uv_poll_start(&watch->poll, events, on_socket);
    return 0;
}

static void on_curl_timer(uv_timer_t *timer)
{
    let_curl_work(timer->data, CURL_SOCKET_TIMEOUT, 0);
}

static int on_curl_wants_timer(CURLM *multi, long timeout_ms, void *user)
{
    struct kube_http *http = user;

    (void)multi;
    if (timeout_ms < 0) {
        (void)uv_timer_stop(&http->curl_timer);
    } else {
        uv_update_time(http->loop); /* the timer counts from now, not from the start of the turn */
        (void)uv_timer_start(&http->curl_timer, on_curl_timer, (uint64_t)timeout_ms, 0);
    }
    return 0;
}

void kube_http_watch(struct kube_http *http)
{
    (void)curl_multi_setopt(http->multi, CURLMOPT_SOCKETFUNCTION, on_curl_socket);
    (void)curl_multi_setopt(http->multi, CURLMOPT_SOCKETDATA, http);
    (void)curl_multi_setopt(http->multi, CURLMOPT_TIMERFUNCTION, on_curl_wants_timer);
    (void)curl_multi_setopt(http->multi, CURLMOPT_TIMERDATA, http);
    (void)uv_timer_init(http->loop, &http->curl_timer);
    http->curl_timer.data = http;
    http->open_handles++;
}
