/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whole jobs in one process under one simulated clock: a hub, agents, trainers with a vote before
 * every step, a network that delays, and, by seed, loses, repeats and reorders; trainers and pods
 * that die, pods that are drained, links that break, partitions, hubs that die and come back,
 * records that cannot be written, changing wishes. Every history must keep the invariants of a job:
 *
 *  (1) at most one generation extends the lineage: once a generation has committed a step, none of
 *      an older one that shares a member with it commits any more
 *  (2) ranks of a generation are 0 … n-1 without holes, no pod index twice
 *  (3) a surviving pod keeps its place unless it is >= n
 *  (4) counted restarts <= maxRestarts
 *  (5) once faults are over the job runs, with the desired members, to its end
 *  (6) every committed step is reported exactly once, in order, without holes (only where the
 *      network loses messages of a living connection, which TCP does not, a step may die with its
 *      only witness)
 *  (7) while a holder of the newest state is in the next generation, no step is lost
 *  (8) a generation is recorded before it is assigned, except for a majority of the last one
 *  (9) a hub that dies and comes back disturbs nothing that runs
 * (10) what a member saves as it leaves is known before it says goodbye, unless others have gone
 *      on without it from an earlier step
 * (11) a job with its own trainers succeeds only when every rank of the last generation has exited
 *      with 0
 *
 * SIM_SEEDS=n SIM_FIRST=s runs n seeds from s; SIM_TRACE=1 prints what happens.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "tests/fake/rendezvous/sim.h"
#include "tests/support/seeds.h"

void sim_broken(const struct sim *sim, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fail_msg("seed %lu at %.1f ms: %s", sim->seed, sim->now_ms, text);
}

static void on_record(struct sim *sim, const struct event *event)
{
    struct hub_output out = {0};

    if (!sim->hub || event->life != sim->hub_life)
        return;
    if (sim_chance(sim, sim->record_failure)) {
        hub_record_failed(sim->hub, event->generation, sim->now_ms, &out);
    } else {
        if (fleet_generation_compare(event->generation, sim->recorded) > 0)
            sim->recorded = event->generation;
        hub_record_done(sim->hub, event->generation, sim->now_ms, &out);
        sim->lineage = hub_lineage(sim->hub);
    }
    sim_apply_hub(sim, &out);
}

static void on_message(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct hub_output hub_out = {0};
    struct member_output member_out = {0};
    struct message message;
    struct fleet_error err;

    if (message_decode(event->text->text, event->text->size, &message, &err) < 0)
        sim_broken(sim, "%s: %s", err.text, event->text->text);
    if (event->type == EVENT_TO_HUB && sim->hub && sim->connections[event->connection].is_open) {
        hub_receive(sim->hub, event->connection, &message, sim->now_ms, &hub_out);
        sim_apply_hub(sim, &hub_out);
    } else if (event->type == EVENT_TO_MEMBER && pod->is_alive &&
               pod->connection == event->connection) {
        member_receive(pod->member, &message, sim->now_ms, &member_out);
        sim_apply_member(sim, pod, &member_out);
    }
    message_release(&message);
}

