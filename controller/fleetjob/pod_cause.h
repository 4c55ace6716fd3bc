/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_CAUSE_H
#define CONTROLLER_FLEETJOB_POD_CAUSE_H

/*
 * One word for why a pod does not start, derived from what the scheduler, the kubelet or the API
 * server reports. The word is the REASON of `kubectl get` and the reason of the condition Blocked
 * and of its Event. docs/failures.md lists the words.
 *
 * If Kubernetes' own word is clear, it is returned unchanged. A returned word is a static string or
 * the argument `reason`; the caller frees neither.
 */

#include <stdbool.h>

#include "libfleet/kube/api_error.h"

/* For a pod whose condition PodScheduled is False, with that condition's reason and message:
 * Unschedulable, SchedulingGated, MissingVolumeClaim, VolumeNotBound. */
const char *pod_cause_of_scheduler(const char *reason, const char *message);

/* True if the scheduler's message counts nodes ("0/5 nodes are available: …"). A message without
 * counts may only say that a gang scheduler refused the gang because of another pod. */
bool pod_cause_counts_nodes(const char *message);

/* For a waiting container, with the reason and message of its state: ImagePullBackOff (also for
 * ErrImagePull, because the kubelet alternates between the two), MissingConfigMap, MissingSecret …;
 * "" if the container is starting normally. */
const char *pod_cause_of_container(const char *reason, const char *message);

/* For the newest Event of a pod that has a node: VolumeNotMounted, VolumeNotAttached,
 * MissingConfigMap …; "" if the event does not explain why the pod has not started. */
const char *pod_cause_of_event(bool is_warning, const char *reason, const char *message);

/* For a pod that the API server refused to create: QuotaExceeded or CreateRefused. */
const char *pod_cause_of_refusal(enum kube_error kind);

/* True if `cause` keeps the pod from starting. False for "" and PullingImage, which only take
 * time. */
bool pod_cause_blocks(const char *cause);

#endif
