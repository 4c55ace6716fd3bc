/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/observe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/observe_divisions.h"
#include "controller/fleetjob/pod_cause.h"
#include "controller/fleetjob/pod_events.h"
#include "controller/fleetjob/projection.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"

#define REDIVIDE_MS \
    20 /* until the status that says that all workers have stopped is in the cache */

/* ---- is the spec any good? ------------------------------------------------------------------- */

/* No search has found a division: a finished one says why, else the next pass will know. */
static void lack_division(const struct observe_input *input, struct observation *out)
{
    const struct observe_plan *plan = input->plan;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int64_t ranks = fleetjob_world_size(&out->job, out->job.spec.worker.replicas);

    fleet_errors_release(&out->errors);
    if (plan->was_searched && plan->generation == input->job->generation) {
        fleet_errors_append(&out->errors, &plan->unread);
        fleet_errors_append(&out->errors, &plan->errors);
        fleet_errors_append(&out->warnings, &plan->warnings);
        return;
    }
    fleet_strbuf_appendf(&text, "a search finds the strategy for %lld rank%s", (long long)ranks,
                         ranks == 1 ? "" : "s");
    out->searches = fleet_strbuf_take(&text);
    out->observed.searches = out->searches;
}

static void check(const struct observe_input *input, const cJSON *json, struct observation *out)
{
    if (out->job.lacks_division) {
        lack_division(input, out);
        return;
    }
    observe_plan_judge(&out->job, json, input->encrypts_data, input->plan);
    fleet_errors_append(&out->errors, &input->plan->errors);
    fleet_errors_append(&out->warnings, &input->plan->warnings);
    if (input->pod_errors)
        fleet_errors_append(&out->errors, input->pod_errors);
}

/* ---- pods ------------------------------------------------------------------------------------ */

static bool is_ours(const struct projection_pod *pod)
{
    return pod->index >= 0 && pod->attempt >= 0;
}

/* The pod has a node and does not start, and its status gives no cause. An Event may give one
 * (pod_events.h). */
static bool is_stuck(const struct projection_pod *pod)
{
    return pod->node[0] && pod->phase == OBSERVED_PENDING && !pod->is_deleting && !pod->cause[0] &&
           pod->created_wall_ms > 0;
}

static const struct pod_events_note *note_of(const struct pod_events *said,
                                             const struct projection_pod *pod)
{
    const struct pod_events_note *note = is_stuck(pod) ? pod_events_find(said, pod->uid) : NULL;

    return note && note->cause[0] ? note : NULL;
}

static size_t texts_size(const struct projection_pod *pod, const struct pod_events *said)
{
    const struct pod_events_note *note = note_of(said, pod);

    return (note ? strlen(note->text) + strlen(note->cause) : 0) + strlen(pod->name) +
           strlen(pod->uid) + strlen(pod->topology) + strlen(pod->node) + strlen(pod->reason) +
           strlen(pod->message) + strlen(pod->waiting) + strlen(pod->cause) +
           strlen(pod->memory_limit) + 9;
}

static const char *put_text(char **end, const char *text)
{
    size_t size = strlen(text) + 1;
    char *start = memcpy(*end, text, size);

    *end += size;
    return start;
}

/* Copy texts to *end, because the store may change while actions are carried out. */
static struct observed_pod copy_pod(const struct projection_pod *pod, const struct pod_events *said,
                                    char **end)
{
    const struct pod_events_note *note = note_of(said, pod);

    return (struct observed_pod){.name = put_text(end, pod->name),
                                 .uid = put_text(end, pod->uid),
                                 .index = pod->server >= 0 ? pod->server : pod->index,
                                 .attempt = pod->server >= 0 ? 0 : pod->attempt,
                                 .phase = pod->phase,
                                 .is_scheduled = pod->node[0] != '\0',
                                 .topology = put_text(end, pod->topology),
                                 .node = put_text(end, pod->node),
                                 .is_deleting = pod->is_deleting,
                                 .is_given_up = pod->is_given_up,
                                 .is_permanent = pod->is_permanent,
                                 .is_ready = pod->is_ready,
                                 .restarts = pod->restarts,
                                 .exit_code = pod->exit_code,
                                 .reason = put_text(end, pod->reason),
                                 .message = put_text(end, pod->message),
                                 .waiting = put_text(end, note ? note->text : pod->waiting),
                                 .cause = put_text(end, note ? note->cause : pod->cause),
                                 .counts_nodes =
                                     pod_cause_counts_nodes(note ? note->text : pod->waiting),
                                 .is_stuck = is_stuck(pod),
                                 .memory_limit = put_text(end, pod->memory_limit),
                                 .created_wall_ms = pod->created_wall_ms,
                                 .started_wall_ms = pod->started_wall_ms,
                                 .finished_wall_ms = pod->finished_wall_ms,
                                 .gone_by_wall_ms = pod->gone_by_wall_ms};
}

