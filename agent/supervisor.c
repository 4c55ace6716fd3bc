/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Each trainer:
 *
 *             start_trainer                hello                   assign
 *   DOWN ─────────────────────▶ STARTING ─────────▶ WAITING ───────────────────▶ RUNNING
 *    ▲ ▲                            │                │   ▲                        │  │
 *    │ │                            │ exit           │   └── ready(waiting) ──────┘  │ finished
 *    │ └── back-off ── trainer_failed ◀──────────────┴──────────── exit ─────────────┤
 *    │                              │ permanent                                      ▼
 *    └── (own trainer, abort)       └──────────────▶ GONE ◀────── exit 0 ────── FINISHED
 *
 *  An own trainer that stays goes RUNNING -> WAITING -> RUNNING as a built-in one: by its lines
 *  (supervisor_progress()) and by renew().
 *
 * The supervisor:
 *
 *   WORKING ── leave, done, refused, SIGTERM: begin_ending ──▶ ENDING ── all trainers gone ──▶ over
 *
 *  DOWN     -> STARTING  supervisor_start_trainer()   at once, or when its back-off is over
 *  STARTING -> WAITING   take_hello()                 the hub is informed once all are up
 *  WAITING  -> RUNNING   assign_trainers()            an own trainer goes DOWN -> RUNNING here
 *  RUNNING  -> FINISHED  take_finished()              it stays until the job is done everywhere
 *  *        -> DOWN      supervisor_trainer_failed()  first of all reported to the hub
 *  *        -> GONE      supervisor_exited()          ENDING, FINISHED, or failed finally
 *
 *  Trainers' side in supervisor_trainer.c, the hub's in supervisor_order.c.
 *
 *  (1) An end that the agent did not order is reported to the hub within the call that notices it.
 *  (2) Nothing is started while ENDING; every trainer gets at most grace_ms, then SIGKILL.
 *  (3) The first cause is kept: what happens to a trainer after the order to end is no failure.
 *  (4) A trainer that does not answer the order to leave a generation within SUPERVISOR_LEAVE_MS
 *      is
 *      killed, which is a failure like any other. A trainer that sends nothing for SILENCE_MS is
 *      stopped or stuck, and is killed as well. If it holds state, it first only counts as down,
 *      and may come back. It is killed once other trainers hold that state or have gone on without
 *      it, at the latest after SILENCE_PATIENCE_MS.
 *  (5) Every trainer's steps go to the member, which drops repetitions: the trainer that reported
 *      first may be the next to die. Evaluations come from local rank 0 only.
 *  (6) The member's level is the lowest of the pod's trainers.
 *  (7) supervisor_apply() is the last thing a function does with the state: it may bring an order.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/supervisor_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"

#define BACKOFF_FIRST_MS    200.0 /* before the second restart in a row; the first has none */
#define BACKOFF_MAX_MS      10000.0
#define SILENCE_MS          (6.0 * LINK_HEARTBEAT_MS)
#define SILENCE_PATIENCE_MS 60000.0 /* the trainer may be the only one that holds the job's state */
#define GOODBYE_MARGIN_MS   2000.0  /* before SIGKILL, which would look like a failure */
#define DONE_GRACE_MS       10000.0 /* a finished trainer has nothing left to do */

/* ---- talking to the hub ---------------------------------------------------------------------- */

static enum fleet_isa pod_level(const struct supervisor *s)
{
    enum fleet_isa level = s->trainers[0].level;

    for (int i = 1; i < s->config.processes; i++) /* (6) */
        if (s->trainers[i].level < level)
            level = s->trainers[i].level;
    return level;
}

/* A member's clock is monotonic even if its callers' clocks are not. */
double supervisor_clock(const struct supervisor *s)
{
    return s->host.now(s->host.user);
}

void supervisor_apply(struct supervisor *s, struct member_output *out)
{
    s->host.apply(s->host.user, out);
}

