/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Trainers: they say what a trainer says (agent/link.h), join the generation of the assign,
 * agree on the step, vote, apply, save. A run is a generation as its trainers see it.
 *
 *   hello ─▶ (assign) ─▶ connect: all are in it ─▶ restore: all connected ─▶ step ─▶ vote ─▶ apply
 *     ▲          ▲                                                              │
 *     └─ started └──── waiting ◀── leaves: ordered to abort, or a peer was lost ┘
 *
 * A step's vote is complete at one moment, each trainer applies it a little later, or dies before.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "tests/fake/cluster/rules.h"

#define CONNECT_TRIES  300
#define LEAVE_TRIES    500
#define PEER_SILENT_MS 4000.0

int cluster_run_find(const struct cluster *c, int job, struct fleet_generation generation)
{
    for (int i = c->run_count - 1; i >= 0; i--)
        if (c->runs[i].job == job &&
            fleet_generation_compare(c->runs[i].generation, generation) == 0)
            return i;
    return -1;
}

struct cluster_event cluster_trainer_event_of(const struct cluster_agent *a, int process,
                                              enum cluster_event_type type)
{
    return (struct cluster_event){.type = type,
                                  .agent = a->number,
                                  .process = process,
                                  .life = a->trainers[process].life,
                                  .run = a->trainers[process].run};
}

/* ---- processes ------------------------------------------------------------------------------- */

void cluster_trainer_start(struct cluster *c, struct cluster_agent *a, int process)
{
    struct cluster_trainer *t = &a->trainers[process];

    *t = (struct cluster_trainer){.is_alive = true, .life = t->life + 1, .run = -1, .step = -1};
    cluster_push(c, c->now_ms + cluster_uniform(c, 20, 1200),
                 cluster_trainer_event_of(a, process, CLUSTER_TRAINER_HELLO));
}

void cluster_trainer_die(struct cluster *c, struct cluster_agent *a, int process, int wait_status)
{
    struct cluster_event event = cluster_trainer_event_of(a, process, CLUSTER_TRAINER_EXIT);

    if (!a->trainers[process].is_alive)
        return;
    a->trainers[process].is_alive = false;
    a->trainers[process].is_unheard = true;
    a->trainers[process].run = -1;
    a->down_ms = c->now_ms;
    event.step = wait_status;
    cluster_push(c, c->now_ms + cluster_uniform(c, 0.2, 5), event);
}

/* ---- leaving --------------------------------------------------------------------------------- */

void cluster_trainer_leave(struct cluster *c, struct cluster_agent *a, int process)
{
    struct cluster_trainer *t = &a->trainers[process];

    t->left = t->generation;
    t->generation = (struct fleet_generation){0};
    t->run = -1;
    cluster_push(c,
                 c->now_ms + (cluster_chance(c, 0.05) ? cluster_uniform(c, 50, 600)
                                                      : cluster_uniform(c, 0.2, 10)),
                 cluster_trainer_event_of(a, process, CLUSTER_TRAINER_WAITING));
}

void cluster_trainer_lose(struct cluster *c, struct cluster_agent *a, int process, int rank)
{
    struct cluster_trainer *t = &a->trainers[process];
    struct link_message m = {.kind = LINK_PEER_LOST, .generation = t->generation};

    cluster_trace(c, "agent %s.%d lost rank %d of %lld.%lld", a->pod, process, rank,
                  (long long)t->generation.epoch, (long long)t->generation.counter);
    m.peer_lost.rank = rank;
    m.peer_lost.at_ms = c->now_ms;
    cluster_trainer_leave(c, a, process);
    cluster_agent_say(a, process, &m);
}

