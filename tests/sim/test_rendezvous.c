/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whole jobs in one process under one simulated clock: a hub, agents, trainers with a vote before
 * every step, a network that delays, and, by seed, loses, repeats and reorders; trainers and pods
 * that die, pods that are drained, links that break, partitions, hubs that die and come back, records that cannot be
 * written, changing wishes. Every history must keep the invariants of a job:
 *
 *  (1) at most one generation extends the lineage: once a generation has committed a step, none of
 *      an older one that shares a member with it commits any more
 *  (2) ranks of a generation are 0 … n-1 without holes, no pod index twice
 *  (3) a surviving pod keeps its place unless it is >= n
 *  (4) counted restarts <= maxRestarts
 *  (5) once faults are over the job runs, with the desired members, to its end
 *  (6) every committed step is told exactly once, in order, without holes (only where the network
 *      loses messages of a living connection, which TCP does not, a step may die with its only
 *      witness)
 *  (7) while a holder of the newest state is in the next generation, no step is lost
 *  (8) a generation is recorded before it is assigned, but for a majority of the last one
 *  (9) a hub that dies and comes back disturbs nothing that runs
 * (10) what a member saves as it leaves is known before it says goodbye, unless others have gone
 *      on without it from an earlier step
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
#include "libfleet/rendezvous/hub.h"
#include "libfleet/rendezvous/member.h"
#include "tests/support/seeds.h"

#define PODS_MAX        192
#define INDEX_MAX       8
#define PROCESSES_MAX   2
#define CONNECTIONS_MAX 4096
#define GENERATIONS_MAX 512
#define FAULTS_END_MS   8000.0
#define END_MS          400000.0
#define STEP_MS         30.0
#define STEPS           160

/* ---- the world --------------------------------------------------------------------------------- */

struct trainer {
    bool is_alive;
    int life;                     /* counts its processes */
    struct generation generation; /* it is in, none = waits */
    int64_t step;                 /* state, -1 = none */
    struct generation held_in;    /* in which that state was last complete */
    enum message_phase phase;
};

struct pod {
    bool is_alive;
    char uid[32];
    int index, attempt;
    struct member *member;
    struct trainer trainers[PROCESSES_MAX];
    uint64_t connection; /* 0 = none */
    double frozen_until_ms;
    double last_arrival_ms[2]; /* of its messages: to the hub, from the hub */
    bool is_leaving;           /* asked to go: its trainers end their step and save */
    int64_t saved;             /* the step it saved then, 0 = none */
    int last_place;            /* in the last generation that was assigned, -1 = not in it */
};

struct generation_run {
    struct generation generation;
    int pods[INDEX_MAX], pod_count; /* by place */
    bool is_started;                /* restored everywhere */
    int64_t base;                   /* step it started from */
    bool had_holder;
    int64_t voted; /* step whose vote is complete */
    bool has_committed;
};

enum event_type {
    EVENT_TO_HUB,
    EVENT_TO_MEMBER,
    EVENT_OPENED,
    EVENT_DIAL_FAILED,
    EVENT_CUT_HUB,
    EVENT_CUT_MEMBER,
    EVENT_TRAINER_UP,
    EVENT_TRAINER_LEFT,
    EVENT_CONNECT,
    EVENT_RESTORE,
    EVENT_STEP,
    EVENT_APPLY,
    EVENT_BROKEN,
    EVENT_RECORDED,
    EVENT_POD_START,
    EVENT_POD_GONE,
    EVENT_DRAIN,
    EVENT_HUB_START,
    EVENT_FAULT,
};

struct event {
    double at_ms;
    uint64_t order;
    enum event_type type;
    int pod, process, life, tries;
    uint64_t connection;
    int64_t step;
    struct generation generation;
    struct message_text *text;
};

struct sim {
    unsigned long seed;
    uint64_t random;
    double now_ms;
    struct event *events; /* heap */
    size_t event_count, event_capacity;
    uint64_t order;
    bool is_trace;

    /* by seed */
    int min, max, desired, processes, restarts_max;
    double loss, repeat, reorder, record_failure, fault_interval_ms;
    bool has_hub_faults;
    bool is_calm; /* nothing but hubs that die while the job runs: it must not be disturbed */
    bool is_running;

    struct hub *hub; /* NULL: down */
    int hub_life;
    struct generation recorded;
    double record_ms; /* when the last record asked for is answered: they go one by one */
    struct message_lineage lineage[MESSAGE_LINEAGE_MAX];
    size_t lineage_count;
    int restarts;
    bool has_hub_restarted; /* since the last assign */

    struct pod pods[PODS_MAX];
    int pod_count;
    int attempts[INDEX_MAX];
    struct {
        int pod;
        bool is_open; /* at the hub */
    } connections[CONNECTIONS_MAX];
    uint64_t connection_count;

    struct generation_run runs[GENERATIONS_MAX];
    int run_count;
    struct generation last_committer;
    int64_t committed;  /* newest step any trainer has applied */
    int64_t checkpoint; /* step of the newest the hub was told of */
    int64_t told;       /* newest STEP event */
    bool is_finished, has_failed;
    int restart_events;
    int faults;
};

