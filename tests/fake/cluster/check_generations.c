/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What must hold for the generations of a job, when a hub makes one and while its members train.
 * The numbers are those of tests/sim/test_cluster.c.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tests/fake/cluster/rules.h"

/* ---- what hubs say --------------------------------------------------------------------------- */

/* More than half of the newest generation are in this one. */
static bool has_majority(const struct cluster *c, const struct cluster_job *job,
                         const struct cluster_run *run)
{
    const struct cluster_run *before;
    int kept = 0;

    if (job->newest_run < 0)
        return false;
    before = &c->runs[job->newest_run];
    for (int i = 0; i < before->count; i++)
        for (int j = 0; j < run->count; j++)
            kept += before->agents[i] == run->agents[j];
    return 2 * kept > before->count;
}

static void check_places(struct cluster *c, struct cluster_hosted *hosted,
                         const struct cluster_run *run)
{
    for (int place = 0; place < run->count; place++) {
        struct cluster_agent *a = &c->agents[run->agents[place]];
        for (int other = 0; other < place; other++)
            if (c->agents[run->agents[other]].index == a->index)
                cluster_broken(c, "(2) index %d twice in generation %" PRId64 " of job %d",
                               a->index, run->generation.counter, run->job);
        if (!cluster_cells_are_used(&c->jobs[run->job]) && hosted->has_assigned &&
            a->last_place >= 0 && a->last_place < run->count && a->last_place != place)
            cluster_broken(c, "(3) agent %s moves from place %d to %d of %d", a->pod, a->last_place,
                           place, run->count);
    }
    for (int i = 0; i < c->agent_count; i++)
        if (c->agents[i].job == run->job)
            c->agents[i].last_place = -1;
    for (int place = 0; place < run->count; place++)
        c->agents[run->agents[place]].last_place = place;
}

/*
 * A generation in between went on from before that step, without the holder of this state: that
 * branch is over, even if nothing came of the new one. A recorded generation counts as well as an
 * assigned one: its leader is gone, the next hub has only the record, and cannot tell whether
 * members that it does not reach were assigned (seed 60088453).
 */
static bool is_given_up(const struct cluster *c, const struct cluster_run *run,
                        const struct cluster_trainer *t)
{
    const struct cluster_job *job = &c->jobs[run->job];

    for (int i = 0; i < c->run_count; i++) {
        const struct cluster_run *other = &c->runs[i];
        int64_t base = other->is_started ? other->base : other->agreed;
        if (other->job == run->job && base < t->step &&
            fleet_generation_compare(other->generation, t->held_in) > 0 &&
            fleet_generation_compare(other->generation, run->generation) < 0)
            return true;
    }
    for (int i = 0; i < job->record_count; i++) {
        const struct cluster_record *record = &job->records[i];
        if (record->first_step <= t->step &&
            fleet_generation_compare(record->generation, t->held_in) > 0 &&
            fleet_generation_compare(record->generation, run->generation) < 0)
            return true;
    }
    return false;
}

bool cluster_check_counts(const struct cluster *c, const struct cluster_run *run,
                          const struct cluster_trainer *t)
{
    return fleet_generation_compare(t->held_in, c->jobs[run->job].last_committer) >= 0 &&
           !is_given_up(c, run, t);
}

/* That counts for `run`. */
static int64_t held_step(const struct cluster *c, const struct cluster_agent *a,
                         const struct cluster_run *run)
{
    const struct cluster_job *job = &c->jobs[a->job];
    int64_t step = -1;

    for (int p = 0; p < job->processes; p++) {
        const struct cluster_trainer *t = &a->trainers[p];
        if (!t->is_alive)
            return -1;
        if (fleet_generation_compare(t->held_in, job->last_committer) >= 0 && t->step > step &&
            !is_given_up(c, run, t))
            step = t->step;
    }
    return step;
}

/* True if no hub can learn what happens to the agent. */
static bool is_out_of_reach(const struct cluster *c, const struct cluster_agent *a)
{
    return !a->is_alive || a->cut_until_ms > c->now_ms || a->stopped_until_ms > c->now_ms;
}

/* What the agent has reported to the hub, which cannot know its end without a report; -1 if the hub
 * knows. */
static int64_t told_step(const struct hub_member *members, size_t count,
                         const struct cluster_agent *a)
{
    for (size_t i = 0; i < count; i++)
        if (members[i].is_connected && strcmp(members[i].pod_uid, a->uid) == 0)
            return members[i].step;
    return -1;
}

/*
 * Its trainers have been starting for as long as a job waits for the only holder of the state
 * (hub_holder.c). The job does not wait longer, because they may never start.
 */
