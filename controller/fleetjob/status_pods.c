/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status_pods.h"

#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/pod_cause.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"

#define WAITING_MS 10000 /* a pod that takes longer to start may need help */
#define GONE_MS    15000 /* so long after its grace the node of a deleted pod does not answer */

/* If the job is over, ended pods count even if they have been deleted since. */
static int64_t at_least(const struct pass *pass, int64_t now, int64_t before)
{
    return status_is_terminal(pass->before) && pass->before->has_workers && before > now ? before
                                                                                         : now;
}

void status_count_workers(struct pass *pass)
{
    struct fleetjob_workers *workers = &pass->status->workers;
    const struct hub_view *hub = &pass->in->hub;
    FLEET_AUTO_STRBUF struct fleet_strbuf selector = {0};
    int64_t succeeded = 0, failed = 0;

    for (size_t i = 0; i < pass->in->pod_count; i++) {
        succeeded += pass->in->pods[i].phase == OBSERVED_SUCCEEDED;
        failed += pass->in->pods[i].phase == OBSERVED_FAILED;
    }
    pass->status->has_workers = true;
    workers->desired = pass->desired;
    workers->active = pass->active;
    if (hub->is_hosted && !hub->is_learning && !hub->is_superseded) {
        workers->ready = hub->ready; /* otherwise the recorded counts are the best information */
        workers->spares = hub->spares;
    }
    if (workers->ready > workers->active)
        workers->ready = workers->active;
    if (workers->spares > workers->ready)
        workers->spares = workers->ready;
    workers->succeeded = at_least(pass, succeeded, pass->before->workers.succeeded);
    workers->failed = at_least(pass, failed, pass->before->workers.failed);
    fleet_strbuf_appendf(&selector, "%s=%s", WELLKNOWN_LABEL_JOB, pass->in->job->metadata.name);
    if (pass->spec->has_server) /* autoscalers count no servers */
        fleet_strbuf_append(&selector, "," WELLKNOWN_LABEL_INDEX);
    free(workers->selector);
    workers->selector = fleet_strbuf_take(&selector);
}

/* Among the pods with a node, or without one: the first with a cause, preferably a cause with a
 * count. */
static const struct observed_pod *find_waiting(const struct pass *pass, bool is_scheduled)
{
    const struct observed_pod *first = NULL;

    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (!pass_is_living(pod) || pod->is_deleting || pod->is_scheduled != is_scheduled ||
            !pod->waiting || !pod->waiting[0])
            continue;
        if (!first || (pod->counts_nodes && !first->counts_nodes) ||
            (pod->counts_nodes == first->counts_nodes && pod->index < first->index))
            first = pod;
    }
    return first;
}

void status_observe_scheduled(struct pass *pass)
{
    int unscheduled = pass->desired - pass->active;
    const struct observed_pod *waiting = find_waiting(pass, false);
    const char *why = pass->in->refusal ? pass->in->refusal : waiting ? waiting->waiting : "";
    const char *reason = WELLKNOWN_REASON_PODS_SCHEDULED;
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};

    if (pass->spec->run_policy.suspend || pass->status->workers.succeeded > 0 ||
        !status_is_true(pass->status, WELLKNOWN_CONDITION_ACCEPTED))
        return;
    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        unscheduled += pass_is_living(pod) && !pod->is_deleting && !pod->is_scheduled;
    }
    if (unscheduled > 0) {
        reason =
            pass->in->refusal ? WELLKNOWN_REASON_CREATE_REFUSED : WELLKNOWN_REASON_PODS_PENDING;
        fleet_strbuf_appendf(&message, "%d of %d workers have no node yet%s%s", unscheduled,
                             pass->desired, why[0] ? ": " : "", why);
    } else {
        fleet_strbuf_appendf(&message, "%d of %d workers have a node", pass->desired,
                             pass->desired);
    }
    (void)status_set(pass, WELLKNOWN_CONDITION_SCHEDULED, unscheduled <= 0, reason, message.text);
}

/* Has a pod taken too long to start? It may wait for an image or a volume indefinitely. */
void status_report_waiting(struct pass *pass, struct fleet_strbuf *out)
{
    const struct observed_pod *waiting = find_waiting(pass, true);

    if (!waiting || waiting->created_wall_ms == 0)
        return;
    if (pass->now < waiting->created_wall_ms + WAITING_MS)
        pass_requeue_at(pass, waiting->created_wall_ms + WAITING_MS);
    else
        fleet_strbuf_appendf(out, "; pod %s waits: %s", waiting->name, waiting->waiting);
}

/* ---- what keeps a pod from starting --------------------------------------------------------- */

