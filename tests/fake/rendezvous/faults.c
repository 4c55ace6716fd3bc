/* SPDX-License-Identifier: Apache-2.0 */

/* What goes wrong and what is wished, by seed. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "tests/fake/rendezvous/sim.h"

static struct hub_policy policy_of(const struct sim *sim)
{
    return (struct hub_policy){.min = sim->min,
                               .max = sim->max,
                               .desired = sim->desired,
                               .rejoin_grace_ms = 500,
                               .timeout_ms = 5000,
                               .restarts_max = sim->restarts_max,
                               .reset_after_steps = 50,
                               .replacement_ms = sim->is_own ? 3000 : 0,
                               .own_trainer = sim->is_own};
}

void sim_start_hub(struct sim *sim)
{
    struct hub_start start = {.job_uid = "job",
                              .recorded = sim->recorded,
                              .lineage = sim->lineage,
                              .progress_step = sim->told,
                              .checkpoint_step = sim->checkpoint,
                              .restarts = sim->restarts};
    struct hub_policy policy = policy_of(sim);

    sim_trace(sim, "hub starts, recorded %" PRId64, sim->recorded.counter);
    sim->hub = hub_new(&start, &policy, sim->now_ms);
    sim->hub_life++;
    sim->has_hub_restarted = true;
}

static void stop_hub(struct sim *sim)
{
    sim_trace(sim, "hub dies");
    sim->restarts = hub_restarts(sim->hub);
    hub_free(sim->hub);
    sim->hub = NULL;
    for (uint64_t c = 1; c <= sim->connection_count; c++)
        if (sim->connections[c].is_open) {
            sim->connections[c].is_open = false;
            sim_transmit(sim, &sim->pods[sim->connections[c].pod], EVENT_CUT_MEMBER, c, NULL);
        }
}

void sim_start_pod(struct sim *sim, int index)
{
    struct pod *pod;
    static const int ports[PROCESSES_MAX] = {1, 2};
    struct member_config config = {.job_uid = "job",
                                   .index = index,
                                   .address = "a",
                                   .ports = ports,
                                   .processes = sim->processes,
                                   .devices = "cpu",
                                   .version = "1",
                                   .own_trainer = sim->is_own};

    fleet_assert(sim->pod_count < PODS_MAX);
    pod = &sim->pods[sim->pod_count++];
    *pod = (struct pod){
        .is_alive = true, .index = index, .attempt = sim->attempts[index]++, .last_place = -1};
    (void)snprintf(pod->uid, sizeof(pod->uid), "%d-%d", index, pod->attempt);
    sim_trace(sim, "pod %s starts", pod->uid);
    config.pod_uid = pod->uid;
    config.attempt = pod->attempt;
    config.seed = sim_next_random(sim);
    config.level = (enum fleet_isa)sim_below(sim, 5);
    pod->member = member_new(&config, sim->now_ms);
    for (int p = 0; p < sim->processes; p++)
        sim_start_trainer(sim, pod, p, sim_uniform(sim, 20, 600));
}

static void drain(struct sim *sim, struct pod *pod)
{
    struct member_output out = {0};

    sim_trace(sim, "pod %s is drained", pod->uid);
    pod->is_leaving = true;
    for (int p = 0; sim->is_own && p < sim->processes; p++)
        pod->trainers[p].generation = (struct fleet_generation){0}; /* the signal ends them */
    member_leaving(pod->member, sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
    sim_push(sim, sim->now_ms + 1,
             (struct event){.type = EVENT_DRAIN, .pod = (int)(pod - sim->pods)});
}

