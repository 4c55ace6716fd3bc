/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/projection.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/pod_cause.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

#define TERMINATION_SIZE_MAX 8192

const struct kube_resource projection_fleetjobs = {WELLKNOWN_GROUP, WELLKNOWN_VERSION,
                                                   WELLKNOWN_PLURAL, WELLKNOWN_KIND, true};

/* ---- jobs ------------------------------------------------------------------------------------ */

static void job_release(void *projected)
{
    struct projection_job *job = projected;

    free(job->text);
    free(job->uid);
    free(job->resource_version);
    free(job->state);
    free(job);
}

/*
 * References to the members of the object, except managedFields, which are longer than the rest.
 */
static cJSON *without_managed_fields(const cJSON *object)
{
    cJSON *copy = fleet_json_new_object(), *metadata = fleet_json_new_object();
    cJSON *item;

    cJSON_ArrayForEach(item, object) if (strcmp(item->string, "metadata") != 0)
        fleet_json_set_reference(copy, item);
    cJSON_ArrayForEach(item,
                       cJSON_GetObjectItemCaseSensitive(
                           object, "metadata")) if (strcmp(item->string, "managedFields") != 0)
        fleet_json_set_reference(metadata, item);
    fleet_json_set(copy, "metadata", metadata);
    return copy;
}

static void *job_project(const cJSON *object, struct fleet_error *err)
{
    struct kube_meta meta;
    FLEET_AUTO_JSON cJSON *copy = NULL;
    const char *state = "Pending";
    struct projection_job *job;

    if (kube_meta_view(object, &meta, err) < 0)
        return NULL;
    copy = without_managed_fields(object);
    job = calloc(1, sizeof(*job));
    fleet_assert(job);
    job->text = fleet_json_print(copy);
    job->size = strlen(job->text);
    job->uid = fleet_dup_or_empty(meta.uid);
    job->resource_version = fleet_dup_or_empty(meta.resource_version);
    job->generation = meta.generation;
    (void)fleet_json_opt_string(object, "status.state", &state, NULL);
    job->state = fleet_dup_or_empty(state);
    if (job->size <= PROJECTION_JOB_SIZE_MAX)
        return job;
    (void)fleet_error(err, -EFBIG, "FleetJob %s/%s has %zu bytes; at most %u are read",
                      meta.namespace_, meta.name, job->size, PROJECTION_JOB_SIZE_MAX);
    job_release(job);
    return NULL;
}

const struct store_kind projection_job_kind = {job_project, job_release, {NULL}};

/* ---- pods ------------------------------------------------------------------------------------ */

static const size_t pod_texts[] = {
    offsetof(struct projection_pod, name),      offsetof(struct projection_pod, uid),
    offsetof(struct projection_pod, owner_uid), offsetof(struct projection_pod, owner_name),
    offsetof(struct projection_pod, node),      offsetof(struct projection_pod, topology),
    offsetof(struct projection_pod, image),     offsetof(struct projection_pod, agent_image),
    offsetof(struct projection_pod, reason),    offsetof(struct projection_pod, message),
    offsetof(struct projection_pod, waiting),   offsetof(struct projection_pod, cause),
    offsetof(struct projection_pod, image_id),  offsetof(struct projection_pod, memory_limit),
};

static char **pod_text(struct projection_pod *pod, size_t i)
{
    return (char **)(void *)((char *)pod + pod_texts[i]);
}

/* The first equal text, so that it is stored only once. */
static size_t first_like(struct projection_pod *pod, size_t i)
{
    size_t first = 0;

    while (first < i &&
           !(*pod_text(pod, first) && strcmp(*pod_text(pod, first), *pod_text(pod, i)) == 0))
        first++;
    return first;
}

/* Pack an object and its texts into one block, because there may be a hundred thousand objects.
 * Frees the texts of `draft`. */
static struct projection_pod *pack(struct projection_pod *draft)
{
    size_t sizes[FLEET_COUNT(pod_texts)] = {0}, size = sizeof(*draft);
    struct projection_pod *pod;
    char *end;

