/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SUPERVISOR_INTERNAL_H
#define AGENT_SUPERVISOR_INTERNAL_H

/*
 * The state of a supervisor, for the files that implement it: supervisor.c (life cycle, timers,
 * starting and ending trainers), supervisor_trainer.c (messages and exits of trainers),
 * supervisor_order.c (orders of the hub, signals). Only these files include this header. Times are
 * monotonic milliseconds. Numbers in parentheses are invariants at the head of supervisor.c.
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
    bool is_alive;      /* its process exists */
    bool is_stopping;   /* own trainer: the agent has asked it to end, for a new generation */
    double start_at_ms; /* DOWN: when to start it; INFINITY = no timer starts it */
    double heard_ms;    /* built-in trainer that is alive: time of its last message */
    bool is_silent;     /* its last message is too old; not killed, as it may hold the only state */
    double kill_at_ms;  /* alive: when to send SIGKILL; INFINITY = never */
    enum fleet_isa level;
    int64_t step;                /* newest committed step that it reported, -1 = none */
    struct fleet_part part;      /* the part of that step's state that it holds */
    int failures;                /* consecutive failures without a step between them */
    bool is_permanent;           /* it reported that a restart cannot help */
    char words[LINK_TEXT_SIZE];  /* text of the last error that it reported, "" = none */
    char cause[LINK_CAUSE_SIZE]; /* cause of that error, "" = none */
    /* Own trainer, since its last start: */
    struct fleet_generation generation; /* the generation that it was started for */
    int rank;                           /* its rank in that generation */
    bool is_awaited;                    /* its first report starts the training of the generation */
    bool stays;                         /* it joins later generations in process */
    bool has_left;                      /* it stays, and has left the generation by itself */
    double loss;                        /* the loss that it reported last, NaN = none */
};

struct supervisor {
    struct supervisor_config config;
    struct supervisor_host host;
    struct supervised_trainer trainers[MESSAGE_PROCESSES_MAX];
    int ports[MESSAGE_PROCESSES_MAX];
    struct member *member; /* the host's; NULL until there is something to report to the hub */
    struct fleet_random_key jitter;
    uint64_t draws;
    double awake_ms; /* last call of was_asleep(); a large gap means that the agent was stopped */
    bool is_ending;
    bool is_signalled;   /* SIGTERM or SIGINT has asked the agent to end */
    double signalled_ms; /* time of that signal */
    bool has_place;      /* own trainer: `place` is valid, and its generation is not aborted */
    struct supervisor_place place;
    int exit_code;                       /* valid if is_ending */
    char reason[MESSAGE_REASON_MAX + 1]; /* valid if is_ending: why the agent ends */
};

/* The time to pass to the member. It never decreases, even if the callers' times do. */
double supervisor_clock(const struct supervisor *s);
/* Give the member's actions to the host. This must be the last use of the state in a function,
 * because the host may call supervisor_order(), which changes the state (7). */
void supervisor_apply(struct supervisor *s, struct member_output *out);
/* The trainer waits for an assign. The hub gets a report once all trainers of the pod wait. */
void supervisor_report_up(struct supervisor *s, int local_rank);
/* The trainer ended although the agent had not asked it to, or could not be started. The hub
 * gets the report within this call (1). */
void supervisor_trainer_failed(struct supervisor *s, int local_rank, struct member_failure *failure,
                               double now_ms);

/* The time from the end of a generation until its trainers must have left it, and from the time
 * when a trainer left it by itself until the hub must have ended it. */
#define SUPERVISOR_LEAVE_MS 60000.0

/* Own trainer: it was started. Report its phases to the hub. */
void supervisor_report_started(struct supervisor *s, int local_rank);

/* Start the trainer now. If that fails, the trainer counts as failed. */
void supervisor_start_trainer(struct supervisor *s, int local_rank, double now_ms);

/* End all trainers: by the message `how` if the trainer has a link, else by a signal. When all have
 * ended, the agent exits with `exit_code`. The first call decides code and reason. */
void supervisor_begin_ending(struct supervisor *s, enum link_kind how, int exit_code,
                             const char *reason, double now_ms);
/* Say goodbye to the hub if the last trainer has ended. Before that, a trainer may still have a
 * checkpoint to report. */
void supervisor_say_goodbye(struct supervisor *s);

#endif
