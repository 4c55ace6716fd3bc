/* SPDX-License-Identifier: Apache-2.0 */

/* What calls have to say, to their owners: see http.c. */
#include <stdlib.h>

#include "libfleet/base/error.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"
#include "libfleet/kube/http_internal.h"

static void on_call_timer_closed(uv_handle_t *handle)
{
    struct kube_call *call = handle->data;
    struct kube_http *http = call->http;

    free(call);
    http->open_handles--;
    kube_http_free_when_closed(http);
}

void kube_call_free(struct kube_call *call)
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
    free(call->accept);
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
    kube_call_free(call);
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

void kube_http_kick(struct kube_http *http)
{
    if (!fleet_list_is_empty(&http->ready) && !http->ending)
        (void)uv_idle_start(&http->kick, on_kick);
}

/* Callbacks may add to the list. Those calls wait for the next turn. */
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
    kube_http_start_waiting(http);
    kube_http_kick(http);
}