static bool is_waited_for_in_vain(const struct cluster *c, const struct cluster_agent *a,
                                  const struct hub_member *member)
{
    const struct cluster_job *job = &c->jobs[a->job];
    double patience_ms = 1e3 * job->elastic_s;

    if (job->checkpoint_count > 0)
        patience_ms = fmin(patience_ms, 20000);
    return member->state == MESSAGE_STATE_STARTING && c->now_ms >= a->down_ms + patience_ms;
}

/*
 * No connected member is left out that holds more than all the members of the generation, and more
 * than the checkpoint that it begins with: a trainer that has just read that checkpoint brings
 * nothing (seed 70005249).
 */
static void check_holders(struct cluster *c, struct cluster_hosted *hosted,
                          const struct cluster_run *run)
{
    struct hub_member members[CLUSTER_WORKERS * 4];
    size_t count = hub_members(hosted->hub, members, CLUSTER_WORKERS * 4);
    int64_t step = run->agreed;

    count = count < CLUSTER_WORKERS * 4 ? count : CLUSTER_WORKERS * 4;
    for (int i = 0; i < run->count; i++) {
        const struct cluster_agent *a = &c->agents[run->agents[i]];
        int64_t held = is_out_of_reach(c, a) ? told_step(members, count, a) : held_step(c, a, run);
        step = held > step ? held : step;
    }
    for (size_t i = 0; i < count; i++) {
        const struct cluster_agent *a = cluster_agent_find(c, members[i].pod_uid);
        if (a && !a->is_termed && members[i].is_connected && members[i].place < 0 &&
            !is_out_of_reach(c, a) && !is_waited_for_in_vain(c, a, &members[i]) &&
            held_step(c, a, run) > step)
            cluster_broken(c,
                           "(6) generation %" PRId64 ".%" PRId64 " of job %d holds step %" PRId64
                           ", %s is left out and holds %" PRId64,
                           run->generation.epoch, run->generation.counter, run->job, step, a->pod,
                           held_step(c, a, run));
    }
}

/* True also if the record was written, but the status was removed before the hub learnt of the
 * write. */
static bool was_recorded(const struct cluster_job *job, struct fleet_generation generation)
{
    bool is_found = fleet_generation_compare(generation, job->recorded) <= 0;

    for (int i = 0; i < job->record_count; i++)
        is_found |= fleet_generation_compare(job->records[i].generation, generation) == 0;
    return is_found;
}

static void open_run(struct cluster *c, struct cluster_hosted *hosted,
                     const struct message_assign *assign)
{
    struct cluster_job *job = &c->jobs[hosted->job];
    struct cluster_run run = {.job = hosted->job,
                              .generation = assign->generation,
                              .count = (int)assign->member_count,
                              .base = -1,
                              .agreed = -1};

    if (assign->lineage_count > 0)
        run.agreed = assign->lineage[assign->lineage_count - 1].first_step - 1;
    if (run.count < job->workers_min - (job->unit > 1 ? job->unit - 1 : 0) ||
        run.count > job->workers_max || c->run_count == CLUSTER_RUNS)
        cluster_broken(c, "a generation of %d members, not %d to %d", run.count, job->workers_min,
                       job->workers_max);
    for (int i = 0; i < run.count; i++) {
        const struct cluster_agent *a = cluster_agent_find(c, assign->members[i].pod_uid);
        if (!a || a->job != hosted->job)
            cluster_broken(c, "a stranger is a member: %s", assign->members[i].pod_uid);
        run.agents[i] = a->number;
    }
    if (!was_recorded(job, assign->generation) && !job->is_gone &&
        (!hosted->is_record_stuck || !has_majority(c, job, &run)))
        cluster_broken(c, "(5) generation %" PRId64 ".%" PRId64 " of job %d is not recorded",
                       assign->generation.epoch, assign->generation.counter, hosted->job);
    c->records_stuck += fleet_generation_compare(assign->generation, job->recorded) > 0;
    check_places(c, hosted, &run);
    if (cluster_cells_are_used(job))
        cluster_cells_assign(c, hosted, &run, assign->step,
                             cluster_checkpoint_newest(c, &run, assign));
    else
        check_holders(c, hosted, &run);
    cluster_restarts_assign(c, &run, assign->restarts);
    hosted->has_assigned = true;
    hosted->is_record_stuck = false;
    job->newest_assigned = assign->generation;
    job->newest_run = c->run_count;
    c->runs[c->run_count++] = run;
    c->runs_made++;
    cluster_trace(c, "generation %" PRId64 ".%" PRId64 " of job %d: %d members",
                  assign->generation.epoch, assign->generation.counter, hosted->job, run.count);
}

/* The status was removed, and no member of the newest generation lives: nothing is left that knows
 * of it. */
static bool is_forgotten(const struct cluster *c, const struct cluster_job *job)
{
    const struct cluster_run *newest = job->newest_run >= 0 ? &c->runs[job->newest_run] : NULL;

    if (!job->is_status_lost || !newest)
        return false;
    for (int i = 0; i < newest->count; i++)
        if (c->agents[newest->agents[i]].is_alive)
            return false;
    return true;
}

