/* SPDX-License-Identifier: Apache-2.0 */

/* Carrying out what the machines answer, and what must hold whenever they do. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "tests/fake/rendezvous/sim.h"

void sim_start_trainer(struct sim *sim, struct pod *pod, int process, double delay_ms)
{
    struct sim_trainer *trainer = &pod->trainers[process];

    *trainer = (struct sim_trainer){.life = trainer->life + 1, .step = -1};
    sim_push(sim, sim->now_ms + delay_ms,
             (struct event){.type = EVENT_TRAINER_UP,
                            .pod = (int)(pod - sim->pods),
                            .process = process,
                            .life = trainer->life});
}

void sim_kill_pod(struct sim *sim, struct pod *pod, bool is_silent)
{
    if (!pod->is_alive)
        return;
    sim_trace(sim, "pod %s dies%s", pod->uid, is_silent ? " silently" : "");
    pod->is_alive = false;
    if (pod->connection && !is_silent)
        sim_transmit(sim, pod, EVENT_CUT_HUB, pod->connection, NULL);
    pod->connection = 0;
    for (int p = 0; p < sim->processes; p++)
        pod->trainers[p].is_alive = false;
    member_free(pod->member);
    pod->member = NULL;
    if (sim_chance(sim, 0.5))
        sim_push(sim, sim->now_ms + sim_uniform(sim, 0, 1500),
                 (struct event){.type = EVENT_POD_GONE, .pod = (int)(pod - sim->pods)});
}

/* One that a majority made without a record, and whose members are all dead, is made again by the
 * next hub under the same number: hubs have one epoch here. */
static bool has_members(const struct sim *sim, const struct generation_run *run,
                        const struct message_assign *assign)
{
    for (size_t i = 0; i < assign->member_count; i++)
        if (i >= (size_t)run->pod_count ||
            strcmp(sim->pods[run->pods[i]].uid, assign->members[i].pod_uid) != 0)
            return false;
    return run->pod_count == (int)assign->member_count;
}

static void open_run(struct sim *sim, const struct message_assign *assign)
{
    struct generation_run *run = sim_run_of(sim, assign->generation);

    if (run && (!sim->is_own || has_members(sim, run, assign)))
        return;
    if (!run) {
        fleet_assert(sim->run_count < GENERATIONS_MAX);
        run = &sim->runs[sim->run_count++];
    }
    *run = (struct generation_run){.generation = assign->generation,
                                   .pod_count = (int)assign->member_count};
    for (size_t i = 0; i < assign->member_count; i++)
        run->pods[i] = sim_find_pod(sim, assign->members[i].pod_uid);
}

static void on_assigned(struct sim *sim, struct pod *pod, const struct member_action *action)
{
    open_run(sim, action->assign);
    if (action->first_rank != action->place * sim->processes)
        sim_broken(sim, "first rank %d of place %d", action->first_rank, action->place);
    for (int p = 0; p < sim->processes; p++) {
        struct sim_trainer *trainer = &pod->trainers[p];
        if (!trainer->is_alive || !fleet_generation_is_none(trainer->generation))
            sim_broken(sim, "pod %s got an assignment while process %d is not waiting", pod->uid,
                       p);
        trainer->generation = action->generation;
        trainer->phase = FLEET_PHASE_WAITING;
        if (sim->is_own)
            continue;
        sim_push(sim, sim->now_ms + sim_uniform(sim, 0.5, 8),
                 (struct event){.type = EVENT_CONNECT,
                                .pod = (int)(pod - sim->pods),
                                .process = p,
                                .life = trainer->life,
                                .generation = action->generation});
    }
    if (sim->is_own)
        sim_own_start(sim, pod, action);
}

void sim_apply_member(struct sim *sim, struct pod *pod, struct member_output *out)
{
    struct member_output taken = *out;

    *out = (struct member_output){0};
    for (size_t i = 0; i < taken.count && pod->is_alive; i++) {
        const struct member_action *action = &taken.items[i];
        switch (action->type) {
        case MEMBER_DIAL:
            sim_push(sim, fmax(sim->now_ms, pod->frozen_until_ms) + sim_uniform(sim, 1, 8),
                     (struct event){.type = sim->hub ? EVENT_OPENED : EVENT_DIAL_FAILED,
                                    .pod = (int)(pod - sim->pods)});
            break;
        case MEMBER_SEND:
            if (pod->connection)
                sim_transmit(sim, pod, EVENT_TO_HUB, pod->connection, action->text);
            break;
        case MEMBER_CLOSE:
            if (pod->connection)
                sim_transmit(sim, pod, EVENT_CUT_HUB, pod->connection, NULL);
            pod->connection = 0;
            break;
        case MEMBER_ASSIGN:
            sim_trace(sim, "pod %s assigned to %" PRId64 " place %d", pod->uid,
                      action->generation.counter, action->place);
            on_assigned(sim, pod, action);
            break;
        case MEMBER_ABORT:
            sim_trace(sim, "pod %s aborts %" PRId64 " (%s)", pod->uid, action->generation.counter,
                      action->reason);
            for (int p = 0; p < sim->processes; p++)
                if (!fleet_generation_is_none(pod->trainers[p].generation))
                    sim_leave_generation(sim, pod, p);
            break;
        case MEMBER_CHECKPOINT:
        case MEMBER_VALUE:
            break;
        case MEMBER_LEAVE:
        case MEMBER_REFUSED:
            sim_trace(sim, "pod %s told to go: %s", pod->uid, action->reason);
            sim_kill_pod(sim, pod, false);
            break;
        case MEMBER_DONE:
            sim_trace(sim, "pod %s done: %s", pod->uid, action->reason);
            break;
        }
    }
    member_output_release(&taken);
}

