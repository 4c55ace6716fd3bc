/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Scheduler and kubelet report in their own reasons and messages why a pod does not start. Only the
 * tables of this file interpret them.
 */
#include "controller/fleetjob/pod_cause.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"

/* Causes that FleetJob has its own word for; the others keep Kubernetes' word. */
enum pod_cause {
    CAUSE_NONE,
    CAUSE_OWN, /* the reason stays */
    CAUSE_PULLING,
    CAUSE_IMAGE_PULL,
    CAUSE_IMAGE_INSPECT,
    CAUSE_CONFIG_MAP,
    CAUSE_SECRET,
    CAUSE_VOLUME_CLAIM,
    CAUSE_VOLUME_NOT_BOUND,
    CAUSE_VOLUME_NOT_MOUNTED,
    CAUSE_VOLUME_NOT_ATTACHED,
    CAUSE_SANDBOX,
    CAUSE_RESOURCE_CLAIM,
    CAUSE_UNSCHEDULABLE,
    CAUSES
};

static const char *const words[CAUSES] = {
    [CAUSE_NONE] = "",
    [CAUSE_PULLING] = "PullingImage", /* normal: it only takes time */
    [CAUSE_IMAGE_PULL] = "ImagePullBackOff",
    [CAUSE_IMAGE_INSPECT] = "ImageInspectError",
    [CAUSE_CONFIG_MAP] = "MissingConfigMap",
    [CAUSE_SECRET] = "MissingSecret",
    [CAUSE_VOLUME_CLAIM] = "MissingVolumeClaim",
    [CAUSE_VOLUME_NOT_BOUND] = "VolumeNotBound",
    [CAUSE_VOLUME_NOT_MOUNTED] = "VolumeNotMounted",
    [CAUSE_VOLUME_NOT_ATTACHED] = "VolumeNotAttached",
    [CAUSE_SANDBOX] = "PodSandboxFailed",
    [CAUSE_RESOURCE_CLAIM] = "ResourceClaimNotReady",
    [CAUSE_UNSCHEDULABLE] = "Unschedulable",
};

/* A row of Kubernetes' reasons. `asks_message`: the message may name a missing object. */
struct reason {
    const char *reason;
    enum pod_cause cause;
    bool asks_message;
};

static const struct reason container_reasons[] = {
    {"", CAUSE_NONE, false},
    {"ContainerCreating", CAUSE_NONE, false},
    {"PodInitializing", CAUSE_NONE, false},
    {"ErrImagePull", CAUSE_IMAGE_PULL, false},
    {"RegistryUnavailable", CAUSE_IMAGE_PULL, false},
    {"CreateContainerConfigError", CAUSE_OWN, true},
};

static const struct reason event_reasons[] = {
    {"FailedMount", CAUSE_VOLUME_NOT_MOUNTED, true},
    {"FailedMapVolume", CAUSE_VOLUME_NOT_MOUNTED, true},
    {"FailedAttachVolume", CAUSE_VOLUME_NOT_ATTACHED, true},
    {"FailedCreatePodSandBox", CAUSE_SANDBOX, false},
    {"FailedCreatePodContainer", CAUSE_SANDBOX, false},
    {"NetworkNotReady", CAUSE_OWN, false},
    {"InspectFailed", CAUSE_IMAGE_INSPECT, false},
    {"ErrImageNeverPull", CAUSE_OWN, false},
    {"FailedPrepareDynamicResources", CAUSE_RESOURCE_CLAIM, false},
    {"Failed", CAUSE_NONE, true}, /* the image, or an object that a container needs */
    {"BackOff", CAUSE_NONE, true},
};

static const struct reason *find(const struct reason *rows, size_t count, const char *reason)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].reason, reason) == 0)
            return &rows[i];
    return NULL;
}

/* What is missing, if the message says it: `configmap "x" not found`, `object "ns"/"x" not
 * registered`, `references non-existent secret key: k`. */
static enum pod_cause missing_object(const char *message)
{
    static const struct {
        const char *kind;
        enum pod_cause cause;
    } kinds[] = {{"configmap", CAUSE_CONFIG_MAP},
                 {"config key", CAUSE_CONFIG_MAP},
                 {"secret", CAUSE_SECRET},
                 {"persistentvolumeclaim", CAUSE_VOLUME_CLAIM}};
    static const char *const phrases[] = {"not found", "non-existent", "couldn't find key"};
    bool is_missing = false;

    for (size_t i = 0; i < FLEET_COUNT(phrases); i++)
        is_missing = is_missing || strstr(message, phrases[i]);
    for (size_t i = 0; is_missing && i < FLEET_COUNT(kinds); i++)
        if (strcasestr(message, kinds[i].kind))
            return kinds[i].cause;
    return CAUSE_NONE;
}

/* The word of a row: for the missing object if there is one, otherwise Kubernetes' own, or ours. */
static const char *word_of(const struct reason *row, const char *reason, const char *message)
{
    enum pod_cause missing = row->asks_message ? missing_object(message) : CAUSE_NONE;

    if (missing != CAUSE_NONE)
        return words[missing];
    return row->cause == CAUSE_OWN ? reason : words[row->cause];
}

const char *pod_cause_of_scheduler(const char *reason, const char *message)
{
    enum pod_cause missing = missing_object(message);

    if (strcmp(reason, "SchedulingGated") == 0)
        return reason;
    if (missing != CAUSE_NONE)
        return words[missing];
    if (strstr(message, "unbound immediate PersistentVolumeClaims"))
        return words[CAUSE_VOLUME_NOT_BOUND];
    return words[CAUSE_UNSCHEDULABLE];
}

bool pod_cause_counts_nodes(const char *message)
{
    return strstr(message, "nodes are available") != NULL;
}

const char *pod_cause_of_container(const char *reason, const char *message)
{
    const struct reason *row = find(container_reasons, FLEET_COUNT(container_reasons), reason);

    return row ? word_of(row, reason, message) : reason;
}

const char *pod_cause_of_event(bool is_warning, const char *reason, const char *message)
{
    const struct reason *row = find(event_reasons, FLEET_COUNT(event_reasons), reason);

    if (strcmp(reason, "Pulling") == 0)
        return words[CAUSE_PULLING];
    if (!is_warning || !row)
        return "";
    if (row->cause == CAUSE_NONE && strstr(message, "image"))
        return words[CAUSE_IMAGE_PULL];
    return word_of(row, reason, message);
}

const char *pod_cause_of_refusal(enum kube_error kind)
{
    return kind == KUBE_ERROR_QUOTA ? WELLKNOWN_REASON_QUOTA_EXCEEDED
                                    : WELLKNOWN_REASON_CREATE_REFUSED;
}

bool pod_cause_blocks(const char *cause)
{
    int found = CAUSE_NONE;

    while (found < CAUSES && !(words[found] && strcmp(words[found], cause) == 0))
        found++;
    return found != CAUSE_NONE && found != CAUSE_PULLING;
}