    for (size_t i = 0; i < FLEET_COUNT(pod_texts); i++)
        if (*pod_text(draft, i) && first_like(draft, i) == i)
            size += sizes[i] = strlen(*pod_text(draft, i)) + 1;
    pod = malloc(size);
    fleet_assert(pod);
    *pod = *draft;
    end = (char *)(pod + 1);
    for (size_t i = 0; i < FLEET_COUNT(pod_texts); i++) {
        if (!*pod_text(draft, i))
            continue;
        if (sizes[i] == 0) {
            *pod_text(pod, i) = *pod_text(pod, first_like(draft, i));
            continue;
        }
        memcpy(end, *pod_text(draft, i), sizes[i]);
        *pod_text(pod, i) = end;
        end += sizes[i];
    }
    for (size_t i = 0; i < FLEET_COUNT(pod_texts); i++)
        free(*pod_text(draft, i));
    return pod;
}

static int64_t time_at(const cJSON *json, const char *path)
{
    int64_t time = 0;

    (void)fleet_rfc3339_parse(fleet_json_text_at(json, path), &time);
    return time;
}

static enum observed_phase read_phase(const cJSON *object)
{
    const char *phase = fleet_json_text_at(object, "status.phase");

    if (strcmp(phase, "Succeeded") == 0)
        return OBSERVED_SUCCEEDED;
    if (strcmp(phase, "Failed") == 0)
        return OBSERVED_FAILED;
    return strcmp(phase, "Pending") == 0 || !phase[0] ? OBSERVED_PENDING : OBSERVED_RUNNING;
}

static const cJSON *find_named(const cJSON *list, const char *name)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        if (strcmp(fleet_json_text_at(item, "name"), name) == 0)
            return item;
    }
    return NULL;
}

/* The status of the agent's container: the first one of the pod. */
static const cJSON *worker_status(const cJSON *object)
{
    return find_named(fleet_json_at(object, "status.containerStatuses"),
                      fleet_json_text_at(object, "spec.containers[0].name"));
}

/* The message for users: the agent's report (reporter.h) in one line, or the text that the
 * container left. */
static void read_message(const char *text, struct fleet_strbuf *reason,
                         struct fleet_strbuf *message, bool *is_permanent)
{
    FLEET_AUTO_JSON cJSON *report = NULL;

    if (fleet_json_parse(text, strlen(text), TERMINATION_SIZE_MAX, &report, NULL) == 0 &&
        cJSON_IsObject(report)) {
        fleet_strbuf_append(reason, fleet_json_text_at(report, "cause"));
        fleet_strbuf_append(message, fleet_json_text_at(report, "message"));
        *is_permanent = cJSON_IsTrue(fleet_json_at(report, "permanent"));
    } else {
        fleet_strbuf_append(message, text);
    }
    if (message->length > PROJECTION_MESSAGE_MAX)
        fleet_strbuf_consume(message, message->length - PROJECTION_MESSAGE_MAX);
}

/* The image that the container runs: its digest, or its name if it was loaded onto the node and has
 * no digest. */
static const char *read_image(const cJSON *container, const cJSON *status)
{
    const char *id = fleet_json_text_at(status, "imageID");

    return !id[0] || strstr(id, "@sha256:") ? id : fleet_json_text_at(container, "image");
}

static void read_images(const cJSON *object, const cJSON *worker, struct projection_pod *pod)
{
    const cJSON *bringer =
        find_named(fleet_json_at(object, "spec.initContainers"), WELLKNOWN_AGENT_CONTAINER);
    const cJSON *status = find_named(fleet_json_at(object, "status.initContainerStatuses"),
                                     WELLKNOWN_AGENT_CONTAINER);

    pod->image_id = fleet_dup_or_empty(fleet_json_text_at(worker, "imageID"));
    pod->image =
        fleet_dup_or_empty(read_image(fleet_json_at(object, "spec.containers[0]"), worker));
    pod->agent_image = fleet_dup_or_empty(bringer ? read_image(bringer, status) : pod->image);
}

/* FleetJob's word for Kubernetes' reason of a disruption. */
static const char *disruption_cause(const char *reason)
{
    static const struct {
        const char *reason;
        enum fleet_cause cause;
    } causes[] = {{"PreemptionByScheduler", FLEET_CAUSE_PREEMPTED},
                  {"EvictionByEvictionAPI", FLEET_CAUSE_EVICTED},
                  {"DeletionByTaintManager", FLEET_CAUSE_EVICTED},
                  {"TerminationByKubelet", FLEET_CAUSE_EVICTED}};

    for (size_t i = 0; i < FLEET_COUNT(causes); i++)
        if (strcmp(reason, causes[i].reason) == 0)
            return fleet_cause_word(causes[i].cause);
    return reason;
}