/* The pod whose cause is reported: preferably one without a node and with the scheduler's count. */
static const struct observed_pod *find_blocked(const struct pass *pass)
{
    const struct observed_pod *best = NULL;

    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (!pass_is_living(pod) || pod->is_deleting || !pod->cause ||
            !pod_cause_blocks(pod->cause))
            continue;
        if (!best || (best->is_scheduled && !pod->is_scheduled) ||
            (best->is_scheduled == pod->is_scheduled && pod->counts_nodes && !best->counts_nodes) ||
            (best->is_scheduled == pod->is_scheduled && pod->counts_nodes == best->counts_nodes &&
             pod->index < best->index))
            best = pod;
    }
    for (size_t i = 0; i < pass->in->server_count && !best; i++) {
        const struct observed_pod *pod = &pass->in->servers[i];
        if (pass_is_living(pod) && !pod->is_deleting && pod_cause_blocks(pod->cause))
            best = pod;
    }
    return best;
}

static bool is_server(const struct pass *pass, const struct observed_pod *pod)
{
    for (size_t i = 0; i < pass->in->server_count; i++)
        if (pod == &pass->in->servers[i])
            return true;
    return false;
}

const char *status_pod_cause(const struct pass *pass)
{
    const struct observed_pod *pod = find_blocked(pass);

    if (pod)
        return pod->cause;
    for (size_t i = 0; i < pass->in->pod_count; i++)
        if (pass_is_living(&pass->in->pods[i]) && pass->in->pods[i].cause &&
            pass->in->pods[i].cause[0])
            return pass->in->pods[i].cause;
    return "";
}

static bool is_reported(const struct pass *pass, const char *cause)
{
    return status_is_true(pass->status, WELLKNOWN_CONDITION_BLOCKED) &&
           status_has_reason(pass->status, WELLKNOWN_CONDITION_BLOCKED, cause);
}

/* A server whose pod was deleted and does not go. Its replacement has the same name. */
static const struct observed_pod *find_lasting(struct pass *pass)
{
    for (size_t i = 0; i < pass->in->server_count; i++) {
        const struct observed_pod *pod = &pass->in->servers[i];
        if (!pod->is_deleting || pod->gone_by_wall_ms == 0 || !pod->is_scheduled)
            continue;
        if (pass->now >= pod->gone_by_wall_ms + GONE_MS)
            return pod;
        pass_requeue_at(pass, pod->gone_by_wall_ms + GONE_MS);
    }
    return NULL;
}

static void report_lasting(struct pass *pass, const struct observed_pod *pod)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool is_new = !is_reported(pass, WELLKNOWN_REASON_SERVER_NOT_GONE);

    fleet_strbuf_appendf(&text,
                         "server %d waits for its old pod, which was deleted and is still there: "
                         "node %s does not answer. Bring the node back. Or, if it is off for good: "
                         "kubectl delete pod %s --force --grace-period=0",
                         pod->index, pod->node, pod->name);
    (void)status_set(pass, WELLKNOWN_CONDITION_BLOCKED, true, WELLKNOWN_REASON_SERVER_NOT_GONE,
                     text.text);
    if (is_new)
        pass_event(pass, true, WELLKNOWN_REASON_SERVER_NOT_GONE, "S%s", text.text + 1);
}

void status_observe_blocked(struct pass *pass)
{
    const struct observed_pod *pod = find_blocked(pass), *lasting = find_lasting(pass);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool is_new;

    if (lasting && !pass->spec->run_policy.suspend) {
        report_lasting(pass, lasting);
        return;
    }
    if (!pod || pass->spec->run_policy.suspend) {
        if (!pass->in->asks_why || pass->spec->run_policy.suspend)
            (void)status_clear(pass, WELLKNOWN_CONDITION_BLOCKED, WELLKNOWN_REASON_UNBLOCKED,
                               "nothing keeps a worker from starting");
        return;
    }
    is_new = !is_reported(pass, pod->cause);
    if (is_new && pod->created_wall_ms > 0 && pass->now < pod->created_wall_ms + WAITING_MS) {
        pass_requeue_at(pass, pod->created_wall_ms + WAITING_MS);
        return;
    }
    fleet_strbuf_appendf(&text, "%s %d %s: %s", is_server(pass, pod) ? "server" : "worker",
                         pod->index, pod->is_scheduled ? "cannot start" : "finds no node",
                         pod->waiting);
    (void)status_set(pass, WELLKNOWN_CONDITION_BLOCKED, true, pod->cause, text.text);
    if (is_new)
        pass_event(pass, true, pod->cause, "W%s", text.text + 1);
}
