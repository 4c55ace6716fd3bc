/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/state_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/launcher.h"
#include "cli/processes.h"
#include "libfleet/base/error.h"
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

/* Replaced by a rename, but not made durable: it describes processes of this moment. */
static int replace(const char *path, const struct fleet_strbuf *text, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};
    FILE *file;

    fleet_strbuf_appendf(&name, "%s.%d", path, (int)getpid());
    file = fopen(name.text, "we");
    if (!file)
        return fleet_error(err, -errno, "write %s: %s", name.text, strerror(errno));
    if (fputs(text->text, file) == EOF || fclose(file) == EOF || rename(name.text, path) < 0) {
        int code = -errno;
        (void)unlink(name.text);
        return fleet_error(err, code, "write %s: %s", path, strerror(-code));
    }
    return 0;
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
    return replace(path, &text, err);
}
