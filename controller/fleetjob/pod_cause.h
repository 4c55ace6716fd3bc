/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_CAUSE_H
#define CONTROLLER_FLEETJOB_POD_CAUSE_H

/*
 * One word for why a pod does not start, from the reports of scheduler, kubelet and API server: the
 * REASON of `kubectl get`, the reason of the condition Blocked and of its Event. The words are
 * listed in docs/failures.md.
 *
 * Where Kubernetes has a word that says enough, that word stays. A word that is returned is
 * constant, or `reason`.
 */

#include <stdbool.h>

#include "libfleet/kube/api_error.h"

/* The condition PodScheduled is False: Unschedulable, SchedulingGated, MissingVolumeClaim,
 * VolumeNotBound. */
const char *pod_cause_of_scheduler(const char *reason, const char *message);

/* Does the scheduler's message count the nodes? Otherwise it may only say that the whole gang was
 * refused because of one pod. */
bool pod_cause_counts_nodes(const char *message);

/* A container waits: ImagePullBackOff (ErrImagePull, too: the two alternate), MissingConfigMap,
 * MissingSecret …; "" if it only starts. */
const char *pod_cause_of_container(const char *reason, const char *message);

/* The newest Event of a pod that has a node: VolumeNotMounted, VolumeNotAttached, MissingConfigMap
 * …; "" if the event does not explain why the pod has not started. */
const char *pod_cause_of_event(bool is_warning, const char *reason, const char *message);

/* The API server refused to make a pod: QuotaExceeded, or CreateRefused. */
const char *pod_cause_of_refusal(enum kube_error kind);

/* Must a user act? False for "" and for a pod that only needs time. */
bool pod_cause_blocks(const char *cause);

#endif
