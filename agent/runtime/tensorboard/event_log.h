/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_TENSORBOARD_EVENT_LOG_H
#define AGENT_RUNTIME_TENSORBOARD_EVENT_LOG_H

/*
 * training.log.tensorboard: a job's curves in a folder of TensorBoard's event files.
 *
 * One process at a time writes (rank 0). Each process begins a file of its own:
 *
 *     events.out.tfevents.<seconds, 10 digits>.<job>.<host>.<pid>.fleetjob
 *
 * A later file sorts after an earlier one, and TensorBoard reads them in this order. Files of other
 * jobs and other programs are never touched.
 *
 * Invariants
 *  (1) In the job's files, read in order, the steps of a tag ascend, without duplicates.
 *  (2) One write(2) writes a whole event, or the file is cut back to its old size. A half-written
 *      event of a killed process is cut off by the next process.
 *  (3) After event_log_resume(log, s) there is nothing beyond step s. Later steps will be computed
 *      again, and EVENT_START orders readers to drop their old points.
 *
 * One thread.
 */

#include <stdint.h>

#include "libfleet/tensorboard/event.h"

struct event_log;

/* Nothing is read or written yet. `folder` and `job` are copied. Never NULL. */
struct event_log *event_log_new(const char *folder, const char *job);
void event_log_free(struct event_log *log); /* NULL is fine */

/*
 * Training goes on after `step` (0: at the beginning), and this process writes. Makes the folder,
 * reads its files and cuts them back to `step`. -errno with the path on failure; the next call of
 * this function or of event_log_append() tries again.
 */
int event_log_resume(struct event_log *log, int64_t step, struct fleet_error *err);

/* The newest step that has a scalar called `tag`, in this file or in those of earlier processes; 0
 * = none. Valid after event_log_resume(). */
int64_t event_log_newest(const struct event_log *log, const char *tag);

/*
 * Append scalars of a step, after event_log_resume(). A tag has at most 63 bytes. Tags whose newest
 * step is this one or a later one are skipped. -errno with the path; then nothing was written.
 */
int event_log_append(struct event_log *log, int64_t step, double wall_s,
                     const struct event_scalar *scalars, int count, struct fleet_error *err);

#endif
