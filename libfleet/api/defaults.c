/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Defaults that depend on other fields. All other defaults are in the tables of fleetjob_fields.c.
 */
#include "libfleet/api/defaults.h"

#include <stdlib.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/worker_resources.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"

#define PROCESSES_MAX FLEET_PROCESSES_MAX

/* A quantity of devices is a whole number, as text or as a number. */
static int64_t whole_number(const cJSON *quantity)
{
    int64_t value = 0;
    char *end;

    if (cJSON_IsNumber(quantity))
        return fleet_json_item_int(quantity, &value) < 0 ? 0 : value;
    if (!cJSON_IsString(quantity))
        return 0;
    value = strtol(quantity->valuestring, &end, 10);
    return *end ? 0 : value;
}

/* GPUs of one container's resources: limits, else requests. */
static int64_t count_gpus(const cJSON *resources)
{
    static const char *const lists[] = {"limits", "requests"};
    const cJSON *item;
    int64_t count = 0;

    for (size_t i = 0; i < FLEET_COUNT(lists) && count == 0; i++)
        cJSON_ArrayForEach(item,
                           cJSON_GetObjectItemCaseSensitive(
                               resources, lists[i])) if (item->string &&
                                                         worker_resources_is_gpu(item->string))
            count += whole_number(item);
    return count;
}

static int64_t default_processes(const struct fleetjob_worker *worker)
{
    int64_t gpus = count_gpus(worker->template_
                                  ? fleet_json_at(worker->template_, "spec.containers[0].resources")
                                  : worker->resources);

    return gpus < 1 ? 1 : gpus < PROCESSES_MAX ? gpus : PROCESSES_MAX;
}

void defaults_apply(struct fleetjob *job)
{
    struct fleetjob_worker *worker = &job->spec.worker;

    if (!job->metadata.namespace_) {
        job->metadata.namespace_ = fleet_dup_text("default");
    }
    /* If the user sets only one bound, the other one follows, so that an error names the field that
     * the user wrote. */
    worker->max_given = worker->max_replicas != 0;
    if (worker->min_replicas == 0)
        worker->min_replicas = worker->max_replicas > 0 && worker->max_replicas < worker->replicas
                                   ? worker->max_replicas
                                   : worker->replicas;
    if (worker->max_replicas == 0)
        worker->max_replicas =
            worker->min_replicas > worker->replicas ? worker->min_replicas : worker->replicas;
    worker->elastic = worker->min_replicas < worker->max_replicas;
    if (worker->processes_per_pod == 0)
        worker->processes_per_pod = default_processes(worker);
}
