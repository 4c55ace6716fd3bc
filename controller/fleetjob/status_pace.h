/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_PACE_H
#define CONTROLLER_FLEETJOB_STATUS_PACE_H

/*
 * When a status change that is not urgent may be written.
 *
 *  (1) Progress alone: STATUS_PACE_PROGRESS_MS between two writes of a job, STATUS_PACE_EVERY_MS
 *      between two of all jobs together. A job that has to wait for the others gets a turn of its
 *      own and comes back then: a thousand jobs do not all ask again at each turn.
 *  (2) Counts alone (workers with a node, ready ones, …): STATUS_PACE_COUNTS_MS after the last
 *      write of the job, so that N pods that come up one by one cost no N writes.
 *  (3) How far the first pods have come (all have a node, none trains yet): STATUS_PACE_START_MS
 *      after the last write, which came before the pods. A small job has nodes by then, so its
 *      start costs two writes. If many jobs start together, these writes take turns,
 *      STATUS_PACE_EVERY_MS apart, but a job waits at most STATUS_PACE_COUNTS_MS: a write costs the
 *      API server more than a pod, and pods come first.
 *
 * Pure; times are milliseconds of one clock that never goes back.
 */

#define STATUS_PACE_PROGRESS_MS 15000.0
#define STATUS_PACE_EVERY_MS    50.0
#define STATUS_PACE_COUNTS_MS   5000.0
#define STATUS_PACE_START_MS    500.0

struct status_pace {      /* of all jobs; begins as zero */
    double free_ms;       /* from then on there are turns that no job has, … */
    double start_free_ms; /* … and those of jobs that start */
};

struct status_pace_job { /* begins as zero */
    double written_ms;   /* its last write; 0: none yet */
    double turn_ms;      /* when it may write its progress; 0: it has no turn */
    double start_ms;     /* when it may write how far its first pods have come; 0: no turn */
};

/* How long progress has to wait: 0, it may be written now, which is then noted. */
double status_pace_progress(struct status_pace *all, struct status_pace_job *job, double now_ms);

/* Before then, status_pace_progress() will not let it write. */
double status_pace_due_ms(const struct status_pace_job *job);

/* How long a write waits that comes a pause after the job's last one; the write is noted by
 * status_pace_written(). */
double status_pace_after(const struct status_pace_job *job, double pause_ms, double now_ms);

/* How long it waits for its turn to write how far its first pods have come. */
double status_pace_start(struct status_pace *all, struct status_pace_job *job, double now_ms);

/* Its status is being written, for any reason. */
void status_pace_written(struct status_pace_job *job, double now_ms);

#endif
