/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status_observe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/oom.h"
#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "controller/fleetjob/status_pods.h"
#include "controller/fleetjob/status_restarts.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

#define LOSS_DIGITS 6

static double rounded(double value, int digits)
{
    char text[40];

    (void)snprintf(text, sizeof(text), "%.*g", digits, value);
    return isnan(value) ? NAN : strtod(text, NULL);
}

/* Take the values of the newest step; the others stay until newer ones are reported. */
static void take_progress(struct pass *pass)
{
    const struct fleetjob_progress *reported = &pass->in->hub.progress;
    struct fleetjob_progress *progress = &pass->status->progress;
    int64_t steps = pass->spec->has_training ? pass->spec->training.steps
                    : reported->steps > 0    ? reported->steps
                                             : progress->steps;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    progress->step = reported->step;
    progress->steps = steps;
    progress->at_wall_ms = reported->at_wall_ms;
    progress->loss = rounded(reported->loss, LOSS_DIGITS);
    progress->tokens_per_second = reported->tokens_per_second < 100.0
                                      ? rounded(reported->tokens_per_second, 3)
                                      : round(reported->tokens_per_second);
    fleet_strbuf_appendf(&text, "%lld", (long long)reported->step);
    if (steps > 0)
        fleet_strbuf_appendf(&text, "/%lld", (long long)steps);
    fleet_set_text(&progress->text, text.text);
    if (!pass->status->has_progress)
        progress->held_out_loss = NAN;
    pass->status->has_progress = true;
}

static void observe_progress(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    struct fleetjob_progress *progress = &pass->status->progress;
    double wall_ms = (double)(hub->progress.at_wall_ms - hub->first_step_wall_ms);

    /* An own trainer may restart from below its last checkpoint. */
    if (hub->has_checkpoint &&
        (!pass->spec->has_training || hub->checkpoint.step >= pass->status->checkpoint.step)) {
        pass->status->has_checkpoint = true;
        pass->status->checkpoint.step = hub->checkpoint.step;
        pass->status->checkpoint.at_wall_ms = hub->checkpoint.at_wall_ms;
        fleet_set_text(&pass->status->checkpoint.path, hub->checkpoint.path);
    }
    if (!hub->has_progress || (pass->status->has_progress && hub->progress.step < progress->step))
        return; /* (5) */
    take_progress(pass);
    if (hub->progress.held_out_step > 0 && hub->progress.held_out_step >= progress->held_out_step) {
        progress->held_out_step = hub->progress.held_out_step;
        progress->held_out_loss = rounded(hub->progress.held_out_loss, LOSS_DIGITS);
    }
    progress->goodput =
        wall_ms > 0 ? round(1e3 * fmax(0.0, 1.0 - hub->lost_ms / wall_ms)) / 1e3 : NAN;
}

static void observe_lineage(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    struct fleetjob_rendezvous *rendezvous = &pass->status->rendezvous;
    size_t bytes;

    if (hub->is_deserted)
        rendezvous->trained =
            0; /* for the next hub: that none of its members comes is no failure */
    else if (hub->phase < HUB_FINISHED && hub->trained.counter > rendezvous->trained)
        rendezvous->trained = hub->trained.counter;
    if (fleet_generation_compare(hub->generation, rendezvous->newest) < 0 ||
        hub->lineage.count == 0)
        return;
    status_observe_begun(pass);
    if (fleet_generation_compare(hub->generation, rendezvous->newest) > 0)
        rendezvous->members = hub->members;
    rendezvous->newest = hub->generation;
    bytes = hub->lineage.count * sizeof(hub->lineage.entries[0]);
    rendezvous->lineage.items = realloc(rendezvous->lineage.items, bytes);
    fleet_assert(rendezvous->lineage.items);
    memcpy(rendezvous->lineage.items, hub->lineage.entries, bytes);
    rendezvous->lineage.count = hub->lineage.count;
}

