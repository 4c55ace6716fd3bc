/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_RECONCILER_JOB_H
#define CONTROLLER_FLEETJOB_RECONCILER_JOB_H

/* What the controller remembers of a job between two passes. */

#include "controller/fleetjob/gang.h"
#include "controller/fleetjob/observe.h"
#include "controller/fleetjob/pod_events.h"
#include "controller/fleetjob/reconciler_internal.h"
#include "controller/fleetjob/refusal.h"
#include "controller/fleetjob/status_pace.h"
#include "controller/fleetjob/status_writer.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/errors.h"

struct projection_job;

struct reconciler_job {
    struct reconciler *reconciler;
    char *key, *namespace_, *name, *uid;
    struct hub_host *host;
    struct status_writer *writer;
    struct observe_plan plan;
    struct observe_plan found;   /* by a search, for the next pass; all zero: nothing */
    bool has_decided;            /* a decision of this process has taken effect */
    bool is_confirmed;           /* the API server has confirmed what the cache says of the job */
    int64_t prepared_generation; /* for which Secret, Service and pods were tried */
    char secret_digest
        [FLEET_SHA256_HEX_SIZE]; /* of the Secret that was made or found; "" = the status says */
    double secret_at_ms;         /* when it was asked for last */
    unsigned int retries,
        /* for the objects that pods wait for, for the Services: attempts in a row … */
        service_tries, servers_tries;
    /* … and when the next one is due */
    double retry_at_ms, service_at_ms, servers_at_ms;
    struct fleet_errors pod_errors; /* what is wrong with the pods of that generation … */
    double pod_errors_until_ms;     /* … as far as is known until then */
    enum gang_scheduler gang;       /* of that generation */
    struct refusal refusal;         /* what the API server refused to make, and when to try again */
    struct observed_attempt *refused; /* [refused_count] these */
    size_t refused_count;
    char **gone_uids; /* [gone_count] vanished pods; not yet reported to the hub */
    size_t gone_count;
    struct observed_attempt *taken; /* [taken_count] as in struct observed */
    size_t taken_count;
    struct observed_vanished *vanished; /* [vanished_count], as in struct observed */
    size_t vanished_count;
    struct status_pace_job pace;
    struct pod_events pod_events; /* why its pods do not start */
    unsigned int internal_errors; /* broken passes in a row (internal_error.c) */
    unsigned int hub_defects;     /* broken hubs, each soon after the previous one */
    double hub_defect_ms;         /* when the last broken hub was reported */
    double internal_retry_ms;     /* no pass begins before this time */
    double rest_until_ms;         /* no pass begins before this time, either: rest_ms() */
    bool is_doomed;               /* its namespace is being deleted: no pass does anything more */
    struct reconciler_pass *pass; /* in progress; NULL = none */
};

/* What is remembered of the job in the cache; a predecessor of this name is forgotten. Borrowed. */
struct reconciler_job *reconciler_find_job(struct reconciler *reconciler, const char *key,
                                           const struct projection_job *cached);

/* The job is gone: its hub ends, and nothing is remembered. An unknown key is no error. */
void reconciler_forget_job(struct reconciler *reconciler, const char *key);

/* Free it with its pass and its hub; members get no message. */
void reconciler_free_job(struct reconciler_job *job);

/* An Event about the job. `resource_version` may be NULL. */
void reconciler_job_event(const struct reconciler_job *job, const char *resource_version,
                          bool is_warning, const char *reason, const char *text);

/* A pod is gone, or is being deleted, that did not end by itself. */
void reconciler_note_vanished(struct reconciler_job *job, int index, int attempt);

/* The same, and the pod's object is gone for good: the hub learns of it. */
void reconciler_pod_gone(struct reconciler_job *job, const char *uid, int index, int attempt);

/* The pod's object is gone: the hub learns of it, and nothing else is concluded. */
void reconciler_remember_gone(struct reconciler_job *job, const char *uid);

#endif
