/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Builds a worker's pod in two steps: the user's settings (a whole template, or image, resources
 * and volumes), then the parts that the agent needs (pod_agent.h).
 */
#include "controller/fleetjob/pod_builder.h"

#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/pod_agent.h"
#include "controller/fleetjob/pod_common.h"
#include "controller/fleetjob/pod_json.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/api/worker_resources.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

/* ---- the user's part ------------------------------------------------------------------------- */

static void add_user_volume(cJSON *spec, cJSON *container, const struct fleetjob_volume *volume)
{
    cJSON *source = fleet_json_add_object(pod_json_child(spec, "volumes", true));
    cJSON *mount = fleet_json_add_object(pod_json_child(container, "volumeMounts", true));

    fleet_json_set_string(source, "name", volume->name);
    if (volume->claim)
        fleet_json_set_string(pod_json_child(source, "persistentVolumeClaim", false), "claimName",
                              volume->claim);
    else if (volume->config_map)
        fleet_json_set_string(pod_json_child(source, "configMap", false), "name",
                              volume->config_map);
    else if (volume->host_path)
        fleet_json_set_string(pod_json_child(source, "hostPath", false), "path", volume->host_path);
    else
        fleet_json_set(source, "emptyDir",
                       volume->empty_dir ? fleet_json_copy(volume->empty_dir)
                                         : fleet_json_new_object());
    fleet_json_set_string(mount, "name", volume->name);
    fleet_json_set_string(mount, "mountPath", volume->mount_path);
    if (volume->read_only)
        fleet_json_set_bool(mount, "readOnly", true);
}

/* The image of the first container: frozen, requested, or the runtime's own. */
static const char *choose_image(const struct pod_builder_request *r, const char *asked)
{
    const struct fleetjob *job = r->job;

    if (job->status.image && job->status.image[0])
        return job->status.image;
    return asked && asked[0] ? asked : r->runtime_image;
}

void pod_builder_set_image(const struct pod_builder_request *request, cJSON *container,
                           const char *image)
{
    fleet_json_set_string(container, "image", image);
    if (request->pull_policy && request->pull_policy[0] &&
        !pod_json_get(container, "imagePullPolicy"))
        fleet_json_set_string(container, "imagePullPolicy", request->pull_policy);
}

/* A pod with only the user's settings. */
static cJSON *user_part(const struct pod_builder_request *r)
{
    const struct fleetjob_worker *worker = &r->job->spec.worker;
    cJSON *pod = worker->template_ ? fleet_json_copy(worker->template_) : fleet_json_new_object();
    cJSON *spec, *containers, *container;

    spec = pod_json_child(pod, "spec", false);
    containers = pod_json_child(spec, "containers", true);
    container = cJSON_GetArraySize(containers) > 0 ? cJSON_GetArrayItem(containers, 0)
                                                   : fleet_json_add_object(containers);
    if (!pod_json_get(container, "name"))
        fleet_json_set_string(container, "name", "worker");
    if (worker->template_)
        return pod;
    if (worker->image && worker->image[0])
        fleet_json_set_string(container, "image", worker->image);
    if (worker->resources)
        fleet_json_set(container, "resources", fleet_json_copy(worker->resources));
    for (size_t i = 0; i < worker->volumes.count; i++)
        add_user_volume(spec, container, &worker->volumes.items[i]);
    return pod;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Kubernetes uses the limit as the request if there is no request. */
static bool is_given(const cJSON *container, const char *resource)
{
    const cJSON *resources = pod_json_get(container, "resources");

    return pod_json_get(pod_json_get(resources, "requests"), resource) ||
           pod_json_get(pod_json_get(resources, "limits"), resource);
}

static void request_amount(cJSON *container, const char *resource, int64_t amount, const char *unit)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf quantity = {0};

    fleet_strbuf_appendf(&quantity, "%lld%s", (long long)amount, unit);
    fleet_json_set_string(
        pod_json_child(pod_json_child(container, "resources", false), "requests", false), resource,
        quantity.text);
}

static void request_resources(const struct pod_builder_request *r, cJSON *container)
{
    if (!r->job->spec.has_training)
        return; /* only the user knows how much memory an own trainer needs */
    if (!is_given(container, "cpu"))
        request_amount(container, "cpu",
                       POD_BUILDER_CPU_REQUEST * r->job->spec.worker.processes_per_pod, "m");
    if (r->worker_bytes > 0 && !is_given(container, "memory"))
        request_amount(container, "memory", (r->worker_bytes + (1 << 20) - 1) >> 20, "Mi");
}

/* ---- where it runs --------------------------------------------------------------------------- */