void cluster_check_assign(struct cluster *c, struct cluster_hosted *hosted,
                          const struct message_assign *assign)
{
    struct cluster_job *job = &c->jobs[hosted->job];
    int order = fleet_generation_compare(assign->generation, job->newest_assigned);

    if (order < 0 && is_forgotten(c, job)) {
        job->last_committer = job->newest_assigned = (struct fleet_generation){0};
        order = 1;
    }
    cluster_check_leads(c, hosted->replica, "assign");
    if (order < 0)
        cluster_broken(c, "(1) generation %" PRId64 ".%" PRId64 " after %" PRId64 ".%" PRId64,
                       assign->generation.epoch, assign->generation.counter,
                       job->newest_assigned.epoch, job->newest_assigned.counter);
    if (order > 0)
        open_run(c, hosted, assign);
}

void cluster_check_event(struct cluster *c, struct cluster_hosted *hosted,
                         const struct hub_event *event)
{
    struct cluster_job *job = &c->jobs[hosted->job];

    if (event->type != HUB_EVENT_STEP && event->type != HUB_EVENT_CHECKPOINT)
        cluster_trace(c, "hub of job %d on replica %d: %s %" PRId64 ".%" PRId64 " worker %d %s %s",
                      hosted->job, hosted->replica, hub_event_name(event->type),
                      event->generation.epoch, event->generation.counter, event->member,
                      event->cause, event->message);
    if (event->type == HUB_EVENT_STEP) {
        if (event->step.step <= hosted->told)
            cluster_broken(c, "(9) step %" PRId64 " of job %d is reported after %" PRId64,
                           event->step.step, hosted->job, hosted->told);
        if (event->step.step > job->committed_most)
            cluster_broken(c, "(9) step %" PRId64 " of job %d is reported, nobody has committed it",
                           event->step.step, hosted->job);
        hosted->told = event->step.step;
    }
    if (event->type == HUB_EVENT_LOST && cluster_agent_find(c, event->pod_uid))
        cluster_agent_find(c, event->pod_uid)->last_place =
            -1; /* a newcomer, should it come back */
    if (event->type == HUB_EVENT_FINISHED && !job->has_finished)
        cluster_broken(c, "(7) job %d is reported as finished at step %" PRId64, hosted->job,
                       job->committed_most);
}

/* ---- training -------------------------------------------------------------------------------- */

static bool shares_member(const struct cluster_run *a, const struct cluster_run *b)
{
    for (int i = 0; i < a->count; i++)
        for (int j = 0; j < b->count; j++)
            if (a->agents[i] == b->agents[j])
                return true;
    return false;
}

/* A vote is what commits. One that was complete may be applied late, by a member that was frozen
 * meanwhile. */
void cluster_check_vote(struct cluster *c, struct cluster_run *run)
{
    for (int i = 0; i < c->run_count; i++) {
        const struct cluster_run *other = &c->runs[i];
        if (other->job == run->job && other->has_committed &&
            fleet_generation_compare(other->generation, run->generation) > 0 &&
            shares_member(other, run))
            cluster_broken(c,
                           "(1) generation %" PRId64 ".%" PRId64 " of job %d commits step %" PRId64
                           " after %" PRId64 ".%" PRId64,
                           run->generation.epoch, run->generation.counter, run->job, run->voted,
                           other->generation.epoch, other->generation.counter);
    }
    run->has_committed = true;
}

void cluster_check_apply(struct cluster *c, const struct cluster_run *run, int64_t step)
{
    struct cluster_job *job = &c->jobs[run->job];

    job->committed_most = step > job->committed_most ? step : job->committed_most;
    if (fleet_generation_compare(run->generation, job->last_committer) > 0)
        job->last_committer = run->generation;
}

/* Before a generation starts: does it start from the newest state that one of its members holds? */
void cluster_check_start(struct cluster *c, struct cluster_run *run)
{
    const struct cluster_job *job = &c->jobs[run->job];

    for (int place = 0; !cluster_cells_are_used(job) && place < run->count; place++)
        for (int p = 0; p < job->processes; p++) {
            const struct cluster_agent *a = &c->agents[run->agents[place]];
            const struct cluster_trainer *t = &a->trainers[p];
            if (fleet_generation_compare(t->held_in, job->last_committer) >= 0 &&
                t->step > run->base && !is_given_up(c, run, t))
                cluster_broken(c,
                               "(6) generation %" PRId64 ".%" PRId64
                               " of job %d starts from step %" PRId64 ", %s holds %" PRId64,
                               run->generation.epoch, run->generation.counter, run->job, run->base,
                               a->pod, t->step);
        }
}
