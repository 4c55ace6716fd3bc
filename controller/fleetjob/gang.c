/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One row for each gang scheduler: the resource of its PodGroup, how it is discovered, and how a
 * pod joins a group.
 */
#include "controller/fleetjob/gang.h"

#include <string.h>

#include "controller/fleetjob/job_secret.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

#define VOLCANO_GROUP "scheduling.volcano.sh"
#define PLUGINS_GROUP "scheduling.x-k8s.io"

static const struct {
    const char *name;
    struct kube_resource resource, discovery;
    const char *scheduler_name;
    const char *label, *annotation; /* of pods, with the name of the group; NULL = none */
} schedulers[GANG_SCHEDULERS] = {
    [GANG_VOLCANO] = {.name = "Volcano",
                      .resource = {VOLCANO_GROUP, "v1beta1", "podgroups", "PodGroup", true},
                      .discovery = {VOLCANO_GROUP, "v1beta1", "", "", false},
                      .scheduler_name = "volcano",
                      .annotation = "scheduling.k8s.io/group-name"},
    [GANG_SCHEDULER_PLUGINS] = {.name = "scheduler-plugins",
                                .resource = {PLUGINS_GROUP, "v1alpha1", "podgroups", "PodGroup",
                                             true},
                                .discovery = {PLUGINS_GROUP, "v1alpha1", "", "", false},
                                .scheduler_name = "scheduler-plugins-scheduler",
                                .label = PLUGINS_GROUP "/pod-group"},
};

const struct kube_resource *gang_resource(enum gang_scheduler scheduler)
{
    return scheduler == GANG_NONE ? NULL : &schedulers[scheduler].resource;
}

const struct kube_resource *gang_discovery(enum gang_scheduler scheduler)
{
    return scheduler == GANG_NONE ? NULL : &schedulers[scheduler].discovery;
}

const char *gang_name(enum gang_scheduler scheduler)
{
    return scheduler == GANG_NONE ? "none" : schedulers[scheduler].name;
}

bool gang_is_auto(const struct fleetjob *job)
{
    const struct fleetjob_scheduling *scheduling = &job->spec.run_policy.scheduling;
    bool has_queue = scheduling->queue && scheduling->queue[0];

    return scheduling->gang == FLEETJOB_GANG_AUTO && !has_queue;
}

enum gang_scheduler gang_choose(const struct fleetjob *job, const bool *is_there)
{
    switch (job->spec.run_policy.scheduling.gang) {
    case FLEETJOB_GANG_VOLCANO:
        return GANG_VOLCANO;
    case FLEETJOB_GANG_SCHEDULER_PLUGINS:
        return GANG_SCHEDULER_PLUGINS;
    case FLEETJOB_GANG_AUTO:
        for (int s = GANG_NONE + 1; gang_is_auto(job) && s < GANG_SCHEDULERS; s++)
            if (is_there[s])
                return (enum gang_scheduler)s;
        return GANG_NONE;
    default:
        return GANG_NONE;
    }
}

char *gang_group_name(const struct fleetjob *job)
{
    return job_secret_name(job);
}

cJSON *gang_build(const struct fleetjob *job, enum gang_scheduler scheduler)
{
    struct kube_meta owner = {.name = job->metadata.name, .uid = job->metadata.uid};
    const struct kube_resource *resource = gang_resource(scheduler);
    FLEET_AUTO_FREE char *name = gang_group_name(job);
    struct fleet_strbuf version = {0};
    cJSON *group = fleet_json_new_object(), *metadata, *spec;

    fleet_assert(group && resource);
    kube_resource_api_version(resource, &version);
    metadata = fleet_json_set_object(group, "metadata");
    spec = fleet_json_set_object(group, "spec");
    fleet_json_set_string(group, "apiVersion", version.text);
    fleet_json_set_string(group, "kind", resource->kind);
    fleet_json_set_string(metadata, "name", name);
    fleet_json_set_string(metadata, "namespace", job->metadata.namespace_);
    fleet_json_add(fleet_json_set_list(metadata, "ownerReferences"),
                   kube_owner_reference(WELLKNOWN_API_VERSION, WELLKNOWN_KIND, &owner));
    fleet_json_set_number(spec, "minMember", (double)job->spec.worker.min_replicas);
    fleet_strbuf_release(&version);
    kube_meta_set_label(group, WELLKNOWN_LABEL_JOB, job->metadata.name);
    kube_meta_set_label(group, WELLKNOWN_LABEL_MANAGED_BY, WELLKNOWN_FIELD_MANAGER);
    return group;
}

void gang_join(const struct fleetjob *job, enum gang_scheduler scheduler, cJSON *pod)
{
    cJSON *spec = cJSON_GetObjectItemCaseSensitive(pod, "spec");
    FLEET_AUTO_FREE char *name = gang_group_name(job);

    if (scheduler == GANG_NONE)
        return;
    if (schedulers[scheduler].label)
        kube_meta_set_label(pod, schedulers[scheduler].label, name);
    if (schedulers[scheduler].annotation)
        kube_meta_set_annotation(pod, schedulers[scheduler].annotation, name);
    if (!cJSON_GetObjectItemCaseSensitive(spec, "schedulerName"))
        fleet_json_set_string(spec, "schedulerName", schedulers[scheduler].scheduler_name);
}