void cluster_trainer_told(struct cluster *c, struct cluster_agent *a, int process,
                          const struct link_message *m)
{
    struct cluster_trainer *t = &a->trainers[process];
    const struct fleet_generation generation = m->generation;

    switch (m->kind) {
    case LINK_ASSIGN:
        if (!fleet_generation_is_none(t->generation) && !t->is_finished)
            cluster_broken(c, "agent %s: trainer %d is assigned while it is in a generation",
                           a->pod, process);
        t->is_finished = false;
        t->generation = generation;
        t->run = cluster_run_find(c, a->job, generation);
        t->rank = m->assign.rank;
        t->phase = FLEET_PHASE_WAITING;
        if (t->run < 0)
            cluster_broken(c, "agent %s is assigned to a generation that no hub has sent", a->pod);
        t->keeps_state = m->assign.keeps_state;
        t->is_prepared = t->has_come = false;
        cluster_push(c, c->now_ms + cluster_uniform(c, 0.5, 8),
                     cluster_trainer_event_of(a, process, CLUSTER_TRAINER_CONNECT));
        break;
    case LINK_ABORT:
        if (!fleet_generation_is_none(t->generation) &&
            fleet_generation_compare(generation, t->generation) >= 0)
            cluster_trainer_leave(c, a, process);
        break;
    case LINK_CHECKPOINT:
        t->wants_checkpoint = true;
        break;
    case LINK_LEAVE:
    case LINK_DONE:
        if (t->is_leaving)
            break;
        t->is_leaving = true;
        cluster_push(c, c->now_ms + cluster_uniform(c, 1, m->kind == LINK_LEAVE ? 400 : 20),
                     (struct cluster_event){.type = CLUSTER_TRAINER_SAVE,
                                            .agent = a->number,
                                            .process = process,
                                            .life = t->life,
                                            .step = m->kind == LINK_LEAVE});
        break;
    default:
        break;
    }
}

/* ---- joining --------------------------------------------------------------------------------- */

static bool is_in(const struct cluster_trainer *t, int run)
{
    return t->is_alive && t->run == run;
}

/* The first rank that is not in the run, or has not reached `phase`; -1 = all have. */
static int first_missing(const struct cluster *c, int run, enum fleet_phase phase, bool only_gone)
{
    const struct cluster_run *r = &c->runs[run];
    int processes = c->jobs[r->job].processes;

    for (int place = 0; place < r->count; place++)
        for (int p = 0; p < processes; p++) {
            const struct cluster_agent *a = &c->agents[r->agents[place]];
            const struct cluster_trainer *t = &a->trainers[p];
            if (!a->is_alive || !is_in(t, run) || (!only_gone && t->phase < phase))
                return place * processes + p;
        }
    return -1;
}

/* Can the members reach each other? A cut node's pods reach themselves. */
static bool is_cut(const struct cluster *c, const struct cluster_run *r)
{
    bool any = false, one_node = true;

    for (int i = 0; i < r->count; i++) {
        const struct cluster_agent *a = &c->agents[r->agents[i]];
        any |= a->cut_until_ms > c->now_ms;
        one_node &= a->node == c->agents[r->agents[0]].node;
        if (a->stopped_until_ms > c->now_ms)
            return true; /* its trainers are stopped with it */
    }
    return any && !one_node;
}

static void reach(struct cluster *c, struct cluster_agent *a, int process, enum fleet_phase phase)
{
    struct cluster_trainer *t = &a->trainers[process];
    struct link_message m = {.kind = LINK_READY, .generation = t->generation};

    t->phase = phase;
    m.ready.phase = phase;
    m.ready.at_ms = c->now_ms;
    m.ready.step = t->step;
    m.ready.part = t->part;
    cluster_agent_say(a, process, &m);
}

static void try_again(struct cluster *c, const struct cluster_event *event, double delay_ms)
{
    struct cluster_event again = *event;

    again.tries++;
    cluster_push(c, c->now_ms + delay_ms, again);
}

static void on_connect(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_agent *a = &c->agents[event->agent];
    struct cluster_trainer *t = &a->trainers[event->process];
    int missing = first_missing(c, event->run, FLEET_PHASE_WAITING, false);

    if (cluster_cells_are_used(&c->jobs[a->job]) && !t->is_prepared) {
        cluster_cells_prepare(c, t);
        t->is_prepared = true;
    }
    if (missing >= 0 && event->tries > CONNECT_TRIES)
        cluster_trainer_lose(c, a, event->process, missing);
    else if (missing >= 0 || is_cut(c, &c->runs[event->run]))
        try_again(c, event, 15);
    else {
        reach(c, a, event->process, FLEET_PHASE_CONNECTED);
        cluster_push(c, c->now_ms + cluster_uniform(c, 1, 20),
                     cluster_trainer_event_of(a, event->process, CLUSTER_TRAINER_RESTORE));
    }
}

