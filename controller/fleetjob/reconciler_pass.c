/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/reconciler_pass.h"

#include <stdlib.h>

#include "controller/fleetjob/observe.h"
#include "controller/machinery/manager.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/kube/api_error.h"

#define REST_MS_PER_POD 0.02 /* pause between passes: about 30 passes long */
#define TROUBLE_TRIES   3    /* failed attempts before an Event reports them */

void reconciler_event(const struct reconciler_pass *pass, bool is_warning, const char *reason,
                      const char *text)
{
    reconciler_job_event(pass->job, pass->observation.job.metadata.resource_version, is_warning,
                         reason, text);
}

void reconciler_refuse(struct reconciler_pass *pass, const struct fleet_error *err)
{
    struct reconciler_job *job = pass->job;
    const struct reconciler *r = job->reconciler;
    int64_t generation = pass->observation.job.metadata.generation;
    double now_ms = kube_now_ms(r->io);
    bool is_news;

    if (pass->is_refused)
        return; /* one request is enough for many passes */
    pass->is_refused = true;
    is_news = refusal_note(&job->refusal, err, generation, now_ms, kube_random(r->io));
    if (!kube_is_retryable(err) || job->refusal.count >= TROUBLE_TRIES)
        reconciler_event(pass, true, WELLKNOWN_EVENT_CREATE_REFUSED, err->text);
    if (is_news)
        reconciler_job_trouble(r, "Create refused", job->key, err);
    reconciler_requeue(pass, refusal_wait_ms(&job->refusal, generation, now_ms));
}

void reconciler_requeue(struct reconciler_pass *pass, double after_ms)
{
    if (after_ms >= 0 && (pass->requeue_after_ms < 0 || after_ms < pass->requeue_after_ms))
        pass->requeue_after_ms = after_ms;
}

/* ---- requests of a pass ---------------------------------------------------------------------- */

static void on_request_done(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct reconciler_request *request = user;

    request->call = NULL;
    request->done(request, object, err);
}

void reconciler_resend(struct reconciler_request *request, const struct kube_rest_request *what,
                       void (*done)(struct reconciler_request *, const cJSON *,
                                    const struct fleet_error *))
{
    request->done = done;
    request->call =
        kube_rest_start(request->pass->job->reconciler->io, what, on_request_done, request);
}

struct reconciler_request *reconciler_send(
    struct reconciler_pass *pass, const struct kube_rest_request *what, cJSON *body, char *name,
    void (*done)(struct reconciler_request *, const cJSON *, const struct fleet_error *))
{
    struct reconciler_request *request = calloc(1, sizeof(*request));
    struct kube_rest_request full = *what;

    fleet_assert(request);
    *request = (struct reconciler_request){.next = pass->requests,
                                           .previous = &pass->requests,
                                           .pass = pass,
                                           .body = body,
                                           .name = name,
                                           .resource = what->resource};
    if (pass->requests)
        pass->requests->previous = &request->next;
    pass->requests = request;
    pass->pending++;
    full.body = body;
    reconciler_resend(request, &full, done);
    return request;
}

static void free_request(struct reconciler_request *request)
{
    *request->previous = request->next;
    if (request->next)
        request->next->previous = request->previous;
    kube_rest_cancel(&request->call);
    cJSON_Delete(request->body);
    free(request->name);
    free(request);
}

void reconciler_finish(struct reconciler_request *request, const struct fleet_error *err)
{
    struct reconciler_pass *pass = request->pass;

    if (err && kube_is_terminating(err)) {
        pass->job->is_doomed = true; /* the namespace will vanish with all its objects */
        err = NULL;
    }
    if (err && !pass->has_failed) {
        pass->has_failed = true;
        pass->err = *err;
    }
    free_request(request);
    if (--pass->pending == 0 && pass->next)
        pass->next(pass);
}

void reconciler_then(struct reconciler_pass *pass, void (*next)(struct reconciler_pass *pass))
{
    pass->next = next;
    if (pass->pending == 0)
        next(pass);
}

void reconciler_free_pass(struct reconciler_pass *pass)
{
    while (pass->requests)
        free_request(pass->requests);
    observe_release(&pass->observation);
    actions_release(&pass->actions);
    free(pass);
}

/* A thousand starting pods cause thousands of events. One pass can handle many events, and a pass
 * costs more with more pods. So big jobs pause between two passes; small jobs do not. */
static double rest_ms(const struct reconciler_pass *pass)
{
    double ms = (double)pass->observation.observed.pod_count * REST_MS_PER_POD;

    return ms >= 1 ? ms : 0;
}

void reconciler_end(struct reconciler_pass *pass)
{
    struct reconciler_job *job = pass->job;
    struct manager *manager = job->reconciler->manager;
    struct fleet_error err = pass->err;
    bool has_failed = pass->has_failed;
    double requeue_after_ms = pass->requeue_after_ms;

    job->rest_until_ms = kube_now_ms(job->reconciler->io) + rest_ms(pass);
    job->pass = NULL;
    reconciler_free_pass(pass);
    manager_done(manager, job->key, has_failed ? &err : NULL, requeue_after_ms);
}