/* Rank 0 saves what it holds. */
static void save_last(struct sim *sim, struct pod *pod)
{
    const struct sim_trainer *trainer = &pod->trainers[0];
    struct member_output out = {0};

    if (pod->last_place == 0 && trainer->is_alive && trainer->step > 0 && pod->saved == 0) {
        pod->saved = trainer->step;
        sim_trace(sim, "pod %s saves step %" PRId64, pod->uid, trainer->step);
        member_trainer_checkpoint(pod->member, trainer->held_in, trainer->step, "/c", sim->now_ms,
                                  &out);
        sim_apply_member(sim, pod, &out);
    }
    member_leave(pod->member, "Signal15", sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
}

/* Did a generation after it go on from before `step`? */
static bool is_off_lineage(const struct sim *sim, const struct pod *pod)
{
    const struct fleet_generation held_in = pod->trainers[0].held_in;
    bool is_listed = false;

    for (size_t i = 0; i < sim->lineage.count; i++) {
        is_listed |= fleet_generation_compare(sim->lineage.entries[i].generation, held_in) == 0;
        if (fleet_generation_compare(sim->lineage.entries[i].generation, held_in) > 0 &&
            sim->lineage.entries[i].first_step <= pod->saved)
            return true;
    }
    return !is_listed;
}

/* Its trainers first leave their generation, then save; then it says goodbye, and its pod ends. */
void sim_on_drain(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct event next = *event;

    if (!pod->is_alive)
        return;
    next.tries++;
    for (int p = 0; p < sim->processes; p++)
        if (!fleet_generation_is_none(pod->trainers[p].generation) && next.tries < 400) {
            sim_push(sim, sim->now_ms + 25, next);
            return;
        }
    save_last(sim, pod);
    if (!member_has_left(pod->member) && next.tries < 400) {
        sim_push(sim, sim->now_ms + 25, next);
        return;
    }
    if (member_has_left(pod->member) && pod->saved > sim->checkpoint && !is_off_lineage(sim, pod))
        sim_broken(sim, "(10) pod %s has left, its checkpoint of step %" PRId64 " is not known",
                   pod->uid, pod->saved);
    sim_kill_pod(sim, pod, false);
}

/* The newest live pod of an index, or NULL. */
struct pod *sim_pod_at(struct sim *sim, int index)
{
    for (int i = sim->pod_count - 1; i >= 0; i--)
        if (sim->pods[i].is_alive && sim->pods[i].index == index)
            return &sim->pods[i];
    return NULL;
}

/* An own trainer that has ended cannot fail any more. */
static bool has_exited(struct sim *sim, const struct pod *pod, int process)
{
    const struct generation_run *run = sim_run_of(sim, pod->trainers[process].generation);

    for (int place = 0; run && place < run->pod_count; place++)
        if (run->pods[place] == (int)(pod - sim->pods))
            return run->exited[place][process];
    return false;
}

static void fail_trainer(struct sim *sim, struct pod *pod, int process)
{
    struct member_output out = {0};
    struct member_failure failure = {.local_rank = process,
                                     .exit_code = -1,
                                     .signal = 9,
                                     .cause = "",
                                     .lines = "boom",
                                     .at_ms = sim->now_ms};

    if (!pod->trainers[process].is_alive)
        return;
    if (sim->is_own) {
        if (!fleet_generation_is_none(pod->trainers[process].generation) &&
            !has_exited(sim, pod, process))
            sim_own_fail(sim, pod, process);
        return;
    }
    sim_trace(sim, "trainer of pod %s dies", pod->uid);
    pod->trainers[process].is_alive = false;
    member_trainer_failed(pod->member, &failure, sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
    if (pod->is_alive)
        sim_start_trainer(sim, pod, process, sim_uniform(sim, 20, 1500));
}

static void resize(struct sim *sim)
{
    struct hub_output out = {0};
    struct hub_policy policy;

    sim->desired = sim->min + sim_below(sim, sim->max - sim->min + 1);
    sim_trace(sim, "desired is %d", sim->desired);
    policy = policy_of(sim);
    if (sim->hub) {
        hub_configure(sim->hub, &policy, sim->now_ms, &out);
        sim_apply_hub(sim, &out);
    }
    for (int index = sim->desired; index < INDEX_MAX; index++) {
        struct pod *pod = sim_pod_at(sim, index);
        struct member_output leaving = {0};
        if (!pod || sim_chance(sim, 0.3))
            continue;
        member_leave(pod->member, "scaled down", sim->now_ms, &leaving);
        sim_apply_member(sim, pod, &leaving);
        sim_kill_pod(sim, pod, false);
    }
}

static void inject_fault(struct sim *sim)
{
    struct pod *pod = sim_pod_at(sim, sim_below(sim, sim->desired));
    int kind = sim_below(sim, 100), process = sim_below(sim, sim->processes);

    sim->faults++;
    if (sim->is_calm)
        kind = sim->is_running ? 0 : 100;
    if (kind == 100)
        return;
    if (kind < 8 && sim->has_hub_faults) {
        if (sim->hub) {
            stop_hub(sim);
            sim_push(sim, sim->now_ms + sim_uniform(sim, 0, 3000),
                     (struct event){.type = EVENT_HUB_START});
        }
    } else if (kind < 16) {
        resize(sim);
    } else if (!pod) {
        return;
    } else if (kind < 22) {
        if (!pod->is_leaving)
            drain(sim, pod);
    } else if (kind < 46) {
        fail_trainer(sim, pod, process);
    } else if (kind < 70) {
        sim_kill_pod(sim, pod, sim_chance(sim, 0.3));
    } else if (kind < 80 && pod->connection) {
        sim_transmit(sim, pod, EVENT_CUT_HUB, pod->connection, NULL);
        sim_transmit(sim, pod, EVENT_CUT_MEMBER, pod->connection, NULL);
    } else if (kind < 90) {
        sim_trace(sim, "pod %s is cut off", pod->uid);
        pod->frozen_until_ms = sim->now_ms + sim_uniform(sim, 50, 5000);
    } else if (sim->is_own) {
        fail_trainer(sim, pod, process);
    } else if (!fleet_generation_is_none(pod->trainers[process].generation)) {
        sim_lose_peer(sim, pod, process, /* a link breaks: any rank may be the accused */
                      sim_below(sim, sim->desired * sim->processes));
    }
}

void sim_on_fault(struct sim *sim)
{
    if (sim->now_ms < FAULTS_END_MS)
        for (int count = 1 + (int)sim_chance(sim, 0.3); count > 0; count--) /* also two at once */
            inject_fault(sim);
    for (int index = 0; index < sim->desired; index++)
        if (!sim_pod_at(sim, index))
            sim_push(sim, sim->now_ms + sim_uniform(sim, 100, 2500),
                     (struct event){.type = EVENT_POD_START, .process = index});
    sim_push(sim, sim->now_ms + sim_uniform(sim, 0, 2 * sim->fault_interval_ms) + 1,
             (struct event){.type = EVENT_FAULT});
}