static void avoid(cJSON *spec, const char *node)
{
    cJSON *affinity =
        pod_json_child(pod_json_child(spec, "affinity", false), "nodeAffinity", false);
    cJSON *term = fleet_json_add_object(
        pod_json_child(affinity, "preferredDuringSchedulingIgnoredDuringExecution", true));
    cJSON *field = fleet_json_add_object(
        pod_json_child(pod_json_child(term, "preference", false), "matchFields", true));

    fleet_json_set_number(term, "weight", 50);
    fleet_json_set_string(field, "key", "metadata.name");
    fleet_json_set_string(field, "operator", "NotIn");
    fleet_json_add_string(pod_json_child(field, "values", true), node);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void set_metadata(const struct pod_builder_request *r, cJSON *pod)
{
    const struct fleetjob_metadata *job = &r->job->metadata;
    struct kube_meta owner = {.name = job->name, .uid = job->uid};
    cJSON *metadata = pod_json_child(pod, "metadata", false);
    FLEET_AUTO_FREE char *name = worker_name_build(job->name, r->index, r->attempt);
    FLEET_AUTO_STRBUF struct fleet_strbuf index = {0}, attempt = {0};

    fleet_strbuf_appendf(&index, "%d", r->index);
    fleet_strbuf_appendf(&attempt, "%d", r->attempt);
    fleet_json_set_string(metadata, "name", name);
    fleet_json_set_string(metadata, "namespace", job->namespace_);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_JOB, job->name);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_JOB_UID, job->uid);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_INDEX, index.text);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_ATTEMPT, attempt.text);
    kube_meta_set_label(pod, WELLKNOWN_LABEL_MANAGED_BY, WELLKNOWN_FIELD_MANAGER);
    fleet_json_add(pod_json_child(metadata, "ownerReferences", true),
                   kube_owner_reference(WELLKNOWN_API_VERSION, WELLKNOWN_KIND, &owner));
}

static void set_defaults(const struct pod_builder_request *r, cJSON *spec)
{
    FLEET_AUTO_FREE char *service = pod_builder_service_name(r->job->metadata.name);
    FLEET_AUTO_FREE char *name = worker_name_build(r->job->metadata.name, r->index, r->attempt);

    fleet_json_set_string(spec, "restartPolicy", "Never");
    if (!pod_json_get(spec, "automountServiceAccountToken"))
        fleet_json_set_bool(spec, "automountServiceAccountToken", false);
    if (!pod_json_get(spec, "enableServiceLinks"))
        fleet_json_set_bool(spec, "enableServiceLinks", false);
    if (!pod_json_get(spec, "terminationGracePeriodSeconds"))
        fleet_json_set_number(spec, "terminationGracePeriodSeconds", POD_BUILDER_GRACE_SECONDS);
    if (r->job->spec.worker.hostnames && !pod_json_get(spec, "subdomain") &&
        !pod_json_get(spec, "hostname")) {
        fleet_json_set_string(spec, "hostname", name);
        fleet_json_set_string(spec, "subdomain", service);
    }
    pod_common_tolerate(spec);
}

static cJSON *build(const struct pod_builder_request *r)
{
    cJSON *pod = user_part(r), *spec = pod_json_get(pod, "spec");
    cJSON *container = cJSON_GetArrayItem(pod_json_get(spec, "containers"), 0);
    const char *asked = cJSON_GetStringValue(pod_json_get(container, "image"));
    bool is_runtime = pod_agent_is_in_image(r, asked);

    fleet_json_set_string(pod, "apiVersion", "v1");
    fleet_json_set_string(pod, "kind", "Pod");
    set_metadata(r, pod);
    set_defaults(r, spec);
    pod_builder_set_image(r, container, choose_image(r, asked));
    pod_agent_set_command(r, container, is_runtime);
    request_resources(r, container);
    pod_agent_add_volumes(r, spec, container);
    fleet_json_set_string(container, "terminationMessagePath", POD_BUILDER_TERMINATION_FILE);
    fleet_json_set_string(container, "terminationMessagePolicy", "FallbackToLogsOnError");
    if (!is_runtime)
        pod_agent_bring(r, spec, container);
    pod_common_restrict(spec);
    pod_common_queue(r->job, pod);
    gang_join(r->job, r->gang, pod);
    pod_common_set_hash(pod);
    if (r->avoid_node && r->avoid_node[0])
        avoid(spec, r->avoid_node);
    return pod;
}

/* The trainer needs CUDA's libraries on NVIDIA GPUs. Own trainers bring theirs. */
static bool needs_cuda(const struct pod_builder_request *r)
{
    return r->cuda_image && r->cuda_image[0] && r->job->spec.has_training &&
           worker_resources_gpus(&r->job->spec.worker, WELLKNOWN_NVIDIA_GPU) > 0;
}

cJSON *pod_builder_build(const struct pod_builder_request *request)
{
    struct pod_builder_request chosen = *request;

    if (needs_cuda(request))
        chosen.runtime_image = request->cuda_image;
    return build(&chosen);
}

const char *pod_builder_hash(const cJSON *pod)
{
    const char *hash = kube_meta_annotation(pod, WELLKNOWN_ANNOTATION_TEMPLATE);

    return hash ? hash : "";
}

char *pod_builder_service_name(const char *job)
{
    struct fleet_strbuf name = {0};

    fleet_strbuf_appendf(&name, "%s-workers", job);
    return fleet_strbuf_take(&name);
}

char *pod_builder_servers_name(const char *job)
{
    struct fleet_strbuf name = {0};

    fleet_strbuf_appendf(&name, "%s-servers", job);
    return fleet_strbuf_take(&name);
}
