/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_LOCAL_JOB_H
#define CLI_LOCAL_JOB_H

/*
 * One job on this machine: reconcile() and a hub, as in the controller, with processes for pods.
 * All decisions are theirs; this file only observes and applies.
 *
 *   launcher (processes) ─┐                       ┌─▶ launcher: create, delete
 *   hub (events)          ├─▶ observe ▶ reconcile ┼─▶ hub: configure, end, gone
 *   signals, time        ─┘                       └─▶ status, events
 */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/rendezvous/hub.h"

struct fleet_error;
struct local_job;

struct local_job_config {
    struct fleetjob *job; /* borrowed; its status and runPolicy.suspend are written */
    const char *folder;   /* private to this run; holds job.json already */
    const char *agent_path;
    const char *plan_digest;  /* NULL = "" */
    int threads;              /* compute threads of each trainer */
    char *const *command;     /* of an own trainer, or NULL */
    char *const *environment; /* "NAME=value" of the job's container, NULL-terminated; or NULL */
    bool is_verbose;
    const char *state_file; /* where the processes are listed while it runs, or NULL */

    /* Something happened at the hub. */
    void (*event)(void *user, const struct hub_event *event);
    /* A line for people: a warning, an event of reconcile(), output of the built-in trainer. */
    void (*note)(void *user, const char *text);
    /* A line that an own trainer printed, with its rank in front. */
    void (*output)(void *user, bool is_error, const char *text);
    void *user;
};

/* Take up the job: the hub listens, nothing runs yet. */
int local_job_new(const struct local_job_config *config, struct local_job **out,
                  struct fleet_error *err);

/*
 * Run until the job is terminal, or was asked to stop, and none of its processes is left. SIGINT,
 * SIGTERM and SIGHUP ask it to stop (checkpoint, then leave); the second one kills.
 */
void local_job_run(struct local_job *lj);

/* Ask it to stop, as by a first signal. */
void local_job_stop(struct local_job *lj);

bool local_job_was_stopped(const struct local_job *job); /* by a signal or local_job_stop() */

/* Kills what is left. NULL is fine. */
void local_job_free(struct local_job *lj);

#endif
