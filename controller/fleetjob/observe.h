/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_OBSERVE_H
#define CONTROLLER_FLEETJOB_OBSERVE_H

/*
 * From caches and hub to the value that reconcile() reads; and the parts of the status that
 * reconcile() does not know: the plan and the images.
 */

#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "controller/fleetjob/observe_plan.h"
#include "controller/fleetjob/reconcile.h"
#include "libfleet/base/errors.h"

struct fleet_error;
struct pod_events;
struct projection_job;
struct store;

struct observe_input { /* all borrowed */
    const struct projection_job *job;
    const struct store *pods; /* of projection_pod */
    const struct hub_view *hub;
    const char *const *gone_uids; /* [gone_count] */
    size_t gone_count;
    bool is_first;                        /* as in struct observed */
    const struct observed_attempt *taken; /* [taken_count] */
    size_t taken_count;
    const struct fleet_errors
        *pod_errors; /* why the API server refuses the job's pods; NULL = it does not */
    const struct pod_events *said; /* causes from Events of pods that do not start; NULL = none */
    const char *refusal;           /* why it did not make some of them; NULL = it made all */
    enum kube_error refusal_kind;
    const struct observed_attempt *refused; /* [refused_count] these */
    size_t refused_count;
    const struct observed_vanished *vanished; /* [vanished_count] */
    size_t vanished_count;
    /* brought up to date where needed, unless that needs a search: job_search.h brings it then */
    struct observe_plan *plan;
    bool encrypts_data; /* of jobs whose dataEncryption is Auto */
    int64_t now_wall_ms;
};

struct observation {
    struct observed observed; /* points into the rest; `hub` is borrowed, for reconcile() alone */
    struct fleetjob job;
    struct fleet_errors errors, warnings;
    struct observed_pod *pods; /* [observed.pod_count], then [observed.server_count] servers … */
    char *texts;               /* … and what they say, one after the other */
    size_t living_count;       /* pods that have not ended */
    char **gone_uids;          /* [observed.gone_count] */
    const char *image;         /* that the job's pods run; borrowed; NULL = not known … */
    const char *image_id;      /* … as the kubelet reports it … */
    const char *agent_image;   /* … with the agent of this one */
    const char
        *secret_digest; /* of the job's Secret (job_objects.h); borrowed; "" or NULL = not known */
    const struct observe_plan *plan;
    char *redivides; /* observed.redivides */
    char *searches;  /* observed.searches */
};

/* -EINVAL: the object cannot be read at all, *out is empty. */
int observe(const struct observe_input *input, struct observation *out, struct fleet_error *err);

/* Forget what was borrowed from the caches, the hub and the job: it is valid only in the turn of
 * the loop in which observe() was called. What remains belongs to the observation. */
void observe_forget_borrowed(struct observation *observation);

/* Free what it holds and zero it; what it borrowed stays. */
void observe_release(struct observation *observation);

/* Put plan and frozen images into the new status; `write` becomes ACTION_WRITE_NOW if they
 * differ. */
void observe_complete(const struct observation *observation, struct actions *actions);

#endif
