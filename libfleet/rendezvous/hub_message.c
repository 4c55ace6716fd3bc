/* SPDX-License-Identifier: Apache-2.0 */

/* What members report besides their status: steps, failures, lost peers, the store. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libfleet/base/cause.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/hub_internal.h"
#include "libfleet/rendezvous/kv.h"

/*
 * A checkpoint is reported after the steps it contains: if all members died now, the job would
 * go on from it, and steps that were never reported would not be made again. `is_orphan`: a hub
 * before this one had these steps, and is gone with them, so no member reports them any more.
 */
static void report_checkpoint(struct hub *hub, bool is_orphan, struct hub_output *out)
{
    struct hub_event *event;

    if (!hub->checkpoint_path || (hub->checkpoint_due_step > hub->progress_step && !is_orphan))
        return;
    hub->checkpoint_step = hub->checkpoint_due_step;
    fleet_set_text(&hub->resume_path, hub->checkpoint_path);
    event = hub_output_event(out, hub, HUB_EVENT_CHECKPOINT, NULL);
    event->step.step = hub->checkpoint_step;
    event->text = hub->checkpoint_path;
    hub->checkpoint_path = NULL;
}

/*
 * The step was made before a restart that has begun, and is reported after it: it may be lost, too.
 */
static void note_late(struct hub *hub, const struct message_step *step)
{
    if (hub->incident.is_open)
        hub->incident.progress_step = step->step;
    else if (hub->restart.is_open && step->generation < hub->newest.counter)
        hub->restart.incident.progress_step = step->step;
}

void hub_message_step(struct hub *hub, const struct message_step *step, struct hub_output *out)
{
    int64_t count = hub->policy.own_trainer ? step->step - hub->progress_step : 1;
    int64_t enough = hub->policy.reset_after_steps;

    if (step->step <= hub->progress_step)
        return; /* (7) */
    hub->progress_step = step->step;
    note_late(hub, step);
    hub_output_event(out, hub, HUB_EVENT_STEP, NULL)->step = *step;
    report_checkpoint(hub, false, out);
    hub->steps_since_restart += count;
    if (enough > 0 && hub->steps_since_restart >= enough &&
        hub->steps_since_restart - count < enough) {
        hub->restarts = 0;
        hub_accuse_forget(hub, NULL);
    }
}

/*
 * Are steps before `first` missing that a member can still report? Steps of a checkpoint that no
 * member held in memory cannot be reported. The hub waits for others while a member says that it
 * has them, or has had no time to say so.
 */
static bool is_gap(struct hub *hub, int64_t first)
{
    int64_t known =
        hub->progress_step > hub->progress_floor ? hub->progress_step : hub->progress_floor;

    if (first <= known + 1) {
        hub->progress_gap_ms = INFINITY;
        return false;
    }
    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        int64_t from = peer->status.steps_from;
        if (peer->place >= 0 && peer->is_connected && from > 0 && from <= known + 1)
            return true;
    }
    hub->progress_gap_ms = fmin(hub->progress_gap_ms, hub->now_ms);
    return hub->now_ms < hub->progress_gap_ms + HUB_GAP_BEATS * hub_heartbeat_interval(hub);
}

/* A member that reports a step of its generation holds that state. If one of its processes dies
 * before its next heartbeat, the job knows what another one of them still has. */
static void note_held(struct hub_peer *peer, const struct message_progress *m)
{
    const struct message_step *last = m->count > 0 ? &m->steps[m->count - 1] : NULL;

    if (last && !m->is_sparse && last->generation == m->generation.counter &&
        fleet_generation_compare(m->generation, peer->status.state_generation) == 0 &&
        last->step > peer->status.step)
        peer->status.step = last->step;
}

static void on_progress(struct hub *hub, struct hub_peer *peer, const struct message_progress *m,
                        struct hub_output *out)
{
    double step_ms;

