/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_RENDEZVOUS_SIM_H
#define TESTS_FAKE_RENDEZVOUS_SIM_H

/*
 * One job in one process under one clock and one seed: a hub and its members as they are,
 * everything around them played. tests/sim/test_rendezvous.c says what every history must keep, and
 * numbers it.
 *
 *   events.c     chance, what is due, the network that delays, loses, repeats and reorders
 *   train.c      trainers and the generations they train in: connect, restore, vote, apply
 *   own.c        own trainers, which only run and exit
 *   members.c    carrying out what hub and members answer; what must hold when they do
 *   faults.c     what goes wrong, and what users want, by seed
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/rendezvous/hub.h"
#include "libfleet/rendezvous/member.h"

#define PODS_MAX        192
#define INDEX_MAX       8
#define PROCESSES_MAX   2
#define CONNECTIONS_MAX 4096
#define GENERATIONS_MAX 512
#define FAULTS_END_MS   8000.0
#define END_MS          400000.0
#define STEP_MS         30.0
#define STEPS           160

struct sim_trainer {
    bool is_alive;
    int life;                           /* counts its processes */
    struct fleet_generation generation; /* it is in, none = waits */
    int64_t step;                       /* state, -1 = none */
    struct fleet_generation held_in;    /* in which that state was last complete */
    enum fleet_phase phase;
};

struct pod {
    bool is_alive;
    char uid[32];
    int index, attempt;
    struct member *member;
    struct sim_trainer trainers[PROCESSES_MAX];
    uint64_t connection; /* 0 = none */
    double frozen_until_ms;
    double last_arrival_ms[2]; /* of its messages: to the hub, from the hub */
    bool is_leaving;           /* asked to go: its trainers end their step and save */
    int64_t saved;             /* the step it saved then, 0 = none */
    int last_place;            /* in the last generation that was assigned, -1 = not in it */
};

struct generation_run {
    struct fleet_generation generation;
    int pods[INDEX_MAX], pod_count; /* by place */
    bool is_started;                /* restored everywhere */
    int64_t base;                   /* step it started from */
    bool had_holder;
    int64_t voted; /* step whose vote is complete */
    bool has_committed;
    bool exited[INDEX_MAX][PROCESSES_MAX]; /* own trainers: with 0, by place */
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
    EVENT_OWN_EXIT,
};

struct event {
    double at_ms;
    uint64_t order;
    enum event_type type;
    int pod, process, life, tries;
    uint64_t connection;
    int64_t step;
    struct fleet_generation generation;
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
    bool is_own; /* the job has its own trainers */

    struct hub *hub; /* NULL: down */
    int hub_life;
    struct fleet_generation recorded;
    double record_ms; /* when the last record asked for is answered: they go one by one */
    struct fleet_lineage lineage;
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
    struct fleet_generation last_committer;
    int64_t committed;  /* newest step any trainer has applied */
    int64_t checkpoint; /* step of the newest one that the hub knows */
    int64_t told;       /* newest STEP event */
    bool is_finished, has_failed;
    int restart_events;
    int faults;
};

/* ---- events.c -------------------------------------------------------------------------------- */

/* Chance: 64 bits, uniform in [low, high), true with that probability, uniform in [0, limit). */
uint64_t sim_next_random(struct sim *sim);
double sim_uniform(struct sim *sim, double low, double high);
bool sim_chance(struct sim *sim, double probability);
int sim_below(struct sim *sim, int limit);

/* A line of the history, if the history is shown. */
void sim_trace(const struct sim *sim, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* An invariant is broken: says seed and time and fails the test, which defines it. */
void sim_broken(const struct sim *sim, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Put in an event for `at_ms`; take out the one that is due first (there must be one). */
void sim_push(struct sim *sim, double at_ms, struct event event);
struct event sim_pop(struct sim *sim);

/* A message of `pod` in a direction, or the end of a connection (text NULL): in order, held back by
 * a partition, or as the seed wants. */
void sim_transmit(struct sim *sim, struct pod *pod, enum event_type type, uint64_t connection,
                  struct message_text *text);

/* ---- train.c --------------------------------------------------------------------------------- */

/* What is played of a generation, or NULL; the number of the pod with that UID, or -1. */
struct generation_run *sim_run_of(struct sim *sim, struct fleet_generation generation);
int sim_find_pod(struct sim *sim, const char *uid);

bool sim_is_in(const struct sim_trainer *trainer, struct fleet_generation generation);

/* The trainer leaves its generation, later it waits for the next; it does so because of a lost
 * peer. */
void sim_leave_generation(struct sim *sim, struct pod *pod, int process);
void sim_lose_peer(struct sim *sim, struct pod *pod, int process, int rank);

/* What becomes of these events. */
void sim_on_connect(struct sim *sim, const struct event *event);
void sim_on_restore(struct sim *sim, const struct event *event);
void sim_on_step(struct sim *sim, const struct event *event);
void sim_on_apply(struct sim *sim, const struct event *event);

/* ---- own.c ----------------------------------------------------------------------------------- */

/* Own trainers: those of a pod are started, one fails, one exits by itself, the job has
 * succeeded. */
void sim_own_start(struct sim *sim, struct pod *pod, const struct member_action *assign);
void sim_own_fail(struct sim *sim, struct pod *pod, int process);
void sim_own_exit(struct sim *sim, const struct event *event);
void sim_own_check_finish(struct sim *sim);

/* ---- members.c ------------------------------------------------------------------------------- */

void sim_start_trainer(struct sim *sim, struct pod *pod, int process, double delay_ms);

/* The pod's processes are gone; `is_silent`: its connection is not closed by that. */
void sim_kill_pod(struct sim *sim, struct pod *pod, bool is_silent);

/* Carry out what a call on a member or on the hub has answered, and release the list. */
void sim_apply_member(struct sim *sim, struct pod *pod, struct member_output *out);
void sim_apply_hub(struct sim *sim, struct hub_output *out);

/* ---- faults.c -------------------------------------------------------------------------------- */

void sim_start_hub(struct sim *sim);
void sim_start_pod(struct sim *sim, int index);

/* The living pod of that index, or NULL. */
struct pod *sim_pod_at(struct sim *sim, int index);

/* Two more events: a pod is drained, something goes wrong. */
void sim_on_drain(struct sim *sim, const struct event *event);
void sim_on_fault(struct sim *sim);

#endif
