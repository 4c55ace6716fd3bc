/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/state_file.h"

#include <unistd.h>

#include "cli/launcher.h"
#include "cli/system/processes.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"

#define TRAINERS_MAX 64

static void add_member(cJSON *members, const struct launcher_pod *pod)
{
    pid_t trainers[TRAINERS_MAX];
    size_t count = processes_children(pod->pid, trainers, TRAINERS_MAX);
    cJSON *member = fleet_json_add_object(members), *pids;

    fleet_json_set_number(member, "index", pod->index);
    fleet_json_set_number(member, "attempt", pod->attempt);
    fleet_json_set_number(member, "agentPid", pod->pid);
    pids = fleet_json_set_list(member, "trainerPids");
    for (size_t i = 0; i < count; i++)
        fleet_json_add_number(pids, trainers[i]);
    fleet_json_set_bool(member, "deleting", pod->is_deleting);
}

int state_file_write(const char *path, const char *job, int64_t generation, int64_t step,
                     const struct launcher *launcher, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *json = fleet_json_new_object();
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    cJSON *members;

    fleet_json_set_number(json, "pid", getpid());
    fleet_json_set_string(json, "job", job);
    fleet_json_set_number(json, "generation", (double)generation);
    fleet_json_set_number(json, "step", (double)step);
    members = fleet_json_set_list(json, "members");
    for (size_t i = 0; i < launcher_count(launcher); i++)
        if (launcher_at(launcher, i)->pid != 0)
            add_member(members, launcher_at(launcher, i));
    fleet_json_append(&text, json);
    fleet_strbuf_append_char(&text, '\n');
    /* not durable: it describes running processes */
    return fleet_file_replace(path, text.text, text.length, FLEET_FILE_VOLATILE, err);
}
