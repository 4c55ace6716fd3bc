/* SPDX-License-Identifier: Apache-2.0 */

/* The job that a launcher's command line means. */
#include <stdlib.h>
#include <string.h>

#include "cli/launch.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"

static int count_devices(const char *list)
{
    int count = list && list[0] ? 1 : 0;

    for (const char *at = list; at && (at = strchr(at, ',')) != NULL; at++)
        count++;
    return count;
}

bool launch_is_python(const struct launch_options *options, const char *script)
{
    size_t length = strlen(script);
    return !options->is_plain && length > 3 && strcmp(script + length - 3, ".py") == 0;
}

/* A shell that sends the output of its rank to a file and becomes the command. */
static void add_log_shell(const struct launch_options *o, cJSON *list)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf script = {0};

    fleet_strbuf_appendf(&script, "d=$1; shift; exec \"$@\" %s\"$d/workerlog.$RANK\" 2>&1",
                         o->log_overwrite ? ">" : ">>");
    fleet_json_add_string(list, "/bin/sh");
    fleet_json_add_string(list, "-c");
    fleet_json_add_string(list, script.text);
    fleet_json_add_string(list, "fleetjob-launch");
    fleet_json_add_string(list, o->log_folder);
}

char **launch_command(const struct launch_options *options, char **command)
{
    static char python[] = "python3", unbuffered[] = "-u", module[] = "-m";
    size_t count = 0, used = 0;
    char **list;

    while (command[count])
        count++;
    list = calloc(count + 4, sizeof(*list));
    fleet_assert(list);
    if (options->is_module || launch_is_python(options, command[0])) {
        list[used++] = python;
        list[used++] = unbuffered;
    }
    if (options->is_module)
        list[used++] = module;
    memcpy(list + used, command, count * sizeof(*list));
    return list;
}

static void add_command(const struct launch_options *o, char **command, cJSON *container)
{
    FLEET_AUTO_FREE char **words = launch_command(o, command);
    cJSON *list = fleet_json_set_list(container, "command");

    if (o->log_folder && !o->has_servers) /* servers have no rank */
        add_log_shell(o, list);
    for (char **one = words; *one; one++)
        fleet_json_add_string(list, *one);
}

static void add_variable(cJSON *container, const char *name, const char *value)
{
    cJSON *variable = fleet_json_add_object(fleet_json_set_list(container, "env"));

    fleet_json_set_string(variable, "name", name);
    fleet_json_set_string(variable, "value", value);
}

cJSON *launch_job(const struct launch_options *options, char **command)
{
    int devices = count_devices(options->devices);
    int processes = options->processes ? options->processes : devices ? devices : 1;
    cJSON *job = fleet_json_new_object(), *spec, *worker, *container, *policy;

    fleet_json_set_string(job, "apiVersion", "fleetjob.dev/v1alpha1");
    fleet_json_set_string(job, "kind", "FleetJob");
    fleet_json_set_string(fleet_json_set_object(job, "metadata"), "name", options->job_id);
    spec = fleet_json_set_object(job, "spec");
    worker = fleet_json_set_object(spec, "worker");
    fleet_json_set_number(worker, "replicas",
                          options->has_servers ? options->workers : options->nodes_max);
    if (options->has_servers)
        fleet_json_set_number(fleet_json_set_object(spec, "server"), "replicas", options->servers);
    if (options->nodes_min < options->nodes_max) {
        fleet_json_set_number(worker, "minReplicas", options->nodes_min);
        fleet_json_set_number(worker, "maxReplicas", options->nodes_max);
    }
    fleet_json_set_number(worker, "processesPerPod", processes);
    container = fleet_json_set_object(worker, "template");
    container = fleet_json_set_object(container, "spec");
    container = fleet_json_add_object(fleet_json_set_list(container, "containers"));
    fleet_json_set_string(container, "name", "trainer");
    fleet_json_set_string(container, "image", "python:3");
    add_command(options, command, container);
    if (devices > 0)
        add_variable(container, "CUDA_VISIBLE_DEVICES", options->devices);
    policy = fleet_json_set_object(spec, "runPolicy");
    fleet_json_set_number(fleet_json_set_object(policy, "restart"), "maxRestarts",
                          options->restarts_max);
    fleet_json_set_number(fleet_json_set_object(policy, "elastic"), "timeoutSeconds",
                          options->elastic_timeout_s);
    return job;
}
