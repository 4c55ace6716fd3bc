/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/export_pod.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/pod_builder.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"

/* The volumes of the export pod: the one with the checkpoints, and others. */
struct build {
    const struct export_pod_request *request;
    struct fleetjob job;
    cJSON *worker;          /* a worker's pod as the controller would make it; owned */
    const char *path;       /* of the checkpoints */
    const cJSON *mounts[3]; /* volumes to read, the checkpoints' first; NULL = none */
    const char *node;       /* node on which it must run; NULL = any */
};

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static const char *text_of(const cJSON *object, const char *path)
{
    const char *text = cJSON_GetStringValue(fleet_json_at(object, path));

    return text ? text : "";
}

static void add_copy(cJSON *to, const char *key, const cJSON *item)
{
    fleet_json_set(to, key, fleet_json_copy(item));
}

/* ---- the job --------------------------------------------------------------------------------- */

/* Decode the job without its status, which another version may have written. */
static int decode_job(struct build *b, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *spec = fleet_json_copy(b->request->job);
    struct fleet_errors errors = {0};
    int rc;

    cJSON_DeleteItemFromObjectCaseSensitive(spec, "status");
    (void)fleetjob_decode(spec, &b->job, &errors);
    rc = fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    return rc < 0 ? fleet_error_wrap(err, "read the FleetJob") : 0;
}

static int find_path(struct build *b, struct fleet_error *err)
{
    const struct fleetjob_spec *spec = &b->job.spec;
    const char *name = b->job.metadata.name;

    if (b->request->checkpoint) {
        b->path = b->request->checkpoint;
        return b->path[0] == '/'
                   ? 0
                   : fleet_error(err, -EINVAL, "--checkpoint: %s is not an absolute path", b->path);
    }
    if (!spec->has_training)
        return fleet_error(err, -EINVAL,
                           "FleetJob %s runs an own trainer, whose checkpoints FleetJob does not "
                           "know; copy its files from the volume",
                           name);
    if (!spec->training.has_checkpoint)
        return fleet_error(err, -EINVAL,
                           "FleetJob %s saves no checkpoints: it has no spec.training.checkpoint; "
                           "add one (path on a volume) and run it again",
                           name);
    if (text_of(b->request->job, "status.checkpoint.path")[0] == '\0')
        return fleet_error(
            err, -EINVAL,
            "FleetJob %s has not saved a checkpoint yet; it saves at its end, when it "
            "is suspended, and every spec.training.checkpoint.everySteps steps",
            name);
    b->path = spec->training.checkpoint.path;
    if (fleet_path_is_remote(b->path))
        return fleet_error(err, -EINVAL,
                           "FleetJob %s saves its checkpoints in a store, which needs no pod to "
                           "read: use \"fleetjob export %s OUT\", with the store's variables",
                           name, b->path);
    return 0;
}

/* ---- its volume ------------------------------------------------------------------------------ */

static bool is_below(const char *path, const char *folder)
{
    size_t length = strlen(folder);

    while (length > 1 && folder[length - 1] == '/')
        length--;
    return strncmp(path, folder, length) == 0 &&
           (path[length] == '/' || path[length] == '\0' || length == 1);
}

static const cJSON *find_volume(const cJSON *spec, const char *name)
{
    const cJSON *volume;

    cJSON_ArrayForEach(volume, get(spec, "volumes")) if (strcmp(text_of(volume, "name"), name) ==
                                                         0) return volume;
    return NULL;
}

/* The deepest mount of the worker's container that contains the path, or NULL. */
static const cJSON *mount_of(const struct build *b, const char *path)
{
    const cJSON *container = cJSON_GetArrayItem(fleet_json_at(b->worker, "spec.containers"), 0);
    const cJSON *mount, *best = NULL;

    cJSON_ArrayForEach(mount, get(container, "volumeMounts"))
    {
        const char *at = text_of(mount, "mountPath");
        if (is_below(path, at) && (!best || strlen(at) > strlen(text_of(best, "mountPath"))))
            best = mount;
    }
    return best;
}

