/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_GANG_H
#define CONTROLLER_FLEETJOB_GANG_H

/*
 * runPolicy.scheduling.gang: a PodGroup of the cluster's gang scheduler places the fewest workers
 * that the job needs together, or none of them.
 *
 *   Volcano             PodGroup scheduling.volcano.sh/v1beta1, pods name it by an annotation
 *   scheduler-plugins   PodGroup scheduling.x-k8s.io/v1alpha1, pods name it by a label
 *
 * The PodGroup belongs to the job and has a name of its own (as the Secret has), so that a PodGroup
 * of an earlier job of the same name does not conflict. Its minMember is worker.minReplicas.
 */

#include <cjson/cJSON.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/kube/rest.h"

enum gang_scheduler {
    GANG_NONE,
    GANG_VOLCANO,
    GANG_SCHEDULER_PLUGINS,
    GANG_SCHEDULERS,
};

/* The PodGroups of a scheduler; NULL for GANG_NONE. */
const struct kube_resource *gang_resource(enum gang_scheduler scheduler);

/* The API group of its PodGroups, whose list the cluster has or not. */
const struct kube_resource *gang_discovery(enum gang_scheduler scheduler);

/* "Volcano", "scheduler-plugins". */
const char *gang_name(enum gang_scheduler scheduler);

/*
 * The scheduler that this job uses. `is_there[GANG_SCHEDULERS]` says which ones the cluster has. A
 * scheduler that the job names is used even if the cluster does not have it. A job for Kueue, which
 * admits whole groups of pods itself, uses none unless it names one.
 */
enum gang_scheduler gang_choose(const struct fleetjob *job, const bool *is_there);

/* Does the choice depend on what the cluster has? */
bool gang_is_auto(const struct fleetjob *job);

/* The name of the job's PodGroup, heap. */
char *gang_group_name(const struct fleetjob *job);

/* The PodGroup. Owned by the caller. */
cJSON *gang_build(const struct fleetjob *job, enum gang_scheduler scheduler);

/* Make a pod a member. A schedulerName that the template gives stays. */
void gang_join(const struct fleetjob *job, enum gang_scheduler scheduler, cJSON *pod);

#endif
