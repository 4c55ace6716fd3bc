/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A worker's pod in two steps: what the user said (a whole template, or image, resources and
 * volumes), then what the agent needs laid over it, so that no template can take the agent's place.
 */
#include "controller/fleetjob/pod_builder.h"

#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/reconcile.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/log.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

#define GRACE_SECONDS        30 /* for a last checkpoint, unless the template says otherwise */
#define UNREACHABLE_SECONDS  15 /* how long a pod stays bound to a node that does not answer */
#define TERMINATION_FILE     "/dev/termination-log"
#define PRELOAD              POD_BUILDER_AGENT_FOLDER "/lib/" WELLKNOWN_PRELOAD_LIBRARY
#define VOLUME_JOB           "fleetjob-job"
#define VOLUME_AGENT         WELLKNOWN_AGENT_CONTAINER
#define VOLUME_SHARED_MEMORY "fleetjob-shm"
#define JOB_FILES_MODE       0444

/* ---- JSON by hand ---------------------------------------------------------------------------- */

static cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* The object or list called `key`, made where it is missing (or of another type). */
static cJSON *child(cJSON *object, const char *key, bool is_list)
{
    cJSON *item = get(object, key);

    if (is_list ? cJSON_IsArray(item) : cJSON_IsObject(item))
        return item;
    item = is_list ? fleet_json_set_list(object, key) : fleet_json_set_object(object, key);
    return item;
}

/* ---- the user's part ------------------------------------------------------------------------- */

static void add_user_volume(cJSON *spec, cJSON *container, const struct fleetjob_volume *volume)
{
    cJSON *source = fleet_json_add_object(child(spec, "volumes", true));
    cJSON *mount = fleet_json_add_object(child(container, "volumeMounts", true));

    fleet_json_set_string(source, "name", volume->name);
    if (volume->claim)
        fleet_json_set_string(child(source, "persistentVolumeClaim", false), "claimName",
                              volume->claim);
    else if (volume->config_map)
        fleet_json_set_string(child(source, "configMap", false), "name", volume->config_map);
    else if (volume->host_path)
        fleet_json_set_string(child(source, "hostPath", false), "path", volume->host_path);
    else
        fleet_json_set(source, "emptyDir",
                       volume->empty_dir ? fleet_json_copy(volume->empty_dir)
                                         : fleet_json_new_object());
    fleet_json_set_string(mount, "name", volume->name);
    fleet_json_set_string(mount, "mountPath", volume->mount_path);
    if (volume->read_only)
        fleet_json_set_bool(mount, "readOnly", true);
}

/* The image of the first container: as frozen, as asked for, or the runtime's own. */
static const char *choose_image(const struct pod_builder_request *r, const char *asked)
{
    const struct fleetjob *job = r->job;

    if (job->status.image && job->status.image[0])
        return job->status.image;
    return asked && asked[0] ? asked : r->runtime_image;
}

/* Where the agent is from: as frozen, or this installation's. */
static const char *agent_image(const struct pod_builder_request *r)
{
    const char *frozen = r->job->status.agent_image;

    return frozen && frozen[0] ? frozen : r->runtime_image;
}

/* Does the image of the first container, asked for as `asked`, have the agent itself? */
static bool has_agent(const struct pod_builder_request *r, const char *asked)
{
    const struct fleetjob_status *status = &r->job->status;

    if (status->image && status->agent_image) /* the installation may be another one since */
        return strcmp(status->image, status->agent_image) == 0;
    return !asked || !asked[0] || strcmp(asked, r->runtime_image) == 0;
}

/* Does the container run the ENTRYPOINT of its image? That of an image which has the agent is the
 * agent. */
static bool keeps_entrypoint(const struct pod_builder_request *r, const cJSON *container,
                             bool is_runtime)
{
    return !r->job->spec.has_training && !is_runtime &&
           cJSON_GetArraySize(get(container, "command")) == 0;
}

/* A pod that says what the user said, and nothing else. */
static cJSON *user_part(const struct pod_builder_request *r)
{
    const struct fleetjob_worker *worker = &r->job->spec.worker;
    cJSON *pod = worker->template_ ? fleet_json_copy(worker->template_) : fleet_json_new_object();
    cJSON *spec, *containers, *container;

    spec = child(pod, "spec", false);
    containers = child(spec, "containers", true);
    container = cJSON_GetArraySize(containers) > 0 ? cJSON_GetArrayItem(containers, 0)
                                                   : fleet_json_add_object(containers);
    if (!get(container, "name"))
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

/* ---- what the agent needs -------------------------------------------------------------------- */

static cJSON *new_variable(cJSON *env, const char *name)
{
    cJSON *item = fleet_json_add_object(env);

    fleet_json_set_string(item, "name", name);
    return item;
}

static void variable(cJSON *env, const char *name, const char *value)
{
    fleet_json_set_string(new_variable(env, name), "value", value);
}

static void number_variable(cJSON *env, const char *name, int64_t value)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf digits = {0};

    fleet_strbuf_appendf(&digits, "%lld", (long long)value);
    variable(env, name, digits.text);
}