static uint64_t next_random(struct sim *sim)
{
    uint64_t z = (sim->random += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(struct sim *sim, double low, double high)
{
    return low + (high - low) * (double)(next_random(sim) >> 11) / 9007199254740992.0;
}

static bool chance(struct sim *sim, double probability)
{
    return uniform(sim, 0, 1) < probability;
}

static int below(struct sim *sim, int limit)
{
    return (int)(next_random(sim) % (uint64_t)limit);
}

static void trace(const struct sim *sim, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void trace(const struct sim *sim, const char *format, ...)
{
    va_list args;

    if (!sim->is_trace)
        return;
    va_start(args, format);
    printf("%9.1f ", sim->now_ms);
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

#define broken(sim, ...)                                                  \
    do {                                                                  \
        print_error("seed %lu at %.1f ms: ", (sim)->seed, (sim)->now_ms); \
        print_error(__VA_ARGS__);                                         \
        print_error("\n");                                                \
        fail();                                                           \
    } while (0)

/* ---- events ------------------------------------------------------------------------------------ */

static bool is_earlier(const struct event *a, const struct event *b)
{
    return a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->order < b->order);
}

static void push(struct sim *sim, double at_ms, struct event event)
{
    size_t i = sim->event_count++;

    if (sim->event_count > sim->event_capacity) {
        sim->event_capacity = sim->event_capacity ? 2 * sim->event_capacity : 256;
        sim->events = realloc(sim->events, sim->event_capacity * sizeof(*sim->events));
    }
    event.at_ms = at_ms;
    event.order = sim->order++;
    for (; i > 0 && is_earlier(&event, &sim->events[(i - 1) / 2]); i = (i - 1) / 2)
        sim->events[i] = sim->events[(i - 1) / 2];
    sim->events[i] = event;
}

static struct event pop(struct sim *sim)
{
    struct event first = sim->events[0], last = sim->events[--sim->event_count];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= sim->event_count)
            break;
        if (child + 1 < sim->event_count &&
            is_earlier(&sim->events[child + 1], &sim->events[child]))
            child++;
        if (!is_earlier(&sim->events[child], &last))
            break;
        sim->events[i] = sim->events[child];
        i = child;
    }
    if (sim->event_count > 0)
        sim->events[i] = last;
    return first;
}

/* ---- the network ------------------------------------------------------------------------------- */

/* A message of `pod` in a direction: in order, held back by a partition, or as the seed wants. */
static void transmit(struct sim *sim, struct pod *pod, enum event_type type, uint64_t connection,
                     struct message_text *text)
{
    int direction = type == EVENT_TO_HUB || type == EVENT_CUT_HUB ? 0 : 1;
    double at_ms = sim->now_ms + uniform(sim, 0.1, 3);
    struct event event = {.type = type, .pod = (int)(pod - sim->pods), .connection = connection};

    if (text && chance(sim, sim->loss))
        return;
    at_ms = fmax(at_ms, pod->frozen_until_ms + uniform(sim, 0, 2));
    if (!chance(sim, sim->reorder))
        at_ms = fmax(at_ms, pod->last_arrival_ms[direction] + 0.001);
    else
        at_ms += uniform(sim, 0, 40);
    pod->last_arrival_ms[direction] = fmax(at_ms, pod->last_arrival_ms[direction]);
    for (int copies = 1 + (text && chance(sim, sim->repeat)); copies > 0; copies--) {
        event.text = text ? message_text_use(text) : NULL;
        push(sim, at_ms + (copies > 1 ? uniform(sim, 0, 30) : 0), event);
    }
}

/* ---- generations and the data plane ------------------------------------------------------------ */

static struct generation_run *run_of(struct sim *sim, struct generation generation)
{
    for (int i = 0; i < sim->run_count; i++)
        if (generation_compare(sim->runs[i].generation, generation) == 0)
            return &sim->runs[i];
    return NULL;
}

static int find_pod(struct sim *sim, const char *uid)
{
    for (int i = 0; i < sim->pod_count; i++)
        if (strcmp(sim->pods[i].uid, uid) == 0)
            return i;
    return -1;
}

static bool is_in(const struct trainer *trainer, struct generation generation)
{
    return trainer->is_alive && generation_compare(trainer->generation, generation) == 0;
}

/* The first process of the generation that is not in it, or has not reached `phase`: its rank; -1. */
static int first_missing(struct sim *sim, const struct generation_run *run,
                         enum message_phase phase, bool only_gone)
{
    for (int place = 0; place < run->pod_count; place++)
        for (int p = 0; p < sim->processes; p++) {
            const struct pod *pod = &sim->pods[run->pods[place]];
            const struct trainer *trainer = &pod->trainers[p];
            if (!pod->is_alive || !is_in(trainer, run->generation) ||
                (!only_gone && trainer->phase < phase))
                return place * sim->processes + p;
        }
    return -1;
}

static void apply_member(struct sim *sim, struct pod *pod, struct member_output *out);

static void leave_generation(struct sim *sim, struct pod *pod, int process)
{
    pod->trainers[process].generation = (struct generation){0};
    push(sim, sim->now_ms + (chance(sim, 0.05) ? uniform(sim, 50, 600) : uniform(sim, 0.2, 10)),
         (struct event){.type = EVENT_TRAINER_LEFT,
                        .pod = (int)(pod - sim->pods),
                        .process = process,
                        .life = pod->trainers[process].life});
}

/* The trainer has lost a peer: it says so and leaves by itself. */
static void lose_peer(struct sim *sim, struct pod *pod, int process, int rank)
{
    struct member_output out = {0};

    trace(sim, "pod %s.%d lost rank %d of %" PRId64, pod->uid, process, rank,
          pod->trainers[process].generation.counter);
    member_peer_lost(pod->member, pod->trainers[process].generation, rank, sim->now_ms, sim->now_ms,
                     &out);
    apply_member(sim, pod, &out);
    leave_generation(sim, pod, process);
}

static void reach(struct sim *sim, struct pod *pod, int process, enum message_phase phase)
{
    struct trainer *trainer = &pod->trainers[process];
    struct member_output out = {0};

    trainer->phase = phase;
    member_trainer_phase(pod->member, process, trainer->generation, phase, trainer->step,
                         sim->now_ms, sim->now_ms, &out);
    apply_member(sim, pod, &out);
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

static void on_connect(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct generation_run *run = run_of(sim, event->generation);
    int missing = first_missing(sim, run, MESSAGE_PHASE_WAITING, false);

    if (missing >= 0 && event->tries > 200)
        lose_peer(sim, pod, event->process, missing);
    else if (missing >= 0)
        push(sim, sim->now_ms + 10, again(event, EVENT_CONNECT));
    else {
        reach(sim, pod, event->process, MESSAGE_PHASE_CONNECTED);
        push(sim, sim->now_ms + uniform(sim, 1, 20), again(event, EVENT_RESTORE));
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
            const struct trainer *trainer = &sim->pods[run->pods[place]].trainers[p];
            if (assign->members[place].step >= 0 && trainer->step > run->base)
                run->base = trainer->step;
            if (generation_compare(trainer->held_in, sim->last_committer) >= 0 &&
                trainer->step > newest)
                newest = trainer->step;
        }
    run->had_holder = run->base >= 0;
    if (newest >= 0 && run->base < newest)
        broken(sim,
               "(7) generation %" PRId64 " starts from step %" PRId64 ", a member holds %" PRId64,
               run->generation.counter, run->base, newest);
    if (!run->had_holder)
        run->base = assign->lineage[assign->lineage_count - 1].first_step - 1;
    run->voted = run->base;
    run->is_started = true;
    trace(sim, "generation %" PRId64 " starts from step %" PRId64, run->generation.counter,
          run->base);
    push(sim, sim->now_ms + STEP_MS,
         (struct event){.type = EVENT_STEP, .generation = run->generation});
}

static void tell_step(struct sim *sim, struct pod *pod, int process)
{
    struct trainer *trainer = &pod->trainers[process];
    struct member_output out = {0};
    struct message_step step = {.step = trainer->step, .loss = 100.0 - (double)trainer->step};

    member_trainer_step(pod->member, &step, sim->now_ms, &out);
    if (trainer->step == STEPS)
        member_trainer_finished(pod->member, process, STEPS, 1.5, "ab", sim->now_ms, &out);
    else if (process == 0 && trainer->step % 20 == 0)
        member_trainer_checkpoint(pod->member, trainer->generation, trainer->step, "/c",
                                  sim->now_ms, &out);
    apply_member(sim, pod, &out);
}

static void on_restore(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct trainer *trainer = &pod->trainers[event->process];
    struct generation_run *run = run_of(sim, event->generation);
    int gone = first_missing(sim, run, MESSAGE_PHASE_CONNECTED, true);
    bool is_behind;

    if (gone >= 0) {
        lose_peer(sim, pod, event->process, gone);
        return;
    }
    if (first_missing(sim, run, MESSAGE_PHASE_CONNECTED, false) >= 0) {
        push(sim, sim->now_ms + 5, again(event, EVENT_RESTORE));
        return;
    }
    if (!run->is_started)
        start_run(sim, run, member_assignment(pod->member));
    is_behind = trainer->step >= 0 && trainer->step < run->base;
    trainer->step = run->base;
    trainer->held_in = run->generation;
    reach(sim, pod, event->process, MESSAGE_PHASE_RESTORED);
    if (is_behind || run->base == STEPS)
        tell_step(sim, pod, event->process);
}

/* One after another notices that the generation is broken. */
static void break_run(struct sim *sim, const struct generation_run *run, int rank)
{
    for (int place = 0; place < run->pod_count; place++)
        for (int p = 0; p < sim->processes; p++) {
            const struct pod *pod = &sim->pods[run->pods[place]];
            if (pod->is_alive && is_in(&pod->trainers[p], run->generation))
                push(sim, sim->now_ms + uniform(sim, 0.5, chance(sim, 0.2) ? 1000 : 20),
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
            pod->trainers[p].generation = (struct generation){0};
        }
    }
    return has_left;
}

static void on_step(struct sim *sim, const struct event *event)
{
    struct generation_run *run = run_of(sim, event->generation);
    int gone = first_missing(sim, run, MESSAGE_PHASE_RESTORED, true);

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
                pod->trainers[p].phase < MESSAGE_PHASE_RESTORED ||
                pod->trainers[p].step != run->voted) {
                push(sim, sim->now_ms + 5, *event);
                return;
            }
    }
    if (leave_at_boundary(sim, run)) {
        push(sim, sim->now_ms + 5, *event);
        return;
    }
    run->voted++;
    for (int place = 0; place < run->pod_count; place++)
        for (int p = 0; p < sim->processes; p++)
            push(sim, sim->now_ms + uniform(sim, 0, 3),
                 (struct event){.type = EVENT_APPLY,
                                .pod = run->pods[place],
                                .process = p,
                                .life = sim->pods[run->pods[place]].trainers[p].life,
                                .step = run->voted,
                                .generation = run->generation});
    push(sim, sim->now_ms + STEP_MS, *event);
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
        if (other->has_committed && generation_compare(other->generation, run->generation) > 0 &&
            shares_member(other, run))
            broken(sim, "(1) generation %" PRId64 " commits after %" PRId64,
                   run->generation.counter, other->generation.counter);
    }
    run->has_committed = true;
    if (generation_compare(run->generation, sim->last_committer) > 0)
        sim->last_committer = run->generation;
}

