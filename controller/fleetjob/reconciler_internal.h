/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_RECONCILER_INTERNAL_H
#define CONTROLLER_FLEETJOB_RECONCILER_INTERNAL_H

/* What reconciler.c, prepare.c and apply.c share: the controller, a job in it, one look at that
 * job. */

#include "controller/fleetjob/gang.h"
#include "controller/fleetjob/job_metrics.h"
#include "controller/fleetjob/observe.h"
#include "controller/fleetjob/pod_events.h"
#include "controller/fleetjob/reconciler.h"
#include "controller/fleetjob/refusal.h"
#include "controller/fleetjob/status_pace.h"
#include "controller/fleetjob/status_writer.h"
#include "controller/machinery/expectations.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/map.h"
#include "libfleet/kube/rest.h"

struct pod_query;
struct projection_pod;

struct reconciler {
    struct reconciler_options options;
    struct led_io *led;
    struct kube_io *io; /* of `led`: only who leads changes anything */
    struct manager *manager;
    int jobs_informer, pods_informer, services_informer;
    struct expectations *expectations;
    struct hub_network network;
    int64_t epoch;
    struct fleet_map jobs;     /* key → struct reconciler_job */
    struct pod_query *queries; /* pods that are asked about (pod_labels.c), a list */
    struct status_pace pace;
    double pod_events_ms; /* from then on nobody has a turn to ask for Events (pod_events.c) */
    bool has_gang[GANG_SCHEDULERS]; /* which gang schedulers the cluster has, … */
    double gang_until_ms;           /* … as was seen; ask again then */
    struct metric *internal_errors; /* a counter */
    struct metric *pods_created, *pods_deleted, *status_writes, *restarts;
    struct job_metrics job_metrics;
};

/* What is remembered of a job between two looks. */
struct reconciler_job {
    struct reconciler *reconciler;
    char *key, *namespace_, *name, *uid;
    struct hub_host *host;
    struct status_writer *writer;
    struct observe_plan plan;
    int64_t prepared_generation; /* for which Secret, Service and pods were tried */
    char secret_digest
        [FLEET_SHA256_HEX_SIZE]; /* of the Secret that was made or found; "" = the status says */
    double secret_at_ms;         /* when it was asked for last */
    unsigned int retries,
        /* for the objects that pods wait for, for the Service: attempts in a row … */
        service_tries;
    double retry_at_ms, service_at_ms; /* … and when the next one is due */
    struct fleet_errors pod_errors;    /* what is wrong with the pods of that generation … */
    double pod_errors_until_ms;        /* … as far as is known until then */
    enum gang_scheduler gang;          /* of that generation */
    struct refusal refusal; /* what the API server would not make, and when to ask again */
    struct observed_attempt *refused; /* [refused_count] these */
    size_t refused_count;
    char **gone_uids; /* [gone_count] pods that vanished, the hub does not know yet */
    size_t gone_count;
    struct observed_attempt *taken; /* [taken_count] as in struct observed */
    size_t taken_count;
    struct observed_vanished *vanished; /* [vanished_count], as in struct observed */
    size_t vanished_count;
    struct status_pace_job pace;
    struct pod_events pod_events; /* why its pods do not start */
    unsigned int internal_errors; /* of passes, in a row (internal_error.c); … */
    unsigned int hub_defects;     /* … of hubs, each soon after the one before; … */
    double hub_defect_ms;         /* … when the last one was reported */
    double internal_retry_ms;     /* the next pass is not before */
    double rest_until_ms;         /* nor before this, see rest_ms() */
    bool is_doomed;               /* its namespace is being deleted: nothing more is done */
    struct reconciler_pass *pass; /* under way; NULL = none */
};

/*
 * One look at a job, from the call of reconcile to manager_done.
 *
 *  (1) A pass decides in the turn of the loop in which it observed. What it borrowed for that (the
 *      hub's view, lists of the job, objects of the cache) is forgotten before the turn ends; what
 *      is carried out later is a value.
 *  (2) A pass that had to ask the API server before it could decide (prepare.c) decides nothing: it
 *      ends, and the next one observes anew.
 */
struct reconciler_pass {
    struct reconciler_job *job;
    struct observation observation;
    struct actions actions;
    struct reconciler_request *requests; /* on their way, a list */
    int pending;
    int objects;            /* prepare: which objects to ask for, a set of enum job_object */
    bool is_repair;         /* prepare: they were made before for this generation of the spec */
    size_t next_create;     /* of actions.creates: those before were asked for */
    int creating;           /* of these, not answered yet */
    int created;            /* pods that were made, replacements apart */
    struct fleet_error err; /* the first that went wrong, if has_failed */
    bool has_failed;
    bool is_refused;                            /* quota or admission forbade what it would make */
    double requeue_after_ms;                    /* -1: only when something changes */
    void (*next)(struct reconciler_pass *pass); /* when nothing is pending any more */
};

