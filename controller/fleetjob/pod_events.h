/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_EVENTS_H
#define CONTROLLER_FLEETJOB_POD_EVENTS_H

/*
 * Why a pod that has a node does not start, where its status does not say: a missing ConfigMap, a
 * volume that is not attached. The kubelet reports that in Events alone.
 *
 *  (1) Events are read only of pods that have not started POD_EVENTS_AFTER_MS after they were made,
 *      one pod of a job at a time.
 *  (2) A job asks again after POD_EVENTS_AFTER_MS, then after twice as long each time, at most
 *      POD_EVENTS_MAX_MS; all jobs together once in POD_EVENTS_EVERY_MS. A request lists the Events
 *      of one pod.
 *  (3) A cause holds until the pod starts, or its newest Event has another cause.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

struct kube_rest_call;
struct reconciler_pass;

#define POD_EVENTS_AFTER_MS 10000
#define POD_EVENTS_MAX_MS   60000
#define POD_EVENTS_EVERY_MS 500
#define POD_EVENTS_KEPT     8 /* pods of a job whose last events are kept */

struct pod_events_note {
    char *uid, *text;  /* the pod's; the Event, for people */
    const char *cause; /* pod_cause.h; "" = no Event says why */
};

struct pod_events {                                /* of a job; all zero: nothing was asked yet */
    struct pod_events_note notes[POD_EVENTS_KEPT]; /* [count], the oldest answer first */
    size_t count;
    int next_index; /* of the pod to ask about, or the first after it */
    int tries;      /* questions since no pod was stuck */
    double next_ms,
        turn_ms; /* when the next one is due; when it has its turn among all jobs, 0 = none yet */
    char *uid;   /* asked about now */
    struct kube_rest_call *call;
};

/* The cause of this pod; NULL = its Events were not read. Borrowed. */
const struct pod_events_note *pod_events_find(const struct pod_events *events, const char *uid);

/* Why the pod of a list of Events does not start. The text is heap, "" if they have no cause. */
struct pod_events_note pod_events_read(const cJSON *list);

/* Ask about the next pod that is stuck, if it is time; the job is looked at again with the answer.
 * The pass comes again when it is time for the next question. */
void pod_events_ask(struct reconciler_pass *pass);

/* Forget all causes and requests. */
void pod_events_forget(struct pod_events *events);

#endif