/* Why the pod ended, most precise reason first: the pod's, the disruption's, the container's. */
static const char *read_reason(const cJSON *object, const cJSON *terminated)
{
    const char *pod = fleet_json_text_at(object, "status.reason"),
               *container = fleet_json_text_at(terminated, "reason");
    const cJSON *disruption =
        kube_condition_find(fleet_json_at(object, "status.conditions"), "DisruptionTarget");

    if (pod[0])
        return pod;
    if (disruption && strcmp(fleet_json_text_at(disruption, "status"), "True") == 0)
        return disruption_cause(fleet_json_text_at(disruption, "reason"));
    if (strcmp(container, "Error") == 0 || strcmp(container, "Completed") == 0)
        return "";
    return container;
}

/* The memory limit of the container, or of all containers of the pod. */
static const char *read_memory_limit(const cJSON *object)
{
    const char *limit = fleet_json_text_at(object, "spec.containers[0].resources.limits.memory");

    return limit[0] ? limit : fleet_json_text_at(object, "spec.resources.limits.memory");
}

/* The kubelet starts the container of a server again: how often, and how it ended last. */
static const cJSON *read_restarts(const cJSON *object, const cJSON *status,
                                  struct projection_pod *pod)
{
    const cJSON *ready = kube_condition_find(fleet_json_at(object, "status.conditions"), "Ready");
    int64_t restarts = 0;

    (void)fleet_json_opt_int(status, "restartCount", &restarts, NULL);
    pod->restarts = restarts < 0 || restarts > INT32_MAX ? 0 : (int)restarts;
    pod->is_ready = ready && strcmp(fleet_json_text_at(ready, "status"), "True") == 0;
    return fleet_json_at(status, "lastState.terminated");
}

static void read_end(const cJSON *object, struct projection_pod *pod)
{
    const cJSON *worker = worker_status(object);
    const cJSON *last = pod->server >= 0 ? read_restarts(object, worker, pod) : NULL;
    const cJSON *terminated = fleet_json_at(worker, "state.terminated");
    const cJSON *ended = terminated ? terminated : last;
    FLEET_AUTO_STRBUF struct fleet_strbuf cause = {0}, message = {0};
    const char *reason = read_reason(object, ended);
    int64_t exit_code = -1;

    (void)fleet_json_opt_int(ended, "exitCode", &exit_code, NULL);
    pod->memory_limit = fleet_dup_or_empty(read_memory_limit(object));
    pod->exit_code = exit_code < -1 || exit_code > INT32_MAX ? -1 : (int)exit_code;
    read_images(object, worker, pod);
    pod->started_wall_ms = time_at(terminated ? terminated : worker,
                                   terminated ? "startedAt" : "state.running.startedAt");
    pod->finished_wall_ms = time_at(terminated, "finishedAt");
    read_message(fleet_json_text_at(ended, "message"), &cause, &message, &pod->is_permanent);
    if (message.length == 0)
        fleet_strbuf_append(&message, fleet_json_text_at(object, "status.message"));
    pod->reason = fleet_dup_or_empty(reason[0] ? reason : fleet_strbuf_text(&cause));
    pod->message = fleet_dup_or_empty(fleet_strbuf_text(&message));
}

/*
 * The first waiting container with a reason. A container whose turn has not come has no reason that
 * helps.
 */
static bool find_waiting(const cJSON *statuses, struct fleet_strbuf *out, const char **out_cause)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, statuses)
    {
        const char *reason = fleet_json_text_at(item, "state.waiting.reason");
        const char *message = fleet_json_text_at(item, "state.waiting.message");
        if (!reason[0] || strcmp(reason, "PodInitializing") == 0)
            continue;
        fleet_strbuf_appendf(out, "%s%s%s", reason, message[0] ? ": " : "", message);
        *out_cause = pod_cause_of_container(reason, message);
        return true;
    }
    return false;
}

