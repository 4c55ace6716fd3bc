/* SPDX-License-Identifier: Apache-2.0 */

/* What the trainers of a pod report, from one process at a time to the member as a whole. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/member_internal.h"

static struct member_process *process_at(struct member *member, int local_rank)
{
    fleet_assert(local_rank >= 0 && local_rank < member->process_count);
    return &member->processes[local_rank];
}

void member_set_port(struct member *member, int local_rank, int port)
{
    process_at(member, local_rank)->port = port;
}

void member_trainer_holds(struct member *member, int local_rank, const struct fleet_part *part)
{
    process_at(member, local_rank)->part = *part;
}

/* One process has left the generation by itself, or has ended: the other processes of the pod must
 * leave, too. */
static void leave_generation(struct member *member, const char *cause, struct member_output *out)
{
    if (!member->is_joined)
        return;
    if (!member->is_pending)
        member_abort_trainers(member, cause, out);
    member->is_joined = member->is_pending = false;
    member_store_forget(member);
}

void member_trainer_up(struct member *member, int local_rank, int64_t step, double now_ms,
                       struct member_output *out)
{
    struct member_process *process = process_at(member, local_rank);
    bool is_new = process->state == PROCESS_DOWN;

    member_enter(member, now_ms);
    if (process->state == PROCESS_RUNNING && !member->is_pending) {
        process->state = PROCESS_WAITING; /* before the other processes get the order */
        leave_generation(member, fleet_cause_word(FLEET_CAUSE_PEER_UNREACHABLE), out);
    }
    process->state = PROCESS_WAITING;
    process->is_finished = member->is_finished = false; /* otherwise the process would have ended */
    process->step = step;
    if (step < 0)
        process->state_generation = (struct fleet_generation){0};
    if (member_count(member, PROCESS_WAITING) < member->process_count)
        return;
    if (member->is_joined && member->is_pending)
        member_deliver(member, out);
    else if (is_new && member_report_can_send(member))
        member_report_hello(member, out); /* its port may have changed */
    else
        member_report_ready(member, 0, out);
}

void member_trainer_phase(struct member *member, int local_rank, struct fleet_generation generation,
                          enum fleet_phase phase, int64_t step, double at_ms, double now_ms,
                          struct member_output *out)
{
    struct member_process *process = process_at(member, local_rank);
    double last_ms = at_ms;

    member_enter(member, now_ms);
    if (process->state != PROCESS_RUNNING || !member->is_joined || member->is_pending ||
        fleet_generation_compare(generation, member->obeyed) != 0 || phase <= process->phase)
        return; /* (3) */
    process->phase = phase;
    process->phase_at_ms = at_ms;
    if (phase >= FLEET_PHASE_RESTORED && !member->own_trainer) {
        process->step = step;
        process->state_generation = member->obeyed;
    }
    if (phase == FLEET_PHASE_RESTORED)
        process->restored_step = step;
    if (member_report_phase(member) != phase)
        return;
    for (int i = 0; i < member->process_count; i++)
        last_ms = fmax(last_ms, member->processes[i].phase_at_ms);
    member_report_ready(member, now_ms - last_ms, out);
}

void member_trainer_step(struct member *member, const struct message_step *step, double now_ms,
                         struct member_output *out)
{
    struct message_step copy = *step;

    member_enter(member, now_ms);
    if (copy.generation == 0)
        copy.generation = member->obeyed.counter;
    for (int i = 0; i < member->process_count && !member->own_trainer; i++)
        if (member->processes[i].state == PROCESS_RUNNING && member->processes[i].step < step->step)
            member->processes[i].step = step->step;
    member_steps_add(&member->steps, &copy);
    member_report_steps_when_due(member, out);
}

void member_trainer_evaluation(struct member *member, int64_t step, double loss, double now_ms,
                               struct member_output *out)
{
    member_enter(member, now_ms);
    member_steps_add_evaluation(&member->steps, step, loss);
    if (member_report_is_reporter(member))
        member_report_steps(member, out);
}

void member_trainer_checkpoint_failed(struct member *member, int64_t step, const char *reason,
                                      double now_ms, struct member_output *out)
{
    struct message message = {.type = MESSAGE_CHECKPOINT_FAILED,
                              .checkpoint_failed = {.step = step, .reason = reason}};

    member_enter(member, now_ms);
    if (member_report_can_send(member))
        member_report_send(member, &message, out);
}

void member_trainer_checkpoint(struct member *member, struct fleet_generation generation,
                               int64_t step, const char *path, double now_ms,
                               struct member_output *out)
{
    member_enter(member, now_ms);
    free(member->checkpoint_path);
    member->checkpoint_path = fleet_dup_or_empty(path);
    member->checkpoint_step = step;
    member->checkpoint_generation = generation;
    member_report_checkpoint(member, out);
}

/* If the hub is lost before it has learnt of this failure, it cannot count it. So the member
 * reports it to the next hub. */
static void leave_for_failure(struct member *member, const char *cause, struct member_output *out)
{
    if (member->is_joined)
        (void)snprintf(member->left_for, sizeof(member->left_for), "%s", cause);
    leave_generation(member, fleet_cause_word(FLEET_CAUSE_MEMBER_LOST), out);
}

void member_trainer_silent(struct member *member, int local_rank, double now_ms,
                           struct member_output *out)
{
    struct member_process *process = process_at(member, local_rank);

    member_enter(member, now_ms);
    process->state = PROCESS_DOWN;
    process->phase = FLEET_PHASE_WAITING;
    leave_for_failure(member, fleet_cause_word(FLEET_CAUSE_MEMBER_LOST), out);
    member_report_heartbeat(member, out);
}

void member_trainer_failed(struct member *member, const struct member_failure *failure,
                           double now_ms, struct member_output *out)
{
    struct member_process *process = process_at(member, failure->local_rank);

    member_enter(member, now_ms);
    process->state = PROCESS_DOWN;
    process->step = -1;
    process->part = (struct fleet_part){0};
    process->phase = FLEET_PHASE_WAITING;
    process->is_finished = false;
    member_forget_failure(process);
    process->failure = *failure;
    process->failure.cause = fleet_dup_or_empty(failure->cause);
    process->failure.lines = fleet_dup_or_empty(failure->lines);
    process->failed_in = member->obeyed;
    process->has_failed = true;
    process->state_generation = (struct fleet_generation){0};
    member->is_finished = false;
    member_report_steps(member, out);
    member_report_failures(member, out);
    leave_for_failure(member,
                      failure->cause[0] ? failure->cause
                      : failure->signal ? fleet_cause_word(FLEET_CAUSE_MEMBER_LOST)
                                        : fleet_cause_word(FLEET_CAUSE_TRAINER_FAILED),
                      out);
}

void member_trainer_finished(struct member *member, int local_rank, int64_t steps, double loss,
                             const char *weights_sha256, double now_ms, struct member_output *out)
{
    member_enter(member, now_ms);
    process_at(member, local_rank)->is_finished = true;
    member->finished_steps = steps;
    member->finished_loss = loss;
    if (weights_sha256[0] != '\0' && strlen(weights_sha256) < sizeof(member->finished_sha256))
        memcpy(member->finished_sha256, weights_sha256, strlen(weights_sha256) + 1);
    member->is_finished = true;
    for (int i = 0; i < member->process_count; i++)
        member->is_finished &= member->processes[i].is_finished;
    member_report_finished(member, out);
}