static void on_opened(struct sim *sim, struct pod *pod)
{
    struct hub_output hub_out = {0};
    struct member_output out = {0};

    if (!sim->hub) {
        member_disconnected(pod->member, sim->now_ms, &out);
        sim_apply_member(sim, pod, &out);
        return;
    }
    assert_true(sim->connection_count + 1 < CONNECTIONS_MAX);
    pod->connection = ++sim->connection_count;
    sim->connections[pod->connection].pod = (int)(pod - sim->pods);
    sim->connections[pod->connection].is_open = true;
    hub_connected(sim->hub, pod->connection, sim->now_ms, &hub_out);
    sim_apply_hub(sim, &hub_out);
    member_connected(pod->member, sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
}

static void on_trainer(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct sim_trainer *trainer = &pod->trainers[event->process];
    struct member_output out = {0};

    if (!pod->is_alive || trainer->life != event->life)
        return;
    if (event->type == EVENT_TRAINER_UP || event->type == EVENT_TRAINER_LEFT) {
        trainer->is_alive = true;
        member_trainer_up(pod->member, event->process, trainer->step, sim->now_ms, &out);
        sim_apply_member(sim, pod, &out);
    } else if (sim_is_in(trainer, event->generation)) {
        if (event->type == EVENT_CONNECT)
            sim_on_connect(sim, event);
        else if (event->type == EVENT_RESTORE)
            sim_on_restore(sim, event);
        else if (event->type == EVENT_APPLY)
            sim_on_apply(sim, event);
        else
            sim_lose_peer(sim, pod, event->process, (int)event->step);
    }
}

/* The pod has lost its connection, or could not make one. */
static void on_disconnected(struct sim *sim, struct pod *pod)
{
    struct member_output out = {0};

    member_disconnected(pod->member, sim->now_ms, &out);
    sim_apply_member(sim, pod, &out);
}

static void on_cut_hub(struct sim *sim, uint64_t connection)
{
    struct hub_output out = {0};

    if (!sim->hub || !sim->connections[connection].is_open)
        return;
    sim->connections[connection].is_open = false;
    hub_disconnected(sim->hub, connection, sim->now_ms, &out);
    sim_apply_hub(sim, &out);
}

static void on_pod_gone(struct sim *sim, const struct pod *pod)
{
    struct hub_output out = {0};

    if (!sim->hub)
        return;
    hub_member_gone(sim->hub, pod->uid, FLEET_CAUSE_MEMBER_LOST, sim->now_ms, &out);
    sim_apply_hub(sim, &out);
}

static void handle(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];

    switch (event->type) {
    case EVENT_TO_HUB:
    case EVENT_TO_MEMBER:
        on_message(sim, event);
        break;
    case EVENT_OPENED:
        if (pod->is_alive && !pod->connection)
            on_opened(sim, pod);
        break;
    case EVENT_DIAL_FAILED:
        if (pod->is_alive)
            on_disconnected(sim, pod);
        break;
    case EVENT_CUT_HUB:
        on_cut_hub(sim, event->connection);
        break;
    case EVENT_CUT_MEMBER:
        if (pod->is_alive && pod->connection == event->connection) {
            pod->connection = 0;
            on_disconnected(sim, pod);
        }
        break;
    case EVENT_STEP:
        sim_on_step(sim, event);
        break;
    case EVENT_RECORDED:
        on_record(sim, event);
        break;
    case EVENT_POD_START:
        if (event->process < sim->desired && !sim_pod_at(sim, event->process))
            sim_start_pod(sim, event->process);
        break;
    case EVENT_POD_GONE:
        on_pod_gone(sim, pod);
        break;
    case EVENT_DRAIN:
        sim_on_drain(sim, event);
        break;
    case EVENT_HUB_START:
        if (!sim->hub)
            sim_start_hub(sim);
        break;
    case EVENT_FAULT:
        sim_on_fault(sim);
        break;
    case EVENT_OWN_EXIT:
        sim_own_exit(sim, event);
        break;
    default:
        on_trainer(sim, event);
        break;
    }
}

/* The owner of the next deadline: the hub (-1), a pod, or none (-2). */
static int next_deadline(struct sim *sim, double *out_ms)
{
    int who = -2;

    *out_ms = INFINITY;
    if (sim->hub && hub_deadline(sim->hub) < *out_ms) {
        *out_ms = hub_deadline(sim->hub);
        who = -1;
    }
    for (int i = 0; i < sim->pod_count; i++) {
        struct pod *pod = &sim->pods[i];
        if (pod->is_alive && fmax(member_deadline(pod->member), pod->frozen_until_ms) < *out_ms) {
            *out_ms = fmax(member_deadline(pod->member), pod->frozen_until_ms);
            who = i;
        }
    }
    return who;
}

static void turn(struct sim *sim)
{
    double deadline_ms;
    int who = next_deadline(sim, &deadline_ms);
    struct hub_output hub_out = {0};
    struct member_output out = {0};

    if (sim->event_count > 0 && sim->events[0].at_ms <= deadline_ms) {
        struct event event = sim_pop(sim);
        sim->now_ms = fmax(sim->now_ms, event.at_ms);
        handle(sim, &event);
        message_text_release(event.text);
        return;
    }
    sim->now_ms = fmax(sim->now_ms, deadline_ms);
    if (who == -1) {
        hub_tick(sim->hub, sim->now_ms, &hub_out);
        sim_apply_hub(sim, &hub_out);
    } else {
        member_tick(sim->pods[who].member, sim->now_ms, &out);
        sim_apply_member(sim, &sim->pods[who], &out);
    }
}

