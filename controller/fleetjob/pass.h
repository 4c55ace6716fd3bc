/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_PASS_H
#define CONTROLLER_FLEETJOB_PASS_H

/*
 * One pass of reconcile(), handed from policy to policy: the observed state, the desired one, and
 * counts that several policies need. Each policy adds its actions through the functions below.
 */

#include "controller/fleetjob/reconcile.h"
#include "libfleet/base/strbuf.h"

struct pass {
    const struct observed *in;
    struct actions *out;
    const struct fleetjob_spec *spec;     /* of in->job */
    const struct fleetjob_status *before; /* of in->job */
    struct fleetjob_status *status;       /* out->status: a copy of `before`, changed in place */
    int64_t now;                          /* wall ms */
    int desired;                          /* workers wanted: replicas within [min, max] */
    int active;                           /* pods that live and are not being deleted */
    int living;                           /* pods that live, those being deleted included */
};

/* Why Kubernetes takes the pod away; NONE: it does not, or its end is a failure. */
enum fleet_cause pass_departure_cause(const struct observed_pod *pod);

/* Its containers run, or may still run. */
static inline bool pass_is_living(const struct observed_pod *pod)
{
    return pod->phase == OBSERVED_PENDING || pod->phase == OBSERVED_RUNNING;
}

/* Since when its agent does not answer the hub, wall ms; 0 = it does, or it is not asked. */
int64_t pass_silent_since(const struct pass *pass, const struct observed_pod *pod);

/* Add the action to make a pod. */
void pass_create(struct pass *pass, int index, int attempt, bool is_replacement);
/* The same for the pod of a server. */
void pass_create_server(struct pass *pass, int index);
/* Add the action to read a pod from the API server that was recorded and has not been seen. */
void pass_look(struct pass *pass, int index, int attempt);
/* Add the action to delete a pod; not twice for one pod, and not for one that is being deleted. One
 * that does not answer is not asked to end first. `reason` is constant. */
void pass_delete(struct pass *pass, const struct observed_pod *pod, const char *reason);

/* Add an Event about the job; `reason` is one of wellknown.h. */
void pass_event(struct pass *pass, bool is_warning, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Look again at this wall time, unless something else wants it earlier. */
void pass_requeue_at(struct pass *pass, int64_t wall_ms);

#endif
