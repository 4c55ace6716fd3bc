/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The text that says what the job waits for before its next generation. hub_form.c notes the cause;
 * users read the text in the status and in the progress line. A short wait is not reported. The
 * text has no number that changes during the wait, so each wait is reported once.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/rendezvous/hub_internal.h"

#define REPORT_MS     2000.0  /* shorter waits are not reported */
#define REPORT_FEW_MS 10000.0 /* pods take this long to start, and each report writes the status */

/* An agent ends a trainer that holds state and does not answer after a minute
 * (agent/supervisor.c). */
#define SILENT_TRAINER_MS 60000.0

void hub_wait_note(struct hub *hub, enum hub_wait_cause cause, double until_ms)
{
    hub->wait.cause = cause;
    hub->wait.until_ms = until_ms;
}

static void describe_back_off(const struct hub *hub, char *out, size_t size)
{
    const struct hub_incident *incident = &hub->incident;
    int number = hub->restarts_total + hub->restarts_ignored + 1;
    double seconds = (hub->restart_ms - hub->failed_ms) / 1000;
    char after[MESSAGE_CAUSE_MAX + 64];

    if (incident->signal > 0)
        hub_output_text(after, "the trainer of worker %d was ended by signal %d", incident->member,
                        incident->signal);
    else if (incident->exit_code >= 0)
        hub_output_text(after, "worker %d exited with code %d", incident->member,
                        incident->exit_code);
    else if (incident->member >= 0)
        hub_output_text(after, "%s of worker %d", incident->cause, incident->member);
    else
        hub_output_text(after, "%s", incident->cause);
    (void)snprintf(out, size, "restart %d in %.0f s, after %s", number, seconds, after);
}

/* A member that holds state and whose trainer does not answer; of several the one with the newest
 * state. NULL = none. */
static const struct hub_peer *find_silent(const struct hub *hub)
{
    const struct hub_peer *found = NULL;

    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        if (hub_form_is_present(peer) && peer->status.state == MESSAGE_STATE_STARTING &&
            peer->status.step > 0 && (!found || peer->status.step > found->status.step))
            found = peer;
    }
    return found;
}

static void describe_few(struct hub *hub, char *out, size_t size)
{
    const struct hub_peer *silent = hub->policy.own_trainer ? NULL : find_silent(hub);

    (void)snprintf(out, size, "waits for workers: at least %d are needed", hub_cells_least(hub));
    if (!silent)
        return;
    (void)snprintf(
        out, size,
        "waits for workers: at least %d are needed; the trainer of worker %d holds the state of "
        "step %" PRId64 " and does not answer: its agent ends it unless it comes back",
        hub_cells_least(hub), silent->index, silent->status.step);
    hub->wait.until_ms = fmin(hub->wait.until_ms, silent->down_ms + SILENT_TRAINER_MS);
}

/* The event's cause and its text; describe() adds to some texts. */
static const struct {
    const char *word, *text;
} waits[HUB_WAIT_CAUSES] = {
    [HUB_WAIT_NONE] = {"", ""},
    [HUB_WAIT_BACK_OFF] = {"BackOff", ""},
    [HUB_WAIT_FEW] = {"TooFewWorkers", ""},
    [HUB_WAIT_START] = {"FewerWorkers", "waits for the other workers; training begins without them "
                                        "if they do not come"},
    [HUB_WAIT_REPLACEMENT] = {"Replacement", "waits for the replacement of a worker; the others go "
                                             "on without it if it does not come"},
    [HUB_WAIT_TRAINERS] = {"Trainers",
                           "waits for trainers that are being started; the others go on "
                           "without them if they do not come"},
    [HUB_WAIT_LEAVING] = {"Leaving",
                          "waits for trainers that have not left the last generation yet"},
    [HUB_WAIT_HOLDER] = {"HolderAway", ""}, /* hub_holder.c has written the message */
};

/* Fills hub->wait.message; may also correct the time until when. */
static void describe(struct hub *hub)
{
    struct hub_wait *wait = &hub->wait;

    if (wait->cause == HUB_WAIT_BACK_OFF)
        describe_back_off(hub, wait->message, sizeof(wait->message));
    else if (wait->cause == HUB_WAIT_FEW)
        describe_few(hub, wait->message, sizeof(wait->message));
    else if (waits[wait->cause].text[0])
        hub_output_text(wait->message, "%s", waits[wait->cause].text);
}

/* A back-off is reported at once, because its length is known. Other waits are reported after a
 * while, if they will last longer. */
static bool is_worth_a_word(struct hub *hub)
{
    bool is_start = hub->wait.cause == HUB_WAIT_FEW && isinf(hub->wait.until_ms);
    double since_ms = hub->wait_since_ms + (is_start ? REPORT_FEW_MS : REPORT_MS);

    if (hub->wait.until_ms - hub->now_ms <= REPORT_MS)
        return false;
    if (hub->wait.cause == HUB_WAIT_BACK_OFF || hub->now_ms >= since_ms)
        return true;
    hub_wake_at(hub, since_ms);
    return false;
}

void hub_wait_report(struct hub *hub, struct hub_output *out)
{
    struct hub_wait *wait = &hub->wait, *reported = &hub->wait_reported;
    struct hub_event *event;

    if (wait->cause != hub->wait_cause) {
        hub->wait_cause = wait->cause;
        hub->wait_since_ms = hub->now_ms;
    }
    if (wait->cause != HUB_WAIT_NONE)
        describe(hub);
    if (wait->cause == HUB_WAIT_NONE || (!is_worth_a_word(hub) && reported->cause != wait->cause))
        *wait = (struct hub_wait){0};
    if (strcmp(wait->message, reported->message) == 0 &&
        (wait->until_ms == reported->until_ms ||
         fabs(wait->until_ms - reported->until_ms) < REPORT_MS))
        return;
    *reported = *wait;
    event = hub_output_event(out, hub, HUB_EVENT_WAITING, NULL);
    hub_output_text(event->cause, "%s", waits[wait->cause].word);
    hub_output_text(event->message, "%s", wait->message);
    event->until_ms = wait->until_ms;
}
