/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_LABELS_H
#define CONTROLLER_FLEETJOB_POD_LABELS_H

/* Our labels on pods: the watch finds a pod by them, so a pod that loses them gets them back. */

#include "libfleet/base/json.h"

struct projection_pod;
struct reconciler;
struct reconciler_job;
struct reconciler_pass;

/* Does the watch select this pod? */
bool pod_labels_are_seen(const cJSON *pod);

/* Put our labels back on this pod of the job, if it has lost them; NULL: nothing. An Event reports
 * if that fails. */
void pod_labels_restore(const struct reconciler_job *job, const cJSON *pod);

/* The pod has left the cache, and was not seen to be deleted: ask whether it is gone
 * (reconciler_pod_gone()), or has only lost its labels (they are put back). The job is left alone
 * until then. */
void pod_labels_doubt(struct reconciler_job *job, const struct projection_pod *pod);

/* The status has been lost, and with it the names of pods. List the pods of the namespace, as a
 * request of the pass: those of the job that have lost their labels get them back, and the job is
 * left alone until the watch has brought them. */
void pod_labels_search(struct reconciler_pass *pass);

/* Forget all that is under way. */
void pod_labels_forget(struct reconciler *reconciler);

#endif
