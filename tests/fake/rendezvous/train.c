/* SPDX-License-Identifier: Apache-2.0 */

/* Generations and the data plane, as simple as their promises: a step is committed by its vote. */
#include <inttypes.h>
#include <string.h>

#include "tests/fake/rendezvous/sim.h"

struct generation_run *sim_run_of(struct sim *sim, struct fleet_generation generation)
{
    for (int i = 0; i < sim->run_count; i++)
        if (fleet_generation_compare(sim->runs[i].generation, generation) == 0)
            return &sim->runs[i];
    return NULL;
}

int sim_find_pod(struct sim *sim, const char *uid)
{
    for (int i = 0; i < sim->pod_count; i++)
        if (strcmp(sim->pods[i].uid, uid) == 0)
            return i;
    return -1;
}

bool sim_is_in(const struct sim_trainer *trainer, struct fleet_generation generation)
{
    return trainer->is_alive && fleet_generation_compare(trainer->generation, generation) == 0;
}

/* The first process of the generation that is not in it, or has not reached `phase`: its rank;
 * -1. */
static int first_missing(struct sim *sim, const struct generation_run *run, enum fleet_phase phase,
                         bool only_gone)
{
    for (int place = 0; place < run->pod_count; place++)
        for (int p = 0; p < sim->processes; p++) {
            const struct pod *pod = &sim->pods[run->pods[place]];
            const struct sim_trainer *trainer = &pod->trainers[p];
            if (!pod->is_alive || !sim_is_in(trainer, run->generation) ||
                (!only_gone && trainer->phase < phase))
                return place * sim->processes + p;
        }
    return -1;
}

void sim_leave_generation(struct sim *sim, struct pod *pod, int process)
{
    pod->trainers[process].generation = (struct fleet_generation){0};
    sim_push(sim,
             sim->now_ms +
                 (sim_chance(sim, 0.05) ? sim_uniform(sim, 50, 600) : sim_uniform(sim, 0.2, 10)),
             (struct event){.type = EVENT_TRAINER_LEFT,
                            .pod = (int)(pod - sim->pods),
                            .process = process,
                            .life = pod->trainers[process].life});
}

/* The trainer has lost a peer: it says so and leaves by itself. */
void sim_lose_peer(struct sim *sim, struct pod *pod, int process, int rank)
{
    struct member_output out = {0};

    sim_trace(sim, "pod %s.%d lost rank %d of %" PRId64, pod->uid, process, rank,
              pod->trainers[process].generation.counter);
    member_peer_lost(pod->member, pod->trainers[process].generation, rank, sim->now_ms, sim->now_ms,
                     &out);
    sim_apply_member(sim, pod, &out);
    sim_leave_generation(sim, pod, process);
}

