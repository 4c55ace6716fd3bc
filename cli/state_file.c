/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/state_file.h"

#include <unistd.h>

#include "cli/launcher.h"
#include "cli/system/processes.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

#define TRAINERS_MAX 64

static void append_member(struct fleet_strbuf *out, const struct launcher_pod *pod)
{
    pid_t trainers[TRAINERS_MAX];
    size_t count = processes_children(pod->pid, trainers, TRAINERS_MAX);

    fleet_strbuf_appendf(out, "{\"index\":%d,\"attempt\":%d,\"agentPid\":%d,\"trainerPids\":[",
                         pod->index, pod->attempt, (int)pod->pid);
    for (size_t i = 0; i < count; i++)
        fleet_strbuf_appendf(out, "%s%d", i ? "," : "", (int)trainers[i]);
    fleet_strbuf_appendf(out, "],\"deleting\":%s}", pod->is_deleting ? "true" : "false");
}

int state_file_write(const char *path, const char *job, int64_t generation, int64_t step,
                     const struct launcher *launcher, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool is_first = true;

    fleet_strbuf_appendf(&text, "{\"pid\":%d,\"job\":", (int)getpid());
    fleet_json_append_string(&text, job);
    fleet_strbuf_appendf(&text, ",\"generation\":%lld,\"step\":%lld,\"members\":[",
                         (long long)generation, (long long)step);
    for (size_t i = 0; i < launcher_count(launcher); i++) {
        const struct launcher_pod *pod = launcher_at(launcher, i);
        if (pod->pid == 0)
            continue;
        if (!is_first)
            fleet_strbuf_append_char(&text, ',');
        is_first = false;
        append_member(&text, pod);
    }
    fleet_strbuf_append(&text, "]}\n");
    /* not durable: it describes running processes */
    return fleet_file_replace(path, text.text, text.length, FLEET_FILE_VOLATILE, err);
}