static void collect_gone(const struct observe_input *input, struct observation *out)
{
    out->gone_uids = calloc(input->gone_count + 1, sizeof(*out->gone_uids));
    fleet_assert(out->gone_uids);
    for (size_t i = 0; i < input->gone_count; i++)
        out->gone_uids[i] = fleet_dup_text(input->gone_uids[i]);
    out->observed.gone_uids = (const char *const *)out->gone_uids;
    out->observed.gone_count = input->gone_count;
}

/* Its containers run, or may still run. */
static bool is_living(const struct projection_pod *pod)
{
    return pod->phase == OBSERVED_PENDING || pod->phase == OBSERVED_RUNNING;
}

/* The pods of servers, behind those of workers. */
static void collect_servers(const struct observe_input *input, struct observation *out, char *end)
{
    struct observed_pod *servers = out->pods + out->observed.pod_count;
    const struct store_entry *entry;

    out->observed.servers = servers;
    for (entry = store_first(input->pods, PROJECTION_POD_BY_JOB, input->job->uid); entry;
         entry = store_next(entry, PROJECTION_POD_BY_JOB)) {
        const struct projection_pod *pod = store_object(entry);
        if (pod->server < 0)
            continue;
        servers[out->observed.server_count++] = copy_pod(pod, input->said, &end);
        out->living_count += is_living(pod);
    }
}

static void collect_pods(const struct observe_input *input, struct observation *out)
{
    const struct store_entry *entry;
    const char *uid = input->job->uid;
    size_t count = 0, size = 0;
    char *end;

    for (entry = store_first(input->pods, PROJECTION_POD_BY_JOB, uid); entry;
         entry = store_next(entry, PROJECTION_POD_BY_JOB)) {
        size += texts_size(store_object(entry), input->said);
        count++;
    }
    out->pods = calloc(count + 1, sizeof(*out->pods));
    out->texts = end = malloc(size + 1);
    fleet_assert(out->pods && out->texts);
    count = 0;
    for (entry = store_first(input->pods, PROJECTION_POD_BY_JOB, uid); entry;
         entry = store_next(entry, PROJECTION_POD_BY_JOB)) {
        const struct projection_pod *pod = store_object(entry);
        if (!is_ours(pod))
            continue;
        out->pods[count++] = copy_pod(pod, input->said, &end);
        out->observed.asks_why |= is_stuck(pod) && !pod_events_find(input->said, pod->uid) &&
                                  input->now_wall_ms - pod->created_wall_ms >= POD_EVENTS_AFTER_MS;
        if (!is_living(pod))
            continue; /* it may date from before a suspension */
        out->living_count++;
        if (pod->image[0] && pod->agent_image[0] && !pod->is_deleting) {
            out->image = pod->image;
            out->image_id = pod->image_id;
            out->agent_image = pod->agent_image;
        }
    }
    out->observed.pods = out->pods;
    out->observed.pod_count = count;
    collect_servers(input, out, end);
}

/* ---- the whole ------------------------------------------------------------------------------- */

int observe(const struct observe_input *input, struct observation *out, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    int rc;

    *out = (struct observation){.plan = input->plan};
    if (input->plan->broken)
        fleet_assert_failed(input->plan->broken, __FILE__, __LINE__);
    rc = fleet_json_parse(input->job->text, input->job->size, PROJECTION_JOB_SIZE_MAX, &json, err);
    if (rc < 0)
        return fleet_error_wrap(err, "read the cached FleetJob");
    (void)fleetjob_decode_found(json, observe_plan_found(input->plan, input->job->generation),
                                &out->job, &out->errors);
    if (!out->job.metadata.uid || !out->job.metadata.name) {
        rc = fleet_error(err, -EINVAL, "the FleetJob has no name or UID");
        observe_release(out);
        return rc;
    }
    check(input, json, out);
    collect_pods(input, out);
    observe_divisions_change(out);
    collect_gone(input, out);
    out->observed.now_wall_ms = input->now_wall_ms;
    out->observed.job = &out->job;
    out->observed.errors = &out->errors;
    out->observed.warnings = &out->warnings;
    out->observed.is_first = input->is_first;
    out->observed.refusal = input->refusal;
    out->observed.refusal_kind = input->refusal_kind;
    out->observed.refused = input->refused;
    out->observed.refused_count = input->refused_count;
    out->observed.vanished = input->vanished;
    out->observed.vanished_count = input->vanished_count;
    out->observed.hub = *input->hub;
    out->observed.taken = input->taken;
    out->observed.taken_count = input->taken_count;
    return 0;
}

