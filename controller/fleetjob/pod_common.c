/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/pod_common.h"

#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/pod_builder.h"
#include "controller/fleetjob/pod_json.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

#define UNREACHABLE_SECONDS 15 /* how long a pod stays bound to a node that does not answer */

/* ---- variables ------------------------------------------------------------------------------- */

static cJSON *new_variable(cJSON *env, const char *name)
{
    cJSON *item = fleet_json_add_object(env);

    fleet_json_set_string(item, "name", name);
    return item;
}

void pod_common_set(cJSON *env, const char *name, const char *value)
{
    fleet_json_set_string(new_variable(env, name), "value", value);
}

void pod_common_set_number(cJSON *env, const char *name, int64_t value)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf digits = {0};

    fleet_strbuf_appendf(&digits, "%lld", (long long)value);
    pod_common_set(env, name, digits.text);
}

void pod_common_set_field(cJSON *env, const char *name, const char *path)
{
    cJSON *from = pod_json_child(new_variable(env, name), "valueFrom", false);

    fleet_json_set_string(pod_json_child(from, "fieldRef", false), "fieldPath", path);
}

void pod_common_set_secret(cJSON *env, const char *name, const char *secret, const char *key)
{
    cJSON *from = pod_json_child(new_variable(env, name), "valueFrom", false);
    cJSON *reference = pod_json_child(from, "secretKeyRef", false);

    fleet_json_set_string(reference, "name", secret);
    fleet_json_set_string(reference, "key", key);
}

bool pod_common_has(const cJSON *env, const char *name)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, env) if (name && strcmp(pod_json_get(item, "name")->valuestring,
                                                     name) == 0) return true;
    return false;
}

void pod_common_add_missing(cJSON *env, const cJSON *others, const cJSON *from)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, from)
    {
        const char *name = cJSON_GetStringValue(pod_json_get(item, "name"));
        if (!pod_common_has(env, name) && !pod_common_has(others, name))
            fleet_json_add(env, fleet_json_copy(item));
    }
}

/* ---- security -------------------------------------------------------------------------------- */

static void restrict_pod(cJSON *spec)
{
    cJSON *security = pod_json_get(spec, "securityContext");

    if (security)
        return; /* the user has said */
    security = pod_json_child(spec, "securityContext", false);
    fleet_json_set_bool(security, "runAsNonRoot", true);
    fleet_json_set_number(security, "runAsUser", POD_BUILDER_USER);
    fleet_json_set_number(security, "runAsGroup", POD_BUILDER_USER);
    fleet_json_set_number(security, "fsGroup", POD_BUILDER_USER);
    fleet_json_set_string(security, "fsGroupChangePolicy", "OnRootMismatch");
    fleet_json_set_string(pod_json_child(security, "seccompProfile", false), "type",
                          "RuntimeDefault");
}

static void restrict_container(cJSON *container)
{
    cJSON *security;

    if (pod_json_get(container, "securityContext"))
        return;
    security = pod_json_child(container, "securityContext", false);
    fleet_json_set_bool(security, "allowPrivilegeEscalation", false);
    fleet_json_add_string(
        pod_json_child(pod_json_child(security, "capabilities", false), "drop", true), "ALL");
}

void pod_common_restrict(cJSON *spec)
{
    cJSON *item;

    restrict_pod(spec);
    cJSON_ArrayForEach(item, pod_json_get(spec, "initContainers")) restrict_container(item);
    cJSON_ArrayForEach(item, pod_json_get(spec, "containers")) restrict_container(item);
}

/* ---- where it runs --------------------------------------------------------------------------- */

static void tolerate(cJSON *spec, const char *key)
{
    cJSON *list = pod_json_child(spec, "tolerations", true), *item;

    cJSON_ArrayForEach(item, list)
    {
        const char *other = cJSON_GetStringValue(pod_json_get(item, "key"));
        if (!other || strcmp(other, key) == 0)
            return;
    }
    item = fleet_json_add_object(list);
    fleet_json_set_string(item, "key", key);
    fleet_json_set_string(item, "operator", "Exists");
    fleet_json_set_string(item, "effect", "NoExecute");
    fleet_json_set_number(item, "tolerationSeconds", UNREACHABLE_SECONDS);
}

void pod_common_tolerate(cJSON *spec)
{
    tolerate(spec, "node.kubernetes.io/not-ready");
    tolerate(spec, "node.kubernetes.io/unreachable");
}

void pod_common_queue(const struct fleetjob *job, cJSON *pod)
{
    const char *name = job->spec.run_policy.scheduling.queue;
    int64_t servers = job->spec.has_server ? job->spec.server.replicas : 0;
    FLEET_AUTO_STRBUF struct fleet_strbuf total = {0};

    if (!name || !name[0])
        return;
    fleet_strbuf_appendf(&total, "%lld", (long long)(job->spec.worker.replicas + servers));
    kube_meta_set_label(pod, "kueue.x-k8s.io/queue-name", name);
    kube_meta_set_label(pod, "kueue.x-k8s.io/pod-group-name", job->metadata.name);
    kube_meta_set_annotation(pod, "kueue.x-k8s.io/pod-group-total-count", total.text);
}

void pod_common_set_hash(cJSON *pod)
{
    FLEET_AUTO_FREE char *printed = fleet_json_print(pod);
    uint8_t digest[FLEET_SHA256_SIZE];
    char hex[FLEET_SHA256_HEX_SIZE];

    fleet_sha256(printed, strlen(printed), digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    kube_meta_set_annotation(pod, WELLKNOWN_ANNOTATION_TEMPLATE, hex);
}
