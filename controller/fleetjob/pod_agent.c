/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/pod_agent.h"

#include <string.h>

#include "controller/fleetjob/pod_common.h"
#include "controller/fleetjob/pod_json.h"
#include "controller/fleetjob/pod_server.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/log.h"
#include "libfleet/base/strbuf.h"

#define PRELOAD              POD_BUILDER_AGENT_FOLDER "/lib/" WELLKNOWN_PRELOAD_LIBRARY
#define VOLUME_JOB           "fleetjob-job"
#define VOLUME_AGENT         WELLKNOWN_AGENT_CONTAINER
#define VOLUME_SHARED_MEMORY "fleetjob-shm"
#define JOB_FILES_MODE       0444

/* The image that provides the agent: the frozen one, or this installation's. */
static const char *agent_image(const struct pod_builder_request *r)
{
    const char *frozen = r->job->status.agent_image;

    return frozen && frozen[0] ? frozen : r->runtime_image;
}

/* Does the first container's image, requested as `asked`, contain the agent? */
bool pod_agent_is_in_image(const struct pod_builder_request *r, const char *asked)
{
    const struct fleetjob_status *status = &r->job->status;

    if (status->image && status->agent_image) /* the installation may have changed since then */
        return strcmp(status->image, status->agent_image) == 0;
    return !asked || !asked[0] || strcmp(asked, r->runtime_image) == 0;
}

/* Does the container run its image's ENTRYPOINT? If the image contains the agent, the agent is the
 * ENTRYPOINT. */
static bool keeps_entrypoint(const struct pod_builder_request *r, const cJSON *container,
                             bool is_runtime)
{
    return !r->job->spec.has_training && !is_runtime &&
           cJSON_GetArraySize(pod_json_get(container, "command")) == 0;
}

static int64_t grace_seconds(const struct fleetjob *job)
{
    const cJSON *spec = pod_json_get(job->spec.worker.template_, "spec");
    const cJSON *grace = pod_json_get(spec, "terminationGracePeriodSeconds");

    if (!grace)
        return POD_BUILDER_GRACE_SECONDS;
    return cJSON_IsNumber(grace) && grace->valuedouble >= 1 ? (int64_t)grace->valuedouble : 1;
}

cJSON *pod_agent_common_variables(const struct fleetjob *job)
{
    cJSON *env = fleet_json_new_list();

    pod_common_set(env, "FLEET_JOB_NAME", job->metadata.name);
    pod_common_set(env, "FLEET_JOB_UID", job->metadata.uid);
    pod_common_set_number(env, "FLEET_PROCESSES", job->spec.worker.processes_per_pod);
    pod_common_set(env, "FLEET_HUB_FILE", POD_BUILDER_JOB_FOLDER "/hub");
    pod_common_set(env, "FLEET_CA_FILE", POD_BUILDER_JOB_FOLDER "/ca.crt");
    pod_common_set(env, "FLEET_TOKEN_FILE", POD_BUILDER_JOB_FOLDER "/token");
    pod_common_set(env, "FLEET_JOB_FILE", POD_BUILDER_JOB_FOLDER "/job.json");
    pod_common_set_number(env, "FLEET_GRACE_SECONDS", grace_seconds(job));
    pod_common_set(env, "FLEET_TERMINATION_FILE", POD_BUILDER_TERMINATION_FILE);
    return env;
}

/* Ours that the container need not have: the agent reads them from the file or from the name. */
static cJSON *known_variables(const struct pod_builder_request *r)
{
    cJSON *env = pod_agent_common_variables(r->job);

    pod_common_set_number(env, "FLEET_INDEX", r->index);
    pod_common_set_number(env, "FLEET_ATTEMPT", r->attempt);
    return env;
}

/*
 * Our variables come first, then the user's, without those that have our names (FLEET_ISA and
 * FLEET_THREADS may be set). Each variable of each pod is work for the API server and for each
 * watch. For this reason settings that are equal for all workers are in a file, and the agent reads
 * index and attempt from the pod's name. Agents from another installation's image may not do so,
 * so they get variables.
 */
static void set_environment(const struct pod_builder_request *r, cJSON *container)
{
    FLEET_AUTO_JSON cJSON *known = known_variables(r);
    FLEET_AUTO_FREE char *name = worker_name_build(r->job->metadata.name, r->index, r->attempt);
    cJSON *env = fleet_json_new_list();

    pod_common_set(env, "FLEET_POD_NAME", name);
    pod_common_set_field(env, "FLEET_POD_UID", "metadata.uid");
    pod_common_set_field(env, "FLEET_ADDRESS", "status.podIP");
    if (strcmp(agent_image(r), r->runtime_image) == 0)
        pod_common_set(env, "FLEET_ENVIRONMENT_FILE", POD_BUILDER_JOB_FOLDER "/environment");
    else
        pod_common_add_missing(env, NULL, known);
    if (r->has_json_logs && !pod_common_has(pod_json_get(container, "env"), FLEET_LOG_FORMAT_ENV))
        pod_common_set(env, FLEET_LOG_FORMAT_ENV, "json");
    pod_server_set_worker(r, env);
    pod_common_add_missing(env, known, pod_json_get(container, "env"));
    fleet_json_set(container, "env", env);
}

/* The user's LD_PRELOAD may not fit the agent's C library. The agent passes it on to the
 * trainers. */
static void keep_preload(cJSON *container)
{
    cJSON *item;

    cJSON_ArrayForEach(item, pod_json_get(container, "env"))
    {
        const char *name = cJSON_GetStringValue(pod_json_get(item, "name"));
        if (name && strcmp(name, "LD_PRELOAD") == 0)
            fleet_json_set_string(item, "name", WELLKNOWN_ENV_PRELOAD);
    }
}

