/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_TENSORBOARD_EVENT_LOG_H
#define AGENT_RUNTIME_TENSORBOARD_EVENT_LOG_H

/*
 * training.log.tensorboard: a job's curves in a folder of TensorBoard's event files.
 *
 * One process at a time writes (rank 0). Each begins a file of its own,
 *
 *     events.out.tfevents.<seconds, 10 digits>.<job>.<host>.<pid>.fleetjob
 *
 * later ones sorting behind earlier ones, which is the order TensorBoard reads them in. Files of
 * other jobs and other programs are never touched.
 *
 * Invariants
 *  (1) In the job's files, read in order, the steps of a tag ascend: none is there twice.
 *  (2) An event is written whole by one write(2), or the file is cut back to where it was; what a
 *      killed process has left half-written is cut off by the next one.
 *  (3) After event_log_resume(log, s) there is nothing beyond step s: what an earlier run had
 *      computed there will be computed again, and EVENT_START orders readers to drop it.
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
 * looks at what is there and cuts it back to `step`. -errno with the path if that is not possible;
 * then it is tried again by the next call of this or of event_log_append().
 */
int event_log_resume(struct event_log *log, int64_t step, struct fleet_error *err);

/* Newest step that has a scalar called `tag`, here or in files of earlier processes; 0 = none. Of
 * value after event_log_resume(). */
int64_t event_log_newest(const struct event_log *log, const char *tag);

/*
 * Append scalars of a step, after event_log_resume(); tags of at most 63 bytes. Tags whose newest
 * step is this one or a later one are passed over. -errno with the path; nothing was written then.
 */
int event_log_append(struct event_log *log, int64_t step, double wall_s,
                     const struct event_scalar *scalars, int count, struct fleet_error *err);

#endif
