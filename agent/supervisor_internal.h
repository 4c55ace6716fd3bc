/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SUPERVISOR_INTERNAL_H
#define AGENT_SUPERVISOR_INTERNAL_H

/*
 * The state of a supervisor, shared by the files that make it: supervisor.c (life, time, starting
 * and ending trainers), supervisor_trainer.c (messages and ends of trainers), supervisor_order.c
 * (orders of the hub, signals). Only these files include this.
 */

#include "agent/supervisor.h"
#include "libfleet/base/random.h"

enum trainer_state {
    TRAINER_DOWN,
    TRAINER_STARTING,
    TRAINER_WAITING,
    TRAINER_RUNNING,
    TRAINER_FINISHED,
    TRAINER_GONE,
};

struct supervised_trainer {
    enum trainer_state state;
    bool is_alive;      /* a process exists */
    bool is_stopping;   /* own trainer: asked to end for a new generation */
    double start_at_ms; /* DOWN: when to start it; INFINITY = not by time */
    double heard_ms;    /* built-in, alive: when it last sent a message */
    bool is_silent;     /* and that was too long ago, but it may be the last to hold the state */
    double kill_at_ms;  /* alive: SIGKILL then; INFINITY = never */
    enum fleet_isa level;
    int64_t step;                /* newest committed step that it reported, -1 = none */
    struct fleet_part part;      /* what of that state it holds */
    int failures;                /* in a row, without a step in between */
    bool is_permanent;           /* it reported that a restart cannot help */
    char words[LINK_TEXT_SIZE];  /* its last error text, "" = none */
    char cause[LINK_CAUSE_SIZE]; /* the cause with it, "" = none */
    /* Own trainer, since its last start: */
    struct fleet_generation generation; /* that it was started for */
    int rank;                           /* in it */
    bool is_awaited;                    /* the generation trains once this trainer reports */
    double loss;                        /* that it reported last, NaN = none */
};

struct supervisor {
    struct supervisor_config config;
    struct supervisor_host host;
    struct supervised_trainer trainers[MESSAGE_PROCESSES_MAX];
    int ports[MESSAGE_PROCESSES_MAX];
    struct member *member; /* NULL until there is something to report to the hub */
    struct fleet_random_key jitter;
    uint64_t draws;
    double awake_ms; /* when it last ran; after a gap this process was stopped itself */
    bool is_ending;
    bool is_signalled;   /* by the system, to end, … */
    double signalled_ms; /* … when */
    bool has_place;      /* own trainer: `place` is valid, and its generation not aborted */
    struct supervisor_place place;
    int exit_code; /* once is_ending, with … */
    char reason[MESSAGE_REASON_MAX + 1];
};

/* A member's clock is monotonic even if its callers' clocks are not. */
double supervisor_clock(const struct supervisor *s);
/* Hand over what the member has answered: the last thing a function does with the state (7). */
void supervisor_apply(struct supervisor *s, struct member_output *out);
/* The trainer waits for an assign. It is reported once all trainers of the pod are up. */
void supervisor_report_up(struct supervisor *s, int local_rank);
/* It has ended unasked, or could not be started: reported to the hub before anything else (1). */
void supervisor_trainer_failed(struct supervisor *s, int local_rank, struct member_failure *failure,
                               double now_ms);

/* Own trainer: it was started; the hub hears how far that makes it. */
void supervisor_report_started(struct supervisor *s, int local_rank);

/* Start it now; one that cannot be started has failed. */
void supervisor_start_trainer(struct supervisor *s, int local_rank, double now_ms);

/* End all trainers, by a message (`how`) where they have a link, else by a signal; once they are
 * gone the agent exits with `exit_code`. The first call decides. */
void supervisor_begin_ending(struct supervisor *s, enum link_kind how, int exit_code,
                             const char *reason, double now_ms);
/* Once the last trainer has ended: until then it may have a checkpoint to report. */
void supervisor_say_goodbye(struct supervisor *s);

#endif
