/* SPDX-License-Identifier: Apache-2.0 */

/* What the hub says: a generation begins or ends, a heartbeat, the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cause.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/member.h"
#include "libfleet/rendezvous/member_internal.h"

static void on_heartbeat(struct member *member, const struct message_heartbeat *m,
                         struct member_output *out)
{
    if (m->interval_ms > 0)
        member->interval_ms = m->interval_ms;
    if (m->progress_step > member->steps.acked)
        member->steps_acked_ms = member->now_ms;
    member_steps_ack(&member->steps, m->progress_step);
    member_steps_ack_evaluation(&member->steps, m->evaluation_step);
    member->hub_generation = m->status.generation;
    member->held_step = m->held_step;
    if (member->checkpoint_step <= m->checkpoint_step)
        member_forget_checkpoint(member);
    if (member->connection != CONNECTION_OPEN) {
        member_report_left(member, out);
        return;
    }
    member->connection = CONNECTION_GREETED;
    member->dial_failures = 0;
    member_steps_rewind(&member->steps);
    member_report_failures(member, out);
    member_report_store(member, true, out);
    member_report_steps(member, out);
    member_report_checkpoint(member, out);
    member_report_finished(member, out);
    member_report_left(member, out);
}

/* ---- generations ----------------------------------------------------------------------------- */

/* (2): every process waits, so each gets it once. */
void member_deliver(struct member *member, struct member_output *out)
{
    struct member_action *action = member_append(out, MEMBER_ASSIGN);

    member->is_pending = false;
    member->delivered = member->obeyed;
    for (int i = 0; i < member->process_count; i++) {
        member->processes[i].state = PROCESS_RUNNING;
        member->processes[i].phase = FLEET_PHASE_WAITING;
    }
    action->assign = &member->assignment.assign;
    action->generation = member->obeyed;
    action->place = member->place;
    action->first_rank = member->first_rank;
}

void member_abort_trainers(struct member *member, const char *cause, struct member_output *out)
{
    struct member_action *action;

    if (member_count(member, PROCESS_RUNNING) == 0)
        return;
    action = member_append(out, MEMBER_ABORT);
    action->generation = member->obeyed;
    action->reason = fleet_dup_or_empty(cause);
}

static int find_place(const struct member *member, const struct message_assign *assign)
{
    for (size_t i = 0; i < assign->member_count; i++)
        if (strcmp(assign->members[i].pod_uid, member->pod_uid) == 0)
            return (int)i;
    return -1;
}

static void on_assign(struct member *member, const struct message *message,
                      struct member_output *out)
{
    const struct message_assign *assign = &message->assign;
    int place = find_place(member, assign);

    if (place < 0 || fleet_generation_compare(assign->generation, member->obeyed) <= 0 ||
        assign->members[place].processes != member->process_count || member_is_done(member) ||
        member->is_leaving)
        return; /* (1) */
    if (member->is_joined && !member->is_pending)
        member_abort_trainers(member, fleet_cause_word(FLEET_CAUSE_SUPERSEDED), out);
    if (member->has_assignment)
        message_release(&member->assignment);
    message_copy(message, &member->assignment);
    member->has_assignment = true;
    member->obeyed = assign->generation;
    member->place = place;
    member->left_for[0] = '\0';
    member->first_rank = message_first_rank(assign, place);
    member_store_forget(member);
    member_steps_ack(&member->steps, assign->progress_step);
    member_steps_rewind(&member->steps);

    member->is_joined = member_count(member, PROCESS_DOWN) == 0;
    member->is_pending = member->is_joined;
    if (!member->is_joined)
        member_report_heartbeat(member, out); /* the hub does not yet know that a trainer is down */
    else if (member_count(member, PROCESS_RUNNING) == 0)
        member_deliver(member, out);
}

/* It left its generation by itself, because it lost a peer. The hub knows why that peer went. */
static void learn_cause(struct member *member, const char *cause)
{
    enum fleet_cause known = fleet_cause_find(member->left_for);

    if (cause[0] && fleet_cause_find(cause) != FLEET_CAUSE_SUPERSEDED &&
        (!member->left_for[0] || known == FLEET_CAUSE_PEER_UNREACHABLE))
        (void)snprintf(member->left_for, sizeof(member->left_for), "%s", cause);
}

static void on_abort(struct member *member, const struct message_abort *m,
                     struct member_output *out)
{
    bool was_delivered = member->is_joined && !member->is_pending, is_news;
    int newer = fleet_generation_compare(m->generation, member->obeyed);

    if (newer < 0 || (newer == 0 && member_is_done(member)))
        return; /* (1); or all steps are done, and the hub hears it with the next heartbeat */
    if (was_delivered)
        member_abort_trainers(member, m->cause, out);
    if (newer > 0 && member->has_assignment) {
        message_release(&member->assignment); /* the assign of the aborted generation never came */
        member->has_assignment = false;
        member->place = -1;
    }
    is_news = member->is_joined || newer > 0;
    member->obeyed = m->generation;
    member->is_joined = member->is_pending = false;
    if (!is_news) {
        learn_cause(member, m->cause);
        return;
    }
    (void)snprintf(member->left_for, sizeof(member->left_for), "%s", m->cause);
    member_store_forget(member);
    if (member_count(member, PROCESS_RUNNING) == 0)
        member_report_ready(member, 0, out);
}

void member_receive(struct member *member, const struct message *message, double now_ms,
                    struct member_output *out)
{
    struct member_action *action;

    member_enter(member, now_ms);
    member->heard_ms = now_ms;
    switch (message->type) {
    case MESSAGE_HEARTBEAT:
        on_heartbeat(member, &message->heartbeat, out);
        break;
    case MESSAGE_ASSIGN:
        on_assign(member, message, out);
        break;
    case MESSAGE_ABORT:
        on_abort(member, &message->abort, out);
        break;
    case MESSAGE_CHECKPOINT:
        if (member->is_joined &&
            fleet_generation_compare(message->checkpoint.generation, member->obeyed) == 0)
            member_append(out, MEMBER_CHECKPOINT)->generation = member->obeyed;
        break;
    case MESSAGE_VALUE:
        member_store_value(member, &message->value, out);
        break;
    case MESSAGE_LEAVE:
        if (member->is_dismissed)
            break;
        member->is_dismissed = member->is_leaving = true;
        member_append_reason(out, MEMBER_LEAVE, message->leave.reason);
        break;
    case MESSAGE_DONE:
        if (member->is_dismissed)
            break;
        member->is_dismissed = member->is_leaving = true;
        action = member_append(out, MEMBER_DONE);
        action->succeeded = message->done.succeeded;
        action->reason = fleet_dup_or_empty(message->done.reason);
        break;
    case MESSAGE_REFUSED:
        member->is_over = true;
        member_append_reason(out, MEMBER_REFUSED, message->refused.reason);
        break;
    default:
        member_leave_hub(member, "a hub does not send such a message", out);
        break;
    }
}