/* What the members hold when all are connected decides where the generation starts. */
static void start_run(struct cluster *c, int run, const struct message_assign *assign)
{
    struct cluster_run *r = &c->runs[run];
    int processes = c->jobs[r->job].processes;

    r->base = -1;
    for (int place = 0; place < r->count; place++)
        for (int p = 0; p < processes; p++) {
            const struct cluster_trainer *t = &c->agents[r->agents[place]].trainers[p];
            if (assign->members[place].step >= 0 && t->step > r->base)
                r->base = t->step;
        }
    cluster_check_start(c, r);
    if (r->base >= 0 && cluster_cells_are_used(&c->jobs[r->job]) &&
        !cluster_cells_are_whole(c, r, r->base)) {
        cluster_cells_give_up(c, run);
        return;
    }
    if (r->base < 0)
        r->base = cluster_checkpoint_newest(c, r, assign);
    r->voted = r->base;
    r->is_started = true;
    cluster_trace(c, "generation %lld.%lld of job %d starts from step %lld",
                  (long long)r->generation.epoch, (long long)r->generation.counter, r->job,
                  (long long)r->base);
    cluster_push(c, c->now_ms + c->world.step_ms,
                 (struct cluster_event){.type = CLUSTER_STEP, .run = run});
}

static void tell_step(struct cluster *c, struct cluster_agent *a, int process)
{
    struct cluster_trainer *t = &a->trainers[process];
    struct cluster_job *job = &c->jobs[a->job];
    struct link_message m = {.kind = LINK_PROGRESS, .generation = t->generation};
    int64_t steps = job->steps;
    int life = t->life;

    m.progress.count = 1;
    m.progress.steps[0] = (struct link_step){
        .step = t->step, .loss = 100.0 - (double)t->step, .tokens = 128, .tokens_per_second = 1000};
    if (t->step > 0)
        cluster_agent_say(a, process, &m);
    if (t->life != life || !t->is_alive)
        return;
    if (t->step == steps) {
        struct link_message end = {.kind = LINK_FINISHED, .generation = t->generation};
        job->has_finished = t->is_finished = true; /* and has left its collectives */
        end.finished.steps = steps;
        end.finished.loss = 1.5;
        (void)memset(end.finished.weights_sha256, 'a', 64);
        cluster_agent_say(a, process, &end);
    } else if (!cluster_cells_are_used(job) && t->rank == 0 &&
               (t->step % CLUSTER_EVERY_STEPS == 0 || t->wants_checkpoint)) {
        t->wants_checkpoint = false;
        cluster_trainer_save(c, a, process);
    }
}

static void on_restore(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_agent *a = &c->agents[event->agent];
    struct cluster_trainer *t = &a->trainers[event->process];
    struct cluster_run *r = &c->runs[event->run];
    int gone = first_missing(c, event->run, FLEET_PHASE_CONNECTED, true);
    bool is_behind;

    if (gone >= 0) {
        cluster_trainer_lose(c, a, event->process, gone);
        return;
    }
    if (first_missing(c, event->run, FLEET_PHASE_CONNECTED, false) >= 0) {
        try_again(c, event, 5);
        return;
    }
    if (!r->is_started)
        start_run(c, event->run, member_assignment(a->member));
    if (!is_in(t, event->run))
        return; /* it has given up */
    if (cluster_cells_are_used(&c->jobs[a->job]) && !cluster_cells_restore(c, event->run, t)) {
        try_again(c, event, 5);
        return;
    }
    is_behind = t->step >= 0 && t->step < r->base;
    t->step = r->base;
    t->voted = 0;
    t->held_in = r->generation;
    reach(c, a, event->process, FLEET_PHASE_RESTORED);
    if (is_in(t, event->run) && (is_behind || r->base == c->jobs[r->job].steps))
        tell_step(c, a, event->process);
}

/* ---- training -------------------------------------------------------------------------------- */

/* One after another notices that the generation is broken. */
static void break_run(struct cluster *c, int run, int rank)
{
    struct cluster_run *r = &c->runs[run];

    for (int place = 0; place < r->count; place++)
        for (int p = 0; p < c->jobs[r->job].processes; p++) {
            struct cluster_agent *a = &c->agents[r->agents[place]];
            struct cluster_event event = cluster_trainer_event_of(a, p, CLUSTER_TRAINER_BROKEN);
            if (!a->is_alive || !is_in(&a->trainers[p], run))
                continue;
            event.step = rank;
            cluster_push(c, c->now_ms + cluster_uniform(c, 0.5, cluster_chance(c, 0.2) ? 1000 : 20),
                         event);
        }
}

/* True if all ranks are at the beginning of the next step. */
static bool may_step(const struct cluster *c, int run)
{
    const struct cluster_run *r = &c->runs[run];

    for (int place = 0; place < r->count; place++)
        for (int p = 0; p < c->jobs[r->job].processes; p++) {
            const struct cluster_trainer *t = &c->agents[r->agents[place]].trainers[p];
            if (t->phase < FLEET_PHASE_RESTORED || t->step != r->voted || t->is_leaving)
                return false;
        }
    return true;
}

