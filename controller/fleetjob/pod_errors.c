/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/pod_errors.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"

/* Fields of a pod that users often write, for "did you mean"; only the API server knows all
 * fields. */
static const char *const names[] = {
    "activeDeadlineSeconds",
    "affinity",
    "annotations",
    "args",
    "automountServiceAccountToken",
    "capabilities",
    "claimName",
    "command",
    "configMap",
    "configMapKeyRef",
    "configMapRef",
    "containerPort",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "emptyDir",
    "enableServiceLinks",
    "env",
    "envFrom",
    "fsGroup",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPath",
    "hostname",
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "initContainers",
    "items",
    "labels",
    "lifecycle",
    "limits",
    "livenessProbe",
    "matchExpressions",
    "matchLabels",
    "medium",
    "metadata",
    "mountPath",
    "name",
    "nodeAffinity",
    "nodeName",
    "nodeSelector",
    "operator",
    "overhead",
    "persistentVolumeClaim",
    "podAffinity",
    "podAntiAffinity",
    "ports",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "privileged",
    "readOnly",
    "readOnlyRootFilesystem",
    "readinessGates",
    "readinessProbe",
    "requests",
    "resourceClaims",
    "resources",
    "restartPolicy",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "seccompProfile",
    "secret",
    "secretKeyRef",
    "secretName",
    "secretRef",
    "securityContext",
    "serviceAccountName",
    "shareProcessNamespace",
    "sizeLimit",
    "spec",
    "startupProbe",
    "stdin",
    "subPath",
    "subdomain",
    "supplementalGroups",
    "sysctls",
    "terminationGracePeriodSeconds",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tolerationSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "tty",
    "value",
    "valueFrom",
    "volumeDevices",
    "volumeMounts",
    "volumes",
    "workingDir",
};

/* Is the first init container ours? Then the user's begin at index 1. */
static bool brings_agent(const cJSON *pod)
{
    const char *name = "";

    (void)fleet_json_opt_string(pod, "spec.initContainers[0].name", &name, NULL);
    return strcmp(name, WELLKNOWN_AGENT_CONTAINER) == 0;
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Is it the pod of a server, and has the job a template for servers? */
static bool has_own_template(const struct fleetjob *job, const cJSON *pod)
{
    return job->spec.server.template_ && kube_meta_label(pod, WELLKNOWN_LABEL_ROLE);
}

static const char *template_path(const struct fleetjob *job, const cJSON *pod)
{
    if (has_own_template(job, pod))
        return "spec.server.template";
    return job->spec.worker.template_ ? "spec.worker.template" : "spec.worker";
}

/* Convert "spec.containers[0].resorces" of the pod to the path in the job. */
static void map_path(const struct fleetjob *job, const cJSON *pod, const char *path,
                     struct fleet_strbuf *out)
{
    static const char container[] = "spec.containers[0].", volumes[] = "spec.volumes",
                      inits[] = "spec.initContainers[";

    if (has_own_template(job, pod)) {
        fleet_strbuf_appendf(out, "spec.server.template.%s", path);
    } else if (job->spec.worker.template_ && starts_with(path, inits) && brings_agent(pod)) {
        char *rest;
        long index = strtol(path + strlen(inits), &rest, 10);
        fleet_strbuf_appendf(out, "spec.worker.template.%s%ld%s", inits, index > 0 ? index - 1 : 0,
                             rest);
    } else if (job->spec.worker.template_) {
        fleet_strbuf_appendf(out, "spec.worker.template.%s", path);
    } else if (starts_with(path, container)) {
        fleet_strbuf_appendf(out, "spec.worker.%s", path + strlen(container));
    } else if (starts_with(path, volumes)) {
        fleet_strbuf_appendf(out, "spec.worker.volumes%s", path + strlen(volumes));
    } else {
        fleet_strbuf_append(out, "spec.worker");
    }
}

static void add_unknown(const struct fleetjob *job, const cJSON *pod, const char *path,
                        struct fleet_errors *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf own = {0};
    const char *name = strrchr(path, '.') ? strrchr(path, '.') + 1 : path;
    const char *meant = fleet_closest_word(name, names, FLEET_COUNT(names));

    map_path(job, pod, path, &own);
    fleet_errors_add(out, own.text, "unknown field \"%s\"%s%s%s; the API server would drop it",
                     name, meant ? "; did you mean \"" : "", meant ? meant : "",
                     meant ? "\"?" : "");
}

/* Collect each `KIND field "PATH"` of the text; returns their number. */
static size_t add_fields(const struct fleetjob *job, const cJSON *pod, const char *text,
                         const char *kind, struct fleet_errors *out)
{
    size_t count = 0;

    for (const char *at = strstr(text, kind); at; at = strstr(at, kind)) {
        const char *start = at + strlen(kind), *end = strchr(start, '"');
        FLEET_AUTO_FREE char *path = NULL;
        FLEET_AUTO_STRBUF struct fleet_strbuf own = {0};
        if (!end)
            break; /* the text was cut */
        path = strndup(start, (size_t)(end - start));
        fleet_assert(path);
        at = end + 1;
        count++;
        if (starts_with(kind, "unknown")) {
            add_unknown(job, pod, path, out);
            continue;
        }
        map_path(job, pod, path, &own);
        fleet_errors_add(out, own.text, "duplicate key");
    }
    return count;
}

void pod_errors_explain(const struct fleetjob *job, const cJSON *pod,
                        const struct fleet_error *refusal, struct fleet_errors *out)
{
    const char *text = strstr(refusal->text, "422 ");
    size_t count = 0;

    if (kube_error_kind(refusal) == KUBE_ERROR_UNKNOWN_FIELD)
        count = add_fields(job, pod, refusal->text, "unknown field \"", out) +
                add_fields(job, pod, refusal->text, "duplicate field \"", out);
    if (count == 0)
        fleet_errors_add(out, template_path(job, pod), "%s", text ? text : refusal->text);
}