static void field_variable(cJSON *env, const char *name, const char *path)
{
    cJSON *from = child(new_variable(env, name), "valueFrom", false);

    fleet_json_set_string(child(from, "fieldRef", false), "fieldPath", path);
}

static int64_t grace_seconds(const struct fleetjob *job)
{
    const cJSON *spec = get(job->spec.worker.template_, "spec");
    const cJSON *grace = get(spec, "terminationGracePeriodSeconds");

    if (!grace)
        return GRACE_SECONDS;
    return cJSON_IsNumber(grace) && grace->valuedouble >= 1 ? (int64_t)grace->valuedouble : 1;
}

cJSON *pod_builder_common_variables(const struct fleetjob *job)
{
    cJSON *env = fleet_json_new_list();

    variable(env, "FLEET_JOB_NAME", job->metadata.name);
    variable(env, "FLEET_JOB_UID", job->metadata.uid);
    number_variable(env, "FLEET_PROCESSES", job->spec.worker.processes_per_pod);
    variable(env, "FLEET_HUB_FILE", POD_BUILDER_JOB_FOLDER "/hub");
    variable(env, "FLEET_CA_FILE", POD_BUILDER_JOB_FOLDER "/ca.crt");
    variable(env, "FLEET_TOKEN_FILE", POD_BUILDER_JOB_FOLDER "/token");
    variable(env, "FLEET_JOB_FILE", POD_BUILDER_JOB_FOLDER "/job.json");
    number_variable(env, "FLEET_GRACE_SECONDS", grace_seconds(job));
    variable(env, "FLEET_TERMINATION_FILE", TERMINATION_FILE);
    return env;
}

static bool has_variable(const cJSON *env, const char *name)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, env) if (name && strcmp(get(item, "name")->valuestring, name) ==
                                                  0) return true;
    return false;
}

/* Those of `from` that have no namesake in `env` and `others`. */
static void add_missing(cJSON *env, const cJSON *others, const cJSON *from)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, from)
    {
        const char *name = cJSON_GetStringValue(get(item, "name"));
        if (!has_variable(env, name) && !has_variable(others, name))
            fleet_json_add(env, fleet_json_copy(item));
    }
}

/*
 * Ours first; of the user's those that do not have our names (FLEET_ISA, FLEET_THREADS may be set).
 * The settings of all workers of a job come in a file: the API server and everybody who watches
 * pods work for each variable of each pod. Agents of another installation's image, which may not
 * know that file, get it as variables.
 */
static void set_environment(const struct pod_builder_request *r, cJSON *container)
{
    FLEET_AUTO_JSON cJSON *common = pod_builder_common_variables(r->job);
    cJSON *env = fleet_json_new_list();

    field_variable(env, "FLEET_POD_NAME", "metadata.name");
    field_variable(env, "FLEET_POD_UID", "metadata.uid");
    field_variable(env, "FLEET_ADDRESS", "status.podIP");
    number_variable(env, "FLEET_INDEX", r->index);
    number_variable(env, "FLEET_ATTEMPT", r->attempt);
    if (strcmp(agent_image(r), r->runtime_image) == 0)
        variable(env, "FLEET_ENVIRONMENT_FILE", POD_BUILDER_JOB_FOLDER "/environment");
    else
        add_missing(env, NULL, common);
    if (r->has_json_logs && !has_variable(get(container, "env"), FLEET_LOG_FORMAT_ENV))
        variable(env, FLEET_LOG_FORMAT_ENV, "json");
    add_missing(env, common, get(container, "env"));
    fleet_json_set(container, "env", env);
}

/* The agent brings its own C library, for which what the user preloads may not be made: it gives
 * that to the trainers. */
static void keep_preload(cJSON *container)
{
    cJSON *item;

    cJSON_ArrayForEach(item, get(container, "env"))
    {
        const char *name = cJSON_GetStringValue(get(item, "name"));
        if (name && strcmp(name, "LD_PRELOAD") == 0)
            fleet_json_set_string(item, "name", WELLKNOWN_ENV_PRELOAD);
    }
}