/* If there is no command, a preloaded library starts the agent in place of the image's ENTRYPOINT
 * (agent/entrypoint). */
static void preload_agent(cJSON *container)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf arguments = {0};
    cJSON *env = pod_json_get(container, "env"), *hook, *command;

    pod_common_set(env, WELLKNOWN_ENV_AGENT, POD_BUILDER_AGENT);
    pod_common_set(env, "LD_PRELOAD", PRELOAD);
    cJSON_DeleteItemFromObjectCaseSensitive(container, "command"); /* it may be empty */

    fleet_strbuf_appendf(&arguments, "%d", cJSON_GetArraySize(pod_json_get(container, "args")));
    hook = pod_json_child(pod_json_child(container, "lifecycle", false), "postStart", false);
    command = pod_json_child(pod_json_child(hook, "exec", false), "command", true);
    fleet_json_add_string(command, POD_BUILDER_AGENT);
    fleet_json_add_string(command, "--check-entrypoint");
    fleet_json_add_string(command, arguments.text);
}

/* The agent is the container's command. If there is no training block, it runs the template's own
 * command. */
static void set_command(const struct pod_builder_request *r, cJSON *container)
{
    cJSON *command = fleet_json_new_list();
    const char *const keys[] = {"command", "args"};
    const cJSON *item;

    fleet_json_add_string(command, POD_BUILDER_AGENT);
    if (!r->job->spec.has_training)
        fleet_json_add_string(command, "--");
    for (size_t i = 0; i < FLEET_COUNT(keys); i++) {
        if (!r->job->spec.has_training)
            cJSON_ArrayForEach(item, pod_json_get(container, keys[i]))
                fleet_json_add(command, fleet_json_copy(item));
        cJSON_DeleteItemFromObjectCaseSensitive(container, keys[i]);
    }
    fleet_json_set(container, "command", command);
}

/* Add a mount to the container. */
static void mount(cJSON *container, const char *volume, const char *path, bool is_read_only)
{
    cJSON *item = fleet_json_add_object(pod_json_child(container, "volumeMounts", true));

    fleet_json_set_string(item, "name", volume);
    fleet_json_set_string(item, "mountPath", path);
    if (is_read_only)
        fleet_json_set_bool(item, "readOnly", true);
}

static bool is_mounted(const cJSON *container, const char *path)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, pod_json_get(container, "volumeMounts"))
    {
        const char *at = cJSON_GetStringValue(pod_json_get(item, "mountPath"));
        if (at && strcmp(at, path) == 0)
            return true;
    }
    return false;
}

void pod_agent_add_volumes(const struct pod_builder_request *r, cJSON *spec, cJSON *container)
{
    cJSON *volume = fleet_json_add_object(pod_json_child(spec, "volumes", true));

    fleet_json_set_string(volume, "name", VOLUME_JOB);
    fleet_json_set_string(pod_json_child(volume, "secret", false), "secretName", r->secret);
    fleet_json_set_number(pod_json_child(volume, "secret", false), "defaultMode", JOB_FILES_MODE);
    mount(container, VOLUME_JOB, POD_BUILDER_JOB_FOLDER, true);
    if (is_mounted(container, "/dev/shm"))
        return;
    volume = fleet_json_add_object(pod_json_child(spec, "volumes", true));
    fleet_json_set_string(volume, "name", VOLUME_SHARED_MEMORY);
    fleet_json_set_string(pod_json_child(volume, "emptyDir", false), "medium", "Memory");
    mount(container, VOLUME_SHARED_MEMORY, "/dev/shm", false);
}

/* A quota needs requests of every container. They equal the worker's, because a pod counts the
 * larger of both. */
static void take_resources(const cJSON *container, cJSON *init)
{
    static const char *const kinds[] = {"requests", "limits"};
    static const char *const names[] = {"cpu", "memory", "ephemeral-storage"};

    for (size_t k = 0; k < FLEET_COUNT(kinds); k++)
        for (size_t i = 0; i < FLEET_COUNT(names); i++) {
            const cJSON *amount = pod_json_get(
                pod_json_get(pod_json_get(container, "resources"), kinds[k]), names[i]);
            if (amount)
                fleet_json_set(
                    pod_json_child(pod_json_child(init, "resources", false), kinds[k], false),
                    names[i], fleet_json_copy(amount));
        }
}

/* An init container with the runtime's image copies the closure to a volume, under the same
 * path. */
void pod_agent_bring(const struct pod_builder_request *r, cJSON *spec, cJSON *container)
{
    cJSON *volume = fleet_json_add_object(pod_json_child(spec, "volumes", true)),
          *init = fleet_json_new_object(), *command;
    cJSON *list = pod_json_child(spec, "initContainers", true);

    fleet_json_set_string(volume, "name", VOLUME_AGENT);
    (void)pod_json_child(volume, "emptyDir", false);
    mount(container, VOLUME_AGENT, POD_BUILDER_AGENT_FOLDER, true);
    fleet_json_add_first(list, init);
    fleet_json_set_string(init, "name", WELLKNOWN_AGENT_CONTAINER);
    pod_builder_set_image(r, init, agent_image(r));
    command = pod_json_child(init, "command", true);
    fleet_json_add_string(command, POD_BUILDER_AGENT);
    fleet_json_add_string(command, "--install");
    fleet_json_add_string(command, "/target");
    mount(init, VOLUME_AGENT, "/target", false);
    take_resources(container, init);
}

void pod_agent_set_command(const struct pod_builder_request *r, cJSON *container, bool is_in_image)
{
    set_environment(r, container);
    keep_preload(container);
    if (keeps_entrypoint(r, container, is_in_image))
        preload_agent(container);
    else
        set_command(r, container);
}