/* The last failure as a text for users. */
static void describe_cause(const struct pass *pass, struct fleet_strbuf *out)
{
    const struct hub_view *hub = &pass->in->hub;
    const struct hub_view_failure *last = status_last_failure(pass);
    const char *cause = status_last_cause(pass);

    if (hub->state_lost[0])
        fleet_strbuf_append(out, hub->state_lost);
    else if (last && last->member >= 0 && !last->names_worker)
        fleet_strbuf_appendf(out, "worker %d: %s", last->member, last->message);
    else
        fleet_strbuf_append(out, last ? last->message : "the workers form a new generation");
    if (fleet_cause_find(cause) == FLEET_CAUSE_OOM_KILLED) {
        fleet_strbuf_append(out, "; OOMKilled: ");
        oom_describe(pass, last->member, out);
    }
}

static void observe_training(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    /*
     * If a hub began from a status that a user edited, it may not know the number of restarts.
     */
    int members = hub->members > 0 ? hub->members : hub->ready;
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};

    if (members > 0)
        fleet_strbuf_appendf(&message, "%d worker%s", members,
                             members == 1 ? " trains" : "s train");
    else
        fleet_strbuf_append(&message, "the workers train");
    status_report_waiting(pass, &message);
    if (status_set(pass, WELLKNOWN_CONDITION_RUNNING, true, WELLKNOWN_REASON_TRAINING,
                   message.text) &&
        !pass->before->has_progress && pass->before->rendezvous.trained == 0)
        pass_event(pass, false, WELLKNOWN_EVENT_STARTED, "Training on %d worker%s", members,
                   members == 1 ? "" : "s");
    (void)status_clear(pass, WELLKNOWN_CONDITION_RESTARTING, WELLKNOWN_REASON_TRAINING,
                       "the training goes on");
}

/* Call this before setting the condition: the condition shows whether it was already reported. */
static void report_lost_state(struct pass *pass)
{
    const struct fleetjob_condition *reported =
        status_find(pass->status, WELLKNOWN_CONDITION_RESTARTING);
    const char *text = pass->in->hub.state_lost;

    if (text[0] && (!reported || strncmp(reported->message, text, strlen(text)) != 0))
        pass_event(pass, true, WELLKNOWN_EVENT_STATE_LOST, "%s", text);
}

/* The condition has the text of the failure that was reported last. */
static void observe_saves(struct pass *pass)
{
    const struct fleetjob_condition *reported =
        status_find(pass->status, WELLKNOWN_CONDITION_CHECKPOINT_FAILED);
    const struct hub_view *hub = &pass->in->hub;

    if (hub->save_failed[0]) {
        bool is_new = !reported || strcmp(reported->message, hub->save_failed) != 0;
        (void)status_set(pass, WELLKNOWN_CONDITION_CHECKPOINT_FAILED, true,
                         WELLKNOWN_REASON_SAVE_FAILED, hub->save_failed);
        if (is_new)
            pass_event(pass, true, WELLKNOWN_EVENT_SAVE_FAILED, "%s", hub->save_failed);
    } else if (hub->has_saved) {
        (void)status_clear(pass, WELLKNOWN_CONDITION_CHECKPOINT_FAILED, WELLKNOWN_REASON_SAVED,
                           "the newest checkpoint is complete");
    }
}