/* Without a command the agent takes the place of the image's ENTRYPOINT by a preloaded library
 * (agent/entrypoint). */
static void preload_agent(cJSON *container)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf arguments = {0};
    cJSON *env = get(container, "env"), *hook, *command;

    variable(env, WELLKNOWN_ENV_AGENT, POD_BUILDER_AGENT);
    variable(env, "LD_PRELOAD", PRELOAD);
    cJSON_DeleteItemFromObjectCaseSensitive(container, "command"); /* it may be empty */

    fleet_strbuf_appendf(&arguments, "%d", cJSON_GetArraySize(get(container, "args")));
    hook = child(child(container, "lifecycle", false), "postStart", false);
    command = child(child(hook, "exec", false), "command", true);
    fleet_json_add_string(command, POD_BUILDER_AGENT);
    fleet_json_add_string(command, "--check-entrypoint");
    fleet_json_add_string(command, arguments.text);
}

/* The agent is the command; without a training block it runs the template's own one. */
static void set_command(const struct pod_builder_request *r, cJSON *container)
{
    cJSON *command = fleet_json_new_list();
    const char *const keys[] = {"command", "args"};
    const cJSON *item;

    fleet_json_add_string(command, POD_BUILDER_AGENT);
    if (!r->job->spec.has_training)
        fleet_json_add_string(command, "--");
    for (size_t i = 0; i < FLEET_COUNT(keys); i++) {
        if (!r->job->spec.has_training)
            cJSON_ArrayForEach(item, get(container, keys[i]))
                fleet_json_add(command, fleet_json_copy(item));
        cJSON_DeleteItemFromObjectCaseSensitive(container, keys[i]);
    }
    fleet_json_set(container, "command", command);
}

/* A mount in place of whatever the user had there. */
static void mount(cJSON *container, const char *volume, const char *path, bool is_read_only)
{
    cJSON *item = fleet_json_add_object(child(container, "volumeMounts", true));

    fleet_json_set_string(item, "name", volume);
    fleet_json_set_string(item, "mountPath", path);
    if (is_read_only)
        fleet_json_set_bool(item, "readOnly", true);
}

static bool is_mounted(const cJSON *container, const char *path)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, get(container, "volumeMounts"))
    {
        const char *at = cJSON_GetStringValue(get(item, "mountPath"));
        if (at && strcmp(at, path) == 0)
            return true;
    }
    return false;
}

static void add_volumes(const struct pod_builder_request *r, cJSON *spec, cJSON *container)
{
    cJSON *volume = fleet_json_add_object(child(spec, "volumes", true));

    fleet_json_set_string(volume, "name", VOLUME_JOB);
    fleet_json_set_string(child(volume, "secret", false), "secretName", r->secret);
    fleet_json_set_number(child(volume, "secret", false), "defaultMode", JOB_FILES_MODE);
    mount(container, VOLUME_JOB, POD_BUILDER_JOB_FOLDER, true);
    if (is_mounted(container, "/dev/shm"))
        return;
    volume = fleet_json_add_object(child(spec, "volumes", true));
    fleet_json_set_string(volume, "name", VOLUME_SHARED_MEMORY);
    fleet_json_set_string(child(volume, "emptyDir", false), "medium", "Memory");
    mount(container, VOLUME_SHARED_MEMORY, "/dev/shm", false);
}

/* ---- security -------------------------------------------------------------------------------- */

static void restrict_pod(cJSON *spec)
{
    cJSON *security = get(spec, "securityContext");

    if (security)
        return; /* the user has said */
    security = child(spec, "securityContext", false);
    fleet_json_set_bool(security, "runAsNonRoot", true);
    fleet_json_set_number(security, "runAsUser", POD_BUILDER_USER);
    fleet_json_set_number(security, "runAsGroup", POD_BUILDER_USER);
    fleet_json_set_number(security, "fsGroup", POD_BUILDER_USER);
    fleet_json_set_string(security, "fsGroupChangePolicy", "OnRootMismatch");
    fleet_json_set_string(child(security, "seccompProfile", false), "type", "RuntimeDefault");
}

