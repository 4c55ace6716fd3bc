/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_JOB_SEARCH_H
#define CONTROLLER_FLEETJOB_JOB_SEARCH_H

/*
 * Searches for the strategies of jobs (libfleet/api/divisions.h), which may take seconds, away from
 * the loop.
 *
 *     a pass that lacks the division ─▶ job_search_want ─▶ queue ─▶ one search ─▶ on_found
 *                                                                      └▶ a new pass of the job
 *
 *  (1) One search runs at a time. Jobs that have trained come before those that have not.
 *  (2) A search reads a copy of the job, and writes a result of its own.
 *  (3) A job has one search at most: the one for its newest generation. The result for an older
 *      one, or for a job that was forgotten, is dropped.
 */

#include <stdbool.h>

#include "controller/fleetjob/observe_plan.h"

struct background;
struct job_search;
struct kube_io;
struct projection_job;

struct job_search_options {
    struct kube_io *io;
    struct background *background; /* borrowed; NULL: a search has a turn of the loop of its own */
    /* The verdict about the job with this key: *plan moves to the receiver. */
    void (*on_found)(void *user, const char *key, struct observe_plan *plan);
    void *user;
};

struct job_search *job_search_new(const struct job_search_options *options);

/* NULL is fine. A search that runs ends by itself, and its result is dropped. */
void job_search_free(struct job_search *queue);

/* A search for this job as the cache has it, if none is under way for the same generation.
 * `trains`: it has trained already. */
void job_search_want(struct job_search *queue, const char *key, const struct projection_job *job,
                     bool encrypts_data, bool trains);

/* The job is gone. */
void job_search_forget(struct job_search *queue, const char *key);

#endif
