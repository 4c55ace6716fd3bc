/* SPDX-License-Identifier: Apache-2.0 */

/* Messages of trainers, and how trainers end. The machine is drawn in supervisor.c. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "agent/progress_line.h"
#include "agent/supervisor_internal.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"

#define CLOSED_GRACE_MS   5000.0 /* between the end of a link and the end of its process */
#define EXIT_RESTART      101    /* as in Paddle: the trainer asks for a restart */
#define EXIT_RESTART_PLAN 102    /* the same, for a new parallel plan */

/* ---- what trainers say ----------------------------------------------------------------------- */

static void take_hello(struct supervisor *s, int local_rank, const struct link_message *m)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    s->ports[local_rank] = m->hello.port;
    t->level = m->hello.level;
    t->state = TRAINER_WAITING;
    supervisor_report_up(s, local_rank);
}

static void take_ready(struct supervisor *s, int local_rank, const struct link_message *m)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    struct member_output out = {0};

    t->step = m->ready.step;
    t->part = m->ready.part;
    if (m->ready.phase == FLEET_PHASE_FIRST_STEP)
        t->failures = 0;
    if (m->ready.phase != FLEET_PHASE_WAITING) {
        member_trainer_holds(s->member, local_rank, &t->part);
        member_trainer_phase(s->member, local_rank, m->generation, m->ready.phase, m->ready.step,
                             m->ready.at_ms, supervisor_clock(s), &out);
        supervisor_apply(s, &out);
        return;
    }
    if (s->is_ending)
        return; /* it is about to save within its grace */
    t->kill_at_ms = INFINITY;
    if (fleet_generation_compare(m->generation, member_generation(s->member)) < 0)
        return; /* it has left a generation; a newer assign is on its way already */
    t->state = TRAINER_WAITING;
    supervisor_report_up(s, local_rank);
}

static void take_progress(struct supervisor *s, int local_rank, const struct link_message *m)
{
    struct member_output out = {0};

    s->trainers[local_rank].step = m->progress.steps[m->progress.count - 1].step;
    for (int i = 0; i < m->progress.count; i++) { /* (5) */
        const struct link_step *step = &m->progress.steps[i];
        struct message_step reported = {.step = step->step,
                                        .generation = m->generation.counter,
                                        .loss = step->loss,
                                        .grad_norm = step->has_update ? step->gradient_norm : NAN,
                                        .learning_rate =
                                            step->has_update ? step->learning_rate : NAN,
                                        .tokens = step->tokens,
                                        .tokens_per_second = step->tokens_per_second,
                                        .times = step->times};
        member_trainer_step(s->member, &reported, supervisor_clock(s), &out);
    }
    supervisor_apply(s, &out);
}

static void take_finished(struct supervisor *s, int local_rank, const struct link_message *m)
{
    struct member_output out = {0};

    s->trainers[local_rank].state = TRAINER_FINISHED;
    member_trainer_finished(s->member, local_rank, m->finished.steps, m->finished.loss,
                            m->finished.weights_sha256, supervisor_clock(s), &out);
    supervisor_apply(s, &out);
}

static void take_news(struct supervisor *s, const struct link_message *m, int local_rank)
{
    struct member_output out = {0};

    if (m->kind == LINK_PEER_LOST)
        member_peer_lost(s->member, m->generation, m->peer_lost.rank, m->peer_lost.at_ms,
                         supervisor_clock(s), &out);
    else if (m->kind == LINK_CHECKPOINT_DONE)
        member_trainer_checkpoint(s->member, m->generation, m->checkpoint_done.step,
                                  m->checkpoint_done.path, supervisor_clock(s), &out);
    else if (m->kind == LINK_CHECKPOINT_FAILED)
        member_trainer_checkpoint_failed(s->member, m->checkpoint_failed.step,
                                         m->checkpoint_failed.text, supervisor_clock(s), &out);
    else if (local_rank == 0) /* LINK_EVALUATION, (5) */
        member_trainer_evaluation(s->member, m->evaluation.step, m->evaluation.loss,
                                  supervisor_clock(s), &out);
    supervisor_apply(s, &out);
}

/* The trainer answers again. If it was in a generation, it has read the abort and will report next
 * that it waits. */
static void wake_up(struct supervisor *s, int local_rank)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    t->is_silent = false;
    if (t->state == TRAINER_WAITING)
        supervisor_report_up(s, local_rank);
}