static void restrict_container(cJSON *container)
{
    cJSON *security;

    if (get(container, "securityContext"))
        return;
    security = child(container, "securityContext", false);
    fleet_json_set_bool(security, "allowPrivilegeEscalation", false);
    fleet_json_add_string(child(child(security, "capabilities", false), "drop", true), "ALL");
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A limit without a request is Kubernetes' request already. */
static bool is_given(const cJSON *container, const char *resource)
{
    const cJSON *resources = get(container, "resources");

    return get(get(resources, "requests"), resource) || get(get(resources, "limits"), resource);
}

static void request_amount(cJSON *container, const char *resource, int64_t amount, const char *unit)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf quantity = {0};

    fleet_strbuf_appendf(&quantity, "%lld%s", (long long)amount, unit);
    fleet_json_set_string(child(child(container, "resources", false), "requests", false), resource,
                          quantity.text);
}

static void request_resources(const struct pod_builder_request *r, cJSON *container)
{
    if (!r->job->spec.has_training)
        return; /* only the user knows what another trainer needs */
    if (!is_given(container, "cpu"))
        request_amount(container, "cpu",
                       POD_BUILDER_CPU_REQUEST * r->job->spec.worker.processes_per_pod, "m");
    if (r->worker_bytes > 0 && !is_given(container, "memory"))
        request_amount(container, "memory", (r->worker_bytes + (1 << 20) - 1) >> 20, "Mi");
}

/* ---- the agent into another image ------------------------------------------------------------ */

static void set_image(const struct pod_builder_request *r, cJSON *item, const char *image)
{
    fleet_json_set_string(item, "image", image);
    if (r->pull_policy && r->pull_policy[0] && !get(item, "imagePullPolicy"))
        fleet_json_set_string(item, "imagePullPolicy", r->pull_policy);
}

/* A quota wants them of every container, and the pod's sum counts the larger of both: as the
 * worker's. */
static void take_resources(const cJSON *container, cJSON *init)
{
    static const char *const kinds[] = {"requests", "limits"};
    static const char *const names[] = {"cpu", "memory", "ephemeral-storage"};

    for (size_t k = 0; k < FLEET_COUNT(kinds); k++)
        for (size_t i = 0; i < FLEET_COUNT(names); i++) {
            const cJSON *amount = get(get(get(container, "resources"), kinds[k]), names[i]);
            if (amount)
                fleet_json_set(child(child(init, "resources", false), kinds[k], false), names[i],
                               fleet_json_copy(amount));
        }
}

/* An init container of the runtime's image copies the closure to where it lies in its own. */
static void bring_agent(const struct pod_builder_request *r, cJSON *spec, cJSON *container)
{
    cJSON *volume = fleet_json_add_object(child(spec, "volumes", true)),
          *init = fleet_json_new_object(), *command;
    cJSON *list = child(spec, "initContainers", true);

    fleet_json_set_string(volume, "name", VOLUME_AGENT);
    (void)child(volume, "emptyDir", false);
    mount(container, VOLUME_AGENT, POD_BUILDER_AGENT_FOLDER, true);
    fleet_json_add_first(list, init);
    fleet_json_set_string(init, "name", WELLKNOWN_AGENT_CONTAINER);
    set_image(r, init, agent_image(r));
    command = child(init, "command", true);
    fleet_json_add_string(command, POD_BUILDER_AGENT);
    fleet_json_add_string(command, "--install");
    fleet_json_add_string(command, "/target");
    mount(init, VOLUME_AGENT, "/target", false);
    take_resources(container, init);
    restrict_container(init);
}

/* ---- where it runs --------------------------------------------------------------------------- */

/* A node that does not answer loses its pods soon: the survivors have gone on long before. */
static void tolerate(cJSON *spec, const char *key)
{
    cJSON *list = child(spec, "tolerations", true), *item;

    cJSON_ArrayForEach(item, list)
    {
        const char *other = cJSON_GetStringValue(get(item, "key"));
        if (!other || strcmp(other, key) == 0)
            return;
    }
    item = fleet_json_add_object(list);
    fleet_json_set_string(item, "key", key);
    fleet_json_set_string(item, "operator", "Exists");
    fleet_json_set_string(item, "effect", "NoExecute");
    fleet_json_set_number(item, "tolerationSeconds", UNREACHABLE_SECONDS);
}

static void avoid(cJSON *spec, const char *node)
{
    cJSON *affinity = child(child(spec, "affinity", false), "nodeAffinity", false);
    cJSON *term = fleet_json_add_object(
        child(affinity, "preferredDuringSchedulingIgnoredDuringExecution", true));
    cJSON *field =
        fleet_json_add_object(child(child(term, "preference", false), "matchFields", true));

    fleet_json_set_number(term, "weight", 50);
    fleet_json_set_string(field, "key", "metadata.name");
    fleet_json_set_string(field, "operator", "NotIn");
    fleet_json_add_string(child(field, "values", true), node);
}