    note_held(peer, m);
    peer->status.steps_from = m->steps_from;
    if (peer->place < 0 || m->count == 0 || (!m->is_sparse && is_gap(hub, m->steps[0].step)))
        return; /* another member will send the missing steps, and these come again */
    step_ms = (hub->now_ms - hub->progress_ms) / (double)m->count;
    hub->step_ms_mean = hub->step_ms_mean > 0 ? 0.9 * hub->step_ms_mean + 0.1 * step_ms : step_ms;
    hub->progress_ms = hub->now_ms;
    hub->is_stalled = false;
    if (fleet_generation_compare(m->generation, hub->newest) == 0 &&
        m->steps[m->count - 1].generation == hub->newest.counter)
        hub_status_running(hub, out); /* a step may be reported before "first step reached" is */
    for (size_t i = 0; i < m->count; i++)
        hub_message_step(hub, &m->steps[i], out);
}

static void note_down(struct hub *hub, struct hub_peer *peer)
{
    peer->status = (struct message_status){
        .generation = peer->status.generation,
        .step = peer->processes > 1 ? peer->status.step : -1, /* another process may hold it */
        .state_generation =
            peer->processes > 1 ? peer->status.state_generation : (struct fleet_generation){0}};
    peer->down_ms = hub->now_ms;
}

/*
 * An own trainer may fail because a drained or surplus one has ended. That end is the cause: the
 * generation is over for it, and the next one is on its way.
 */
static bool is_echo(const struct hub *hub)
{
    return hub->policy.own_trainer && hub->is_broken && hub->incident.is_open &&
           !hub->incident.is_failure;
}

static void on_failed(struct hub *hub, struct hub_peer *peer, const struct message_failed *m,
                      struct hub_output *out)
{
    struct hub_event *event = hub_output_event(out, hub, HUB_EVENT_TRAINER_FAILED, peer);
    struct hub_cause cause = {.cause = m->cause[0] ? m->cause
                                       : m->signal ? fleet_cause_word(FLEET_CAUSE_MEMBER_LOST)
                                                   : fleet_cause_word(FLEET_CAUSE_TRAINER_FAILED),
                              .peer = peer,
                              .is_failure = true,
                              .is_explained = true,
                              .exit_code = m->signal ? 128 + m->signal : m->exit_code,
                              .signal = m->signal,
                              .fault_ms = hub->now_ms - m->age_ms,
                              .lines = m->lines};
    /* A late report, perhaps meant for another hub: a newer generation has replaced the one that it
     * ended. */
    bool is_past = m->is_back && fleet_generation_compare(m->generation, hub->newest) < 0;
    char message[MESSAGE_REASON_MAX + 1];

    if (m->signal)
        hub_output_text(message, "the trainer of worker %d was ended by signal %d", peer->index,
                        m->signal);
    else if (m->exit_code < 0)
        hub_output_text(message, "the trainer of worker %d cannot be started", peer->index);
    else
        hub_output_text(message, "the trainer of worker %d exited with code %d%s", peer->index,
                        m->exit_code,
                        !hub->policy.own_trainer ? ""
                        : m->exit_code == 127    ? " (command not found)"
                        : m->exit_code == 126    ? " (command cannot be executed)"
                                                 : "");
    hub_output_text(event->cause, "%s", cause.cause);
    hub_output_text(event->message, "%s", message);
    event->local_rank = m->local_rank;
    event->exit_code = cause.exit_code;
    event->signal = m->signal;
    event->text = fleet_dup_text(m->lines);

    if (!m->is_back)
        note_down(hub, peer);
    hub->is_dirty = true;
    if (hub_finish_is_decided(hub)) {
        hub_finish_try(hub, out);
        return;
    }
    if (is_echo(hub))
        return;
    if (hub_restart_ends_by_rule(hub, &cause, out))
        return;
    if (failure_rules_action(&hub->policy.rules, cause.exit_code, cause.cause) != FAILURE_IGNORE)
        peer->failures++;
    if (m->fatal || hub_restart_is_hopeless(hub, &cause) ||
        peer->failures > hub->policy.restarts_max) {
        cause.message = message;
        hub_finish_fail(hub, &cause, out);
    } else if (peer->place >= 0 && !is_past) {
        hub_form_break(hub, &cause, out);
    }
}

static struct hub_peer *peer_with_rank(const struct hub *hub, int rank)
{
    int first = 0;

