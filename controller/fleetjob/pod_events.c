/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/pod_events.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/pod_cause.h"
#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_pass.h"
#include "controller/machinery/manager.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

/* Kubelets write these events. Unlike events.k8s.io, this API has a field selector by pod. */
static const struct kube_resource core_events = {"", "v1", "events", "Event", true};

/* ---- causes that are known ------------------------------------------------------------------- */

const struct pod_events_note *pod_events_find(const struct pod_events *events, const char *uid)
{
    for (size_t i = 0; events && i < events->count; i++)
        if (strcmp(events->notes[i].uid, uid) == 0)
            return &events->notes[i];
    return NULL;
}

static void remove_note(struct pod_events *events, size_t i)
{
    free(events->notes[i].uid);
    free(events->notes[i].text);
    events->count--;
    memmove(&events->notes[i], &events->notes[i + 1],
            (events->count - i) * sizeof(events->notes[0]));
}

static void keep_note(struct pod_events *events, struct pod_events_note note)
{
    const struct pod_events_note *old = pod_events_find(events, note.uid);

    if (old)
        remove_note(events, (size_t)(old - events->notes));
    else if (events->count == POD_EVENTS_KEPT)
        remove_note(events, 0);
    events->notes[events->count++] = note;
}

void pod_events_forget(struct pod_events *events)
{
    kube_rest_cancel(&events->call);
    free(events->uid);
    while (events->count > 0)
        remove_note(events, events->count - 1);
    *events = (struct pod_events){0};
}

/* ---- reading -------------------------------------------------------------------------------- */

/* The time of its last occurrence; writers use different fields. */
static int64_t last_seen(const cJSON *event)
{
    static const char *const paths[] = {"series.lastObservedTime", "lastTimestamp", "eventTime",
                                        "firstTimestamp", "metadata.creationTimestamp"};
    int64_t latest = 0, time;

    for (size_t i = 0; i < FLEET_COUNT(paths); i++)
        if (fleet_rfc3339_parse(fleet_json_text_at(event, paths[i]), &time) == 0 && time > latest)
            latest = time;
    return latest;
}

static void append_cut(struct fleet_strbuf *out, const char *reason, const char *message)
{
    fleet_strbuf_appendf(out, "%s: %s", reason, message);
    if (out->length > PROJECTION_MESSAGE_MAX) {
        size_t end = PROJECTION_MESSAGE_MAX;
        while (end > 0 && ((unsigned char)out->text[end] & 0xC0) == 0x80)
            end--; /* not within a character */
        out->text[out->length = end] = '\0';
    }
}

/* The newest event decides: earlier failures are over. Warnings that do not prevent a start are
 * ignored. */
struct pod_events_note pod_events_read(const cJSON *list)
{
    struct pod_events_note note = {.cause = ""};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int64_t newest = -1;
    const cJSON *event;

    cJSON_ArrayForEach(event, fleet_json_at(list, "items"))
    {
        const char *reason = fleet_json_text_at(event, "reason"),
                   *message = fleet_json_text_at(event, "message");
        bool is_warning = strcmp(fleet_json_text_at(event, "type"), "Warning") == 0;
        const char *cause = pod_cause_of_event(is_warning, reason, message);
        int64_t time = last_seen(event);
        if (time < newest || (is_warning && !cause[0]) ||
            (time == newest && (note.cause[0] && !cause[0])))
            continue;
        newest = time;
        note.cause = cause;
        text.length = 0;
        if (cause[0])
            append_cut(&text, reason, message);
    }
    note.text = fleet_dup_text(note.cause[0] ? fleet_strbuf_text(&text) : "");
    return note;
}

/* ---- asking --------------------------------------------------------------------------------- */

