/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_RECONCILER_PASS_H
#define CONTROLLER_FLEETJOB_RECONCILER_PASS_H

/* One pass over a job, its requests, and how both end. */

#include "controller/fleetjob/reconciler_job.h"
#include "libfleet/base/error.h"
#include "libfleet/kube/rest.h"

/*
 * One look at a job, from the call of reconcile to manager_done.
 *
 *  (1) A pass decides in the turn of the loop in which it observed. What it borrowed for that (the
 *      hub's view, lists of the job, objects of the cache) is forgotten before the turn ends; what
 *      is carried out later is a value.
 *  (2) A pass that had to ask the API server before it could decide (prepare.c) decides nothing: it
 *      ends, and the next one observes again.
 */
struct reconciler_pass {
    struct reconciler_job *job;
    struct observation observation;
    struct actions actions;
    struct reconciler_request *requests; /* on their way, a list */
    int pending;
    int objects;            /* prepare: which objects to ask for, a set of enum job_object */
    bool is_status_lost;    /* prepare: a Secret exists that the status does not know */
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

/* A request of a pass: its end is counted, also that of a failure. */
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

/* The API server would not make what this job needs: the condition Scheduled and an Event say so,
 * the log once for the same words, and it is asked again when refusal.h says so. */
void reconciler_refuse(struct reconciler_pass *pass, const struct fleet_error *err);

/* Look again after so long at the latest; negative: nothing to wait for. */
void reconciler_requeue(struct reconciler_pass *pass, double after_ms);

/* An Event about the job of the pass. */
void reconciler_event(const struct reconciler_pass *pass, bool is_warning, const char *reason,
                      const char *text);

/* Free it and cancel its requests; the pass does not end by that. */
void reconciler_free_pass(struct reconciler_pass *pass);

#endif
