/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_GANG_H
#define CONTROLLER_FLEETJOB_GANG_H

/*
 * runPolicy.scheduling.gang: all workers that a job needs at least are placed together or not at
 * all, by a PodGroup of the cluster's gang scheduler.
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

/* Its PodGroups; NULL for GANG_NONE. */
const struct kube_resource *gang_resource(enum gang_scheduler scheduler);

/* The whole group of it, to ask whether it is there: a GET of the path that a list of it has. */
const struct kube_resource *gang_discovery(enum gang_scheduler scheduler);

/* "Volcano", "scheduler-plugins". */
const char *gang_name(enum gang_scheduler scheduler);

/*
 * Which one this job uses, where `is_there[GANG_SCHEDULERS]` says which the cluster has. One that
 * is named is used whether or not it is there. A job for Kueue, which admits whole groups of pods
 * itself, uses none unless it names one.
 */
enum gang_scheduler gang_choose(const struct fleetjob *job, const bool *is_there);

/* Does the answer depend on what is there? */
bool gang_is_auto(const struct fleetjob *job);

/* Its name, heap. */
char *gang_group_name(const struct fleetjob *job);

/* The PodGroup. Owned by the caller. */
cJSON *gang_build(const struct fleetjob *job, enum gang_scheduler scheduler);

/* Make a pod a member. A schedulerName that the template gives stays. */
void gang_join(const struct fleetjob *job, enum gang_scheduler scheduler, cJSON *pod);

#endif
