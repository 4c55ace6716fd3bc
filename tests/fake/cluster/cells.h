/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_CLUSTER_CELLS_H
#define TESTS_FAKE_CLUSTER_CELLS_H

/*
 * Jobs whose ranks share a model (cluster.h): which cell's state each trainer holds. The one
 * thread of the simulation calls all of this.
 */

#include "tests/fake/cluster/cluster.h"

/* ---- cells.c --------------------------------------------------------------------------------- */

/* Choose the degrees of a new job and its number of workers. */
void cluster_cells_choose(struct cluster *c, struct cluster_job *job);

/* True if the ranks of the job share a model. */
bool cluster_cells_are_used(const struct cluster_job *job);

/* The cell whose state the trainer holds, -1 = it holds none. */
int cluster_cells_held(const struct cluster_job *job, const struct cluster_trainer *t);

/* The cell of a rank of the run. */
int cluster_cells_cell(const struct cluster *c, const struct cluster_run *run, int rank);

/* The trainer loses its state. */
void cluster_cells_drop(struct cluster_trainer *t);

/* The trainer takes its place in its run. It drops a state of another cell, and a state that the
 * assign makes useless. */
void cluster_cells_prepare(const struct cluster *c, struct cluster_trainer *t);

/* From now on the trainer holds its part of the state by the map of its run. */
void cluster_cells_take(const struct cluster *c, struct cluster_trainer *t);

/* True if the trainers of the run hold each line of the state of `step`, each in its cell. */
bool cluster_cells_are_whole(const struct cluster *c, const struct cluster_run *run, int64_t step);

/* ---- cells_train.c --------------------------------------------------------------------------- */

/* No state can be restored: the trainers of the run drop what they hold and leave the run. This
 * breaks rule (13) if the state was sound. */
void cluster_cells_give_up(struct cluster *c, int run);

/* Restore the trainer. True if it has its part of the agreed state by the map of the run. */
bool cluster_cells_restore(struct cluster *c, int run, struct cluster_trainer *t);

/* The vote of the next step is complete: note for each trainer that it voted. */
void cluster_cells_vote(struct cluster *c, const struct cluster_run *run);

/* Save the state of the run if it is time, or if one of its members leaves. */
void cluster_cells_save(struct cluster *c, int run);

/* True if the trainer is in a run that has not saved its state yet. */
bool cluster_cells_may_save(const struct cluster *c, const struct cluster_trainer *t);

#endif