void observe_forget_borrowed(struct observation *observation)
{
    struct observed *observed = &observation->observed;

    observed->hub = (struct hub_view){0};
    observed->refusal = observed->server_address = NULL;
    observed->refused = observed->taken = NULL;
    observed->refused_count = observed->taken_count = 0;
    observed->vanished = NULL;
    observed->vanished_count = 0;
    observation->image = observation->image_id = NULL;
    observation->agent_image = observation->secret_digest = NULL;
}

void observe_release(struct observation *observation)
{
    fleetjob_release(&observation->job);
    fleet_errors_release(&observation->errors);
    fleet_errors_release(&observation->warnings);
    for (size_t i = 0; i < observation->observed.gone_count; i++)
        free(observation->gone_uids[i]);
    free(observation->gone_uids);
    free(observation->redivides);
    free(observation->searches);
    free(observation->pods);
    free(observation->texts);
    memset(observation, 0, sizeof(*observation));
}

static void change_text(char **text, const char *value, struct actions *actions)
{
    fleet_set_text(text, value);
    actions->write = ACTION_WRITE_NOW;
}

/* The images are frozen at the first start. A suspended job may get other images as soon as its
 * condition is true, even if ended pods still exist. */
static void complete_images(const struct observation *o, struct actions *actions)
{
    struct fleetjob_status *status = &actions->status;
    bool is_suspended = o->job.spec.run_policy.suspend;

    if (is_suspended && o->living_count == 0 && (status->image || status->agent_image)) {
        change_text(&status->image, NULL, actions);
        change_text(&status->image_id, NULL, actions);
        change_text(&status->agent_image, NULL, actions);
    } else if (!is_suspended && o->image && !(status->image && status->agent_image)) {
        if (!status->image) {
            change_text(&status->image, o->image, actions);
            change_text(&status->image_id, o->image_id, actions);
        }
        change_text(&status->agent_image, o->agent_image, actions);
    }
}

/* Append the knobs of the plan's list `key`: either one of them, or all with their reasons. */
static void append_notes(const cJSON *plan, const char *key, const char *only,
                         struct fleet_strbuf *out)
{
    const cJSON *note;

    cJSON_ArrayForEach(note, fleet_json_at(plan, key))
    {
        const char *knob = "", *why = "";
        (void)fleet_json_opt_string(note, "setting", &knob, NULL);
        (void)fleet_json_opt_string(note, "because", &why, NULL);
        if (!only || strcmp(knob, only) == 0)
            fleet_strbuf_appendf(out, "%s%s: %s", out->length > 0 ? "; " : "", knob, why);
    }
}

/* Report the settings without effect, once for each generation of the spec. */
static void report_plan(const struct observation *o, struct actions *actions)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf dropped = {0}, ignored = {0};

    if (o->job.status.observed_generation == o->job.metadata.generation)
        return;
    append_notes(o->plan->json, "dropped", NULL, &dropped);
    append_notes(o->plan->json, "withoutEffect", "auto", &ignored);
    if (dropped.length > 0)
        actions_event(actions, false, WELLKNOWN_EVENT_SETTING_DROPPED, "%s", dropped.text);
    if (ignored.length > 0)
        actions_event(actions, false, WELLKNOWN_EVENT_AUTO_IGNORED, "%s", ignored.text);
}

void observe_complete(const struct observation *o, struct actions *actions)
{
    FLEET_AUTO_JSON cJSON *divided = NULL;
    const cJSON *plan;

    if (actions->look_count > 0)
        return; /* the next pass decides about it */
    complete_images(o, actions);
    if (o->redivides && o->living_count == 0)
        actions->requeue_after_ms = REDIVIDE_MS;
    if (o->secret_digest && o->secret_digest[0] &&
        (!actions->status.secret_digest ||
         strcmp(o->secret_digest, actions->status.secret_digest) != 0))
        change_text(&actions->status.secret_digest, o->secret_digest, actions);
    if (o->searches || !o->plan->json || o->errors.count > 0 ||
        o->plan->generation != o->job.metadata.generation)
        return;
    report_plan(o, actions);
    divided = observe_divisions_plan(o, actions);
    plan = divided ? divided : o->plan->json;
    if (fleet_json_equal(plan, actions->status.plan))
        return;
    cJSON_Delete(actions->status.plan);
    actions->status.plan = fleet_json_copy(plan);
    fleet_assert(actions->status.plan);
    actions->write = ACTION_WRITE_NOW;
}