static void read_waiting(const cJSON *object, struct projection_pod *pod)
{
    const cJSON *conditions = fleet_json_at(object, "status.conditions");
    const cJSON *scheduled = kube_condition_find(conditions, "PodScheduled");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *cause = "";

    if (scheduled && strcmp(fleet_json_text_at(scheduled, "status"), "False") == 0) {
        fleet_strbuf_append(&text, fleet_json_text_at(scheduled, "message"));
        cause = pod_cause_of_scheduler(fleet_json_text_at(scheduled, "reason"),
                                       fleet_strbuf_text(&text));
    } else if (!find_waiting(fleet_json_at(object, "status.initContainerStatuses"), &text,
                             &cause)) {
        (void)find_waiting(fleet_json_at(object, "status.containerStatuses"), &text, &cause);
    }
    if (text.length > PROJECTION_MESSAGE_MAX) {
        size_t end = PROJECTION_MESSAGE_MAX;
        while (end > 0 && ((unsigned char)text.text[end] & 0xC0) == 0x80)
            end--; /* not within a character */
        text.text[end] = '\0';
    }
    pod->waiting = fleet_dup_or_empty(fleet_strbuf_text(&text));
    pod->cause = fleet_dup_or_empty(cause);
}

/* A pod whose own grace period is as short is taken for a drained one. */
static bool is_given_up(const cJSON *pod)
{
    int64_t own = 0, given = 0;

    (void)fleet_json_opt_int(pod, "spec.terminationGracePeriodSeconds", &own, NULL);
    (void)fleet_json_opt_int(pod, "metadata.deletionGracePeriodSeconds", &given, NULL);
    return given == PROJECTION_GRACE_GIVEN_UP_S && own != given;
}

static void *pod_project(const cJSON *object, struct fleet_error *err)
{
    struct kube_meta meta;
    const cJSON *owner = kube_meta_controller(object);
    struct projection_pod draft = {0}, *pod = &draft; /* texts are heap until they are packed */

    if (kube_meta_view(object, &meta, err) < 0)
        return NULL;
    pod->name = fleet_dup_or_empty(meta.name);
    pod->uid = fleet_dup_or_empty(meta.uid);
    if (owner && strcmp(fleet_json_text_at(owner, "kind"), WELLKNOWN_KIND) == 0)
        pod->owner_uid = fleet_dup_or_empty(fleet_json_text_at(owner, "uid"));
    pod->owner_name = fleet_dup_or_empty(pod->owner_uid ? fleet_json_text_at(owner, "name") : "");
    pod->node = fleet_dup_or_empty(fleet_json_text_at(object, "spec.nodeName"));
    pod->topology = fleet_dup_or_empty(kube_meta_label(object, WELLKNOWN_LABEL_TOPOLOGY));
    pod->index = pod->attempt = pod->server = -1;
    if (pod->owner_uid) {
        (void)worker_name_parse(pod->name, pod->owner_name, &pod->index, &pod->attempt);
        (void)server_name_parse(pod->name, pod->owner_name, &pod->server);
    }
    pod->phase = read_phase(object);
    pod->is_deleting = meta.deleted_wall_ms != 0;
    pod->gone_by_wall_ms = meta.deleted_wall_ms;
    pod->is_given_up = pod->is_deleting && is_given_up(object);
    pod->created_wall_ms = meta.created_wall_ms;
    read_waiting(object, pod);
    read_end(object, pod);
    return pack(pod);
}

static const char *pod_job(const void *projected)
{
    return ((const struct projection_pod *)projected)->owner_uid;
}

const struct store_kind projection_pod_kind = {pod_project, free, {pod_job}};

/* ---- Services -------------------------------------------------------------------------------- */

static void service_release(void *projected)
{
    struct projection_service *service = projected;

    free(service->uid);
    free(service->owner_uid);
    free(service->job_name);
    free(service->address);
    free(service);
}

static void *service_project(const cJSON *object, struct fleet_error *err)
{
    const cJSON *owner = kube_meta_controller(object);
    const char *manager = kube_meta_label(object, WELLKNOWN_LABEL_MANAGED_BY);
    struct projection_service *service;
    struct kube_meta meta;

    if (kube_meta_view(object, &meta, err) < 0)
        return NULL;
    service = calloc(1, sizeof(*service));
    fleet_assert(service);
    service->uid = fleet_dup_or_empty(meta.uid);
    service->owner_uid = owner ? fleet_dup_or_empty(fleet_json_text_at(owner, "uid")) : NULL;
    service->job_name = fleet_dup_or_empty(kube_meta_label(object, WELLKNOWN_LABEL_JOB));
    service->address = fleet_dup_or_empty(fleet_json_text_at(object, "spec.clusterIP"));
    service->is_ours = owner ? strcmp(fleet_json_text_at(owner, "kind"), WELLKNOWN_KIND) == 0
                             : manager && strcmp(manager, WELLKNOWN_FIELD_MANAGER) == 0;
    return service;
}

const struct store_kind projection_service_kind = {service_project, service_release, {NULL}};
