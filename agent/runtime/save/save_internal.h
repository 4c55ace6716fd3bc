/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_SAVE_SAVE_INTERNAL_H
#define AGENT_RUNTIME_SAVE_SAVE_INTERNAL_H

/*
 * What the files of save.h share, for them alone: save.c (when, and the save by one rank),
 * save_together.c (all ranks write, each a part), save_last.c (before the end), save_report.c (the
 * reports), save_restore.c (reading), save_reserve.c (memory).
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/checkpoint/checkpoint.h"
#include "agent/runtime/save/save.h"

struct fleet_strbuf;

/* ---- save.c ---------------------------------------------------------------------------------- */

/* The state that a checkpoint of this rank holds. Borrows from the trainer. */
void save_state_of(const struct trainer *trainer, struct checkpoint_state *out);

/* Which checkpoints are this job's. Borrows from the trainer. */
struct manifest_history save_own_history(const struct trainer *trainer);

/* Several cells: each rank has parts of tensors, and whole ones are written. */
bool save_has_cells(const struct trainer *trainer);

/* No rank has all of the state. */
bool save_is_divided(const struct trainer *trainer);

/* The manifest of a checkpoint of this moment; delete out->extra. */
void save_describe(const struct trainer *trainer, struct manifest *out);

/* Tell the snapshot which checkpoints retention counts. */
void save_follow(struct trainer *trainer);

/* Report the save at work if it has ended; `wait` waits for its end. */
void save_collect(struct trainer *trainer, bool wait);

/* On the first rank, if it has the whole state: begin to save, unless the newest checkpoint is of
 * this step. */
void save_alone(struct trainer *trainer);

/* ---- save_together.c, save_last.c ------------------------------------------------------------ */

/* All ranks write the newest committed update, each a part. Errors of the collectives. */
int save_together(struct trainer *trainer, struct fleet_error *err);

/* From the environment, for save_last(). -EINVAL with the variable, its value and the range. */
int save_read_patience(struct trainer *trainer, struct fleet_error *err);

/* The job does not succeed without its last checkpoint. Errors as save_if_due(). */
int save_last(struct trainer *trainer, struct fleet_error *err);

/* ---- save_report.c --------------------------------------------------------------------------- */

/* A save that failed: to the log and to the job's status. It is tried again after a back-off. */
void save_report_failed(struct trainer *trainer, int64_t step, const char *reason);

/* A save that has ended. */
void save_report(struct trainer *trainer, const struct snapshot_result *result);

/* Append which checkpoint is the newest. */
void save_describe_newest(const struct trainer *trainer, struct fleet_strbuf *out);

/* `folder` is the newest complete checkpoint known here; earlier failures are over. */
void save_remember_newest(struct trainer *trainer, int64_t step, const char *folder);

#endif