static void choose_world(struct sim *sim)
{
    sim->processes = sim_chance(sim, 0.2) ? 2 : 1;
    sim->max = 1 + sim_below(sim, 6);
    sim->min = 1 + sim_below(sim, sim->max);
    sim->desired = sim->min + sim_below(sim, sim->max - sim->min + 1);
    sim->restarts_max = sim_chance(sim, 0.2) ? sim_below(sim, 6) : 100000;
    sim->fault_interval_ms = sim_uniform(sim, 100, 2500);
    sim->has_hub_faults = sim_chance(sim, 0.5);
    if (sim_chance(sim, 0.5)) {
        sim->loss = sim_uniform(sim, 0, 0.05);
        sim->repeat = sim_uniform(sim, 0, 0.1);
        sim->reorder = sim_uniform(sim, 0, 0.1);
    }
    if (sim_chance(sim, 0.3))
        sim->record_failure = sim_uniform(sim, 0, 0.8);
    sim->is_calm = sim_chance(sim, 0.1);
    if (sim->is_calm) {
        sim->has_hub_faults = true;
        sim->record_failure = 0;
    }
}

static unsigned long number_from(const char *variable, unsigned long otherwise)
{
    const char *text = getenv(variable);

    return text ? strtoul(text, NULL, 10) : otherwise;
}

static void run_seed(unsigned long seed, bool is_own, int *out_faults, int *out_finished)
{
    struct sim *sim = calloc(1, sizeof(*sim));

    sim->seed = seed;
    sim->random = seed * 0x5851f42d4c957f2du + 1;
    sim->is_trace = number_from("SIM_TRACE", 0) > 0;
    sim->is_own = is_own;
    choose_world(sim);
    sim->is_calm &= !is_own;
    sim_trace(sim, "seed %lu: min %d max %d desired %d processes %d restarts %d loss %.3f", seed,
              sim->min, sim->max, sim->desired, sim->processes, sim->restarts_max, sim->loss);
    sim_start_hub(sim);
    for (int index = 0; index < sim->desired; index++)
        sim_start_pod(sim, index);
    sim_push(sim, sim_uniform(sim, 0, sim->fault_interval_ms), (struct event){.type = EVENT_FAULT});
    while (!sim->is_finished && !sim->has_failed) {
        turn(sim);
        if (sim->now_ms > END_MS)
            sim_broken(sim,
                       "(5) not finished: phase %s, generation %" PRId64 ", step %" PRId64
                       ", told %" PRId64,
                       sim->hub ? hub_phase_name(hub_phase(sim->hub)) : "down",
                       sim->hub ? hub_generation(sim->hub).counter : -1, sim->committed, sim->told);
    }
    if (sim->is_finished && !sim->is_own && sim->told != STEPS)
        sim_broken(sim, "(6) finished, but only %" PRId64 " steps were reported", sim->told);
    if (sim->is_calm && sim->run_count != 1)
        sim_broken(sim, "(9) %d generations", sim->run_count);
    if (sim->has_failed && sim->restarts_max > 1000)
        sim_broken(sim, "failed with restarts left");
    *out_faults += sim->faults;
    *out_finished += sim->is_finished;

    hub_free(sim->hub);
    for (int i = 0; i < sim->pod_count; i++)
        member_free(sim->pods[i].member);
    for (size_t i = 0; i < sim->event_count; i++)
        message_text_release(sim->events[i].text);
    free(sim->events);
    free(sim);
}

static void run_seeds(bool is_own, unsigned long default_count)
{
    unsigned long first = number_from("SIM_FIRST", 1),
                  count = number_from("SIM_SEEDS", seeds_count(default_count));
    int faults = 0, finished = 0;

    for (unsigned long seed = first; seed < first + count; seed++)
        run_seed(seed, is_own, &faults, &finished);
    print_message("%lu histories, %d faults, %d jobs finished\n", count, faults, finished);
    if (count >= 100) {
        assert_true(finished > (int)(count / 2)); /* the simulation does simulate */
        assert_true(faults > (int)count);
    }
}

static void test_rendezvous__keeps_its_invariants_through_random_histories(void **state)
{
    (void)state;
    run_seeds(false, 1500);
}

static void test_rendezvous__own_trainers_succeed_only_together(void **state)
{
    (void)state;
    run_seeds(true, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rendezvous__keeps_its_invariants_through_random_histories),
        cmocka_unit_test(test_rendezvous__own_trainers_succeed_only_together),
    };
    return cmocka_run_group_tests_name("rendezvous", tests, NULL, NULL);
}
