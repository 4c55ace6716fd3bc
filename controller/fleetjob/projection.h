/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_PROJECTION_H
#define CONTROLLER_FLEETJOB_PROJECTION_H

/*
 * The parts of watched objects that the caches keep (store.h).
 *
 * A FleetJob is kept as compact text: there may be ten thousand of them, and each is read as a
 * whole when it is looked at, so that fields of a newer version survive. A pod is kept as the few
 * facts that decisions rest on.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "controller/fleetjob/reconcile.h"
#include "controller/machinery/store.h"
#include "libfleet/kube/rest.h"

#define PROJECTION_JOB_SIZE_MAX (2u << 20) /* bytes of a FleetJob; etcd takes 1.5 MiB */
#define PROJECTION_MESSAGE_MAX  512        /* bytes of a pod's message that are kept */

extern const struct kube_resource projection_fleetjobs;

struct projection_job {
    char *text; /* JSON, without managedFields */
    size_t size;
    char *uid, *resource_version;
    char *state;        /* status.state, "Pending" while there is none */
    int64_t generation; /* metadata.generation */
};

/* Seconds that a pod gets to end if a controller deletes it because it does not answer. If its node
 * is lost, the pod stays, and this number tells it from a drained one: `kubectl delete --now` gives
 * 1, other deletions give the pod's own. */
#define PROJECTION_GRACE_GIVEN_UP_S 2

struct projection_pod {
    char *name, *uid;
    char *owner_uid;   /* of the FleetJob that is its controller; NULL = none */
    char *owner_name;  /* "" if it has none */
    char *node;        /* "" = not scheduled */
    char *topology;    /* where that is, "" = not known */
    char *image;       /* that the worker's container runs, "" = not known yet … */
    char *agent_image; /* … and its agent is from: the same, or the init container's */
    char *reason, *message;
    char *image_id;     /* what the kubelet says that image is; "" = not known yet */
    char *memory_limit; /* of the worker's container, as written; "" = none */
    char *waiting;      /* why it has no node or does not start; "" = no reason known */
    char *cause;        /* that in one word (pod_cause.h); "" = none, or it only starts */
    int index, attempt; /* by its name; -1 if it is not named like a worker */
    int server;         /* index by its name; -1 if it is not named like a server */
    enum observed_phase phase;
    bool is_deleting;
    bool is_given_up;  /* deleted by a controller, since it did not answer */
    bool is_permanent; /* its agent's last report: starting it again cannot help */
    bool is_ready;
    int restarts;            /* of its first container by the kubelet */
    int exit_code;           /* -1 = not known; of a server's last container that ended */
    int64_t created_wall_ms; /* 0 = not known */
    int64_t started_wall_ms, finished_wall_ms; /* 0 = not yet */
    int64_t gone_by_wall_ms; /* deleted: when its grace is over; 0 = it is not deleted */
};

struct projection_service { /* of the pods of a job */
    char *uid;
    char *owner_uid; /* of its controller; NULL = none */
    char *job_name;  /* by its label */
    char *address;   /* clusterIP; "" = not known, "None" = headless */
    bool is_ours;    /* made by a controller of FleetJobs, and not changed since */
};

/* Index 0 of the pods: the UID of the job. */
#define PROJECTION_POD_BY_JOB 0

extern const struct store_kind projection_job_kind, projection_pod_kind, projection_service_kind;

#endif
