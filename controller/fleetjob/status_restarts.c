/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status_restarts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/oom.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

#define SKEW_MS 5000 /* allowed difference between a node's clock and ours */

/* Round for users: the last digits are noise. */
static void round_ms(double *ms)
{
    *ms = round(10.0 * *ms) / 10.0; /* NaN stays */
}

void status_observe_begun(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    struct fleetjob_restarts *restarts = &pass->status->restarts;
    char message[HUB_VIEW_UNTOLD_SIZE];

    if (!hub->has_begun ||
        (restarts->has_begun && restarts->begun.generation >= hub->begun.generation.counter))
        return;
    free(restarts->begun.cause);
    free(restarts->begun.message);
    restarts->has_begun = true;
    restarts->begun = hub_view_begun(&hub->begun, pass->now, message);
    restarts->begun.cause = restarts->begun.message = NULL;
    fleet_set_text(&restarts->begun.cause, hub->begun.cause);
    if (message[0])
        fleet_set_text(&restarts->begun.message, message);
}

/* The text has no times or numbers that differ each time, so the API server merges equal texts into
 * one Event with a count. The history has the numbers. */
static void report_restart(struct pass *pass, const struct fleetjob_restart *restart)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool is_resize = fleet_cause_find(restart->cause) == FLEET_CAUSE_RESIZE;

    fleet_strbuf_appendf(&text, "After %s", restart->cause);
    if (restart->member >= 0)
        fleet_strbuf_appendf(&text, " of worker %lld", (long long)restart->member);
    if (restart->exit_code >= 0)
        fleet_strbuf_appendf(&text, ", exit code %lld", (long long)restart->exit_code);
    if (restart->lost_steps == 0 && restart->generation <= pass->in->hub.untrained)
        fleet_strbuf_append(&text, ", no step had been made yet");
    else if (restart->lost_steps >= 0)
        fleet_strbuf_appendf(&text, ", %lld step%s lost", (long long)restart->lost_steps,
                             restart->lost_steps == 1 ? "" : "s");
    if (restart->message)
        fleet_strbuf_appendf(&text, "; %s", restart->message);
    pass_event(pass,
               !fleet_cause_is_wanted(fleet_cause_find(restart->cause)) || restart->lost_steps > 0,
               is_resize ? WELLKNOWN_EVENT_RESIZED : WELLKNOWN_EVENT_RESTARTED, "%s", text.text);
}

/* A pod's status may explain its end, which the hub does not know. It may arrive after the restart
 * is in the history. */
static void explain_newest(struct pass *pass)
{
    const struct fleetjob_restarts *restarts = &pass->status->restarts;
    size_t count = restarts->history.count;
    struct fleetjob_restart *restart = count > 0 ? &restarts->history.items[count - 1] : NULL;
    int64_t since = count > 1 ? restarts->history.items[count - 2].at_wall_ms : 0;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (!restart || restart->message || restart->member < 0)
        return;
    if (restart->exit_code >= 0 && fleet_cause_find(restart->cause) != FLEET_CAUSE_OOM_KILLED)
        return; /* its agent reported the failure */
    if (!oom_is_cause(pass, (int)restart->member, -1, restart->cause, since,
                      restart->at_wall_ms + SKEW_MS))
        return;
    oom_describe(pass, (int)restart->member, &text);
    fleet_set_text(&restart->cause, fleet_cause_word(FLEET_CAUSE_OOM_KILLED));
    fleet_set_text(&restart->message, text.text);
}