static void on_apply(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct trainer *trainer = &pod->trainers[event->process];
    struct generation_run *run = run_of(sim, event->generation);

    trainer->step = event->step;
    check_commit(sim, run);
    sim->committed = event->step; /* less than before after a start from a checkpoint */
    if (trainer->phase == MESSAGE_PHASE_RESTORED)
        reach(sim, pod, event->process, MESSAGE_PHASE_FIRST_STEP);
    tell_step(sim, pod, event->process);
}

/* ---- carrying out what the machines answer ----------------------------------------------------- */

static void start_trainer(struct sim *sim, struct pod *pod, int process, double delay_ms)
{
    struct trainer *trainer = &pod->trainers[process];

    *trainer = (struct trainer){.life = trainer->life + 1, .step = -1};
    push(sim, sim->now_ms + delay_ms,
         (struct event){.type = EVENT_TRAINER_UP,
                        .pod = (int)(pod - sim->pods),
                        .process = process,
                        .life = trainer->life});
}

static void kill_pod(struct sim *sim, struct pod *pod, bool is_silent)
{
    if (!pod->is_alive)
        return;
    trace(sim, "pod %s dies%s", pod->uid, is_silent ? " silently" : "");
    pod->is_alive = false;
    if (pod->connection && !is_silent)
        transmit(sim, pod, EVENT_CUT_HUB, pod->connection, NULL);
    pod->connection = 0;
    for (int p = 0; p < sim->processes; p++)
        pod->trainers[p].is_alive = false;
    member_free(pod->member);
    pod->member = NULL;
    if (chance(sim, 0.5))
        push(sim, sim->now_ms + uniform(sim, 0, 1500),
             (struct event){.type = EVENT_POD_GONE, .pod = (int)(pod - sim->pods)});
}

