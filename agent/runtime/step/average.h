/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_AVERAGE_H
#define AGENT_RUNTIME_STEP_AVERAGE_H

/*
 * The averages of localsgd and adaptive_localsgd. Between two averages each rank has parameters of
 * its own. All ranks hold the same snapshot: the parameters after the last average. An average is
 * taken over the ranks' changes since the snapshot.
 *
 * If an average is due after an update, its commit only records in the ledger that one is owed.
 * Here it is made, before anything else happens. A rank changes its first parameter only after the
 * whole exchange, so a rank has averaged completely or not at all. If the generation breaks
 * meanwhile, there may be ranks of both kinds; those that have not averaged then receive the
 * parameters of a rank that has (elastic.c).
 * `err` may not be NULL anywhere here.
 */

#include <stdbool.h>

struct executor_bases;
struct fleet_error;
struct trainer;

/* True if each rank of the job updates parameters of its own. */
bool average_is_on(const struct trainer *trainer);

/* True if all ranks of the generation hold the same parameters. */
bool average_is_common(const struct trainer *trainer);

/* Take the snapshot: all ranks start from the present parameters. */
int average_begin(struct trainer *trainer, struct fleet_error *err);

/* Average if the ledger owes an average. All ranks call it. Errors as train_run(). */
int average_if_due(struct trainer *trainer, struct fleet_error *err);

/* Record that all ranks hold the same parameters and snapshot, so that no average is owed. */
void average_done(struct trainer *trainer);

/*
 * For a checkpoint or an evaluation between two averages: *out gets bases with which the parameters
 * are the mean of all ranks. The ranks' own parameters do not change. All ranks call it. The mean
 * is in gradient slot 0 until the next update begins.
 */
int average_view(struct trainer *trainer, struct executor_bases *out, struct fleet_error *err);

#endif
