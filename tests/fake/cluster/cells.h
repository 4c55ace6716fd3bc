/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_CLUSTER_CELLS_H
#define TESTS_FAKE_CLUSTER_CELLS_H

/* Jobs whose ranks share a model (cluster.h). */

#include "tests/fake/cluster/cluster.h"

/* ---- cells.c --------------------------------------------------------------------------------- */

void cluster_cells_choose(struct cluster *c, struct cluster_job *job); /* degrees, workers */
bool cluster_cells_are_used(const struct cluster_job *job);
/* Whose state the trainer holds, -1 = none; the cell of a rank of the generation. */
int cluster_cells_held(const struct cluster_job *job, const struct cluster_trainer *t);
int cluster_cells_cell(const struct cluster *c, const struct cluster_run *run, int rank);
void cluster_cells_drop(struct cluster_trainer *t); /* its state */
/* It takes its place in its run: what the assign, or another cell, makes useless goes. */
void cluster_cells_prepare(const struct cluster *c, struct cluster_trainer *t);
/* It holds its part by the map of its run. */
void cluster_cells_take(const struct cluster *c, struct cluster_trainer *t);
/* The run's trainers hold each line of the step's state in the right cell. */
bool cluster_cells_are_whole(const struct cluster *c, const struct cluster_run *run, int64_t step);

/* ---- cells_train.c --------------------------------------------------------------------------- */

void cluster_cells_give_up(struct cluster *c, int run);
/* True once the trainer has its part of the agreed state by the map of the run. */
bool cluster_cells_restore(struct cluster *c, int run, struct cluster_trainer *t);
void cluster_cells_vote(struct cluster *c, const struct cluster_run *run);
void cluster_cells_save(struct cluster *c, int run); /* if it is time, or one of them leaves */
/* It is in a generation that has not saved its state yet. */
bool cluster_cells_may_save(const struct cluster *c, const struct cluster_trainer *t);

#endif