static void open_run(struct sim *sim, const struct message_assign *assign)
{
    struct generation_run *run = run_of(sim, assign->generation);

    if (run)
        return;
    assert_true(sim->run_count < GENERATIONS_MAX);
    run = &sim->runs[sim->run_count++];
    *run = (struct generation_run){.generation = assign->generation,
                                   .pod_count = (int)assign->member_count};
    for (size_t i = 0; i < assign->member_count; i++)
        run->pods[i] = find_pod(sim, assign->members[i].pod_uid);
}

static void on_assigned(struct sim *sim, struct pod *pod, const struct member_action *action)
{
    open_run(sim, action->assign);
    if (action->first_rank != action->place * sim->processes)
        broken(sim, "first rank %d of place %d", action->first_rank, action->place);
    for (int p = 0; p < sim->processes; p++) {
        struct trainer *trainer = &pod->trainers[p];
        if (!trainer->is_alive || !generation_is_none(trainer->generation))
            broken(sim, "pod %s got an assignment while process %d is not waiting", pod->uid, p);
        trainer->generation = action->generation;
        trainer->phase = MESSAGE_PHASE_WAITING;
        push(sim, sim->now_ms + uniform(sim, 0.5, 8),
             (struct event){.type = EVENT_CONNECT,
                            .pod = (int)(pod - sim->pods),
                            .process = p,
                            .life = trainer->life,
                            .generation = action->generation});
    }
}