static void queue(const struct pod_builder_request *r, cJSON *pod)
{
    const char *name = r->job->spec.run_policy.scheduling.queue;
    FLEET_AUTO_STRBUF struct fleet_strbuf total = {0};

    if (!name || !name[0])
        return;
    fleet_strbuf_appendf(&total, "%lld", (long long)r->job->spec.worker.replicas);
    kube_meta_set_label(pod, "kueue.x-k8s.io/queue-name", name);
    kube_meta_set_label(pod, "kueue.x-k8s.io/pod-group-name", r->job->metadata.name);
    kube_meta_set_annotation(pod, "kueue.x-k8s.io/pod-group-total-count", total.text);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void set_metadata(const struct pod_builder_request *r, cJSON *pod)
{
    const struct fleetjob_metadata *job = &r->job->metadata;
    struct kube_meta owner = {.name = job->name, .uid = job->uid};
    cJSON *metadata = child(pod, "metadata", false);
    FLEET_AUTO_FREE char *name = reconcile_pod_name(job->name, r->index, r->attempt);
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
    fleet_json_add(child(metadata, "ownerReferences", true),
                   kube_owner_reference(WELLKNOWN_API_VERSION, WELLKNOWN_KIND, &owner));
}

static void set_defaults(const struct pod_builder_request *r, cJSON *spec)
{
    FLEET_AUTO_FREE char *service = pod_builder_service_name(r->job->metadata.name);
    FLEET_AUTO_FREE char *name = reconcile_pod_name(r->job->metadata.name, r->index, r->attempt);

    fleet_json_set_string(spec, "restartPolicy", "Never");
    if (!get(spec, "automountServiceAccountToken"))
        fleet_json_set_bool(spec, "automountServiceAccountToken", false);
    if (!get(spec, "enableServiceLinks"))
        fleet_json_set_bool(spec, "enableServiceLinks", false);
    if (!get(spec, "terminationGracePeriodSeconds"))
        fleet_json_set_number(spec, "terminationGracePeriodSeconds", GRACE_SECONDS);
    if (r->job->spec.worker.hostnames && !get(spec, "subdomain") && !get(spec, "hostname")) {
        fleet_json_set_string(spec, "hostname", name);
        fleet_json_set_string(spec, "subdomain", service);
    }
    tolerate(spec, "node.kubernetes.io/not-ready");
    tolerate(spec, "node.kubernetes.io/unreachable");
}

static void set_hash(cJSON *pod)
{
    FLEET_AUTO_FREE char *printed = fleet_json_print(pod);
    uint8_t digest[FLEET_SHA256_SIZE];
    char hex[FLEET_SHA256_HEX_SIZE];

    fleet_sha256(printed, strlen(printed), digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    kube_meta_set_annotation(pod, WELLKNOWN_ANNOTATION_TEMPLATE, hex);
}

cJSON *pod_builder_build(const struct pod_builder_request *r)
{
    cJSON *pod = user_part(r), *spec = get(pod, "spec"), *item;
    cJSON *container = cJSON_GetArrayItem(get(spec, "containers"), 0);
    const char *asked = cJSON_GetStringValue(get(container, "image"));
    bool is_runtime = has_agent(r, asked);

    fleet_json_set_string(pod, "apiVersion", "v1");
    fleet_json_set_string(pod, "kind", "Pod");
    set_metadata(r, pod);
    set_defaults(r, spec);
    set_image(r, container, choose_image(r, asked));
    set_environment(r, container);
    keep_preload(container);
    if (keeps_entrypoint(r, container, is_runtime))
        preload_agent(container);
    else
        set_command(r, container);
    request_resources(r, container);
    add_volumes(r, spec, container);
    fleet_json_set_string(container, "terminationMessagePath", TERMINATION_FILE);
    fleet_json_set_string(container, "terminationMessagePolicy", "FallbackToLogsOnError");
    if (!is_runtime)
        bring_agent(r, spec, container);
    restrict_pod(spec);
    cJSON_ArrayForEach(item, get(spec, "initContainers")) restrict_container(item);
    cJSON_ArrayForEach(item, get(spec, "containers")) restrict_container(item);
    queue(r, pod);
    gang_join(r->job, r->gang, pod);
    set_hash(pod);
    if (r->avoid_node && r->avoid_node[0])
        avoid(spec, r->avoid_node);
    return pod;
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