void supervisor_message(struct supervisor *s, int local_rank, const struct link_message *m,
                        double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    t->heard_ms = now_ms;
    if (t->is_silent)
        wake_up(s, local_rank);
    if (m->kind == LINK_HEARTBEAT)
        return;
    if (m->kind == LINK_FAILED) {
        (void)snprintf(t->words, sizeof(t->words), "%s", m->failed.text);
        (void)snprintf(t->cause, sizeof(t->cause), "%s", m->failed.cause);
        t->is_permanent = m->failed.permanent;
        return;
    }
    if (m->kind == LINK_WARNING)
        return; /* the host has shown it */
    if ((m->kind == LINK_HELLO) != (t->state == TRAINER_STARTING) || m->kind <= LINK_DONE) {
        if (!s->is_ending)
            supervisor_link_broken(s, local_rank, "it spoke out of turn", now_ms);
        return;
    }
    if (m->kind == LINK_HELLO)
        take_hello(s, local_rank, m);
    else if (!s->member)
        return; /* the pod is not complete, so it is in no generation */
    else if (m->kind == LINK_READY)
        take_ready(s, local_rank, m);
    else if (m->kind == LINK_PROGRESS)
        take_progress(s, local_rank, m);
    else if (m->kind == LINK_FINISHED)
        take_finished(s, local_rank, m);
    else
        take_news(s, m, local_rank);
}

/* ---- what own trainers report ------------------------------------------------------------ */

/* It has reached this phase of its generation and those before; -1 = the step is not known. */
static void report_phases(struct supervisor *s, int local_rank, enum fleet_phase reached,
                          int64_t step)
{
    const struct supervised_trainer *t = &s->trainers[local_rank];
    struct member_output out = {0};

    for (enum fleet_phase phase = FLEET_PHASE_CONNECTED; phase <= reached; phase++)
        member_trainer_phase(s->member, local_rank, t->generation, phase, step, supervisor_clock(s),
                             supervisor_clock(s), &out);
    supervisor_apply(s, &out);
}

/*
 * An own trainer counts as training from its start on. If the job has reported steps before, its
 * rank 0 should report again: then the generation trains from that report on.
 */
void supervisor_report_started(struct supervisor *s, int local_rank)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    bool has_reported = s->place.assign->progress_step > 0;

    if (!t->is_alive || fleet_generation_compare(t->generation, s->place.assign->generation) != 0)
        return;
    t->is_awaited = has_reported && t->rank == 0;
    report_phases(s, local_rank,
                  t->is_awaited  ? FLEET_PHASE_CONNECTED
                  : has_reported ? FLEET_PHASE_RESTORED
                                 : FLEET_PHASE_FIRST_STEP,
                  -1);
}

/* The generation trains once rank 0 reports where it goes on, or has made a step. */
static void take_first_report(struct supervisor *s, int local_rank,
                              const struct progress_line *line)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    bool is_training = line->is_ready || line->step > 0 || line->checkpoint > 0;

    if (!t->is_awaited || (line->resumed < 0 && !is_training))
        return;
    report_phases(s, local_rank, FLEET_PHASE_RESTORED, line->resumed);
    if (!is_training)
        return;
    t->is_awaited = false;
    t->failures = 0;
    for (int i = 0; i < s->config.processes; i++) /* a pod is there when all are */
        report_phases(s, i, FLEET_PHASE_FIRST_STEP, -1);
}

static void report_step(struct supervisor *s, struct supervised_trainer *t,
                        const struct progress_line *line)
{
    struct message_step step = {.step = line->step,
                                .generation = t->generation.counter,
                                .steps = line->steps,
                                .loss = line->loss,
                                .grad_norm = line->gradient_norm,
                                .learning_rate = line->learning_rate,
                                .tokens = line->tokens,
                                .tokens_per_second = line->tokens_per_second,
                                .times = {NAN, NAN, NAN, NAN, NAN}};
    struct member_output out = {0};

    if (line->step < line->checkpoint) { /* it has made these steps, even without a report */
        step.step = line->checkpoint;
        step.loss = NAN;
    }
    if (step.step <= 0 || step.step <= t->step)
        return;
    t->step = step.step;
    t->loss = isnan(step.loss) ? t->loss : step.loss;
    member_trainer_step(s->member, &step, supervisor_clock(s), &out);
    supervisor_apply(s, &out);
}

/* It stays, and has left generation line->left. */
static void take_left(struct supervisor *s, int local_rank, int64_t left, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    if (s->is_ending || t->is_stopping || t->state != TRAINER_RUNNING)
        return;
    if (left < t->generation.counter) { /* the next one is on its way already */
        t->kill_at_ms = INFINITY;
    } else if (s->has_place) { /* the hub has not ended the generation: will it? */
        t->has_left = true;
        t->kill_at_ms = now_ms + SUPERVISOR_LEAVE_MS;
    } else {
        t->state = TRAINER_WAITING;
        t->kill_at_ms = INFINITY;
        supervisor_report_up(s, local_rank);
    }
}