static void apply_member(struct sim *sim, struct pod *pod, struct member_output *out)
{
    struct member_output taken = *out;

    *out = (struct member_output){0};
    for (size_t i = 0; i < taken.count && pod->is_alive; i++) {
        const struct member_action *action = &taken.items[i];
        switch (action->type) {
        case MEMBER_DIAL:
            push(sim, fmax(sim->now_ms, pod->frozen_until_ms) + uniform(sim, 1, 8),
                 (struct event){.type = sim->hub ? EVENT_OPENED : EVENT_DIAL_FAILED,
                                .pod = (int)(pod - sim->pods)});
            break;
        case MEMBER_SEND:
            if (pod->connection)
                transmit(sim, pod, EVENT_TO_HUB, pod->connection, action->text);
            break;
        case MEMBER_CLOSE:
            if (pod->connection)
                transmit(sim, pod, EVENT_CUT_HUB, pod->connection, NULL);
            pod->connection = 0;
            break;
        case MEMBER_ASSIGN:
            trace(sim, "pod %s assigned to %" PRId64 " place %d", pod->uid,
                  action->generation.counter, action->place);
            on_assigned(sim, pod, action);
            break;
        case MEMBER_ABORT:
            trace(sim, "pod %s aborts %" PRId64 " (%s)", pod->uid, action->generation.counter,
                  action->reason);
            for (int p = 0; p < sim->processes; p++)
                if (!generation_is_none(pod->trainers[p].generation))
                    leave_generation(sim, pod, p);
            break;
        case MEMBER_CHECKPOINT:
        case MEMBER_VALUE:
            break;
        case MEMBER_LEAVE:
        case MEMBER_REFUSED:
            trace(sim, "pod %s told to go: %s", pod->uid, action->reason);
            kill_pod(sim, pod, false);
            break;
        case MEMBER_DONE:
            trace(sim, "pod %s done: %s", pod->uid, action->reason);
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

    if (generation_compare(assign->generation, sim->recorded) > 0 && sim->record_failure == 0)
        broken(sim, "(8) generation %" PRId64 " is not recorded", assign->generation.counter);
    for (int i = 0; i < PODS_MAX; i++)
        places[i] = -1;
    for (int place = 0; place < count; place++) {
        const struct message_member *m = &assign->members[place];
        int pod = find_pod(sim, m->pod_uid);
        if (taken[m->index])
            broken(sim, "(2) index %d twice in generation %" PRId64, m->index,
                   assign->generation.counter);
        taken[m->index] = true;
        if (places[pod] >= 0)
            broken(sim, "(2) pod %s twice", m->pod_uid);
        places[pod] = place;
        if (!sim->has_hub_restarted && sim->pods[pod].last_place >= 0 &&
            sim->pods[pod].last_place < count && sim->pods[pod].last_place != place)
            broken(sim, "(3) pod %s moves from place %d to %d of %d", m->pod_uid,
                   sim->pods[pod].last_place, place, count);
    }
    if (count < sim->min)
        broken(sim, "generation of %d members, min is %d", count, sim->min);
    if (!run_of(sim, assign->generation)) {
        for (int i = 0; i < sim->pod_count; i++)
            sim->pods[i].last_place = places[i];
        sim->has_hub_restarted = false;
    }
    open_run(sim, assign);
}

static void on_event(struct sim *sim, const struct hub_event *event)
{
    trace(sim, "hub %s generation %" PRId64 " member %d %s %s", hub_event_name(event->type),
          event->generation.counter, event->member, event->cause, event->message);
    switch (event->type) {
    case HUB_EVENT_STEP:
        if (event->step.step <= sim->told || (event->step.step > sim->told + 1 && sim->loss == 0))
            broken(sim, "(6) step %" PRId64 " told after %" PRId64, event->step.step, sim->told);
        sim->told = event->step.step;
        break;
    case HUB_EVENT_LOST: /* should it come back, it is a newcomer */
        sim->pods[find_pod(sim, event->pod_uid)].last_place = -1;
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
            broken(sim, "the phases of a restart do not add up");
        break;
    case HUB_EVENT_FAILED:
        sim->has_failed = true;
        break;
    case HUB_EVENT_FINISHED:
        if (event->step.step != STEPS || event->weights_differ)
            broken(sim, "finished at step %" PRId64, event->step.step);
        sim->is_finished = true;
        break;
    case HUB_EVENT_SUPERSEDED:
        broken(sim, "superseded");
        break;
    default:
        break;
    }
}

static void apply_hub(struct sim *sim, struct hub_output *out)
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
                assert_int_equal(
                    message_decode(action->text->text, action->text->size, &message, NULL), 0);
                check_assign(sim, &message.assign);
                message_release(&message);
            }
            transmit(sim, pod, EVENT_TO_MEMBER, action->connection, action->text);
            break;
        case HUB_CLOSE:
            trace(sim, "hub closes connection %" PRIu64 ": %s", action->connection, action->reason);
            if (!sim->connections[action->connection].is_open)
                break;
            sim->connections[action->connection].is_open = false;
            transmit(sim, &sim->pods[sim->connections[action->connection].pod], EVENT_CUT_MEMBER,
                     action->connection, NULL);
            break;
        case HUB_RECORD:
            sim->record_ms = fmax(sim->record_ms, sim->now_ms) + uniform(sim, 0, 20);
            push(sim, sim->record_ms,
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
        broken(sim, "(4) %d restarts, %d are allowed", hub_restarts(sim->hub), sim->restarts_max);
}

/* ---- faults ------------------------------------------------------------------------------------ */

static struct hub_policy policy_of(const struct sim *sim)
{
    return (struct hub_policy){.min = sim->min,
                               .max = sim->max,
                               .desired = sim->desired,
                               .rejoin_grace_ms = 500,
                               .timeout_ms = 5000,
                               .restarts_max = sim->restarts_max,
                               .reset_after_steps = 50};
}

static void start_hub(struct sim *sim)
{
    struct hub_start start = {.job_uid = "job",
                              .recorded = sim->recorded,
                              .lineage = sim->lineage,
                              .lineage_count = sim->lineage_count,
                              .progress_step = sim->told,
                              .checkpoint_step = sim->checkpoint,
                              .restarts = sim->restarts};
    struct hub_policy policy = policy_of(sim);

    trace(sim, "hub starts, recorded %" PRId64, sim->recorded.counter);
    sim->hub = hub_new(&start, &policy, sim->now_ms);
    sim->hub_life++;
    sim->has_hub_restarted = true;
}

static void stop_hub(struct sim *sim)
{
    trace(sim, "hub dies");
    sim->restarts = hub_restarts(sim->hub);
    hub_free(sim->hub);
    sim->hub = NULL;
    for (uint64_t c = 1; c <= sim->connection_count; c++)
        if (sim->connections[c].is_open) {
            sim->connections[c].is_open = false;
            transmit(sim, &sim->pods[sim->connections[c].pod], EVENT_CUT_MEMBER, c, NULL);
        }
}

static void start_pod(struct sim *sim, int index)
{
    struct pod *pod;
    static const int ports[PROCESSES_MAX] = {1, 2};
    struct member_config config = {.job_uid = "job",
                                   .index = index,
                                   .address = "a",
                                   .ports = ports,
                                   .processes = sim->processes,
                                   .devices = "cpu",
                                   .version = "1"};

    assert_true(sim->pod_count < PODS_MAX);
    pod = &sim->pods[sim->pod_count++];
    *pod = (struct pod){
        .is_alive = true, .index = index, .attempt = sim->attempts[index]++, .last_place = -1};
    (void)snprintf(pod->uid, sizeof(pod->uid), "%d-%d", index, pod->attempt);
    trace(sim, "pod %s starts", pod->uid);
    config.pod_uid = pod->uid;
    config.attempt = pod->attempt;
    config.seed = next_random(sim);
    config.level = (enum message_level)below(sim, 5);
    pod->member = member_new(&config, sim->now_ms);
    for (int p = 0; p < sim->processes; p++)
        start_trainer(sim, pod, p, uniform(sim, 20, 600));
}

static void drain(struct sim *sim, struct pod *pod)
{
    struct member_output out = {0};

    trace(sim, "pod %s is drained", pod->uid);
    pod->is_leaving = true;
    member_leaving(pod->member, sim->now_ms, &out);
    apply_member(sim, pod, &out);
    push(sim, sim->now_ms + 1, (struct event){.type = EVENT_DRAIN, .pod = (int)(pod - sim->pods)});
}

/* Whoever has rank 0 saves what it holds. */
static void save_last(struct sim *sim, struct pod *pod)
{
    const struct trainer *trainer = &pod->trainers[0];
    struct member_output out = {0};

    if (pod->last_place == 0 && trainer->is_alive && trainer->step > 0 && pod->saved == 0) {
        pod->saved = trainer->step;
        trace(sim, "pod %s saves step %" PRId64, pod->uid, trainer->step);
        member_trainer_checkpoint(pod->member, trainer->held_in, trainer->step, "/c", sim->now_ms,
                                  &out);
        apply_member(sim, pod, &out);
    }
    member_leave(pod->member, "Signal15", sim->now_ms, &out);
    apply_member(sim, pod, &out);
}

/* Did a generation after it go on from before `step`? */
static bool is_off_lineage(const struct sim *sim, const struct pod *pod)
{
    const struct generation held_in = pod->trainers[0].held_in;
    bool is_listed = false;

    for (size_t i = 0; i < sim->lineage_count; i++) {
        is_listed |= generation_compare(sim->lineage[i].generation, held_in) == 0;
        if (generation_compare(sim->lineage[i].generation, held_in) > 0 &&
            sim->lineage[i].first_step <= pod->saved)
            return true;
    }
    return !is_listed;
}

/* Its trainers first leave their generation, then save; then it says goodbye, and its pod ends. */
static void on_drain(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct event next = *event;

    if (!pod->is_alive)
        return;
    next.tries++;
    for (int p = 0; p < sim->processes; p++)
        if (!generation_is_none(pod->trainers[p].generation) && next.tries < 400) {
            push(sim, sim->now_ms + 25, next);
            return;
        }
    save_last(sim, pod);
    if (!member_has_left(pod->member) && next.tries < 400) {
        push(sim, sim->now_ms + 25, next);
        return;
    }
    if (member_has_left(pod->member) && pod->saved > sim->checkpoint && !is_off_lineage(sim, pod))
        broken(sim, "(10) pod %s has left, its checkpoint of step %" PRId64 " is not known",
               pod->uid, pod->saved);
    kill_pod(sim, pod, false);
}

/* The newest live pod of an index, or NULL. */
static struct pod *pod_at(struct sim *sim, int index)
{
    for (int i = sim->pod_count - 1; i >= 0; i--)
        if (sim->pods[i].is_alive && sim->pods[i].index == index)
            return &sim->pods[i];
    return NULL;
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
    trace(sim, "trainer of pod %s dies", pod->uid);
    pod->trainers[process].is_alive = false;
    member_trainer_failed(pod->member, &failure, sim->now_ms, &out);
    apply_member(sim, pod, &out);
    if (pod->is_alive)
        start_trainer(sim, pod, process, uniform(sim, 20, 1500));
}

static void resize(struct sim *sim)
{
    struct hub_output out = {0};
    struct hub_policy policy;

    sim->desired = sim->min + below(sim, sim->max - sim->min + 1);
    trace(sim, "desired is %d", sim->desired);
    policy = policy_of(sim);
    if (sim->hub) {
        hub_configure(sim->hub, &policy, sim->now_ms, &out);
        apply_hub(sim, &out);
    }
    for (int index = sim->desired; index < INDEX_MAX; index++) {
        struct pod *pod = pod_at(sim, index);
        struct member_output leaving = {0};
        if (!pod || chance(sim, 0.3))
            continue;
        member_leave(pod->member, "scaled down", sim->now_ms, &leaving);
        apply_member(sim, pod, &leaving);
        kill_pod(sim, pod, false);
    }
}

static void inject_fault(struct sim *sim)
{
    struct pod *pod = pod_at(sim, below(sim, sim->desired));
    int kind = below(sim, 100), process = below(sim, sim->processes);

    sim->faults++;
    if (sim->is_calm)
        kind = sim->is_running ? 0 : 100;
    if (kind == 100)
        return;
    if (kind < 8 && sim->has_hub_faults) {
        if (sim->hub) {
            stop_hub(sim);
            push(sim, sim->now_ms + uniform(sim, 0, 3000), (struct event){.type = EVENT_HUB_START});
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
        kill_pod(sim, pod, chance(sim, 0.3));
    } else if (kind < 80 && pod->connection) {
        transmit(sim, pod, EVENT_CUT_HUB, pod->connection, NULL);
        transmit(sim, pod, EVENT_CUT_MEMBER, pod->connection, NULL);
    } else if (kind < 90) {
        trace(sim, "pod %s is cut off", pod->uid);
        pod->frozen_until_ms = sim->now_ms + uniform(sim, 50, 5000);
    } else if (!generation_is_none(pod->trainers[process].generation)) {
        lose_peer(sim, pod, process, /* a link breaks: any rank may be the accused */
                  below(sim, sim->desired * sim->processes));
    }
}

static void on_fault(struct sim *sim)
{
    if (sim->now_ms < FAULTS_END_MS)
        for (int count = 1 + (int)chance(sim, 0.3); count > 0; count--) /* also two at once */
            inject_fault(sim);
    for (int index = 0; index < sim->desired; index++)
        if (!pod_at(sim, index))
            push(sim, sim->now_ms + uniform(sim, 100, 2500),
                 (struct event){.type = EVENT_POD_START, .process = index});
    push(sim, sim->now_ms + uniform(sim, 0, 2 * sim->fault_interval_ms) + 1,
         (struct event){.type = EVENT_FAULT});
}

/* ---- running ----------------------------------------------------------------------------------- */

static void on_record(struct sim *sim, const struct event *event)
{
    struct hub_output out = {0};

    if (!sim->hub || event->life != sim->hub_life)
        return;
    if (chance(sim, sim->record_failure)) {
        hub_record_failed(sim->hub, event->generation, sim->now_ms, &out);
    } else {
        if (generation_compare(event->generation, sim->recorded) > 0)
            sim->recorded = event->generation;
        hub_record_done(sim->hub, event->generation, sim->now_ms, &out);
        sim->lineage_count = hub_lineage(sim->hub, sim->lineage);
    }
    apply_hub(sim, &out);
}

static void on_message(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct hub_output hub_out = {0};
    struct member_output member_out = {0};
    struct message message;
    struct fleet_error err;

    if (message_decode(event->text->text, event->text->size, &message, &err) < 0)
        broken(sim, "%s: %s", err.text, event->text->text);
    if (event->type == EVENT_TO_HUB && sim->hub && sim->connections[event->connection].is_open) {
        hub_receive(sim->hub, event->connection, &message, sim->now_ms, &hub_out);
        apply_hub(sim, &hub_out);
    } else if (event->type == EVENT_TO_MEMBER && pod->is_alive &&
               pod->connection == event->connection) {
        member_receive(pod->member, &message, sim->now_ms, &member_out);
        apply_member(sim, pod, &member_out);
    }
    message_release(&message);
}

static void on_opened(struct sim *sim, struct pod *pod)
{
    struct hub_output hub_out = {0};
    struct member_output out = {0};

    if (!sim->hub) {
        member_disconnected(pod->member, sim->now_ms, &out);
        apply_member(sim, pod, &out);
        return;
    }
    assert_true(sim->connection_count + 1 < CONNECTIONS_MAX);
    pod->connection = ++sim->connection_count;
    sim->connections[pod->connection].pod = (int)(pod - sim->pods);
    sim->connections[pod->connection].is_open = true;
    hub_connected(sim->hub, pod->connection, sim->now_ms, &hub_out);
    apply_hub(sim, &hub_out);
    member_connected(pod->member, sim->now_ms, &out);
    apply_member(sim, pod, &out);
}

static void on_trainer(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct trainer *trainer = &pod->trainers[event->process];
    struct member_output out = {0};

    if (!pod->is_alive || trainer->life != event->life)
        return;
    if (event->type == EVENT_TRAINER_UP || event->type == EVENT_TRAINER_LEFT) {
        trainer->is_alive = true;
        member_trainer_up(pod->member, event->process, trainer->step, sim->now_ms, &out);
        apply_member(sim, pod, &out);
    } else if (is_in(trainer, event->generation)) {
        if (event->type == EVENT_CONNECT)
            on_connect(sim, event);
        else if (event->type == EVENT_RESTORE)
            on_restore(sim, event);
        else if (event->type == EVENT_APPLY)
            on_apply(sim, event);
        else
            lose_peer(sim, pod, event->process, (int)event->step);
    }
}

static void handle(struct sim *sim, const struct event *event)
{
    struct pod *pod = &sim->pods[event->pod];
    struct hub_output hub_out = {0};
    struct member_output out = {0};

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
        if (pod->is_alive) {
            member_disconnected(pod->member, sim->now_ms, &out);
            apply_member(sim, pod, &out);
        }
        break;
    case EVENT_CUT_HUB:
        if (sim->hub && sim->connections[event->connection].is_open) {
            sim->connections[event->connection].is_open = false;
            hub_disconnected(sim->hub, event->connection, sim->now_ms, &hub_out);
            apply_hub(sim, &hub_out);
        }
        break;
    case EVENT_CUT_MEMBER:
        if (pod->is_alive && pod->connection == event->connection) {
            pod->connection = 0;
            member_disconnected(pod->member, sim->now_ms, &out);
            apply_member(sim, pod, &out);
        }
        break;
    case EVENT_STEP:
        on_step(sim, event);
        break;
    case EVENT_RECORDED:
        on_record(sim, event);
        break;
    case EVENT_POD_START:
        if (event->process < sim->desired && !pod_at(sim, event->process))
            start_pod(sim, event->process);
        break;
    case EVENT_POD_GONE:
        if (sim->hub) {
            hub_member_gone(sim->hub, pod->uid, "MemberLost", sim->now_ms, &hub_out);
            apply_hub(sim, &hub_out);
        }
        break;
    case EVENT_DRAIN:
        on_drain(sim, event);
        break;
    case EVENT_HUB_START:
        if (!sim->hub)
            start_hub(sim);
        break;
    case EVENT_FAULT:
        on_fault(sim);
        break;
    default:
        on_trainer(sim, event);
        break;
    }
}

/* What is due next by a deadline: the hub (-1), a pod, or nobody (-2). */
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
        struct event event = pop(sim);
        sim->now_ms = fmax(sim->now_ms, event.at_ms);
        handle(sim, &event);
        message_text_release(event.text);
        return;
    }
    sim->now_ms = fmax(sim->now_ms, deadline_ms);
    if (who == -1) {
        hub_tick(sim->hub, sim->now_ms, &hub_out);
        apply_hub(sim, &hub_out);
    } else {
        member_tick(sim->pods[who].member, sim->now_ms, &out);
        apply_member(sim, &sim->pods[who], &out);
    }
}