/* The volume of a mount, if its files outlive the pod. */
static const cJSON *lasting_volume(const struct build *b, const cJSON *mount)
{
    const cJSON *volume =
        mount ? find_volume(get(b->worker, "spec"), text_of(mount, "name")) : NULL;

    return volume && !get(volume, "emptyDir") ? volume : NULL;
}

/* An export reads the checkpoints and, with bpe, the tokenizer's files. Other volumes may no longer
 * exist. */
static int find_mounts(struct build *b, struct fleet_error *err)
{
    const struct training_data *data = &b->job.spec.training.data;
    const char *const paths[] = {b->path, data->vocabulary, data->merges};

    for (size_t i = 0; i < FLEET_COUNT(paths); i++) {
        const cJSON *mount = paths[i] ? mount_of(b, paths[i]) : NULL;
        b->mounts[i] = lasting_volume(b, mount) ? mount : NULL;
    }
    if (b->mounts[0])
        return 0;
    return fleet_error(err, -EINVAL,
                       "checkpoint path %s is %s, which ends with its pod; while the job runs: "
                       "kubectl exec POD -- " EXPORT_POD_PROGRAM " export %s - > NAME.safetensors; "
                       "the next time mount a PersistentVolumeClaim there (spec.worker.volumes)",
                       b->path, mount_of(b, b->path) ? "on an emptyDir" : "on no volume", b->path);
}

/* ---- where it can be mounted ----------------------------------------------------------------- */

static bool is_over(const cJSON *pod)
{
    const char *phase = text_of(pod, "status.phase");

    return strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0;
}

/* The node of the running pod with the lowest index; with `also_over`, of any existing pod. */
static const char *node_of_worker(const struct build *b, bool also_over)
{
    const cJSON *pod, *best = NULL;

    cJSON_ArrayForEach(pod, get(b->request->pods, "items"))
    {
        if (text_of(pod, "spec.nodeName")[0] == '\0' || (!also_over && is_over(pod)))
            continue;
        if (!best || strcmp(text_of(pod, "metadata.name"), text_of(best, "metadata.name")) < 0)
            best = pod;
    }
    return best ? text_of(best, "spec.nodeName") : NULL;
}

static const cJSON *find_claim(const struct build *b, const char *name)
{
    const cJSON *claim;

    cJSON_ArrayForEach(claim,
                       get(b->request->claims, "items")) if (strcmp(text_of(claim, "metadata.name"),
                                                                    name) == 0) return claim;
    return NULL;
}

static bool has_mode(const cJSON *claim, const char *mode)
{
    const cJSON *item;

    cJSON_ArrayForEach(item,
                       fleet_json_at(claim, "spec.accessModes")) if (cJSON_IsString(item) &&
                                                                     strcmp(item->valuestring,
                                                                            mode) == 0) return true;
    return false;
}

/* If only one node may mount a claim, the pod must run on the workers' node. */
static int place_claim(struct build *b, const char *name, struct fleet_error *err)
{
    const cJSON *claim = find_claim(b, name);
    const char *node = node_of_worker(b, false);

    if (b->request->claims && !claim)
        return fleet_error(
            err, -EINVAL,
            "the PersistentVolumeClaim %s of the job is gone, and with it what was on "
            "it",
            name);
    if (has_mode(claim, "ReadWriteOncePod") && node)
        return fleet_error(err, -EINVAL,
                           "the PersistentVolumeClaim %s is ReadWriteOncePod and a worker uses it; "
                           "export when the job is over or suspended",
                           name);
    if (has_mode(claim, "ReadWriteMany") || has_mode(claim, "ReadOnlyMany"))
        return 0;
    if (node)
        b->node = node;
    return 0;
}

static int place_host_path(struct build *b, struct fleet_error *err)
{
    b->node = node_of_worker(b, true);
    return b->node ? 0
                   : fleet_error(err, -EINVAL,
                                 "the checkpoints are on a hostPath, and the job's pods are gone: "
                                 "name the node that has them with --node");
}