static void reach(struct sim *sim, struct pod *pod, int process, enum fleet_phase phase)
{
    struct sim_trainer *trainer = &pod->trainers[process];
    struct member_output out = {0};

    trainer->phase = phase;
    member_trainer_phase(pod->member, process, trainer->generation, phase, trainer->step,
                         sim->now_ms, sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
}

static struct event again(const struct event *event, enum event_type type)
{
    return (struct event){.type = type,
                          .pod = event->pod,
                          .process = event->process,
                          .life = event->life,
                          .tries = type == event->type ? event->tries + 1 : 0,
                          .generation = event->generation};
}

void sim_on_connect(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct generation_run *run = sim_run_of(sim, event->generation);
    int missing = first_missing(sim, run, FLEET_PHASE_WAITING, false);

    if (missing >= 0 && event->tries > 200)
        sim_lose_peer(sim, pod, event->process, missing);
    else if (missing >= 0)
        sim_push(sim, sim->now_ms + 10, again(event, EVENT_CONNECT));
    else {
        reach(sim, pod, event->process, FLEET_PHASE_CONNECTED);
        sim_push(sim, sim->now_ms + sim_uniform(sim, 1, 20), again(event, EVENT_RESTORE));
    }
}

/* What the members hold when all are connected decides where the generation starts: (7). */
static void start_run(struct sim *sim, struct generation_run *run,
                      const struct message_assign *assign)
{
    int64_t newest = -1; /* state that may not be lost */

    run->base = -1;
    for (int place = 0; place < run->pod_count; place++)
        for (int p = 0; p < sim->processes; p++) {
            const struct sim_trainer *trainer = &sim->pods[run->pods[place]].trainers[p];
            if (assign->members[place].step >= 0 && trainer->step > run->base)
                run->base = trainer->step;
            if (fleet_generation_compare(trainer->held_in, sim->last_committer) >= 0 &&
                trainer->step > newest)
                newest = trainer->step;
        }
    run->had_holder = run->base >= 0;
    if (newest >= 0 && run->base < newest)
        sim_broken(
            sim, "(7) generation %" PRId64 " starts from step %" PRId64 ", a member holds %" PRId64,
            run->generation.counter, run->base, newest);
    if (!run->had_holder)
        run->base = assign->lineage[assign->lineage_count - 1].first_step - 1;
    run->voted = run->base;
    run->is_started = true;
    sim_trace(sim, "generation %" PRId64 " starts from step %" PRId64, run->generation.counter,
              run->base);
    sim_push(sim, sim->now_ms + STEP_MS,
             (struct event){.type = EVENT_STEP, .generation = run->generation});
}

static void tell_step(struct sim *sim, struct pod *pod, int process)
{
    struct sim_trainer *trainer = &pod->trainers[process];
    struct member_output out = {0};
    struct message_step step = {.step = trainer->step, .loss = 100.0 - (double)trainer->step};

    member_trainer_step(pod->member, &step, sim->now_ms, &out);
    if (trainer->step == STEPS)
        member_trainer_finished(pod->member, process, STEPS, 1.5, "ab", sim->now_ms, &out);
    else if (process == 0 && trainer->step % 20 == 0)
        member_trainer_checkpoint(pod->member, trainer->generation, trainer->step, "/c",
                                  sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
}

void sim_on_restore(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct sim_trainer *trainer = &pod->trainers[event->process];
    struct generation_run *run = sim_run_of(sim, event->generation);
    int gone = first_missing(sim, run, FLEET_PHASE_CONNECTED, true);
    bool is_behind;

    if (gone >= 0) {
        sim_lose_peer(sim, pod, event->process, gone);
        return;
    }
    if (first_missing(sim, run, FLEET_PHASE_CONNECTED, false) >= 0) {
        sim_push(sim, sim->now_ms + 5, again(event, EVENT_RESTORE));
        return;
    }
    if (!run->is_started)
        start_run(sim, run, member_assignment(pod->member));
    is_behind = trainer->step >= 0 && trainer->step < run->base;
    trainer->step = run->base;
    trainer->held_in = run->generation;
    reach(sim, pod, event->process, FLEET_PHASE_RESTORED);
    if (is_behind || run->base == STEPS)
        tell_step(sim, pod, event->process);
}

/* One after another notices that the generation is broken. */
static void break_run(struct sim *sim, const struct generation_run *run, int rank)
{
    for (int place = 0; place < run->pod_count; place++)
        for (int p = 0; p < sim->processes; p++) {
            const struct pod *pod = &sim->pods[run->pods[place]];
            if (pod->is_alive && sim_is_in(&pod->trainers[p], run->generation))
                sim_push(sim, sim->now_ms + sim_uniform(sim, 0.5, sim_chance(sim, 0.2) ? 1000 : 20),
                         (struct event){.type = EVENT_BROKEN,
                                        .pod = run->pods[place],
                                        .process = p,
                                        .life = pod->trainers[p].life,
                                        .step = rank,
                                        .generation = run->generation});
        }
}

/* Members that were asked to go do so between two steps; the others find them gone at the next. */
static bool leave_at_boundary(struct sim *sim, const struct generation_run *run)
{
    bool has_left = false;

    for (int place = 0; place < run->pod_count; place++) {
        struct pod *pod = &sim->pods[run->pods[place]];
        for (int p = 0; p < sim->processes && pod->is_leaving; p++) {
            has_left = true;
            pod->trainers[p].generation = (struct fleet_generation){0};
        }
    }
    return has_left;
}

void sim_on_step(struct sim *sim, const struct event *event)
{
    struct generation_run *run = sim_run_of(sim, event->generation);
    int gone = first_missing(sim, run, FLEET_PHASE_RESTORED, true);

    if (gone >= 0) {
        break_run(sim, run, gone);
        return;
    }
    if (run->voted == STEPS)
        return;
    for (int place = 0; place < run->pod_count; place++) {
        const struct pod *pod = &sim->pods[run->pods[place]];
        for (int p = 0; p < sim->processes; p++)
            if (pod->frozen_until_ms > sim->now_ms ||
                pod->trainers[p].phase < FLEET_PHASE_RESTORED ||
                pod->trainers[p].step != run->voted) {
                sim_push(sim, sim->now_ms + 5, *event);
                return;
            }
    }
    if (leave_at_boundary(sim, run)) {
        sim_push(sim, sim->now_ms + 5, *event);
        return;
    }
    run->voted++;
    for (int place = 0; place < run->pod_count; place++)
        for (int p = 0; p < sim->processes; p++)
            sim_push(sim, sim->now_ms + sim_uniform(sim, 0, 3),
                     (struct event){.type = EVENT_APPLY,
                                    .pod = run->pods[place],
                                    .process = p,
                                    .life = sim->pods[run->pods[place]].trainers[p].life,
                                    .step = run->voted,
                                    .generation = run->generation});
    sim_push(sim, sim->now_ms + STEP_MS, *event);
}

static bool shares_member(const struct generation_run *a, const struct generation_run *b)
{
    for (int i = 0; i < a->pod_count; i++)
        for (int j = 0; j < b->pod_count; j++)
            if (a->pods[i] == b->pods[j])
                return true;
    return false;
}

static void check_commit(struct sim *sim, struct generation_run *run)
{
    for (int i = 0; i < sim->run_count; i++) {
        const struct generation_run *other = &sim->runs[i];
        if (other->has_committed &&
            fleet_generation_compare(other->generation, run->generation) > 0 &&
            shares_member(other, run))
            sim_broken(sim, "(1) generation %" PRId64 " commits after %" PRId64,
                       run->generation.counter, other->generation.counter);
    }
    run->has_committed = true;
    if (fleet_generation_compare(run->generation, sim->last_committer) > 0)
        sim->last_committer = run->generation;
}

void sim_on_apply(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct sim_trainer *trainer = &pod->trainers[event->process];
    struct generation_run *run = sim_run_of(sim, event->generation);

    trainer->step = event->step;
    check_commit(sim, run);
    sim->committed = event->step; /* less than before after a start from a checkpoint */
    if (trainer->phase == FLEET_PHASE_RESTORED)
        reach(sim, pod, event->process, FLEET_PHASE_FIRST_STEP);
    tell_step(sim, pod, event->process);
}
