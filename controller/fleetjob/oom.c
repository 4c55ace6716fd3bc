/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/oom.h"

#include "libfleet/base/cause.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/meta.h"

#define SECOND_MS 1000 /* Kubernetes' times are whole seconds */

static const struct observed_pod *find_ended(const struct pass *pass, int member, int attempt)
{
    const struct observed_pod *newest = NULL;

    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (pod->index != member || pod->phase != OBSERVED_FAILED ||
            (attempt >= 0 && pod->attempt != attempt))
            continue;
        if (!newest || pod->attempt > newest->attempt)
            newest = pod;
    }
    return newest;
}

/* Causes of a hub that only knows that the worker is gone. */
static bool is_unexplained(enum fleet_cause cause)
{
    return cause == FLEET_CAUSE_MEMBER_LOST || cause == FLEET_CAUSE_POD_GONE;
}

bool oom_is_cause(const struct pass *pass, int member, int attempt, const char *cause,
                  int64_t since_wall_ms, int64_t until_wall_ms)
{
    const struct observed_pod *pod;

    if (fleet_cause_find(cause) == FLEET_CAUSE_OOM_KILLED)
        return true;
    if (member < 0 || !is_unexplained(fleet_cause_find(cause)))
        return false;
    pod = find_ended(pass, member, attempt);
    return pod && fleet_cause_find(pod->reason) == FLEET_CAUSE_OOM_KILLED &&
           pod->finished_wall_ms + SECOND_MS > since_wall_ms &&
           pod->finished_wall_ms <= until_wall_ms + SECOND_MS;
}

/* The memory limit of the job's pods, which may come from a LimitRange; the worker's own limit has
 * precedence. NULL = none. */
static const char *find_limit(const struct pass *pass, int member)
{
    const struct fleetjob_worker *worker = &pass->spec->worker;
    const char *limit = NULL;

    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (pod->memory_limit && pod->memory_limit[0] && (!limit || pod->index == member))
            limit = pod->memory_limit;
    }
    if (!limit && pass->in->pod_count == 0)
        (void)fleet_json_opt_string(worker->template_ ? worker->template_ : worker->resources,
                                    worker->template_ ? "spec.containers[0].resources.limits.memory"
                                                      : "limits.memory",
                                    &limit, NULL);
    return limit;
}

void oom_describe(const struct pass *pass, int member, struct fleet_strbuf *out)
{
    const char *limit = find_limit(pass, member);
    int64_t bytes;

    if (member >= 0)
        fleet_strbuf_appendf(out, "worker %d has ", member);
    else
        fleet_strbuf_append(out, "it has ");
    if (!limit)
        fleet_strbuf_append(out, "no memory limit: the node had no memory left");
    else if (kube_quantity_parse(limit, 1, &bytes, NULL) < 0)
        fleet_strbuf_appendf(out, "a memory limit of %s", limit);
    else
        fleet_strbuf_appendf(out, "a memory limit of %s (%lld bytes)", limit, (long long)bytes);
}