static int place_volume(struct build *b, const cJSON *volume, struct fleet_error *err)
{
    const char *claim = text_of(volume, "persistentVolumeClaim.claimName");

    if (claim[0])
        return place_claim(b, claim, err);
    return get(volume, "hostPath") && !b->request->node ? place_host_path(b, err) : 0;
}

static int place(struct build *b, struct fleet_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < FLEET_COUNT(b->mounts) && rc == 0; i++)
        if (b->mounts[i])
            rc = place_volume(b, lasting_volume(b, b->mounts[i]), err);
    if (b->request->node)
        b->node = b->request->node;
    return rc;
}

/* ---- the pod --------------------------------------------------------------------------------- */

static bool is_listed(const cJSON *list, const char *name)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list) if (strcmp(text_of(item, "name"), name) == 0) return true;
    return false;
}

static bool is_repeated(const struct build *b, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (b->mounts[i] == b->mounts[index])
            return true;
    return false;
}

/* Mounted read-only, so that an export cannot damage files of the job. */
static void add_volumes(const struct build *b, cJSON *spec, cJSON *container)
{
    cJSON *volumes = fleet_json_set_list(spec, "volumes");
    cJSON *mounts = fleet_json_set_list(container, "volumeMounts");

    for (size_t i = 0; i < FLEET_COUNT(b->mounts); i++) {
        const cJSON *from = b->mounts[i], *volume = from ? lasting_volume(b, from) : NULL;
        cJSON *mount;
        if (!from || is_repeated(b, i))
            continue;
        if (!is_listed(volumes, text_of(volume, "name")))
            fleet_json_add(volumes, fleet_json_copy(volume));
        mount = fleet_json_copy(from);
        fleet_json_set_bool(mount, "readOnly", true);
        fleet_json_add(mounts, mount);
    }
}

/* Add the node to each term of the node affinity. */
static void add_node(cJSON *spec, const char *node)
{
    static const char required[] = "requiredDuringSchedulingIgnoredDuringExecution";
    cJSON *affinity = cJSON_GetObjectItemCaseSensitive(spec, "affinity"), *part, *terms, *term;

    affinity = affinity ? affinity : fleet_json_set_object(spec, "affinity");
    part = cJSON_GetObjectItemCaseSensitive(affinity, "nodeAffinity");
    part = part ? part : fleet_json_set_object(affinity, "nodeAffinity");
    terms = cJSON_GetObjectItemCaseSensitive(part, required);
    terms = terms ? terms : fleet_json_set_object(part, required);
    if (!get(terms, "nodeSelectorTerms"))
        fleet_json_add_object(fleet_json_set_list(terms, "nodeSelectorTerms"));
    cJSON_ArrayForEach(term, get(terms, "nodeSelectorTerms"))
    {
        cJSON *fields = cJSON_GetObjectItemCaseSensitive(term, "matchFields"), *field;
        fields = fields ? fields : fleet_json_set_list(term, "matchFields");
        field = fleet_json_new_object();
        fleet_json_set_string(field, "key", "metadata.name");
        fleet_json_set_string(field, "operator", "In");
        fleet_json_add_string(fleet_json_set_list(field, "values"), node);
        fleet_json_add(fields, field);
    }
}

static void add_resources(cJSON *container)
{
    cJSON *resources = fleet_json_set_object(container, "resources"), *amounts;

    amounts = fleet_json_set_object(resources, "requests");
    fleet_json_set_string(amounts, "cpu", "50m");
    fleet_json_set_string(amounts, "memory", "64Mi");
    amounts = fleet_json_set_object(resources, "limits"); /* a quota may require them */
    fleet_json_set_string(amounts, "cpu", "1");
    fleet_json_set_string(amounts, "memory", "256Mi");
}

static void add_container(const struct build *b, const char *image, cJSON *spec)
{
    const cJSON *from = get(b->worker, "spec");
    const cJSON *worker = cJSON_GetArrayItem(get(from, "containers"), 0);
    cJSON *container = fleet_json_new_object(), *command;

    fleet_json_add(fleet_json_set_list(spec, "containers"), container);
    fleet_json_set_string(container, "name", EXPORT_POD_CONTAINER);
    fleet_json_set_string(container, "image", image);
    command = fleet_json_set_list(container, "command");
    fleet_json_add_string(command, EXPORT_POD_PROGRAM);
    fleet_json_add_string(command, "hold");
    add_copy(container, "securityContext", get(worker, "securityContext"));
    add_resources(container);
    add_volumes(b, spec, container);
}

