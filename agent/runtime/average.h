/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_AVERAGE_H
#define AGENT_RUNTIME_AVERAGE_H

/*
 * localsgd and adaptive_localsgd: the parameters of the ranks, each rank's own between two averages
 * (spec/strategy.md 12). All ranks hold the same snapshot, the parameters after the last average,
 * and average what they have gone since then.
 *
 * The commit of an update after which an average is due only notes in the ledger that one is owed;
 * here it is paid, before anything else happens. Everything is exchanged before the first parameter
 * changes, so a rank has averaged or it has not: a generation that breaks on the way leaves ranks
 * of both kinds, and those that have not take the parameters of one that has (elastic.c).
 * `err` may not be NULL anywhere here.
 */

#include <stdbool.h>

struct executor_bases;
struct fleet_error;
struct trainer;

/* The job's ranks update parameters of their own. */
bool average_is_on(const struct trainer *trainer);

/* All ranks of the generation hold the same parameters. */
bool average_is_common(const struct trainer *trainer);

/* The parameters are what the ranks start from: take the snapshot. */
int average_begin(struct trainer *trainer, struct fleet_error *err);

/* Average if the ledger says so. All ranks call it; errors as train_run(). */
int average_if_due(struct trainer *trainer, struct fleet_error *err);

/* All ranks hold the same parameters and snapshot: nothing is owed any more. */
void average_done(struct trainer *trainer);

/*
 * A checkpoint and an evaluation may come between two averages. *out are the
 * bases with which the parameters are the mean of all ranks'. The ranks' own stay as they are. All
 * ranks call it; the mean lies in gradient slot 0, until the next update begins.
 */
int average_view(struct trainer *trainer, struct executor_bases *out, struct fleet_error *err);

#endif