    for (int place = 0; place < hub->newest_members; place++) {
        struct hub_peer *at = NULL;
        for (size_t i = 0; i < hub->peer_count && !at; i++)
            if (hub->peers[i]->place == place)
                at = hub->peers[i];
        if (!at)
            return NULL; /* a new hub does not know it yet */
        if (rank >= first && rank < first + at->processes)
            return at;
        first += at->processes;
    }
    return NULL;
}

static void on_peer_lost(struct hub *hub, struct hub_peer *peer, const struct message_peer_lost *m,
                         struct hub_output *out)
{
    struct hub_peer *accused;
    struct hub_cause cause = {.cause = fleet_cause_word(FLEET_CAUSE_PEER_UNREACHABLE),
                              .is_failure = true,
                              .exit_code = -1,
                              .fault_ms = hub->now_ms - m->age_ms};

    if (peer->place < 0 || fleet_generation_compare(m->generation, hub->newest) != 0 ||
        hub_finish_is_decided(hub) || hub->is_broken)
        return; /* (8), and what follows an abort is its echo */
    accused = peer_with_rank(hub, m->rank);
    if (accused && !accused->is_connected) {
        hub_peer_lose(hub, accused, fleet_cause_word(FLEET_CAUSE_MEMBER_LOST),
                      "its connection is broken and a peer lost it", true, cause.fault_ms, out);
        return;
    }
    if (hub_leave_find(hub)) { /* it had announced that it would leave */
        cause = hub_leave_cause(hub, hub_leave_find(hub));
        hub_form_break(hub, &cause, out);
        return;
    }
    if (hub_leave_explains(hub, 1, &cause)) {
        hub_form_break(hub, &cause, out);
        return;
    }
    if (accused && accused != peer)
        hub_accuse_note(hub, peer, accused);
    cause.peer = accused;
    hub_form_break(hub, &cause, out);
}

/*
 * Is this checkpoint newer than the known one? Steps only grow while members hold the state. An own
 * trainer may begin again at an earlier step: then the last report of the newest generation counts.
 */
static bool is_newer_checkpoint(const struct hub *hub, const struct message_checkpoint_done *m)
{
    int order = fleet_generation_compare(m->generation, hub->resume_generation);

    if (hub->policy.own_trainer && fleet_generation_is_none(hub->resume_generation))
        order = fleet_generation_compare(m->generation, hub->newest) == 0 ? 1 : 0;
    if (hub->policy.own_trainer && order != 0)
        return order > 0;
    return m->step > hub->checkpoint_step &&
           (!hub->checkpoint_path || m->step >= hub->checkpoint_due_step);
}

/*
 * A checkpoint of an older generation may be reported late. It counts if it is on the lineage. The
 * member repeats the report until the hub says that it is known or useless; a leaving member waits
 * for that.
 */
static void on_checkpoint(struct hub *hub, const struct hub_peer *peer,
                          const struct message_checkpoint_done *m, struct hub_output *out)
{
    struct message answer = hub_hello_greeting(hub);
    bool counts = fleet_lineage_has(&hub->lineage, m->generation, m->step), is_known;
    bool is_orphan =
        m->generation.epoch != hub->epoch && peer->status.state != MESSAGE_STATE_RUNNING;

    if (counts && is_newer_checkpoint(hub, m)) {
        free(hub->checkpoint_path);
        hub->resume_generation = m->generation;
        hub->checkpoint_path = fleet_dup_text(m->path);
        hub->checkpoint_due_step = m->step;
        report_checkpoint(hub, is_orphan, out);
    }
    answer.heartbeat.progress_step = hub->progress_step;
    answer.heartbeat.evaluation_step = hub->evaluation_step;
    is_known = hub->policy.own_trainer && !hub->checkpoint_path; /* steps may go back */
    answer.heartbeat.checkpoint_step = counts && !is_known ? hub->checkpoint_step : m->step;
    hub_output_message(out, peer, &answer);
}

