/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The credential plug-in of a client. It runs on another thread, one run at a time. Calls that need
 * its credential are parked until it has answered.
 */
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/kube/exec.h"
#include "libfleet/kube/http_internal.h"

#define PLUG_IN_RETRY_MS 10000.0 /* pause after a failure, while the credential is still valid */

static void run_plug_in(uv_work_t *work)
{
    kube_exec_perform(((struct kube_http *)work->data)->plug_in);
}

/* Resume the parked calls, or end them with the plug-in's error. */
static void release_parked(struct kube_http *http, const struct fleet_error *err)
{
    struct fleet_list batch;

    fleet_list_init(&batch);
    while (!fleet_list_is_empty(&http->parked)) {
        struct fleet_list *entry = http->parked.next;
        fleet_list_remove(entry);
        fleet_list_append(&batch, entry);
    }
    while (!fleet_list_is_empty(&batch)) {
        struct kube_call *call = FLEET_LIST_OF(batch.next, struct kube_call, place);
        fleet_list_remove(&call->place);
        fleet_list_append(&http->calls, &call->place);
        if (err)
            kube_call_end_early(call, CURLE_LOGIN_DENIED, err->text);
        else
            kube_call_start(call);
    }
}

static void on_plug_in_ended(uv_work_t *work, int status)
{
    struct kube_http *http = work->data;
    struct fleet_error err;
    int rc = 0;

    (void)status;
    if (!http->ending)
        rc = kube_exec_take(http->plug_in, http->config, &err);
    kube_exec_free(http->plug_in);
    http->plug_in = NULL;
    http->open_handles--;
    if (http->ending) {
        kube_http_free_when_closed(http);
        return;
    }
    http->plug_in_retry_ms = rc < 0 ? fleet_monotonic_ms() + PLUG_IN_RETRY_MS : 0;
    http->has_news = true; /* parked calls use it, even if it has already expired */
    release_parked(http, rc < 0 ? &err : NULL);
    http->has_news = false;
}

static void start_plug_in(struct kube_http *http)
{
    http->plug_in = kube_exec_prepare(http->config);
    http->plug_in_work.data = http;
    http->open_handles++;
    (void)uv_queue_work(http->loop, &http->plug_in_work, run_plug_in, on_plug_in_ended);
}

bool kube_http_has_credential(struct kube_http *http, double now_ms)
{
    bool is_urgent;

    if (http->has_news || !kube_exec_is_due(http->config, kube_wall_ms(&http->io), &is_urgent))
        return true;
    if (!http->plug_in && (is_urgent || now_ms >= http->plug_in_retry_ms))
        start_plug_in(http);
    return !is_urgent;
}
