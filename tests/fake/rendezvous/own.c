/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Own trainers: they make no steps that anybody learns of and lose no peers. Each runs for a while
 * and exits, with 0 or, while things go wrong, with a failure.
 */
#include <inttypes.h>
#include <math.h>

#include "tests/fake/rendezvous/sim.h"

void sim_own_start(struct sim *sim, struct pod *pod, const struct member_action *assign)
{
    struct member_output out = {0};

    for (int p = 0; p < sim->processes; p++) {
        struct sim_trainer *trainer = &pod->trainers[p];
        trainer->life++;
        sim_push(sim, sim->now_ms + sim_uniform(sim, 100, 3000),
                 (struct event){.type = EVENT_OWN_EXIT,
                                .pod = (int)(pod - sim->pods),
                                .process = p,
                                .life = trainer->life,
                                .generation = assign->generation});
    }
    for (int p = 0; p < sim->processes; p++)
        for (enum fleet_phase phase = FLEET_PHASE_CONNECTED; phase <= FLEET_PHASE_FIRST_STEP;
             phase++)
            member_trainer_phase(pod->member, p, assign->generation, phase, 0, sim->now_ms,
                                 sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
}

/* As an agent does: it reports the failure, then the pod waits for the next generation. */
void sim_own_fail(struct sim *sim, struct pod *pod, int process)
{
    struct sim_trainer *trainer = &pod->trainers[process];
    struct member_output out = {0};
    struct member_failure failure = {
        .local_rank = process, .exit_code = 5, .cause = "", .lines = "boom", .at_ms = sim->now_ms};

    sim_trace(sim, "own trainer %s.%d exits with 5", pod->uid, process);
    trainer->generation = (struct fleet_generation){0};
    trainer->life++;
    member_trainer_failed(pod->member, &failure, sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
    if (!pod->is_alive)
        return;
    member_trainer_up(pod->member, process, -1, sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
}

void sim_own_exit(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct sim_trainer *trainer = &pod->trainers[event->process];
    struct generation_run *run = sim_run_of(sim, event->generation);
    struct member_output out = {0};

    if (!pod->is_alive || trainer->life != event->life || !sim_is_in(trainer, event->generation))
        return;
    if (sim->now_ms < FAULTS_END_MS && sim_chance(sim, 0.3)) {
        sim_own_fail(sim, pod, event->process);
        return;
    }
    sim_trace(sim, "own trainer %s.%d exits with 0 in %" PRId64, pod->uid, event->process,
              event->generation.counter);
    for (int place = 0; place < run->pod_count; place++)
        if (run->pods[place] == event->pod)
            run->exited[place][event->process] = true;
    member_trainer_finished(pod->member, event->process, 0, NAN, "", sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
}

void sim_own_check_finish(struct sim *sim)
{
    const struct generation_run *run = sim_run_of(sim, hub_generation(sim->hub));

    for (int place = 0; run && place < run->pod_count; place++)
        for (int p = 0; p < sim->processes; p++)
            if (!run->exited[place][p])
                sim_broken(sim,
                           "(11) the job has succeeded, rank %d of generation %" PRId64
                           " has not exited with 0",
                           place * sim->processes + p, run->generation.counter);
    if (!run)
        sim_broken(sim, "(11) the job has succeeded without a generation");
}
