/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Compares the memory that a worker needs according to the plan with the limit of its pod. A
 * refusal here costs one line of text. Otherwise the kernel kills the container at step 3 for lack
 * of memory, and again after each restart.
 */
#include "libfleet/api/memory_limit.h"

#include <errno.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"
#include "libfleet/plan/gpu_memory.h"

static int64_t process_bytes(const struct fleetjob *job)
{
    return (job->spec.worker.processes_per_pod + 1) * MEMORY_LIMIT_PROCESS_BYTES; /* the agent */
}

const char *memory_limit_variable(const struct fleetjob *job, const char *name)
{
    const cJSON *variable,
        *env = job->spec.worker.template_
                   ? fleet_json_at(job->spec.worker.template_, "spec.containers[0].env")
                   : NULL;

    cJSON_ArrayForEach(variable, env)
    {
        const char *set = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(variable, "name"));
        const char *value =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(variable, "value"));
        if (set && value && strcmp(set, name) == 0)
            return value;
    }
    return NULL;
}

bool memory_limit_is_on_gpu(const struct fleetjob *job)
{
    const char *backend = memory_limit_variable(job, "FLEET_BACKEND");

    return backend && strcmp(backend, "cuda") == 0;
}

int64_t memory_limit_needed(const struct fleetjob *job, const struct plan *plan)
{
    struct gpu_memory gpu;

    if (plan->has_program && memory_limit_is_on_gpu(job)) {
        gpu_memory_plan(plan, &gpu);
        return job->spec.worker.processes_per_pod * (int64_t)gpu.host + process_bytes(job);
    }
    return job->spec.worker.processes_per_pod * (int64_t)plan_bytes_total(plan) +
           (int64_t)plan->snapshot_bytes + process_bytes(job);
}

static void append_part(struct fleet_strbuf *out, const char *name, double bytes, bool *is_first)
{
    if (bytes <= 0)
        return;
    fleet_strbuf_appendf(out, "%s%s ", *is_first ? "" : ", ", name);
    fleet_strbuf_append_size(out, bytes);
    *is_first = false;
}

void memory_limit_explain(const struct fleetjob *job, const struct plan *plan,
                          struct fleet_strbuf *out)
{
    int64_t processes = job->spec.worker.processes_per_pod;
    struct gpu_memory gpu;
    bool is_first = true;

    fleet_strbuf_append_size(out, (double)memory_limit_needed(job, plan));
    fleet_strbuf_append(out, " (");
    if (plan->has_program && memory_limit_is_on_gpu(job)) {
        gpu_memory_plan(plan, &gpu);
        append_part(out, "beside the GPUs", (double)processes * (double)gpu.host, &is_first);
        append_part(out, "the processes", (double)process_bytes(job), &is_first);
        fleet_strbuf_append_char(out, ')');
        return;
    }
    if (processes > 1)
        fleet_strbuf_appendf(out, "%lld trainers, each ", (long long)processes);
    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++)
        append_part(out, plan_bytes_name((enum plan_bytes)kind), (double)plan->bytes[kind],
                    &is_first);
    if (processes > 1) {
        fleet_strbuf_append(out, "; besides ");
        is_first = true;
    }
    append_part(out, "a checkpoint being written", (double)plan->snapshot_bytes, &is_first);
    append_part(out, "the processes", (double)process_bytes(job), &is_first);
    fleet_strbuf_append_char(out, ')');
}

/* The worker's limit of `resource`, NULL if it has none. */
static const cJSON *limit_of(const struct fleetjob *job, const char *resource)
{
    const struct fleetjob_worker *worker = &job->spec.worker;
    const cJSON *limits =
        worker->template_ ? fleet_json_at(worker->template_, "spec.containers[0].resources.limits")
                          : fleet_json_at(worker->resources, "limits");
    const cJSON *limit = cJSON_GetObjectItemCaseSensitive(limits, resource);

    return cJSON_IsNull(limit) ? NULL : limit;
}

static int parse_quantity(const cJSON *item, int64_t scale, int64_t *out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (cJSON_IsNumber(item))
        fleet_json_append_number(&text, item->valuedouble);
    else if (cJSON_IsString(item))
        fleet_strbuf_append(&text, item->valuestring);
    return kube_quantity_parse(fleet_strbuf_text(&text), scale, out, err);
}

int memory_limit_of(const struct fleetjob *job, int64_t *out, const char **out_path,
                    struct fleet_errors *errors)
{
    const cJSON *limit = limit_of(job, "memory");
    struct fleet_error err;

    *out = -1;
    *out_path = job->spec.worker.template_
                    ? "spec.worker.template.spec.containers[0].resources.limits.memory"
                    : "spec.worker.resources.limits.memory";
    if (!limit || parse_quantity(limit, 1, out, &err) == 0)
        return 0;
    fleet_errors_add(errors, *out_path, "%s", err.text);
    return -EINVAL;
}

double memory_limit_of_rank(const struct fleetjob *job)
{
    const cJSON *limit = limit_of(job, "memory");
    int64_t bytes;

    if (!limit || memory_limit_is_on_gpu(job) || parse_quantity(limit, 1, &bytes, NULL) < 0 ||
        job->spec.worker.processes_per_pod < 1)
        return 0;
    bytes -= process_bytes(job);
    return bytes > 0 ? (double)bytes / (double)job->spec.worker.processes_per_pod : 1;
}

int memory_limit_threads(const struct fleetjob *job)
{
    const cJSON *limit = limit_of(job, "cpu");
    int64_t thousandths;

    if (!limit || parse_quantity(limit, 1000, &thousandths, NULL) < 0)
        return 0;
    thousandths = (thousandths + 999) / 1000 / job->spec.worker.processes_per_pod;
    return thousandths < 1 ? 1 : thousandths > 1024 ? 1024 : (int)thousandths;
}

int memory_limit_check(const struct fleetjob *job, const struct plan *plan, int64_t workers,
                       struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf has = {0}, needs = {0}, of = {0};
    const char *path;
    int64_t limit;

    if (memory_limit_of(job, &limit, &path, errors) < 0)
        return -EINVAL;
    if (limit < 0 || !plan->has_program || limit >= memory_limit_needed(job, plan))
        return 0;
    fleet_strbuf_append_size(&has, (double)limit);
    memory_limit_explain(job, plan, &needs);
    if (workers > 0)
        fleet_strbuf_appendf(&of, " when the job has %lld worker%s", (long long)workers,
                             workers == 1 ? "" : "s");
    fleet_errors_add(errors, path,
                     "%s are not enough for a worker%s, which needs %s; raise the limit%s, lower "
                     "training.microBatchSize, or switch on strategy.recompute or strategy.amp",
                     has.text, fleet_strbuf_text(&of), needs.text,
                     workers > 0 ? " or worker.minReplicas" : "");
    return -EINVAL;
}