static void on_checkpoint_failed(struct hub *hub, const struct hub_peer *peer,
                                 const struct message_checkpoint_failed *m, struct hub_output *out)
{
    struct hub_event *event = hub_output_event(out, hub, HUB_EVENT_CHECKPOINT_FAILED, peer);

    event->step.step = m->step;
    hub_output_text(event->message, "%s", m->reason);
}

static void on_evaluation(struct hub *hub, const struct hub_peer *peer,
                          const struct message_evaluation *m, struct hub_output *out)
{
    struct hub_event *event;

    if (peer->place < 0 || m->step <= hub->evaluation_step)
        return;
    hub->evaluation_step = m->step;
    event = hub_output_event(out, hub, HUB_EVENT_EVALUATION, NULL);
    event->step.step = m->step;
    event->step.loss = m->loss;
}

struct answering {
    const struct message_value *value;
    struct hub_output *out;
};

static void answer(void *user, uint64_t connection)
{
    struct answering *answering = user;
    struct message message = {.type = MESSAGE_VALUE, .value = *answering->value};

    hub_output_reply(answering->out, connection, &message);
}

/* If the store is full, the hub closes the connection that filled it; otherwise its trainer would
 * wait for ever. */
static void on_put(struct hub *hub, struct hub_peer *peer, const struct message_value *m,
                   struct hub_output *out)
{
    struct answering answering = {m, out};
    struct fleet_error err;

    if (kv_put(hub->kv, m->generation, m->key, m->value, m->value_size, answer, &answering, &err) <
            0 &&
        fleet_generation_compare(m->generation, hub->newest) == 0)
        hub_output_close(out, peer->connection, true, err.text);
}

static void on_get(struct hub *hub, struct hub_peer *peer, const struct message_get *m,
                   struct hub_output *out)
{
    struct message message = {.type = MESSAGE_VALUE,
                              .value = {.generation = m->generation, .key = m->key}};
    struct fleet_error err;
    int rc = kv_get(hub->kv, m->generation, m->key, peer->connection, &message.value.value,
                    &message.value.value_size, &err);

    if (rc == 1)
        hub_output_message(out, peer, &message);
    else if (rc < 0 && fleet_generation_compare(m->generation, hub->newest) == 0)
        hub_output_close(out, peer->connection, true, err.text);
}

void hub_message_take(struct hub *hub, struct hub_peer *peer, const struct message *message,
                      struct hub_output *out)
{
    char reason[MESSAGE_REASON_MAX + 1];

    switch (message->type) {
    case MESSAGE_READY:
        hub_status_take(hub, peer, &message->ready.status, message->ready.age_ms, false, out);
        break;
    case MESSAGE_HEARTBEAT:
        hub_status_take(hub, peer, &message->heartbeat.status, 0, false, out);
        break;
    case MESSAGE_PROGRESS:
        on_progress(hub, peer, &message->progress, out);
        break;
    case MESSAGE_EVALUATION:
        on_evaluation(hub, peer, &message->evaluation, out);
        break;
    case MESSAGE_FAILED:
        on_failed(hub, peer, &message->failed, out);
        break;
    case MESSAGE_PEER_LOST:
        on_peer_lost(hub, peer, &message->peer_lost, out);
        break;
    case MESSAGE_CHECKPOINT_DONE:
        on_checkpoint(hub, peer, &message->checkpoint_done, out);
        break;
    case MESSAGE_CHECKPOINT_FAILED:
        on_checkpoint_failed(hub, peer, &message->checkpoint_failed, out);
        break;
    case MESSAGE_FINISHED:
        hub_finish_take(hub, peer, &message->finished, out);
        break;
    case MESSAGE_LEFT:
        hub_output_text(reason, "it has left: %s", message->left.reason);
        hub_peer_lose(hub, peer, fleet_cause_word(FLEET_CAUSE_MEMBER_LEFT), reason, false,
                      hub->now_ms, out);
        break;
    case MESSAGE_PUT:
        on_put(hub, peer, &message->put, out);
        break;
    case MESSAGE_GET:
        on_get(hub, peer, &message->get, out);
        break;
    default:
        hub_output_text(reason, "a member does not send \"%s\"", message_type_name(message->type));
        hub_output_close(out, peer->connection, true, reason);
        break;
    }
}
