/* SPDX-License-Identifier: Apache-2.0 */

/* How a job ends: all steps done, failed for good, or by order of the owner. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/hub_internal.h"

bool hub_finish_is_over(const struct hub *hub)
{
    return hub->phase == HUB_FINISHED || hub->phase == HUB_FAILED;
}

/* Tell all members that the job is over. */
void hub_finish_end(struct hub *hub, bool succeeded, const char *reason, struct hub_output *out)
{
    struct message done = {.type = MESSAGE_DONE,
                           .done = {.succeeded = succeeded, .reason = hub->end_reason}};

    hub_output_text(hub->end_reason, "%s", reason);
    hub->phase = succeeded ? HUB_FINISHED : HUB_FAILED;
    hub->has_ended_well = succeeded;
    for (size_t i = 0; i < hub->peer_count; i++)
        hub_output_message(out, hub->peers[i], &done);
}

void hub_finish_fail(struct hub *hub, const struct hub_cause *cause, struct hub_output *out)
{
    struct hub_event *event;
    char reason[MESSAGE_REASON_MAX + 1];

    if (hub_finish_is_over(hub))
        return;
    hub_timeline_report(hub, true, out);
    event = hub_output_event(out, hub, HUB_EVENT_FAILED, cause->peer);
    hub_output_text(event->cause, "%s",
                    hub->incident.is_open && !cause->message ? hub->incident.cause : cause->cause);
    event->restarts_used_up = !cause->message;
    if (cause->message) /* this cause replaces earlier ones */
        hub_output_text(reason, "%s", cause->message);
    else
        hub_output_text(reason, "%d restarts are used up; the last cause was %s",
                        hub->policy.restarts_max, event->cause);
    hub_output_text(event->message, "%s", reason);
    event->exit_code = cause->exit_code;
    event->signal = cause->signal;
    if (cause->lines) {
        event->text = fleet_dup_text(cause->lines);
    }
    hub_finish_end(hub, false, reason, out);
}

bool hub_finish_is_decided(const struct hub *hub)
{
    return hub->is_finishing && !hub->policy.own_trainer;
}

void hub_finish_forget(struct hub *hub)
{
    if (!hub->policy.own_trainer)
        return;
    hub->is_finishing = false;
    hub_places_clear(&hub->finished_gone);
    for (size_t i = 0; i < hub->peer_count; i++)
        hub->peers[i]->is_finished = false;
}

void hub_finish_keep(struct hub *hub, int place, struct hub_output *out)
{
    (void)hub_places_add(&hub->finished_gone, place);
    hub_finish_try(hub, out);
}

static bool have_all_finished(const struct hub *hub)
{
    int finished = (int)hub->finished_gone.count;

    for (size_t i = 0; i < hub->peer_count; i++)
        finished += hub->peers[i]->place >= 0 && hub->peers[i]->is_finished;
    return hub->newest_members > 0 && finished >= hub->newest_members;
}

/* Does the member run, or has it not yet begun the newest generation? Own trainers that do not work
 * together may finish before others have begun. */
static bool can_still_finish(const struct hub *hub, const struct hub_peer *peer)
{
    return peer->status.state == MESSAGE_STATE_RUNNING ||
           fleet_generation_compare(peer->status.generation, hub->newest) < 0;
}

/* All steps are done: wait for the members that can still finish, even if others are lost. Own
 * trainers do not share a result, so all of them must finish. */
void hub_finish_try(struct hub *hub, struct hub_output *out)
{
    const struct hub_peer *teller = NULL;
    struct hub_event *event;
    bool differ = false;

    if (!hub->is_finishing || hub_finish_is_over(hub))
        return;
    if (hub->policy.own_trainer && !have_all_finished(hub))
        return;
    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        if (peer->place < 0)
            continue;
        if (!peer->is_finished && peer->is_connected && can_still_finish(hub, peer))
            return;
        if (!peer->is_finished || peer->weights_sha256[0] == '\0')
            continue;
        differ |= teller && strcmp(teller->weights_sha256, peer->weights_sha256) != 0;
        if (!teller || peer->place < teller->place)
            teller = peer;
    }
    hub_timeline_report(hub, true, out); /* one may begin with the last step */
    event = hub_output_event(out, hub, HUB_EVENT_FINISHED, NULL);
    event->step.step = hub->finished_steps;
    event->step.loss = hub->finished_loss;
    event->weights_differ = differ;
    if (teller)
        hub_output_text(event->weights_sha256, "%s", teller->weights_sha256);
    hub_finish_end(hub, true,
                   hub->policy.own_trainer ? "every worker exited with 0" : "all steps are done",
                   out);
}

/* Does any member have unreported steps? It sends them until the hub has them. */
static bool are_steps_to_come(const struct hub *hub)
{
    for (size_t i = 0; i < hub->peer_count; i++)
        if (hub->peers[i]->place >= 0 && hub->peers[i]->is_connected &&
            hub->peers[i]->status.steps_from > 0)
            return true;
    return false;
}

void hub_finish_take(struct hub *hub, struct hub_peer *peer, const struct message_finished *m,
                     struct hub_output *out)
{
    /* The steps before the checkpoint that the job began from were never reported to this hub. */
    int64_t known =
        hub->progress_floor > hub->progress_step ? hub->progress_floor : hub->progress_step;

    struct message_step last = {.step = m->steps,
                                .generation = m->generation.counter,
                                .loss = m->loss,
                                .tokens_per_second = NAN};

    if (peer->place < 0 || fleet_generation_compare(m->generation, hub->newest) != 0 ||
        (hub->policy.own_trainer && hub->is_broken) || (m->steps > known && are_steps_to_come(hub)))
        return;           /* the messages were lost; the member sends both again */
    if (m->steps > known) /* reported to an earlier hub, and lost with it */
        hub_message_step(hub, &last, out);
    peer->is_finished = true;
    hub_output_text(peer->weights_sha256, "%s", m->weights_sha256);
    if (!hub->is_finishing || !isnan(m->loss)) {
        hub->finished_steps = m->steps;
        hub->finished_loss = m->loss;
    }
    hub->is_finishing = true;
    hub_finish_try(hub, out);
}

void hub_finish_take_late(struct hub *hub, struct hub_peer *peer, const struct message *message,
                          struct hub_output *out)
{
    struct message done = {.type = MESSAGE_DONE,
                           .done = {.succeeded = hub->has_ended_well, .reason = hub->end_reason}};

    switch (message->type) {
    case MESSAGE_PROGRESS:
    case MESSAGE_EVALUATION:
    case MESSAGE_CHECKPOINT_DONE:
    case MESSAGE_CHECKPOINT_FAILED:
        hub_message_take(hub, peer, message, out);
        break;
    case MESSAGE_LEFT:
        hub_peer_remove(hub, peer, "it has left", out);
        break;
    case MESSAGE_HEARTBEAT:
        if (!message->heartbeat.status.is_leaving)
            hub_output_message(out, peer, &done); /* the message was lost */
        break;
    default:
        break;
    }
}