/* A copy of the newest entry of the history, completed from its pod's status. */
static const struct fleetjob_restart *append_restart(struct pass *pass,
                                                     const struct fleetjob_restart *restart)
{
    struct fleetjob_restarts *restarts = &pass->status->restarts;
    struct fleetjob_restart *added;

    if (restarts->history.count == FLEETJOB_HISTORY_MAX) {
        free(restarts->history.items[0].cause);
        free(restarts->history.items[0].message);
        restarts->history.count--;
        memmove(restarts->history.items, restarts->history.items + 1,
                restarts->history.count * sizeof(*restart));
    }
    restarts->history.items =
        fleet_grow(restarts->history.items, restarts->history.count, sizeof(*restart));
    added = &restarts->history.items[restarts->history.count++];
    *added = *restart;
    added->cause = added->message = NULL;
    fleet_set_text(&added->cause, restart->cause);
    explain_newest(pass);
    if (restart->message && !added->message)
        fleet_set_text(&added->message, restart->message);
    round_ms(&added->detect_ms);
    round_ms(&added->agree_ms);
    round_ms(&added->connect_ms);
    round_ms(&added->restore_ms);
    round_ms(&added->resume_ms);
    round_ms(&added->first_step_ms);
    return added;
}

/* Add the restart in `begun` to the history, unless it is already there. */
static void close_restart(struct pass *pass, bool is_reported)
{
    struct fleetjob_restarts *restarts = &pass->status->restarts;
    const struct fleetjob_restart *begun = &pass->before->restarts.begun, *added;
    int64_t newest = restarts->history.count > 0
                         ? restarts->history.items[restarts->history.count - 1].generation
                         : 0;

    if (!pass->before->restarts.has_begun || begun->generation <= newest)
        return;
    added = append_restart(pass, begun);
    if (is_reported)
        pass_event(pass, !fleet_cause_is_wanted(fleet_cause_find(begun->cause)),
                   WELLKNOWN_EVENT_RESTARTED,
                   "After %s: its details were lost with the former leader%s%s", added->cause,
                   begun->message ? "; " : "", begun->message ? begun->message : "");
}

void status_close_restart(struct pass *pass)
{
    close_restart(pass, true);
}

/* Is this a hub that cannot report the restart: in another epoch, or made again since (after a
 * suspend)? */
static bool is_begun_elsewhere(const struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    int64_t begun = pass->before->restarts.begun.generation;

    if (!hub->is_hosted || hub->epoch != pass->before->rendezvous.newest.epoch)
        return true;
    if (hub->generation.counter < begun || hub->has_begun)
        return false; /* the restart is about to be assigned, or runs */
    for (size_t i = 0; i < hub->history_count; i++)
        if (hub->history[i].generation >= begun)
            return false;
    return true;
}

void status_close_lost_restart(struct pass *pass)
{
    if (is_begun_elsewhere(pass))
        status_close_restart(pass);
}

void status_close_restart_at_end(struct pass *pass)
{
    close_restart(pass, is_begun_elsewhere(pass));
}

void status_observe_restarts(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    struct fleetjob_restarts *restarts = &pass->status->restarts;
    int64_t newest = 0;

    if (restarts->history.count > 0)
        newest = restarts->history.items[restarts->history.count - 1].generation;
    for (size_t i = 0; i < hub->history_count; i++)
        if (hub->history[i].generation > newest) {
            report_restart(pass, append_restart(pass, &hub->history[i]));
        }
    explain_newest(pass);
    if (hub->generation.counter < pass->before->rendezvous.newest.counter)
        return; /* its restart is already counted; the hub does not know it yet */
    restarts->count = hub->restarts_total;
    restarts->since_reset = hub->restarts;
    if (hub->restarts_ignored > restarts->ignored)
        restarts->ignored = hub->restarts_ignored;
}

const struct hub_view_failure *status_last_failure(const struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;

    return hub->failure_count > 0 ? &hub->failures[hub->failure_count - 1] : NULL;
}

const char *status_last_cause(const struct pass *pass)
{
    const struct hub_view_failure *last = status_last_failure(pass);

    if (last && oom_is_cause(pass, last->member, last->attempt, last->cause, 0, pass->now))
        return fleet_cause_word(FLEET_CAUSE_OOM_KILLED);
    return last ? last->cause : NULL;
}
