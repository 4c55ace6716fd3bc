/* SPDX-License-Identifier: Apache-2.0 */

/* Checks spec.server: a job with a parameter server has an own trainer, a fixed number of workers,
 * and a program for the servers. */
#include <inttypes.h>
#include <string.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/validation_internal.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"

#define SERVER_CONTAINERS "spec.server.template.spec.containers"
#define SERVER_CONTAINER  SERVER_CONTAINERS "[0]"

/* Each server keeps a place for each worker. */
static void check_workers(const struct validation *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;

    if (!validation_knows(c, "spec.worker.replicas") ||
        !validation_knows(c, "spec.worker.minReplicas") ||
        !validation_knows(c, "spec.worker.maxReplicas") ||
        !validation_knows(c, "spec.worker.processesPerPod"))
        return;
    if (worker->min_replicas < worker->replicas)
        fleet_errors_add(c->errors, "spec.worker.minReplicas",
                         "%" PRId64 " is less than replicas (%" PRId64
                         "): with spec.server the number of workers is fixed; leave minReplicas "
                         "out",
                         worker->min_replicas, worker->replicas);
    if (worker->max_replicas > worker->replicas)
        fleet_errors_add(c->errors, "spec.worker.maxReplicas",
                         "%" PRId64 " is more than replicas (%" PRId64
                         "): with spec.server the number of workers is fixed; leave maxReplicas "
                         "out",
                         worker->max_replicas, worker->replicas);
    if (fleetjob_world_size(c->job, worker->replicas) > FLEET_WORKERS_MAX)
        fleet_errors_add(c->errors, "spec.worker.processesPerPod",
                         "%" PRId64 " processes in each of %" PRId64
                         " workers are more than the %d that a parameter server takes",
                         worker->processes_per_pod, worker->replicas, FLEET_WORKERS_MAX);
}

static void check_restart_policy(const struct validation *c)
{
    const char *policy =
        cJSON_GetStringValue(fleet_json_at(c->job->spec.server.template_, "spec.restartPolicy"));

    if (policy && strcmp(policy, "OnFailure") != 0 && c->warnings)
        fleet_errors_add(c->warnings, "spec.server.template.spec.restartPolicy",
                         "\"%s\" has no effect, the pods of servers have \"OnFailure\": "
                         "spec.runPolicy.restart.maxRestarts says how often they start again",
                         policy);
}

/* In a cluster the image's ENTRYPOINT can be the program. */
static void check_command(const struct validation *c, const cJSON *container)
{
    const cJSON *command = cJSON_GetObjectItemCaseSensitive(container, "command");
    const cJSON *image = cJSON_GetObjectItemCaseSensitive(container, "image");
    bool has_image = cJSON_IsString(image) && image->valuestring[0];

    if ((command && !cJSON_IsArray(command)) || cJSON_GetArraySize(command) > 0)
        return;
    if (c->options->without_image)
        fleet_errors_add(c->errors, SERVER_CONTAINER ".command",
                         "required on this machine, where the image's ENTRYPOINT is not known");
    else if (!has_image)
        fleet_errors_add(c->errors, SERVER_CONTAINER ".command",
                         "required, because without an image there is no ENTRYPOINT either");
}

/* Without a template of their own, servers run the workers', which validation_worker() checks. */
static void check_template(const struct validation *c)
{
    const cJSON *containers = fleet_json_at(c->job->spec.server.template_, "spec.containers");
    const cJSON *container = cJSON_GetArrayItem(containers, 0);

    if (!c->job->spec.server.template_ || !validation_knows(c, "spec.server.template"))
        return;
    if (!cJSON_IsArray(containers) || !container) {
        fleet_errors_add(c->errors, SERVER_CONTAINERS,
                         "must be a list of at least one container; the first is the server's");
        return;
    }
    validation_container_lists(c, container, SERVER_CONTAINER);
    check_command(c, container);
    check_restart_policy(c);
}

void validation_server(const struct validation *c)
{
    if (!c->job->spec.has_server || !validation_knows(c, "spec.server"))
        return;
    if (c->job->spec.has_training)
        fleet_errors_add(c->errors, "spec.server",
                         "the built-in trainer uses no parameter server: remove spec.training and "
                         "give spec.worker.template a program of its own, or remove spec.server");
    check_workers(c);
    check_template(c);
}
