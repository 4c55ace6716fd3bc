/* SPDX-License-Identifier: Apache-2.0 */

/* What trainers do together where their ranks share a model (cells.c): they vote, save, move their
 * state to its new places, and give it up if a line of it is lost. */
#include "tests/fake/cluster/rules.h"

/* A line of the state has no holder: each rank finds that out, and drops what it holds. */
void cluster_cells_give_up(struct cluster *c, int run)
{
    struct cluster_run *r = &c->runs[run];

    if (r->is_sound)
        cluster_broken(c, "(13) the ranks of generation %lld give up step %lld",
                       (long long)r->generation.counter, (long long)r->base);
    for (int place = 0; place < r->count; place++)
        for (int p = 0; p < c->jobs[r->job].processes; p++) {
            cluster_cells_drop(&c->agents[r->agents[place]].trainers[p]);
            cluster_trainer_leave(c, &c->agents[r->agents[place]], p);
        }
}

/*
 * One that has nothing gets its part at once, the others when all of the cell have come: so the old
 * places are there until the new ones are.
 */
bool cluster_cells_restore(struct cluster *c, int run, struct cluster_trainer *t)
{
    struct cluster_run *r = &c->runs[run];
    int cell = cluster_cells_cell(c, r, t->rank), processes = c->jobs[r->job].processes;
    bool have_come = true;

    if (!t->has_come && t->step != r->base && !(t->step == r->base - 1 && t->voted == r->base))
        cluster_cells_take(c, t);
    if (!t->has_come)
        t->step = r->base;
    t->has_come = true;
    for (int rank = 0; rank < r->count * processes; rank++)
        have_come &= cluster_cells_cell(c, r, rank) != cell ||
                     c->agents[r->agents[rank / processes]].trainers[rank % processes].has_come;
    if (have_come)
        cluster_cells_take(c, t);
    return have_come;
}

/* Each holds the gradient of the step now, and can make the step alone. */
void cluster_cells_vote(struct cluster *c, const struct cluster_run *r)
{
    for (int place = 0; place < r->count; place++)
        for (int p = 0; p < c->jobs[r->job].processes; p++)
            c->agents[r->agents[place]].trainers[p].voted = r->voted + 1;
}

/* No rank can save alone: all do, when it is time or one of them is to leave. */
void cluster_cells_save(struct cluster *c, int run)
{
    struct cluster_run *r = &c->runs[run];
    bool is_due = r->voted % CLUSTER_EVERY_STEPS == 0;

    for (int place = 0; place < r->count; place++)
        for (int p = 0; p < c->jobs[r->job].processes; p++) {
            struct cluster_trainer *t = &c->agents[r->agents[place]].trainers[p];
            if (t->phase < FLEET_PHASE_RESTORED || t->step != r->voted)
                return;
            is_due |= t->is_leaving || t->wants_checkpoint;
        }
    if (!is_due || r->saved >= r->voted)
        return;
    r->saved = r->voted;
    for (int place = 0; place < r->count; place++)
        for (int p = 0; p < c->jobs[r->job].processes; p++)
            c->agents[r->agents[place]].trainers[p].wants_checkpoint = false;
    cluster_trainer_save(c, &c->agents[r->agents[0]], 0);
}

/* It is in a generation that has not saved its state yet. */
bool cluster_cells_may_save(const struct cluster *c, const struct cluster_trainer *t)
{
    return t->run >= 0 && !t->is_finished && c->runs[t->run].saved < t->step;
}