/* A request of a pass: its end is counted, whatever it was. */
struct reconciler_request {
    struct reconciler_request *next, **previous;
    struct reconciler_pass *pass;
    struct kube_rest_call *call;
    cJSON *body; /* owned; NULL = none */
    char *name;  /* of the object, heap */
    const struct kube_resource *resource;
    int index, attempt;  /* of a pod … */
    bool is_replacement; /* … in whose place another one was */
    void (*done)(struct reconciler_request *request, const cJSON *object,
                 const struct fleet_error *err);
};

/*
 * Send a request of this pass. `body` and `name` become the request's own. `done` decides what the
 * answer means; it may send on (reconciler_resend) or must call reconciler_finish().
 */
struct reconciler_request *reconciler_send(
    struct reconciler_pass *pass, const struct kube_rest_request *what, cJSON *body, char *name,
    void (*done)(struct reconciler_request *, const cJSON *, const struct fleet_error *));
void reconciler_resend(struct reconciler_request *request, const struct kube_rest_request *what,
                       void (*done)(struct reconciler_request *, const cJSON *,
                                    const struct fleet_error *));

/* It has ended, well if `err` is NULL. */
void reconciler_finish(struct reconciler_request *request, const struct fleet_error *err);

/* The pass goes on with `next` when all its requests have ended: at once if there are none. */
void reconciler_then(struct reconciler_pass *pass, void (*next)(struct reconciler_pass *pass));

/* The pass is over. */
void reconciler_end(struct reconciler_pass *pass);

/* For the log; `what` is constant. */
void reconciler_trouble(const struct reconciler *reconciler, const char *what, const char *job,
                        const struct fleet_error *err);

/* The API server would not make what this job needs: the condition Scheduled and an Event say so,
 * the log once for the same words, and it is asked again when refusal.h says so. */
void reconciler_refuse(struct reconciler_pass *pass, const struct fleet_error *err);

/* Look again after so long at the latest; negative: nothing to wait for. */
void reconciler_requeue(struct reconciler_pass *pass, double after_ms);

/* internal_error.c: an invariant broke, in these words, while this pass decided about its job. The
 * pass ends without being looked into; then manager_done(). */
void internal_error_end(struct reconciler_pass *pass, const char *text);

/* An invariant broke in the hub of the job (hub_host_defect()): it is dropped, and made anew by the
 * pass that follows when it is time; then manager_done(). Only between two passes, with the cache
 * as new as what was written. */
void internal_error_drop_hub(struct reconciler_job *job);

/* An Event about a job, or about the job of a pass. */
void reconciler_job_event(const struct reconciler_job *job, const char *resource_version,
                          bool is_warning, const char *reason, const char *text);
void reconciler_event(const struct reconciler_pass *pass, bool is_warning, const char *reason,
                      const char *text);

/* A pod is gone, or is being deleted, that did not end by itself. */
void reconciler_note_vanished(struct reconciler_job *job, int index, int attempt);

/* The same, and the pod's object is gone for good: the hub hears of it. */
void reconciler_pod_gone(struct reconciler_job *job, const char *uid, int index, int attempt);

/* pod_labels.c: does the watch select this pod? */
bool pod_labels_are_seen(const cJSON *pod);

/* Put our labels back on this pod of the job, if it has lost them; NULL: nothing. An Event tells if
 * that fails. */
void pod_labels_restore(const struct reconciler_job *job, const cJSON *pod);

/* The pod has left the cache, and nobody was seen to delete it: ask whether it is gone
 * (reconciler_pod_gone()), or has only lost its labels (they are put back). The job is left alone
 * until then. */
void pod_labels_doubt(struct reconciler_job *job, const struct projection_pod *pod);

/* Forget all that is under way. */
void pod_labels_forget(struct reconciler *reconciler);

/* prepare.c: Secret, Service, and is the API server content with the pods? Then reconciler_end():
 * another pass decides. *wait_ms: when it may be needed next, -1 = when something changes. */
bool prepare_is_needed(struct reconciler_pass *pass, double *wait_ms);
void prepare_run(struct reconciler_pass *pass);

/* The spec of this generation is wrong, because its pods or their group cannot be made: pod_errors
 * says why. */
void prepare_refuse_pods(struct reconciler_job *job);

/* apply.c: status, events, hub, pods; or, if pods have to be looked for first, these and the hub.
 * Then reconciler_end(). */
void apply_run(struct reconciler_pass *pass);

/* The pod of a worker as this installation makes it. Owned by the caller. */
cJSON *apply_build_pod(const struct reconciler_pass *pass, int index, int attempt);

#endif