void cluster_step(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_run *r = &c->runs[event->run];
    int gone = first_missing(c, event->run, FLEET_PHASE_RESTORED, true);

    if (gone >= 0) {
        break_run(c, event->run, gone);
        return;
    }
    if (r->voted == c->jobs[r->job].steps)
        return;
    if (!is_cut(c, r) && cluster_cells_are_used(&c->jobs[r->job]))
        cluster_cells_save(c, event->run);
    if (is_cut(c, r) || !may_step(c, event->run)) {
        if (event->tries * 20 > PEER_SILENT_MS)
            break_run(c, event->run, cluster_below(c, r->count));
        try_again(c, event, 20);
        return;
    }
    if (cluster_cells_are_used(&c->jobs[r->job]))
        cluster_cells_vote(c, r);
    r->voted++;
    cluster_check_vote(c, r);
    for (int place = 0; place < r->count; place++)
        for (int p = 0; p < c->jobs[r->job].processes; p++) {
            struct cluster_event apply =
                cluster_trainer_event_of(&c->agents[r->agents[place]], p, CLUSTER_TRAINER_APPLY);
            apply.step = r->voted;
            cluster_push(c, c->now_ms + cluster_uniform(c, 0, 3), apply);
        }
    cluster_push(c, c->now_ms + c->world.step_ms,
                 (struct cluster_event){.type = CLUSTER_STEP, .run = event->run});
}

static void on_apply(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_agent *a = &c->agents[event->agent];
    struct cluster_trainer *t = &a->trainers[event->process];

    t->step = event->step;
    cluster_check_apply(c, &c->runs[event->run], event->step);
    if (t->phase == FLEET_PHASE_RESTORED)
        reach(c, a, event->process, FLEET_PHASE_FIRST_STEP);
    if (is_in(t, event->run))
        tell_step(c, a, event->process);
}

/* ---- what comes ------------------------------------------------------------------------------ */

static void say_hello(struct cluster_agent *a, int process)
{
    struct link_message m = {.kind = LINK_HELLO};

    m.hello.port = 7000 + process;
    m.hello.level = 2;
    m.hello.pid = 1000;
    cluster_agent_say(a, process, &m);
}

static void say_waiting(struct cluster *c, struct cluster_agent *a, int process)
{
    struct cluster_trainer *t = &a->trainers[process];
    struct link_message m = {.kind = LINK_READY, .generation = t->left};

    m.ready.phase = FLEET_PHASE_WAITING;
    m.ready.at_ms = c->now_ms;
    m.ready.step = t->step;
    m.ready.part = t->part;
    cluster_agent_say(a, process, &m);
}

static void on_training(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_agent *a = &c->agents[event->agent];

    if (!is_in(&a->trainers[event->process], event->run))
        return;
    if (event->type == CLUSTER_TRAINER_CONNECT)
        on_connect(c, event);
    else if (event->type == CLUSTER_TRAINER_RESTORE)
        on_restore(c, event);
    else if (event->type == CLUSTER_TRAINER_APPLY)
        on_apply(c, event);
    else
        cluster_trainer_lose(c, a, event->process, (int)event->step);
}

void cluster_trainer_event(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_agent *a = &c->agents[event->agent];
    struct cluster_trainer *t = &a->trainers[event->process];

    if (!a->is_alive || t->life != event->life)
        return;
    if (a->stopped_until_ms > c->now_ms) {
        cluster_push(c, a->stopped_until_ms, *event);
        return;
    }
    if (event->type == CLUSTER_TRAINER_EXIT) {
        t->is_unheard = false;
        supervisor_exited(a->supervisor, event->process, (int)event->step, c->now_ms);
    } else if (!t->is_alive) {
        return;
    } else if (event->type == CLUSTER_TRAINER_HELLO) {
        say_hello(a, event->process);
    } else if (event->type == CLUSTER_TRAINER_WAITING) {
        say_waiting(c, a, event->process);
    } else if (event->type == CLUSTER_TRAINER_SAVE && cluster_cells_are_used(&c->jobs[a->job]) &&
               event->step && cluster_cells_may_save(c, t) && event->tries < LEAVE_TRIES) {
        try_again(c, event, 20); /* the others save with it */
    } else if (event->type == CLUSTER_TRAINER_SAVE) {
        if (event->step && !cluster_cells_are_used(&c->jobs[a->job]) && cluster_chance(c, 0.8))
            cluster_trainer_save(c, a, event->process);
        cluster_trainer_die(c, a, event->process, 0);
    } else {
        on_training(c, event);
    }
    cluster_agent_settle(c, a);
}
