/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The job's own trainers: programs that know nothing of each other. Each is started by its agent
 * with a place in a generation, works at its own speed, and exits: with 0 once it has done all
 * steps, with another code when it fails, somehow after SIGTERM. The first rank of some jobs says
 * how far it is (agent/progress_line.h).
 *
 *   started ──▶ goes on from the checkpoint ──▶ step ─▶ step ─▶ … ──▶ exit 0
 *                                                 └── SIGTERM ──▶ saves, perhaps ──▶ ends, perhaps
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "agent/progress_line.h"
#include "tests/fake/cluster/rules.h"

static struct progress_line silence(void)
{
    return (struct progress_line){.step = -1,
                                  .checkpoint = -1,
                                  .resumed = -1,
                                  .loss = NAN,
                                  .gradient_norm = NAN,
                                  .learning_rate = NAN,
                                  .tokens_per_second = NAN,
                                  .evaluation_loss = NAN};
}

static void say(struct cluster *c, struct cluster_agent *a, int process,
                const struct progress_line *line)
{
    struct cluster_job *job = &c->jobs[a->job];
    int64_t most = line->step > line->checkpoint ? line->step : line->checkpoint;

    if (a->trainers[process].rank != 0 || !job->reports)
        return;
    job->committed_most = most > job->committed_most ? most : job->committed_most;
    supervisor_progress(a->supervisor, process, line, c->now_ms);
}

static void save(struct cluster *c, struct cluster_agent *a, int process)
{
    struct cluster_job *job = &c->jobs[a->job];
    const struct cluster_trainer *t = &a->trainers[process];
    struct progress_line line = silence();
    char path[32];

    if (t->own_step <= 0 || t->rank != 0)
        return;
    job->saved = t->own_step;
    (void)snprintf(path, sizeof(path), "step-%lld", (long long)t->own_step);
    line.checkpoint = t->own_step;
    line.path = path;
    say(c, a, process, &line);
}

void cluster_own_start(struct cluster *c, struct cluster_agent *a, int process,
                       const struct supervisor_place *place)
{
    struct cluster_trainer *t = &a->trainers[process];
    struct fleet_generation generation = place->assign->generation;

    *t = (struct cluster_trainer){.is_alive = true,
                                  .life = t->life + 1,
                                  .run = cluster_run_find(c, a->job, generation),
                                  .rank = place->first_rank + process,
                                  .generation = generation,
                                  .step = -1,
                                  .own_step = -1};
    if (t->run < 0)
        cluster_broken(c, "agent %s is assigned to a generation that no hub has sent", a->pod);
    cluster_push(c, c->now_ms + cluster_uniform(c, 5, 800),
                 cluster_trainer_event_of(a, process, CLUSTER_OWN_WORK));
}

void cluster_own_signal(struct cluster *c, struct cluster_agent *a, int process, int number)
{
    struct cluster_trainer *t = &a->trainers[process];

    if (number != SIGTERM) {
        cluster_trainer_die(c, a, process, number);
        return;
    }
    if (!t->is_alive || t->is_leaving || cluster_chance(c, 0.1)) /* some do not listen */
        return;
    t->is_leaving = true;
    cluster_push(c, c->now_ms + cluster_uniform(c, 0.5, 600),
                 cluster_trainer_event_of(a, process, CLUSTER_OWN_END));
}

static void finish(struct cluster *c, struct cluster_agent *a, int process)
{
    struct cluster_trainer *t = &a->trainers[process];
    struct cluster_run *r = &c->runs[t->run];
    struct cluster_job *job = &c->jobs[a->job];
    uint32_t all = (1u << r->count * job->processes) - 1;

    r->own_finished |= 1u << t->rank;
    job->has_finished |= r->own_finished == all;
    cluster_trace(c, "rank %d of %lld.%lld has finished%s", t->rank, (long long)r->generation.epoch,
                  (long long)r->generation.counter, r->own_finished == all ? ", all have" : "");
    cluster_trainer_die(c, a, process, 0);
}

static void fail(struct cluster *c, struct cluster_agent *a, int process)
{
    static const int codes[] = {1, 2, 3, 42, 137, 255};
    int code = codes[cluster_below(c, 6)];

    cluster_trace(c, "trainer %d of %s exits with %d", process, a->pod, code);
    cluster_restarts_hurt(c, a, c->now_ms);
    cluster_trainer_die(c, a, process, code << 8);
}

static void work(struct cluster *c, struct cluster_agent *a, int process)
{
    const struct cluster_job *job = &c->jobs[a->job];
    struct cluster_trainer *t = &a->trainers[process];
    struct progress_line line = silence();
    int life = t->life;

    if (t->own_step < 0) {
        t->own_step = job->saved;
        line.resumed = t->own_step;
        line.is_ready = true;
    } else {
        t->own_step++;
        line.step = t->own_step;
        line.steps = job->steps;
        line.loss = 100.0 - (double)t->own_step;
    }
    say(c, a, process, &line);
    if (t->life != life || !t->is_alive)
        return;
    if (t->own_step > 0 && t->own_step % CLUSTER_EVERY_STEPS == 0)
        save(c, a, process);
    if (t->life != life || !t->is_alive || t->is_leaving)
        return;
    if (t->own_step >= job->steps)
        finish(c, a, process);
    else if (!c->is_fault_over && cluster_chance(c, 0.004))
        fail(c, a, process);
    else
        cluster_push(c, c->now_ms + c->world.step_ms * cluster_uniform(c, 0.5, 1.5),
                     cluster_trainer_event_of(a, process, CLUSTER_OWN_WORK));
}

static void end(struct cluster *c, struct cluster_agent *a, int process)
{
    static const int statuses[] = {SIGTERM, (128 + SIGTERM) << 8, 0, 1 << 8};
    int life = a->trainers[process].life;

    if (cluster_chance(c, 0.5))
        save(c, a, process);
    if (a->trainers[process].life == life)
        cluster_trainer_die(c, a, process, statuses[cluster_below(c, 4)]);
}

void cluster_own_event(struct cluster *c, const struct cluster_event *event)
{
    struct cluster_agent *a = &c->agents[event->agent];
    const struct cluster_trainer *t = &a->trainers[event->process];

    if (!a->is_alive || t->life != event->life || !t->is_alive)
        return;
    if (a->stopped_until_ms > c->now_ms)
        cluster_push(c, a->stopped_until_ms, *event);
    else if (event->type == CLUSTER_OWN_WORK)
        work(c, a, event->process);
    else
        end(c, a, event->process);
    cluster_agent_settle(c, a);
}
