/* SPDX-License-Identifier: Apache-2.0 */

/* Checks spec.worker: replicas, volumes, the template, and whether there is a program to run. */
#include <inttypes.h>
#include <string.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/validation_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/topology.h"

#define FIRST_CONTAINER "spec.worker.template.spec.containers[0]"

/* A bound that is not set follows the others, so the error names only the bounds that are set. */
static void refuse_replicas(const struct validation *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;

    if (worker->replicas < worker->min_replicas && worker->max_given)
        fleet_errors_add(c->errors, "spec.worker.replicas",
                         "%" PRId64 " is not between minReplicas (%" PRId64
                         ") and maxReplicas (%" PRId64 ")",
                         worker->replicas, worker->min_replicas, worker->max_replicas);
    else if (worker->replicas < worker->min_replicas)
        fleet_errors_add(c->errors, "spec.worker.replicas",
                         "%" PRId64 " is less than minReplicas (%" PRId64 ")", worker->replicas,
                         worker->min_replicas);
    else if (worker->replicas > worker->max_replicas)
        fleet_errors_add(c->errors, "spec.worker.replicas",
                         "%" PRId64 " is more than maxReplicas (%" PRId64 ")", worker->replicas,
                         worker->max_replicas);
}

static void check_replicas(const struct validation *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;

    if (!validation_knows(c, "spec.worker.replicas") ||
        !validation_knows(c, "spec.worker.minReplicas") ||
        !validation_knows(c, "spec.worker.maxReplicas"))
        return;
    if (worker->min_replicas > worker->max_replicas)
        fleet_errors_add(c->errors, "spec.worker.minReplicas",
                         "%" PRId64 " is more than maxReplicas (%" PRId64 ")", worker->min_replicas,
                         worker->max_replicas);
    else
        refuse_replicas(c);
    if (validation_knows(c, "spec.worker.processesPerPod") &&
        fleetjob_world_size(c->job, worker->max_replicas) > TOPOLOGY_WORLD_MAX)
        fleet_errors_add(c->errors, "spec.worker.processesPerPod",
                         "%" PRId64 " processes in each of %" PRId64
                         " workers are more than the limit of %d ranks",
                         worker->processes_per_pod, worker->max_replicas, TOPOLOGY_WORLD_MAX);
}

static void check_volume(const struct validation *c, size_t index)
{
    const struct fleetjob_volume *volumes = c->job->spec.worker.volumes.items;
    const struct fleetjob_volume *volume = &volumes[index];
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    int sources =
        !!volume->claim + !!volume->config_map + !!volume->empty_dir + !!volume->host_path;

    fleet_strbuf_appendf(&path, "spec.worker.volumes[%zu]", index);
    if (!validation_knows(c, path.text))
        return;
    if (sources != 1)
        fleet_errors_add(c->errors, path.text,
                         "must have exactly one of claim, configMap, emptyDir, hostPath, not %d",
                         sources);
    for (size_t i = 0; i < index; i++) {
        if (volumes[i].name && strcmp(volumes[i].name, volume->name) == 0)
            fleet_errors_add(c->errors, path.text, "the name \"%s\" is taken by volumes[%zu]",
                             volume->name, i);
        if (volumes[i].mount_path && strcmp(volumes[i].mount_path, volume->mount_path) == 0)
            fleet_errors_add(c->errors, path.text, "the mountPath \"%s\" is taken by volumes[%zu]",
                             volume->mount_path, i);
    }
}

/* A worker's pod ends with its trainers, and the controller makes another one. */
static void check_restart_policy(const struct validation *c)
{
    const char *policy =
        cJSON_GetStringValue(fleet_json_at(c->job->spec.worker.template_, "spec.restartPolicy"));

    if (policy && strcmp(policy, "Never") != 0 && c->warnings)
        fleet_errors_add(c->warnings, "spec.worker.template.spec.restartPolicy",
                         "\"%s\" has no effect, the pods of workers have \"Never\": the agent "
                         "restarts trainers, spec.runPolicy.restart says how often",
                         policy);
}

/* Otherwise a program would start without its arguments or its variables. */
void validation_container_lists(const struct validation *c, const cJSON *container,
                                const char *front)
{
    static const struct {
        const char *name, *example;
    } lists[] = {{"command", "[python, train.py]"},
                 {"args", "[--epochs, \"3\"]"},
                 {"env", "[{name: LEVEL, value: \"3\"}]"}};

    for (size_t i = 0; i < FLEET_COUNT(lists); i++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(container, lists[i].name);
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

        if (!list || cJSON_IsNull(list) || cJSON_IsArray(list))
            continue;
        fleet_strbuf_appendf(&path, "%s.%s", front, lists[i].name);
        fleet_errors_add(c->errors, path.text, "must be a list, as %s, not %s", lists[i].example,
                         cJSON_IsObject(list) ? "an object" : "one value");
    }
}

