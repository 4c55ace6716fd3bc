/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose ranks share a model: each trainer holds a part of one cell (libfleet/strategy/cells.h)
 * and, with sharding, a shard of that. What their state is made of, and the rules for it:
 *
 *   - a generation has whole replicas;
 *   - one that goes on from a state keeps every line of it: its ranks need not give it up;
 *   - one that begins with a checkpoint does so because no choice of ready members for its seats
 *     would have kept a whole newer state;
 *   - no trainer changes its cell while one without a state is left out.
 *
 * This file looks at the trainers themselves, the hub (hub_cells.c) only at what they have said.
 */
#include "libfleet/strategy/cells.h"

#include <inttypes.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/rendezvous/cell_assign.h"
#include "tests/fake/cluster/rules.h"

#define CELLS_MAX  8
#define SHARDS_MAX 4

/* ---- jobs ------------------------------------------------------------------------------------ */

static const struct {
    int model, stages, shards;
} degrees[] = {{2, 1, 1}, {1, 2, 1}, {2, 2, 1}, {1, 3, 1},
               {2, 1, 2}, {1, 2, 2}, {3, 2, 1}, {2, 2, 2}};

void cluster_cells_choose(struct cluster *c, struct cluster_job *job)
{
    int i = cluster_below(c, (int)FLEET_COUNT(degrees)), step;
    struct topology grid = {.order = {TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE, TOPOLOGY_SHARDING,
                                      TOPOLOGY_PIPELINE, TOPOLOGY_DATA}};

    grid.degree[TOPOLOGY_MODEL] = degrees[i].model;
    grid.degree[TOPOLOGY_SEQUENCE] = grid.degree[TOPOLOGY_DATA] = 1;
    grid.degree[TOPOLOGY_SHARDING] = degrees[i].shards;
    grid.degree[TOPOLOGY_PIPELINE] = degrees[i].stages;
    grid.world = degrees[i].model * degrees[i].stages * degrees[i].shards;
    job->grid = grid;
    job->processes = grid.world == 8 || cluster_chance(c, 0.25) ? 2 : 1;
    job->unit = step = cell_assign_step(&grid, job->processes);
    job->workers_max = step * (1 + cluster_below(c, CLUSTER_WORKERS / step));
    job->workers_min = job->desired = job->workers_max;
    if (job->workers_max == 1 || cluster_chance(c, 0.2))
        return; /* a fixed number of workers */
    job->workers_max += cluster_below(c, step);
    job->workers_max = job->workers_max > CLUSTER_WORKERS ? CLUSTER_WORKERS : job->workers_max;
    job->workers_min = 1 + cluster_below(c, job->workers_max - 1);
    job->desired = job->workers_min + cluster_below(c, job->workers_max - job->workers_min + 1);
    job->desired = job->desired < step ? step : job->desired;
}

bool cluster_cells_are_used(const struct cluster_job *job)
{
    return job->grid.world > 0;
}

static struct topology grid_of(const struct cluster_job *job, int world)
{
    struct topology grid;
    bool is_grid = cells_resize(&job->grid, world, &grid);

    fleet_assert(is_grid);
    return grid;
}

/* ---- what trainers hold ---------------------------------------------------------------------- */

int cluster_cells_held(const struct cluster_job *job, const struct cluster_trainer *t)
{
    struct topology grid;

    if (t->step < 0 || t->part.world == 0)
        return -1;
    grid = grid_of(job, t->part.world);
    return cells_place(&grid, t->part.rank).cell;
}

void cluster_cells_drop(struct cluster_trainer *t)
{
    t->step = -1;
    t->voted = 0;
    t->part = (struct fleet_part){0};
}

void cluster_cells_prepare(const struct cluster *c, struct cluster_trainer *t)
{
    const struct cluster_run *run = &c->runs[t->run];
    const struct cluster_job *job = &c->jobs[run->job];

    if (!t->keeps_state || cluster_cells_held(job, t) != cluster_cells_cell(c, run, t->rank))
        cluster_cells_drop(t);
}

int cluster_cells_cell(const struct cluster *c, const struct cluster_run *run, int rank)
{
    const struct cluster_job *job = &c->jobs[run->job];
    struct topology grid = grid_of(job, run->count * job->processes);

    return cells_place(&grid, rank).cell;
}

void cluster_cells_take(const struct cluster *c, struct cluster_trainer *t)
{
    const struct cluster_run *run = &c->runs[t->run];
    const struct cluster_job *job = &c->jobs[run->job];
    int shards = job->grid.degree[TOPOLOGY_SHARDING];
    struct topology grid = grid_of(job, run->count * job->processes);

    t->part = (struct fleet_part){.rank = t->rank, .world = grid.world};
    if (shards > 1) {
        t->part.division = (struct fleet_division){cells_replicas(&grid), shards, true};
        t->part.first = cells_place(&grid, t->rank).replica;
        t->part.count = 1;
    }
}