static bool all_are_up(const struct supervisor *s)
{
    for (int i = 0; i < s->config.processes; i++)
        if (s->trainers[i].state == TRAINER_STARTING ||
            (s->trainers[i].state == TRAINER_DOWN && !s->config.has_own_trainer))
            return false;
    return true;
}

/* Make sure that there is a member with the level of our trainers. True if it is new: then it knows
 * nothing yet. */
static bool use_member(struct supervisor *s)
{
    struct member *before = s->member;

    s->member = s->host.member(s->host.user, pod_level(s));
    return s->member != before;
}

static void report_up(struct supervisor *s, int local_rank, struct member_output *out)
{
    /* The state of an own trainer has ended with it. */
    int64_t step = s->config.has_own_trainer ? -1 : s->trainers[local_rank].step;

    member_set_port(s->member, local_rank, s->ports[local_rank]);
    member_trainer_holds(s->member, local_rank, &s->trainers[local_rank].part);
    member_trainer_up(s->member, local_rank, step, supervisor_clock(s), out);
}

/* Report to a new member the trainers that were up before it was made. */
static void report_all_up(struct supervisor *s, struct member_output *out)
{
    for (int i = 0; i < s->config.processes; i++)
        if (s->trainers[i].state == TRAINER_WAITING || s->config.has_own_trainer)
            report_up(s, i, out);
}

/* The trainer waits for an assign. It is reported once all trainers of the pod are up. */
void supervisor_report_up(struct supervisor *s, int local_rank)
{
    struct member_output out = {0};

    if (!s->member && !all_are_up(s))
        return;
    if (use_member(s))
        report_all_up(s, &out);
    else
        report_up(s, local_rank, &out);
    supervisor_apply(s, &out);
}

/* ---- starting and failing -------------------------------------------------------------------- */

static double backoff_ms(struct supervisor *s, int failures)
{
    double delay = failures < 2 ? 0.0 : BACKOFF_FIRST_MS * exp2(fmin(failures - 2, 16));
    double jitter = fleet_random_uniform(s->jitter, s->draws++);

    return fmin(delay, BACKOFF_MAX_MS) * (0.75 + 0.5 * jitter);
}

void supervisor_trainer_failed(struct supervisor *s, int local_rank, struct member_failure *failure,
                               double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    struct member_output out = {0};

    failure->local_rank = local_rank;
    failure->at_ms = now_ms;
    failure->fatal = failure->fatal || t->is_permanent;
    t->is_alive = t->is_stopping = false;
    t->kill_at_ms = INFINITY;
    t->step = -1;
    t->part = (struct fleet_part){0};
    t->failures++;
    t->state = failure->fatal ? TRAINER_GONE : TRAINER_DOWN;
    t->start_at_ms = t->state == TRAINER_GONE || s->config.has_own_trainer
                         ? INFINITY
                         : now_ms + backoff_ms(s, t->failures);
    s->host.failed(s->host.user, failure, t->words);
    if (!s->member && use_member(s))
        report_all_up(s, &out);
    member_trainer_failed(s->member, failure, supervisor_clock(s), &out);
    supervisor_apply(s, &out); /* (1) */
}

void supervisor_start_trainer(struct supervisor *s, int local_rank, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    struct fleet_error err;

    t->start_at_ms = t->kill_at_ms = INFINITY;
    t->words[0] = t->cause[0] = '\0';
    t->step = -1;
    t->part = (struct fleet_part){0};
    t->is_permanent = t->is_awaited = t->stays = t->has_left = false;
    t->loss = NAN;
    if (s->config.has_own_trainer) {
        t->generation = s->place.assign->generation;
        t->rank = s->place.first_rank + local_rank;
    }
    if (s->host.start(s->host.user, local_rank, s->config.has_own_trainer ? &s->place : NULL,
                      &err) < 0) {
        bool is_there = err.code == -EACCES || err.code == -ENOEXEC; /* codes as a shell's */
        struct member_failure failure = {.exit_code = is_there ? 126 : 127,
                                         .cause = fleet_cause_word(FLEET_CAUSE_CANNOT_START),
                                         .fatal = true,
                                         .lines = err.text};
        (void)snprintf(t->words, sizeof(t->words), "%s", err.text);
        supervisor_trainer_failed(s, local_rank, &failure, now_ms);
        return;
    }
    t->is_alive = true;
    t->is_silent = false;
    t->heard_ms = now_ms;
    t->state = s->config.has_own_trainer ? TRAINER_RUNNING : TRAINER_STARTING;
}