/* (2), (3) of an assignment that leaves the hub. */
static void check_assign(struct sim *sim, const struct message_assign *assign)
{
    bool taken[INDEX_MAX] = {false};
    int count = (int)assign->member_count, places[PODS_MAX];

    if (fleet_generation_compare(assign->generation, sim->recorded) > 0 && sim->record_failure == 0)
        sim_broken(sim, "(8) generation %" PRId64 " is not recorded", assign->generation.counter);
    for (int i = 0; i < PODS_MAX; i++)
        places[i] = -1;
    for (int place = 0; place < count; place++) {
        const struct message_member *m = &assign->members[place];
        int pod = sim_find_pod(sim, m->pod_uid);
        if (taken[m->index])
            sim_broken(sim, "(2) index %d twice in generation %" PRId64, m->index,
                       assign->generation.counter);
        taken[m->index] = true;
        if (places[pod] >= 0)
            sim_broken(sim, "(2) pod %s twice", m->pod_uid);
        places[pod] = place;
        if (!sim->has_hub_restarted && sim->pods[pod].last_place >= 0 &&
            sim->pods[pod].last_place < count && sim->pods[pod].last_place != place)
            sim_broken(sim, "(3) pod %s moves from place %d to %d of %d", m->pod_uid,
                       sim->pods[pod].last_place, place, count);
    }
    if (count < sim->min)
        sim_broken(sim, "generation of %d members, min is %d", count, sim->min);
    if (!sim_run_of(sim, assign->generation)) {
        for (int i = 0; i < sim->pod_count; i++)
            sim->pods[i].last_place = places[i];
        sim->has_hub_restarted = false;
    }
    open_run(sim, assign);
}

static void on_event(struct sim *sim, const struct hub_event *event)
{
    sim_trace(sim, "hub %s generation %" PRId64 " member %d %s %s", hub_event_name(event->type),
              event->generation.counter, event->member, event->cause, event->message);
    switch (event->type) {
    case HUB_EVENT_STEP:
        if (event->step.step <= sim->told || (event->step.step > sim->told + 1 && sim->loss == 0))
            sim_broken(sim, "(6) step %" PRId64 " told after %" PRId64, event->step.step,
                       sim->told);
        sim->told = event->step.step;
        break;
    case HUB_EVENT_LOST: /* should it come back, it is a newcomer */
        sim->pods[sim_find_pod(sim, event->pod_uid)].last_place = -1;
        break;
    case HUB_EVENT_CHECKPOINT:
        sim->checkpoint = event->step.step;
        break;
    case HUB_EVENT_RUNNING:
        sim->is_running = true;
        break;
    case HUB_EVENT_RESTART:
        sim->restart_events++;
        if (event->timeline.resume_ms >= 0 &&
            fabs(event->timeline.detect_ms + event->timeline.agree_ms + event->timeline.connect_ms +
                 event->timeline.restore_ms - event->timeline.resume_ms) > 1e-6)
            sim_broken(sim, "the phases of a restart do not add up");
        break;
    case HUB_EVENT_FAILED:
        sim->has_failed = true;
        break;
    case HUB_EVENT_FINISHED:
        if (sim->is_own)
            sim_own_check_finish(sim);
        else if (event->step.step != STEPS || event->weights_differ)
            sim_broken(sim, "finished at step %" PRId64, event->step.step);
        sim->is_finished = true;
        break;
    case HUB_EVENT_SUPERSEDED:
        sim_broken(sim, "superseded");
        break;
    default:
        break;
    }
}

void sim_apply_hub(struct sim *sim, struct hub_output *out)
{
    for (size_t i = 0; i < out->count; i++) {
        const struct hub_action *action = &out->items[i];
        struct pod *pod;
        switch (action->type) {
        case HUB_SEND:
            if (!sim->connections[action->connection].is_open)
                break;
            pod = &sim->pods[sim->connections[action->connection].pod];
            if (strncmp(action->text->text, "{\"type\":\"assign\"", 16) == 0) {
                struct message message;
                fleet_assert(
                    message_decode(action->text->text, action->text->size, &message, NULL) == 0);
                check_assign(sim, &message.assign);
                message_release(&message);
            }
            sim_transmit(sim, pod, EVENT_TO_MEMBER, action->connection, action->text);
            break;
        case HUB_CLOSE:
            sim_trace(sim, "hub closes connection %" PRIu64 ": %s", action->connection,
                      action->reason);
            if (!sim->connections[action->connection].is_open)
                break;
            sim->connections[action->connection].is_open = false;
            sim_transmit(sim, &sim->pods[sim->connections[action->connection].pod],
                         EVENT_CUT_MEMBER, action->connection, NULL);
            break;
        case HUB_RECORD:
            sim->record_ms = fmax(sim->record_ms, sim->now_ms) + sim_uniform(sim, 0, 20);
            sim_push(sim, sim->record_ms,
                     (struct event){.type = EVENT_RECORDED,
                                    .life = sim->hub_life,
                                    .step = action->record.first_step,
                                    .generation = action->record.generation});
            break;
        case HUB_EVENT:
            on_event(sim, action->event);
            break;
        }
    }
    hub_output_release(out);
    if (sim->hub && hub_restarts(sim->hub) > sim->restarts_max)
        sim_broken(sim, "(4) %d restarts, %d are allowed", hub_restarts(sim->hub),
                   sim->restarts_max);
}