struct lines {
    bool held[CELLS_MAX][SHARDS_MAX];
};

static void add(const struct cluster_job *job, struct lines *lines, const struct cluster_trainer *t)
{
    int cell = cluster_cells_held(job, t);

    for (int shard = 0; cell >= 0 && shard < job->grid.degree[TOPOLOGY_SHARDING]; shard++)
        lines->held[cell][shard] |= t->part.division.shards == 0 ||
                                    fleet_division_holds(&t->part.division, shard, t->part.first);
}

static bool is_whole(const struct cluster_job *job, const struct lines *lines, int cell)
{
    for (int shard = 0; shard < job->grid.degree[TOPOLOGY_SHARDING]; shard++)
        if (!lines->held[cell][shard])
            return false;
    return true;
}

static bool are_whole(const struct cluster_job *job, const struct lines *lines)
{
    for (int cell = 0; cell < cells_count(&job->grid); cell++)
        if (!is_whole(job, lines, cell))
            return false;
    return true;
}

/* It has this step, or can make it alone. */
static bool has_step(const struct cluster_trainer *t, int64_t step)
{
    return t->step == step || (t->step == step - 1 && t->voted == step);
}

bool cluster_cells_are_whole(const struct cluster *c, const struct cluster_run *run, int64_t step)
{
    const struct cluster_job *job = &c->jobs[run->job];
    struct lines lines = {0};

    for (int place = 0; place < run->count; place++)
        for (int p = 0; p < job->processes; p++) {
            const struct cluster_trainer *t = &c->agents[run->agents[place]].trainers[p];
            if (has_step(t, step) && cluster_cells_held(job, t) ==
                                         cluster_cells_cell(c, run, place * job->processes + p))
                add(job, &lines, t);
        }
    return are_whole(job, &lines);
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* Its trainers hold parts by one map. A generation may end while only one of two has divided its
 * part again; the member then reports what both maps have in common. */
static bool has_one_map(const struct cluster_job *job, const struct cluster_agent *a)
{
    int world = 0;

    for (int p = 0; p < job->processes; p++) {
        int of_trainer = a->trainers[p].part.world;
        if (world > 0 && of_trainer > 0 && of_trainer != world)
            return false;
        world = of_trainer > 0 ? of_trainer : world;
    }
    return true;
}

/* The hub knows what it holds: it is connected, waits, and nothing has happened to it since. */
static bool is_known(const struct cluster *c, const struct hub_member *member,
                     const struct cluster_agent *a)
{
    const struct cluster_job *job = &c->jobs[a->job];
    int64_t step = -1;

    if (!member->is_connected || member->state != MESSAGE_STATE_WAITING || !a->is_alive ||
        a->is_termed || a->cut_until_ms > c->now_ms || a->stopped_until_ms > c->now_ms ||
        !has_one_map(job, a))
        return false;
    for (int p = 0; p < job->processes; p++) {
        const struct cluster_trainer *t = &a->trainers[p];
        if (!t->is_alive || t->is_leaving || t->run >= 0)
            return false;
        step = t->step > step ? t->step : step;
    }
    return step == member->step;
}

static bool is_member(const struct cluster_run *run, const struct cluster_agent *a)
{
    for (int i = 0; i < run->count; i++)
        if (run->agents[i] == a->number)
            return true;
    return false;
}

/* The members that could have been chosen for the generation. */
struct choice {
    struct cluster *c;
    const struct cluster_run *run;
    const struct cluster_agent *agents[CLUSTER_WORKERS];
    int count;
};

static void find_choice(struct choice *choice, const struct hub_member *members, size_t count)
{
    for (size_t i = 0; i < count && choice->count < CLUSTER_WORKERS; i++) {
        const struct cluster_agent *a = cluster_agent_find(choice->c, members[i].pod_uid);
        if (a && members[i].was_ready && is_known(choice->c, &members[i], a))
            choice->agents[choice->count++] = a;
    }
}

/* What the agents of the set hold for a seat like `place`: each trainer of its own cell there. */
static bool is_kept(const struct choice *choice, int place, unsigned int set, int64_t step)
{
    const struct cluster_job *job = &choice->c->jobs[choice->run->job];
    struct lines lines = {0};

    for (int p = 0; p < job->processes; p++) {
        int cell = cluster_cells_cell(choice->c, choice->run, place * job->processes + p);
        for (int i = 0; i < choice->count; i++) {
            const struct cluster_trainer *t = &choice->agents[i]->trainers[p];
            if (set >> i & 1 && has_step(t, step) && cluster_cells_held(job, t) == cell &&
                cluster_check_counts(choice->c, choice->run, t))
                add(job, &lines, t);
        }
    }
    for (int p = 0; p < job->processes; p++)
        if (!is_whole(job, &lines,
                      cluster_cells_cell(choice->c, choice->run, place * job->processes + p)))
            return false;
    return true;
}

/* Could members take the seats so that their trainers keep all lines of the step? All sets of as
 * many members as there are seats of a kind are tried. */
static bool could_keep(const struct choice *choice, int64_t step)
{
    const struct cluster_run *run = choice->run;
    int processes = choice->c->jobs[run->job].processes;

    for (int place = 0; place < run->count; place++) {
        int seats = 0;
        bool is_found = false;
        for (int other = 0; other < run->count; other++)
            seats += cluster_cells_cell(choice->c, run, other * processes) ==
                     cluster_cells_cell(choice->c, run, place * processes);
        for (unsigned int set = 0; set < 1u << choice->count && !is_found; set++)
            is_found = __builtin_popcount(set) <= seats && is_kept(choice, place, set, step);
        if (!is_found)
            return false;
    }
    return true;
}

/* The newest step that the chosen members could have kept; -1 = none. */
static int64_t newest_whole(struct cluster *c, const struct cluster_run *run,
                            const struct hub_member *members, size_t count)
{
    const struct cluster_job *job = &c->jobs[run->job];
    struct choice choice = {.c = c, .run = run};
    unsigned int all;

    find_choice(&choice, members, count);
    all = (1u << choice.count) - 1;
    for (int64_t step = job->committed_most; step >= 0; step--) {
        bool may_be = true;
        for (int place = 0; place < run->count && may_be; place++)
            may_be = is_kept(&choice, place, all, step);
        if (may_be && could_keep(&choice, step))
            return step;
    }
    return -1;
}

/* A later attempt of its index waits behind a member that holds the state. */
static bool is_behind(const struct cluster *c, const struct cluster_run *run,
                      const struct cluster_agent *a)
{
    for (int i = 0; i < run->count; i++)
        if (c->agents[run->agents[i]].index == a->index)
            return true;
    return false;
}

/* One that holds the state goes to another cell, though one that has nothing is left out. A member
 * that came while the generation was being recorded could not be chosen. */
static void check_moves(struct cluster *c, const struct cluster_run *run,
                        const struct hub_member *members, size_t count)
{
    const struct cluster_job *job = &c->jobs[run->job];
    const struct cluster_agent *spare = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct cluster_agent *a = cluster_agent_find(c, members[i].pod_uid);
        if (a && members[i].step < 0 && members[i].was_ready && is_known(c, &members[i], a) &&
            !is_member(run, a) && !is_behind(c, run, a))
            spare = a;
    }
    for (int place = 0; place < run->count && spare; place++) {
        const struct cluster_agent *a = &c->agents[run->agents[place]];
        int held = cluster_cells_held(job, &a->trainers[0]);
        if (held >= 0 && cluster_check_counts(c, run, &a->trainers[0]) &&
            held != cluster_cells_cell(c, run, place * job->processes))
            cluster_broken(c, "(13) %s leaves cell %d in generation %" PRId64 ", and %s has none",
                           a->pod, held, run->generation.counter, spare->pod);
    }
}