static void check_template(const struct validation *c)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;
    const cJSON *containers;

    if (!worker->template_)
        return;
    if (worker->image && worker->image[0])
        fleet_errors_add(c->errors, "spec.worker.image",
                         "image and template cannot both be given: set the image in "
                         "template.spec.containers[0].image");
    if (worker->resources)
        fleet_errors_add(c->errors, "spec.worker.resources",
                         "resources and template cannot both be given: set them in "
                         "template.spec.containers[0].resources");
    if (worker->volumes.count > 0)
        fleet_errors_add(c->errors, "spec.worker.volumes",
                         "volumes and template cannot both be given: set them in "
                         "template.spec.volumes and template.spec.containers[0].volumeMounts");
    containers = fleet_json_at(worker->template_, "spec.containers");
    if (!cJSON_IsArray(containers) || cJSON_GetArraySize(containers) == 0)
        fleet_errors_add(c->errors, "spec.worker.template.spec.containers",
                         "must be a list of at least one container; the first is the worker's");
    validation_container_lists(c, cJSON_GetArrayItem(containers, 0), FIRST_CONTAINER);
    check_restart_policy(c);
}

/* `fleetjob run` starts processes of this machine. */
static void refuse_entrypoint_locally(const struct validation *c, const cJSON *container)
{
    const cJSON *image = cJSON_GetObjectItemCaseSensitive(container, "image");

    fleet_errors_add(
        c->errors, FIRST_CONTAINER ".command",
        "required on this machine, where the image's ENTRYPOINT is not known (in a cluster the "
        "agent takes its place); put it here, as \"docker inspect -f '{{json "
        ".Config.Entrypoint}} {{json .Config.Cmd}}' %s\" or \"crane config\" show it%s",
        cJSON_IsString(image) ? image->valuestring : "IMAGE",
        cJSON_HasObjectItem(container, "args") ? "; args stay as they are" : "");
}

/* Without a command the image's ENTRYPOINT starts; the agent takes its place (agent/entrypoint). */
static void check_entrypoint(const struct validation *c, const cJSON *container)
{
    const cJSON *spec = fleet_json_at(c->job->spec.worker.template_, "spec");
    const cJSON *image = cJSON_GetObjectItemCaseSensitive(container, "image");

    if (c->options->without_image) {
        refuse_entrypoint_locally(c, container);
        return;
    }
    if (!cJSON_IsString(image) || !image->valuestring[0])
        fleet_errors_add(c->errors, FIRST_CONTAINER ".command",
                         "required, because without an image there is no ENTRYPOINT either");
    if (fleet_json_at(container, "lifecycle.postStart"))
        fleet_errors_add(c->errors, FIRST_CONTAINER ".lifecycle.postStart",
                         "needs command: without it the agent has this hook, to see that it runs "
                         "in place of the image's ENTRYPOINT; set command, or drop the hook");
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(spec, "hostPID")))
        fleet_errors_add(c->errors, "spec.worker.template.spec.hostPID",
                         "true needs command: among the node's processes the agent cannot tell "
                         "which one is the image's ENTRYPOINT; set command, or drop hostPID");
}

static void check_command(const struct validation *c)
{
    const cJSON *containers = fleet_json_at(c->job->spec.worker.template_, "spec.containers");
    const cJSON *container = cJSON_GetArrayItem(containers, 0);
    const cJSON *command = cJSON_GetObjectItemCaseSensitive(container, "command");

    if (!c->job->spec.has_training && validation_knows(c, "spec.training") &&
        cJSON_IsObject(container) && (!command || cJSON_IsArray(command)) &&
        cJSON_GetArraySize(command) == 0)
        check_entrypoint(c, container);
}

void validation_worker(const struct validation *c)
{
    check_replicas(c);
    for (size_t i = 0; i < c->job->spec.worker.volumes.count; i++)
        check_volume(c, i);
    check_template(c);
    check_command(c);
    if (!c->job->spec.has_training && !c->job->spec.worker.template_ &&
        validation_knows(c, "spec.training") && validation_knows(c, "spec.worker.template"))
        fleet_errors_add(c->errors, "spec.training",
                         "required, unless worker.template has a program of its own to run");
}