static void choose_world(struct sim *sim)
{
    sim->processes = chance(sim, 0.2) ? 2 : 1;
    sim->max = 1 + below(sim, 6);
    sim->min = 1 + below(sim, sim->max);
    sim->desired = sim->min + below(sim, sim->max - sim->min + 1);
    sim->restarts_max = chance(sim, 0.2) ? below(sim, 6) : 100000;
    sim->fault_interval_ms = uniform(sim, 100, 2500);
    sim->has_hub_faults = chance(sim, 0.5);
    if (chance(sim, 0.5)) {
        sim->loss = uniform(sim, 0, 0.05);
        sim->repeat = uniform(sim, 0, 0.1);
        sim->reorder = uniform(sim, 0, 0.1);
    }
    if (chance(sim, 0.3))
        sim->record_failure = uniform(sim, 0, 0.8);
    sim->is_calm = chance(sim, 0.1);
    if (sim->is_calm) {
        sim->has_hub_faults = true;
        sim->record_failure = 0;
    }
}

static void run_seed(unsigned long seed, bool is_trace, int *out_faults, int *out_finished)
{
    struct sim *sim = calloc(1, sizeof(*sim));

    sim->seed = seed;
    sim->random = seed * 0x5851f42d4c957f2du + 1;
    sim->is_trace = is_trace;
    choose_world(sim);
    trace(sim, "seed %lu: min %d max %d desired %d processes %d restarts %d loss %.3f", seed,
          sim->min, sim->max, sim->desired, sim->processes, sim->restarts_max, sim->loss);
    start_hub(sim);
    for (int index = 0; index < sim->desired; index++)
        start_pod(sim, index);
    push(sim, uniform(sim, 0, sim->fault_interval_ms), (struct event){.type = EVENT_FAULT});
    while (!sim->is_finished && !sim->has_failed) {
        turn(sim);
        if (sim->now_ms > END_MS)
            broken(sim,
                   "(5) not finished: phase %s, generation %" PRId64 ", step %" PRId64
                   ", told %" PRId64,
                   sim->hub ? hub_phase_name(hub_phase(sim->hub)) : "down",
                   sim->hub ? hub_generation(sim->hub).counter : -1, sim->committed, sim->told);
    }
    if (sim->is_finished && sim->told != STEPS)
        broken(sim, "(6) finished, but only %" PRId64 " steps were told", sim->told);
    if (sim->is_calm && sim->run_count != 1)
        broken(sim, "(9) %d generations", sim->run_count);
    if (sim->has_failed && sim->restarts_max > 1000)
        broken(sim, "failed with restarts left");
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

static unsigned long number_from(const char *variable, unsigned long otherwise)
{
    const char *text = getenv(variable);

    return text ? strtoul(text, NULL, 10) : otherwise;
}

static void test_rendezvous__keeps_its_invariants_through_random_histories(void **state)
{
    unsigned long first = number_from("SIM_FIRST", 1),
                  count = number_from("SIM_SEEDS", seeds_count(1500));
    int faults = 0, finished = 0;

    (void)state;
    for (unsigned long seed = first; seed < first + count; seed++)
        run_seed(seed, number_from("SIM_TRACE", 0) > 0, &faults, &finished);
    print_message("%lu histories, %d faults, %d jobs finished\n", count, faults, finished);
    if (count >= 100) {
        assert_true(finished > (int)(count / 2)); /* the simulation does simulate */
        assert_true(faults > (int)count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rendezvous__keeps_its_invariants_through_random_histories),
    };
    return cmocka_run_group_tests_name("rendezvous", tests, NULL, NULL);
}