void cluster_cells_assign(struct cluster *c, struct cluster_hosted *hosted, struct cluster_run *run,
                          int64_t step, int64_t saved)
{
    struct hub_member members[CLUSTER_WORKERS * 4];
    size_t count = hub_members(hosted->hub, members, CLUSTER_WORKERS * 4);
    const struct cluster_job *job = &c->jobs[run->job];
    int known = 0;

    count = count < CLUSTER_WORKERS * 4 ? count : CLUSTER_WORKERS * 4;
    if (run->count % job->unit != 0)
        cluster_broken(c, "(13) generation %" PRId64 " has %d members, no multiple of %d",
                       run->generation.counter, run->count, job->unit);
    for (size_t i = 0; i < count; i++) {
        const struct cluster_agent *a = cluster_agent_find(c, members[i].pod_uid);
        known += a && is_member(run, a) && is_known(c, &members[i], a);
    }
    run->is_sound = known == run->count && step > saved;
    if (run->is_sound && !cluster_cells_are_whole(c, run, step))
        cluster_broken(c,
                       "(13) generation %" PRId64 " goes on from step %" PRId64
                       ", and its ranks have to give that up",
                       run->generation.counter, step);
    if (step < 0 && newest_whole(c, run, members, count) > run->agreed)
        cluster_broken(c,
                       "(6) generation %" PRId64 " goes on from a checkpoint of step %" PRId64
                       ", and its members hold all of step %" PRId64,
                       run->generation.counter, run->agreed, newest_whole(c, run, members, count));
    if (step >= 0)
        check_moves(c, run, members, count);
}