static void observe_running(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    /* An own trainer may report no steps. */
    bool was_running =
        hub->has_run || pass->before->has_progress || pass->status->rendezvous.trained > 0;
    bool is_suspended = pass->spec->run_policy.suspend;
    const char *cause = hub->state_lost[0]       ? fleet_cause_word(FLEET_CAUSE_STATE_LOST)
                        : hub->failure_count > 0 ? status_last_cause(pass)
                                                 : fleet_cause_word(FLEET_CAUSE_MEMBER_LOST);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (hub->phase == HUB_RUNNING) {
        observe_training(pass);
        return;
    }
    if (hub->is_learning)
        return; /* a new leader: the members will report what runs */
    if (is_suspended)
        fleet_strbuf_append(&text, "the job is suspended");
    else if (was_running)
        describe_cause(pass, &text);
    else
        fleet_strbuf_appendf(&text, "%d of %d workers are ready", hub->ready, pass->desired);
    if (!is_suspended && !was_running && hub->failure_count > 0) {
        fleet_strbuf_append(&text, "; ");
        describe_cause(pass, &text);
    }
    if (!is_suspended && pass->status->waiting)
        fleet_strbuf_appendf(&text, "; %s", pass->status->waiting);
    if (!is_suspended)
        status_report_waiting(pass, &text);
    (void)status_set(pass, WELLKNOWN_CONDITION_RUNNING, false,
                     is_suspended  ? WELLKNOWN_REASON_SUSPENDED
                     : was_running ? WELLKNOWN_CONDITION_RESTARTING
                                   : WELLKNOWN_REASON_NOT_STARTED,
                     text.text);
    if (!was_running || hub->phase > HUB_RUNNING || is_suspended)
        return;
    report_lost_state(pass);
    (void)status_set(pass, WELLKNOWN_CONDITION_RESTARTING, true, cause, text.text);
}

static void observe_stalled(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    const char *reason = hub->stall == HUB_STALL_TOO_FEW_MEMBERS ? WELLKNOWN_REASON_TOO_FEW_WORKERS
                         : hub->is_superseded                    ? WELLKNOWN_REASON_HUB_SUPERSEDED
                                                                 : WELLKNOWN_REASON_NO_PROGRESS;

    if (!hub->stalled[0])
        (void)status_clear(pass, WELLKNOWN_CONDITION_STALLED, WELLKNOWN_REASON_TRAINING,
                           "the training goes on");
    else if (status_set(pass, WELLKNOWN_CONDITION_STALLED, true, reason, hub->stalled))
        pass_event(pass, true, WELLKNOWN_EVENT_STALLED, "%s", hub->stalled);
}

/* Absent while the job trains, and after its end. */
static void observe_waiting(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char until[FLEET_RFC3339_SIZE];

    if (pass->in->searches) {
        fleet_set_text(&pass->status->waiting, pass->in->searches);
        return;
    }
    if (!hub->is_hosted || !hub->waiting[0] || hub->phase != HUB_GATHERING ||
        pass->spec->run_policy.suspend) {
        fleet_set_text(&pass->status->waiting, NULL);
        return;
    }
    fleet_strbuf_append(&text, hub->waiting);
    if (hub->waiting_until_wall_ms > 0) {
        fleet_rfc3339_format(hub->waiting_until_wall_ms, until);
        fleet_strbuf_appendf(&text, " (until %s)", until);
    }
    fleet_set_text(&pass->status->waiting, text.text);
}

void status_observe(struct pass *pass)
{
    if (!pass->in->searches)
        pass->status->observed_generation = pass->in->job->metadata.generation;
    status_count_workers(pass);
    servers_count(pass);
    status_observe_scheduled(pass);
    status_observe_blocked(pass);
    if (pass->status->restarts.count < 0)
        pass->status->restarts.count = 0;
    status_close_lost_restart(pass);
    observe_waiting(pass);
    if (!pass->in->hub.is_hosted)
        return;
    if (pass->in->hub.is_superseded) {
        /* this hub does not know the running generation; the next one will */
        observe_stalled(pass);
        return;
    }
    observe_progress(pass);
    observe_lineage(pass);
    status_observe_restarts(pass);
    observe_running(pass);
    observe_saves(pass);
    observe_stalled(pass);
}

void status_observe_end(struct pass *pass)
{
    pass->status->observed_generation = pass->in->job->metadata.generation;
    status_count_workers(pass);
    servers_count(pass);
    status_close_restart_at_end(pass);
    if (pass->in->hub.is_hosted) { /* reports of leaving members */
        observe_progress(pass);
        observe_saves(pass);
    }
}