void supervisor_refuse(struct supervisor *s, enum fleet_cause cause, const char *text,
                       double now_ms)
{
    struct supervised_trainer *t = &s->trainers[0];
    struct member_failure failure = {
        .exit_code = -1, .cause = fleet_cause_word(cause), .fatal = true, .lines = text};

    (void)snprintf(t->words, sizeof(t->words), "%s", text);
    supervisor_trainer_failed(s, 0, &failure, now_ms);
}

/* ---- ending ---------------------------------------------------------------------------------- */

static void end_trainer(struct supervisor *s, int local_rank, enum link_kind how, double grace_ms,
                        double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    struct link_message message = {.kind = how};

    t->start_at_ms = INFINITY;
    if (!t->is_alive) {
        t->state = TRAINER_GONE;
        return;
    }
    if (how == LINK_LEAVE)
        message.leave.grace_ms = grace_ms;
    if (s->config.has_own_trainer)
        s->host.signal(s->host.user, local_rank, SIGTERM);
    else if (t->state == TRAINER_STARTING)
        s->host.signal(s->host.user, local_rank, SIGKILL); /* it has nothing to save */
    else
        s->host.send(s->host.user, local_rank, &message);
    t->kill_at_ms = fmin(t->kill_at_ms, now_ms + grace_ms);
}

static bool is_any_alive(const struct supervisor *s)
{
    for (int i = 0; i < s->config.processes; i++)
        if (s->trainers[i].is_alive)
            return true;
    return false;
}

/* Once the last trainer has ended: until then it may have a checkpoint to report. */
void supervisor_say_goodbye(struct supervisor *s)
{
    struct member_output out = {0};

    if (!s->member || is_any_alive(s))
        return;
    member_leave(s->member, s->reason, supervisor_clock(s), &out);
    supervisor_apply(s, &out);
}

void supervisor_begin_ending(struct supervisor *s, enum link_kind how, int exit_code,
                             const char *reason, double now_ms)
{
    double grace_ms =
        how == LINK_DONE ? fmin(DONE_GRACE_MS, s->config.grace_ms) : s->config.grace_ms;

    if (!s->is_ending) { /* (3) */
        s->exit_code = exit_code;
        (void)snprintf(s->reason, sizeof(s->reason), "%s", reason);
    }
    s->is_ending = true;
    for (int i = 0; i < s->config.processes; i++)
        end_trainer(s, i, how, grace_ms, now_ms);
    supervisor_say_goodbye(s);
}

/* ---- time and life --------------------------------------------------------------------------- */

/* Was this process itself stopped for a while? Then the trainers were not silent. */
static bool was_asleep(struct supervisor *s, double now_ms)
{
    bool asleep = now_ms - s->awake_ms > 2.0 * LINK_HEARTBEAT_MS;

    s->awake_ms = now_ms;
    return asleep;
}

static void kill_trainer(struct supervisor *s, int local_rank, const char *why)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    if (!t->words[0])
        (void)snprintf(t->words, sizeof(t->words), "%s", why);
    t->kill_at_ms = INFINITY;
    t->heard_ms = INFINITY;
    s->host.signal(s->host.user, local_rank, SIGKILL);
}