static cJSON *new_pod(const struct build *b)
{
    cJSON *pod = fleet_json_new_object(), *metadata, *item;
    const struct fleetjob_metadata *job = &b->job.metadata;

    fleet_json_set_string(pod, "apiVersion", "v1");
    fleet_json_set_string(pod, "kind", "Pod");
    metadata = fleet_json_set_object(pod, "metadata");
    fleet_json_set_string(metadata, "name", b->request->name);
    fleet_json_set_string(metadata, "namespace", job->namespace_);
    fleet_json_set_string(fleet_json_set_object(metadata, "labels"), EXPORT_POD_LABEL, job->name);
    item = fleet_json_new_object(); /* at the latest, it is deleted with the job */
    fleet_json_add(fleet_json_set_list(metadata, "ownerReferences"), item);
    fleet_json_set_string(item, "apiVersion", WELLKNOWN_API_VERSION);
    fleet_json_set_string(item, "kind", WELLKNOWN_KIND);
    fleet_json_set_string(item, "name", job->name);
    fleet_json_set_string(item, "uid", job->uid ? job->uid : "");
    return pod;
}

/* Copy the fields that decide on the pod's node and user from the worker's pod. */
static cJSON *make_pod(const struct build *b, const char *image)
{
    static const char *const kept[] = {"securityContext", "nodeSelector", "tolerations",
                                       "imagePullSecrets", "serviceAccountName"};
    const cJSON *from = get(b->worker, "spec");
    const cJSON *affinity = fleet_json_at(from, "affinity.nodeAffinity");
    cJSON *pod = new_pod(b), *spec = fleet_json_set_object(pod, "spec");

    fleet_json_set_string(spec, "restartPolicy", "Never");
    fleet_json_set_bool(spec, "automountServiceAccountToken", false);
    fleet_json_set_bool(spec, "enableServiceLinks", false);
    fleet_json_set_number(spec, "terminationGracePeriodSeconds", 5);
    fleet_json_set_number(spec, "activeDeadlineSeconds", EXPORT_POD_SECONDS);
    for (size_t i = 0; i < FLEET_COUNT(kept); i++)
        add_copy(spec, kept[i], get(from, kept[i]));
    if (affinity)
        add_copy(fleet_json_set_object(spec, "affinity"), "nodeAffinity", affinity);
    if (b->node)
        add_node(spec, b->node);
    add_container(b, image, spec);
    return pod;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int choose_image(const struct build *b, const char **out, struct fleet_error *err)
{
    *out = b->request->image ? b->request->image : text_of(b->request->job, "status.agentImage");
    if ((*out)[0] == '\0')
        *out = text_of(b->request->job, "status.image");
    return (*out)[0]
               ? 0
               : fleet_error(err, -EINVAL,
                             "the job's status does not name the runtime's image: name it with "
                             "--image");
}

static int build(struct build *b, cJSON **out_pod, char **out_path, struct fleet_error *err)
{
    struct pod_builder_request worker = {
        .job = &b->job, .runtime_image = "", .hub_address = "", .secret = ""};
    const char *image;

    if (decode_job(b, err) < 0 || find_path(b, err) < 0 || choose_image(b, &image, err) < 0)
        return err->code;
    b->worker = pod_builder_build(&worker);
    if (find_mounts(b, err) < 0 || place(b, err) < 0)
        return err->code;
    *out_path = fleet_dup_text(b->path);
    *out_pod = make_pod(b, image);
    return 0;
}

int export_pod_build(const struct export_pod_request *request, cJSON **out_pod, char **out_path,
                     struct fleet_error *err)
{
    struct build b = {.request = request};
    int rc = build(&b, out_pod, out_path, err);

    cJSON_Delete(b.worker);
    fleetjob_release(&b.job);
    return rc;
}