static void on_listed(void *user, const cJSON *list, const struct fleet_error *err)
{
    struct reconciler_job *job = user;
    struct pod_events *events = &job->pod_events;
    struct pod_events_note note = pod_events_read(err ? NULL : list);

    events->call = NULL;
    note.uid = events->uid;
    events->uid = NULL;
    keep_note(events, note);
    if (err)
        reconciler_job_trouble(job->reconciler, "Events of a pod were not read", job->key, err);
    manager_enqueue(job->reconciler->manager, job->key);
}

static void list_events(struct reconciler_job *job, const struct observed_pod *pod)
{
    struct pod_events *events = &job->pod_events;
    FLEET_AUTO_STRBUF struct fleet_strbuf selector = {0};
    struct kube_rest_request request = {
        .verb = KUBE_LIST, .resource = &core_events, .namespace_ = job->namespace_, .limit = 100};

    fleet_strbuf_appendf(&selector, "involvedObject.uid=%s", pod->uid);
    request.field_selector = selector.text;
    events->uid = fleet_dup_text(pod->uid);
    events->next_index = pod->index + 1;
    events->call = kube_rest_start(job->reconciler->io, &request, on_listed, job);
}

/* The stuck pod with the lowest index from next_index on, or else the lowest of all. *out_wait_ms:
 * if no pod is old enough, the time until one is; -1 = there is none. */
static const struct observed_pod *next_stuck(const struct reconciler_pass *pass,
                                             double *out_wait_ms)
{
    const struct observed *in = &pass->observation.observed;
    int from = pass->job->pod_events.next_index;
    const struct observed_pod *best = NULL;

    *out_wait_ms = -1;
    for (size_t i = 0; i < in->pod_count; i++) {
        const struct observed_pod *pod = &in->pods[i];
        int64_t left = pod->created_wall_ms + POD_EVENTS_AFTER_MS - in->now_wall_ms;
        if (!pod->is_stuck)
            continue;
        if (left > 0) { /* a jump of the clock does not lengthen a wait */
            left = left < POD_EVENTS_AFTER_MS ? left : POD_EVENTS_AFTER_MS;
            *out_wait_ms = *out_wait_ms < 0 ? (double)left : fmin(*out_wait_ms, (double)left);
        } else if (!best || (best->index < from && pod->index >= from) ||
                   ((best->index < from) == (pod->index < from) && pod->index < best->index)) {
            best = pod;
        }
    }
    return best;
}

/* Rule (2): how long this job must wait for its turn among all jobs. */
static double wait_for_turn(struct reconciler *r, struct pod_events *events, double now_ms)
{
    if (events->turn_ms == 0) {
        events->turn_ms = fmax(now_ms, r->pod_events_ms);
        r->pod_events_ms = events->turn_ms + POD_EVENTS_EVERY_MS;
    }
    return events->turn_ms - now_ms;
}

static double next_delay(const struct pod_events *events)
{
    double delay = POD_EVENTS_AFTER_MS;

    for (int i = 1; i < events->tries && delay < POD_EVENTS_MAX_MS; i++)
        delay *= 2;
    return fmin(delay, POD_EVENTS_MAX_MS);
}

void pod_events_ask(struct reconciler_pass *pass)
{
    struct reconciler_job *job = pass->job;
    struct pod_events *events = &job->pod_events;
    double now_ms = kube_now_ms(job->reconciler->io), wait_ms;
    const struct observed_pod *pod = next_stuck(pass, &wait_ms);

    if (!pod) {
        if (wait_ms < 0)
            pod_events_forget(events);
        reconciler_requeue(pass, wait_ms);
        return;
    }
    if (events->call)
        return; /* its answer starts the next pass */
    wait_ms = events->next_ms - now_ms;
    if (wait_ms <= 0)
        wait_ms = wait_for_turn(job->reconciler, events, now_ms);
    if (wait_ms > 0) {
        reconciler_requeue(pass, wait_ms);
        return;
    }
    events->turn_ms = 0;
    events->tries++;
    events->next_ms = now_ms + next_delay(events);
    reconciler_requeue(pass, events->next_ms - now_ms);
    list_events(job, pod);
}
