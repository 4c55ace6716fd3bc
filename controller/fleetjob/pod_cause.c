/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/pod_cause.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"

/* What is missing, if the message says so: `configmap "x" not found`, `object "ns"/"x" not
 * registered`, `references non-existent secret key: k`. */
static const char *missing_object(const char *message)
{
    static const struct {
        const char *kind, *cause;
    } kinds[] = {{"configmap", "MissingConfigMap"},
                 {"config key", "MissingConfigMap"},
                 {"secret", "MissingSecret"},
                 {"persistentvolumeclaim", "MissingVolumeClaim"}};
    static const char *const words[] = {"not found", "non-existent", "couldn't find key"};
    bool is_missing = false;

    for (size_t i = 0; i < FLEET_COUNT(words); i++)
        is_missing = is_missing || strstr(message, words[i]);
    for (size_t i = 0; is_missing && i < FLEET_COUNT(kinds); i++)
        if (strcasestr(message, kinds[i].kind))
            return kinds[i].cause;
    return NULL;
}

const char *pod_cause_of_scheduler(const char *reason, const char *message)
{
    const char *missing = missing_object(message);

    if (strcmp(reason, "SchedulingGated") == 0)
        return reason;
    if (missing)
        return missing;
    if (strstr(message, "unbound immediate PersistentVolumeClaims"))
        return "VolumeNotBound";
    return "Unschedulable";
}

const char *pod_cause_of_container(const char *reason, const char *message)
{
    const char *missing = missing_object(message);

    if (!reason[0] || strcmp(reason, "ContainerCreating") == 0 ||
        strcmp(reason, "PodInitializing") == 0)
        return "";
    if (strcmp(reason, "ErrImagePull") == 0 || strcmp(reason, "RegistryUnavailable") == 0)
        return "ImagePullBackOff";
    if (missing && strcmp(reason, "CreateContainerConfigError") == 0)
        return missing;
    return reason;
}

const char *pod_cause_of_event(bool is_warning, const char *reason, const char *message)
{
    static const struct {
        const char *reason, *cause;
    } causes[] = {{"FailedMount", "VolumeNotMounted"},
                  {"FailedMapVolume", "VolumeNotMounted"},
                  {"FailedAttachVolume", "VolumeNotAttached"},
                  {"FailedCreatePodSandBox", "PodSandboxFailed"},
                  {"FailedCreatePodContainer", "PodSandboxFailed"},
                  {"NetworkNotReady", "NetworkNotReady"},
                  {"InspectFailed", "ImageInspectError"},
                  {"ErrImageNeverPull", "ErrImageNeverPull"},
                  {"FailedPrepareDynamicResources", "ResourceClaimNotReady"}};
    const char *missing = missing_object(message);

    if (strcmp(reason, "Pulling") == 0)
        return POD_CAUSE_PULLING;
    if (!is_warning)
        return "";
    if (strcmp(reason, "Failed") == 0 || strcmp(reason, "BackOff") == 0)
        return strstr(message, "image") ? "ImagePullBackOff" : missing ? missing : "";
    for (size_t i = 0; i < FLEET_COUNT(causes); i++)
        if (strcmp(reason, causes[i].reason) == 0)
            return missing && strncmp(causes[i].cause, "Volume", 6) == 0 ? missing
                                                                         : causes[i].cause;
    return "";
}

const char *pod_cause_of_refusal(enum kube_error kind)
{
    return kind == KUBE_ERROR_QUOTA ? WELLKNOWN_REASON_QUOTA_EXCEEDED
                                    : WELLKNOWN_REASON_CREATE_REFUSED;
}

bool pod_cause_blocks(const char *cause)
{
    return cause[0] && strcmp(cause, POD_CAUSE_PULLING) != 0;
}