void supervisor_progress(struct supervisor *s, int local_rank, const struct progress_line *line,
                         double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    struct member_output out = {0};

    if (!s->config.has_own_trainer || !s->member || !t->is_alive)
        return;
    t->stays |= line->stays && s->host.renew;
    if (t->stays && line->left >= 0)
        take_left(s, local_rank, line->left, now_ms);
    if (t->rank != 0)
        return;
    take_first_report(s, local_rank, line);
    report_step(s, t, line);
    if (!isnan(line->evaluation_loss) && t->step > 0)
        member_trainer_evaluation(s->member, t->step, line->evaluation_loss, supervisor_clock(s),
                                  &out);
    if (line->checkpoint > 0) /* also after SIGTERM: it saves before it ends */
        member_trainer_checkpoint(s->member, t->generation, line->checkpoint,
                                  line->path ? line->path : "", supervisor_clock(s), &out);
    supervisor_apply(s, &out);
}

/* ---- how links end --------------------------------------------------------------------------- */

void supervisor_link_closed(struct supervisor *s, int local_rank, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    if (t->is_alive)
        t->kill_at_ms = fmin(t->kill_at_ms, now_ms + CLOSED_GRACE_MS);
}

void supervisor_link_broken(struct supervisor *s, int local_rank, const char *reason, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    if (!t->is_alive)
        return;
    if (!t->words[0])
        (void)snprintf(t->words, sizeof(t->words), "the trainer was ended: %s", reason);
    t->kill_at_ms = now_ms; /* the failure is its end, which is noticed next */
    s->host.signal(s->host.user, local_rank, SIGKILL);
}

/* The end of its log, and its last error text below. */
static void collect_lines(struct supervisor *s, int local_rank, struct fleet_strbuf *out)
{
    const char *words = s->trainers[local_rank].words;

    if (s->host.last_lines)
        fleet_strbuf_append(out, s->host.last_lines(s->host.user, local_rank));
    if (words[0])
        fleet_strbuf_appendf(out, "%s\n", words);
}

/* ---- what the system says -------------------------------------------------------------------- */

static void finish_own(struct supervisor *s, int local_rank)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    struct member_output out = {0};

    t->state = TRAINER_FINISHED;
    member_trainer_finished(s->member, local_rank, t->step > 0 ? t->step : 0, t->loss, "",
                            supervisor_clock(s), &out);
    supervisor_apply(s, &out);
}

static void own_stopped(struct supervisor *s, int local_rank, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    t->is_stopping = false;
    t->state = TRAINER_DOWN;
    if (s->has_place) { /* a new generation has come meanwhile */
        supervisor_start_trainer(s, local_rank, now_ms);
        supervisor_report_started(s, local_rank);
    } else {
        supervisor_report_up(s, local_rank);
    }
}

/*
 * We did not send this SIGKILL: was the memory used up? A shell reports a SIGKILL by its exit code.
 */
static void explain_kill(struct supervisor *s, int local_rank, struct member_failure *failure)
{
    struct supervised_trainer *t = &s->trainers[local_rank];

    if (failure->signal != SIGKILL && failure->exit_code != 128 + SIGKILL)
        return;
    if (t->words[0] || !s->host.is_out_of_memory || !s->host.is_out_of_memory(s->host.user))
        return;
    failure->cause = fleet_cause_word(FLEET_CAUSE_OOM_KILLED);
    (void)snprintf(t->words, sizeof(t->words), "the kernel killed it for lack of memory");
}

void supervisor_exited(struct supervisor *s, int local_rank, int wait_status, double now_ms)
{
    struct supervised_trainer *t = &s->trainers[local_rank];
    int signal_number = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    int exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    FLEET_AUTO_STRBUF struct fleet_strbuf lines = {0};
    struct member_failure failure = {.exit_code = exit_code, .signal = signal_number, .cause = ""};

    t->is_alive = t->is_silent = false;
    t->kill_at_ms = INFINITY;
    if (s->is_ending || (t->state == TRAINER_FINISHED && exit_code == 0))
        t->state = TRAINER_GONE;
    else if (t->is_stopping || (t->state == TRAINER_WAITING && t->stays && exit_code == 0))
        own_stopped(s, local_rank, now_ms);
    else if (s->config.has_own_trainer && exit_code == 0)
        finish_own(s, local_rank);
    else {
        if (exit_code == EXIT_RESTART || exit_code == EXIT_RESTART_PLAN)
            failure.cause = fleet_cause_word(FLEET_CAUSE_RESTART_REQUESTED);
        if (t->cause[0])
            failure.cause = t->cause;
        explain_kill(s, local_rank, &failure);
        collect_lines(s, local_rank, &lines);
        failure.lines = fleet_strbuf_text(&lines);
        supervisor_trainer_failed(s, local_rank, &failure, now_ms);
        if (s->config.has_own_trainer && t->state == TRAINER_DOWN)
            supervisor_report_up(s, local_rank); /* no back-off: the next assign starts it */
    }
    if (s->is_ending)
        supervisor_say_goodbye(s);
}