static void judge_silence(struct supervisor *s, int local_rank, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    struct link_message abort = {.kind = LINK_ABORT};
    struct member_output out = {0};
    bool is_precious =
        s->member && t->step >= 0 && !s->is_ending && now_ms - t->heard_ms < SILENCE_PATIENCE_MS;

    if (!is_precious || (t->is_silent && member_is_spare(s->member, t->step))) {
        kill_trainer(s, local_rank, "it was silent for too long: stopped or stuck");
        return;
    }
    if (t->is_silent)
        return;
    t->is_silent = true;
    abort.generation = member_generation(s->member);
    (void)snprintf(abort.abort.cause, sizeof(abort.abort.cause), "%s",
                   fleet_cause_word(FLEET_CAUSE_MEMBER_LOST));
    s->host.send(s->host.user, local_rank, &abort);
    member_trainer_silent(s->member, local_rank, supervisor_clock(s), &out);
    supervisor_apply(s, &out);
}

bool supervisor_is_stopping(const struct supervisor *s, int local_rank)
{
    return s->trainers[local_rank].is_alive &&
           (s->is_ending || s->trainers[local_rank].is_stopping);
}

double supervisor_deadline(const struct supervisor *s)
{
    double deadline = INFINITY;

    for (int i = 0; i < s->config.processes; i++) {
        const struct supervised_trainer *t = &s->trainers[i];
        deadline = fmin(deadline, t->is_alive ? t->kill_at_ms : t->start_at_ms);
        if (t->is_alive && !s->config.has_own_trainer)
            deadline = fmin(deadline, s->awake_ms + LINK_HEARTBEAT_MS);
    }
    return deadline;
}

void supervisor_tick(struct supervisor *s, double now_ms)
{
    bool asleep = was_asleep(s, now_ms);

    for (int i = 0; i < s->config.processes; i++) {
        struct supervised_trainer *t = &s->trainers[i];
        if (asleep)
            t->heard_ms = fmax(t->heard_ms, now_ms);
        if (t->is_alive && t->kill_at_ms <= now_ms)
            kill_trainer(s, i, "it did not stop when ordered to");
        else if (t->is_alive && !s->config.has_own_trainer && now_ms - t->heard_ms > SILENCE_MS)
            judge_silence(s, i, now_ms);
        else if (!t->is_alive && !s->is_ending && t->start_at_ms <= now_ms)
            supervisor_start_trainer(s, i, now_ms);
    }
}

void supervisor_start(struct supervisor *s, double now_ms)
{
    s->awake_ms = now_ms;
    for (int i = 0; i < s->config.processes && !s->config.has_own_trainer && !s->is_ending; i++)
        supervisor_start_trainer(s, i, now_ms);
    if (s->config.has_own_trainer)
        supervisor_report_up(s, 0);
}

bool supervisor_is_over(const struct supervisor *s, int *out_exit_code)
{
    if (!s->is_ending || is_any_alive(s))
        return false;
    *out_exit_code = s->exit_code;
    return true;
}

double supervisor_patience_ms(const struct supervisor *s, double now_ms)
{
    bool is_missed = s->member && member_assignment(s->member) && !member_has_left(s->member);

    if (s->member && member_owes_checkpoint(s->member))
        return s->config.grace_ms;
    if (!is_missed || !s->is_signalled || !s->config.hub_may_move)
        return 0;
    return fmax(0, s->signalled_ms + s->config.grace_ms - GOODBYE_MARGIN_MS - now_ms);
}

struct supervisor *supervisor_new(const struct supervisor_config *config,
                                  const struct supervisor_host *host)
{
    struct supervisor *s = calloc(1, sizeof(*s));

    fleet_assert(s && config->processes >= 1 && config->processes <= MESSAGE_PROCESSES_MAX);
    s->config = *config;
    s->host = *host;
    s->jitter = fleet_random_key(config->seed, "supervisor", 0);
    memcpy(s->ports, config->ports, (size_t)config->processes * sizeof(*s->ports));
    for (int i = 0; i < config->processes; i++) {
        s->trainers[i].start_at_ms = s->trainers[i].kill_at_ms = INFINITY;
        s->trainers[i].step = -1;
        s->trainers[i].level = config->has_own_trainer ? FLEET_ISA_AMX : FLEET_ISA_PLAIN;
    }
    return s;
}

void supervisor_free(struct supervisor *s)
{
    free(s);
}
