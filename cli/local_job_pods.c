/* SPDX-License-Identifier: Apache-2.0 */

/* What the pods of a local job say and do, for the user. */
#include <stdlib.h>
#include <string.h>

#include "cli/launcher.h"
#include "cli/local_job_internal.h"
#include "controller/fleetjob/hub_host.h"
#include "controller/fleetjob/reconcile.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"

#define SHOWN_MAX 65536 /* number of bytes of errors that are remembered */
#define COME_MS   10000 /* workers that take longer to connect to the hub are reported */

void local_job_on_pod_ended(void *user, const struct launcher_pod *pod)
{
    struct local_job *lj = user;

    hub_host_gone(lj->host, pod->uid);
    local_job_reconcile_after(lj, 0);
    local_job_state_changed(lj);
}

/* Has a trainer already printed this? All trainers find the same bad file. */
static bool is_shown(struct local_job *lj, const char *text)
{
    const char *error = lj->job->spec.has_training ? strstr(text, " err=") : NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (!error)
        return false;
    if (strstr(text, " Training failed "))
        return true; /* the hub also gets it, and its event has the text */
    fleet_strbuf_appendf(&line, "%s\n", error);
    if (strstr(fleet_strbuf_text(&lj->shown), line.text))
        return true;
    if (lj->shown.length > SHOWN_MAX)
        fleet_strbuf_clear(&lj->shown);
    fleet_strbuf_append(&lj->shown, line.text);
    return false;
}

/* In JSON ($FLEET_LOG_FORMAT) a log line begins with its time. */
static bool is_json_log(const char *text)
{
    return strncmp(text, "{\"ts\":\"", 7) == 0;
}

/* In text form, the lines of an own trainer begin with its rank in brackets. In JSON they have a
 * stream, or they are the trainer's own objects. */
static bool is_of_trainer(const char *text)
{
    return text[0] == '[' ||
           (text[0] == '{' && (!is_json_log(text) || strstr(text, "\"stream\":\"")));
}

static bool is_information(const char *text)
{
    return (text[0] == 'I' && text[1] >= '0' && text[1] <= '9') ||
           (is_json_log(text) && strstr(text, "\"level\":\"info\""));
}

/*
 * Print a line from a pod. Information from an agent and the standard output (the log) of the
 * built-in trainer appear only with --verbose. An error that all workers report appears once. All
 * lines of an own trainer appear.
 */
void local_job_on_pod_line(void *user, const struct launcher_pod *pod, bool is_error,
                           const char *text)
{
    struct local_job *lj = user;

    (void)pod;
    if (!lj->job->spec.has_training && is_of_trainer(text))
        lj->config.output(lj->config.user, is_error, text);
    else if (lj->config.is_verbose ||
             (is_error && !is_information(text) && !lj->is_stopping && !is_shown(lj, text)))
        local_job_note(lj, "%s", text);
}

struct observed_pod local_job_observe_pod(const struct launcher_pod *pod)
{
    return (struct observed_pod){.name = pod->name,
                                 .uid = pod->uid,
                                 .index = pod->index,
                                 .attempt = pod->attempt,
                                 .phase = pod->pid > 0          ? OBSERVED_RUNNING
                                          : pod->exit_code == 0 ? OBSERVED_SUCCEEDED
                                                                : OBSERVED_FAILED,
                                 .is_scheduled = true,
                                 .is_deleting = pod->is_deleting,
                                 .exit_code = pod->exit_code,
                                 .reason = "",
                                 .message = pod->message,
                                 .waiting = "",
                                 .cause = "",
                                 .memory_limit = "",
                                 .topology = "",
                                 .node = "",
                                 .started_wall_ms = pod->started_wall_ms,
                                 .finished_wall_ms = pod->finished_wall_ms};
}

static void note_members(struct local_job *lj)
{
    const struct hub *hub = hub_host_hub(lj->host);
    size_t count = hub ? hub_members(hub, NULL, 0) : 0;
    FLEET_AUTO_FREE struct hub_member *members = calloc(count + 1, sizeof(*members));

    fleet_assert(members);
    if (count > 0)
        (void)hub_members(hub, members, count);
    for (size_t i = 0; i < count; i++)
        (void)fleet_map_set(&lj->known, members[i].pod_uid, lj);
}

void local_job_report_missing(struct local_job *lj)
{
    note_members(lj);
    for (size_t i = 0; !lj->is_stopping && i < launcher_count(lj->launcher); i++) {
        const struct launcher_pod *pod = launcher_at(lj->launcher, i);
        int64_t due_ms = pod->started_wall_ms + COME_MS - fleet_wall_ms();
        if (pod->pid == 0 || pod->is_deleting || fleet_map_get(&lj->known, pod->uid))
            continue;
        if (due_ms > 0) {
            local_job_reconcile_after(lj, (uint64_t)due_ms);
            continue;
        }
        (void)fleet_map_set(&lj->known, pod->uid, lj);
        local_job_note(
            lj, "waiting for worker %d: its agent (process %d) has not come to the hub for %d s",
            pod->index, (int)pod->pid, COME_MS / 1000);
    }
}

void local_job_report_long_step(struct local_job *lj)
{
    const struct training_config *training = &lj->job->spec.training;
    const struct hub_view *view = hub_host_view(lj->host);
    int64_t now_ms = fleet_wall_ms(), since_ms = lj->step_since_wall_ms;
    int64_t micro = training->micro_batch_size > 0 ? training->micro_batch_size : 1;
    FLEET_AUTO_STRBUF struct fleet_strbuf step = {0};

    if (!lj->job->spec.has_training || lj->is_stopping || !hub_host_is_active(lj->host) ||
        since_ms == 0 || view->progress.step >= training->steps)
        return;
    if (now_ms < since_ms + lj->long_step_ms) {
        local_job_reconcile_after(lj, (uint64_t)(since_ms + lj->long_step_ms - now_ms));
        return;
    }
    if (view->has_progress)
        fleet_strbuf_appendf(&step, "step %lld", (long long)view->progress.step + 1);
    else
        fleet_strbuf_append(&step, "the first step of this run");
    local_job_note(lj,
                   "%s is under way for %lld s: %lld micro-batches of %lld samples on %d worker%s",
                   step.text, (long long)(now_ms - since_ms) / 1000,
                   (long long)(training->global_batch_size / micro), (long long)micro,
                   view->members, view->members == 1 ? "" : "s");
    lj->long_step_ms = 2 * (now_ms - since_ms);
    local_job_reconcile_after(lj, (uint64_t)(since_ms + lj->long_step_ms - now_ms));
}
