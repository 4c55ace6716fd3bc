/* SPDX-License-Identifier: Apache-2.0 */

/* The status of a job: conditions, counts, progress, history. One writer; others ask it to. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/oom.h"
#include "controller/fleetjob/pass.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

#define LOSS_DIGITS 6
#define SKEW_MS     5000 /* between the clocks of a node and ours */

/* ---- conditions ------------------------------------------------------------------------------ */

struct fleetjob_condition *status_find(const struct fleetjob_status *status, const char *type)
{
    for (size_t i = 0; i < status->conditions.count; i++)
        if (strcmp(status->conditions.items[i].type, type) == 0)
            return &status->conditions.items[i];
    return NULL;
}

bool status_is_true(const struct fleetjob_status *status, const char *type)
{
    const struct fleetjob_condition *condition = status_find(status, type);

    return condition && strcmp(condition->status, "True") == 0;
}

bool status_is_terminal(const struct fleetjob_status *status)
{
    return status_is_true(status, WELLKNOWN_CONDITION_SUCCEEDED) ||
           status_is_true(status, WELLKNOWN_CONDITION_FAILED);
}

bool status_set(struct pass *pass, const char *type, bool is_true, const char *reason,
                const char *message)
{
    struct fleetjob_status *status = pass->status;
    struct fleetjob_condition *condition = status_find(status, type);
    const char *value = is_true ? "True" : "False";
    bool is_moved = !condition || strcmp(condition->status, value) != 0;

    if (!condition) {
        status->conditions.items =
            realloc(status->conditions.items,
                    (status->conditions.count + 1) * sizeof(*status->conditions.items));
        fleet_assert(status->conditions.items);
        condition = &status->conditions.items[status->conditions.count++];
        *condition = (struct fleetjob_condition){0};
        fleet_set_text(&condition->type, type);
    }
    fleet_set_text(&condition->status, value);
    fleet_set_text(&condition->reason, reason);
    free(condition->message);
    condition->message = kube_message_cut(message);
    fleet_assert(condition->message);
    condition->observed_generation = pass->in->job->metadata.generation;
    if (is_moved)
        condition->last_transition_wall_ms = pass->now;
    return is_moved;
}

bool status_clear(struct pass *pass, const char *type, const char *reason, const char *message)
{
    return status_find(pass->status, type) && status_set(pass, type, false, reason, message);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void end(struct pass *pass, const char *reason)
{
    pass->status->finished_wall_ms = pass->now;
    fleet_set_text(&pass->status->waiting, NULL);
    (void)status_clear(pass, WELLKNOWN_CONDITION_RUNNING, reason, "the job is over");
    (void)status_clear(pass, WELLKNOWN_CONDITION_RESTARTING, reason, "the job is over");
    (void)status_clear(pass, WELLKNOWN_CONDITION_STALLED, reason, "the job is over");
    (void)status_clear(pass, WELLKNOWN_CONDITION_BLOCKED, reason, "the job is over");
}

void status_succeed(struct pass *pass)
{
    const struct fleetjob_result *result = &pass->in->hub.result;
    struct fleetjob_status *status = pass->status;

    if (status_is_terminal(status))
        return;
    if (result->weights_sha256) {
        status->has_result = true;
        status->result.steps = result->steps;
        status->result.loss = result->loss;
        fleet_set_text(&status->result.weights_sha256, result->weights_sha256);
    }
    end(pass, WELLKNOWN_REASON_COMPLETED);
    (void)status_set(pass, WELLKNOWN_CONDITION_SUCCEEDED, true, WELLKNOWN_REASON_COMPLETED,
                     pass->spec->has_training ? "all steps are done"
                                              : "every worker exited with 0");
    pass_event(pass, false, WELLKNOWN_EVENT_SUCCEEDED, "%s",
               pass->spec->has_training ? "All steps are done" : "Every worker exited with 0");
}

void status_fail(struct pass *pass, const char *reason, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};
    va_list args;

    if (status_is_terminal(pass->status))
        return;
    va_start(args, format);
    fleet_strbuf_appendv(&message, format, args);
    va_end(args);
    end(pass, reason);
    (void)status_set(pass, WELLKNOWN_CONDITION_FAILED, true, reason, message.text);
    pass_event(pass, true, WELLKNOWN_EVENT_FAILED, "%s: %s", reason, message.text);
}

/* ---- what the hub says ----------------------------------------------------------------------- */

/* For people: the last digits tell a reader nothing, and fill a column. */
static void round_ms(double *ms)
{
    *ms = round(10.0 * *ms) / 10.0; /* NaN stays */
}

static double rounded(double value, int digits)
{
    char text[40];

    (void)snprintf(text, sizeof(text), "%.*g", digits, value);
    return isnan(value) ? NAN : strtod(text, NULL);
}

/* What is reported with a step is as it is said there; the rest stays until something is newer. */
static void take_progress(struct pass *pass)
{
    const struct fleetjob_progress *told = &pass->in->hub.progress;
    struct fleetjob_progress *progress = &pass->status->progress;
    int64_t steps = pass->spec->has_training ? pass->spec->training.steps
                    : told->steps > 0        ? told->steps
                                             : progress->steps;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    progress->step = told->step;
    progress->steps = steps;
    progress->at_wall_ms = told->at_wall_ms;
    progress->loss = rounded(told->loss, LOSS_DIGITS);
    progress->tokens_per_second = told->tokens_per_second < 100.0
                                      ? rounded(told->tokens_per_second, 3)
                                      : round(told->tokens_per_second);
    fleet_strbuf_appendf(&text, "%lld", (long long)told->step);
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

    /* An own trainer may begin again below its last checkpoint. */
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

/* A generation that was made without its record stands in the status by any write that comes first:
 * what led to it must stand beside it, as in a record. */
static void observe_begun(struct pass *pass)
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

static void observe_lineage(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    struct fleetjob_rendezvous *rendezvous = &pass->status->rendezvous;

    if (hub->phase < HUB_FINISHED && hub->trained.counter > rendezvous->trained)
        rendezvous->trained = hub->trained.counter;
    if (fleet_generation_compare(
            hub->generation, (struct fleet_generation){rendezvous->epoch, rendezvous->generation}) <
            0 ||
        hub->lineage_count == 0)
        return;
    observe_begun(pass);
    rendezvous->epoch = hub->generation.epoch;
    rendezvous->generation = hub->generation.counter;
    rendezvous->lineage.items =
        realloc(rendezvous->lineage.items, hub->lineage_count * sizeof(*rendezvous->lineage.items));
    fleet_assert(rendezvous->lineage.items);
    rendezvous->lineage.count = hub->lineage_count;
    for (size_t i = 0; i < hub->lineage_count; i++)
        rendezvous->lineage.items[i] =
            (struct fleetjob_lineage){.generation = hub->lineage[i].generation.counter,
                                      .first_step = hub->lineage[i].first_step,
                                      .epoch = hub->lineage[i].generation.epoch};
}

/* Without times and numbers that differ each time: equal texts are one Event with a count. The
 * history has them. */
static void tell_restart(struct pass *pass, const struct fleetjob_restart *restart)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool is_resize = strcmp(restart->cause, "Resize") == 0;

    fleet_strbuf_appendf(&text, "After %s", restart->cause);
    if (restart->member >= 0)
        fleet_strbuf_appendf(&text, " of worker %lld", (long long)restart->member);
    if (restart->exit_code >= 0)
        fleet_strbuf_appendf(&text, ", exit code %lld", (long long)restart->exit_code);
    if (restart->lost_steps >= 0)
        fleet_strbuf_appendf(&text, ", %lld step%s lost", (long long)restart->lost_steps,
                             restart->lost_steps == 1 ? "" : "s");
    if (restart->message)
        fleet_strbuf_appendf(&text, "; %s", restart->message);
    pass_event(pass, !message_cause_is_wanted(restart->cause) || restart->lost_steps > 0,
               is_resize ? WELLKNOWN_EVENT_RESIZED : WELLKNOWN_EVENT_RESTARTED, "%s", text.text);
}

/* The hub does not know what a pod's status says of its end; that may come when the restart is in
 * the history already. */
static void explain_newest(struct pass *pass)
{
    const struct fleetjob_restarts *restarts = &pass->status->restarts;
    size_t count = restarts->history.count;
    struct fleetjob_restart *restart = count > 0 ? &restarts->history.items[count - 1] : NULL;
    int64_t since = count > 1 ? restarts->history.items[count - 2].at_wall_ms : 0;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (!restart || restart->message || restart->member < 0)
        return;
    if (restart->exit_code >= 0 && strcmp(restart->cause, OOM_CAUSE) != 0)
        return; /* its agent lived to tell */
    if (!oom_is_cause(pass, (int)restart->member, -1, restart->cause, since,
                      restart->at_wall_ms + SKEW_MS))
        return;
    oom_describe(pass, (int)restart->member, &text);
    fleet_set_text(&restart->cause, OOM_CAUSE);
    fleet_set_text(&restart->message, text.text);
}

/* The newest of the history: a copy, with what its pod says besides. */
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

/* The history gets the restart that the status knows to have begun, unless it has it. */
static void close_restart(struct pass *pass, bool is_told)
{
    struct fleetjob_restarts *restarts = &pass->status->restarts;
    const struct fleetjob_restart *begun = &pass->before->restarts.begun, *added;
    int64_t newest = restarts->history.count > 0
                         ? restarts->history.items[restarts->history.count - 1].generation
                         : 0;

    if (!pass->before->restarts.has_begun || begun->generation <= newest)
        return;
    added = append_restart(pass, begun);
    if (is_told)
        pass_event(pass, !message_cause_is_wanted(begun->cause), WELLKNOWN_EVENT_RESTARTED,
                   "After %s: how it went was lost with the controller that led then%s%s",
                   added->cause, begun->message ? "; " : "", begun->message ? begun->message : "");
}

void status_close_restart(struct pass *pass)
{
    close_restart(pass, true);
}

/* Will our hub not tell how it went? One of another epoch, or made anew since (after a suspend),
 * knows nothing. */
static bool is_begun_elsewhere(const struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    int64_t begun = pass->before->restarts.begun.generation;

    if (!hub->is_hosted || hub->epoch != pass->before->rendezvous.epoch)
        return true;
    if (hub->generation.counter < begun || hub->has_begun)
        return false; /* it is about to be assigned, or under way */
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

static void observe_restarts(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    struct fleetjob_restarts *restarts = &pass->status->restarts;
    int64_t newest = 0;

    if (restarts->history.count > 0)
        newest = restarts->history.items[restarts->history.count - 1].generation;
    for (size_t i = 0; i < hub->history_count; i++)
        if (hub->history[i].generation > newest) {
            tell_restart(pass, append_restart(pass, &hub->history[i]));
        }
    explain_newest(pass);
    if (hub->generation.counter < pass->before->rendezvous.generation)
        return; /* that one's restart is counted already, the hub does not know yet */
    restarts->count = hub->restarts_total;
    restarts->since_reset = hub->restarts;
    if (hub->restarts_ignored > restarts->ignored)
        restarts->ignored = hub->restarts_ignored;
}

static const struct hub_view_failure *last_failure(const struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;

    return hub->failure_count > 0 ? &hub->failures[hub->failure_count - 1] : NULL;
}

const char *status_last_cause(const struct pass *pass)
{
    const struct hub_view_failure *last = last_failure(pass);

    if (last && oom_is_cause(pass, last->member, last->attempt, last->cause, 0, pass->now))
        return OOM_CAUSE;
    return last ? last->cause : NULL;
}

/* What the last thing that went wrong was, for people. */
static void describe_cause(const struct pass *pass, struct fleet_strbuf *out)
{
    const struct hub_view *hub = &pass->in->hub;
    const struct hub_view_failure *last = last_failure(pass);
    const char *cause = status_last_cause(pass);

    if (hub->state_lost[0])
        fleet_strbuf_append(out, hub->state_lost);
    else if (last && last->member >= 0 && !strstr(last->message, "worker "))
        fleet_strbuf_appendf(out, "worker %d: %s", last->member, last->message);
    else
        fleet_strbuf_append(out, last ? last->message : "the workers form a new generation");
    if (cause && strcmp(cause, OOM_CAUSE) == 0) {
        fleet_strbuf_append(out, "; OOMKilled: ");
        oom_describe(pass, last->member, out);
    }
}

static void observe_training(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    /* A hub that goes on from a status that was edited by hand may not know how many there are. */
    int members = hub->members > 0 ? hub->members : hub->ready;
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};

    if (members > 0)
        fleet_strbuf_appendf(&message, "%d worker%s", members,
                             members == 1 ? " trains" : "s train");
    else
        fleet_strbuf_append(&message, "the workers train");
    status_tell_waiting(pass, &message);
    if (status_set(pass, WELLKNOWN_CONDITION_RUNNING, true, WELLKNOWN_REASON_TRAINING,
                   message.text) &&
        !pass->before->has_progress && pass->before->rendezvous.trained == 0)
        pass_event(pass, false, WELLKNOWN_EVENT_STARTED, "Training on %d worker%s", members,
                   members == 1 ? "" : "s");
    (void)status_clear(pass, WELLKNOWN_CONDITION_RESTARTING, WELLKNOWN_REASON_TRAINING,
                       "the training goes on");
}

/* Call it before the condition says so, too: the condition is how we know that it was reported. */
static void tell_lost_state(struct pass *pass)
{
    const struct fleetjob_condition *told =
        status_find(pass->status, WELLKNOWN_CONDITION_RESTARTING);
    const char *text = pass->in->hub.state_lost;

    if (text[0] && (!told || strncmp(told->message, text, strlen(text)) != 0))
        pass_event(pass, true, WELLKNOWN_EVENT_STATE_LOST, "%s", text);
}

/* The condition holds the text of the failure that was reported last. */
static void observe_saves(struct pass *pass)
{
    const struct fleetjob_condition *told =
        status_find(pass->status, WELLKNOWN_CONDITION_CHECKPOINT_FAILED);
    const struct hub_view *hub = &pass->in->hub;

    if (hub->save_failed[0]) {
        bool is_new = !told || strcmp(told->message, hub->save_failed) != 0;
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
    /* An own trainer need not report steps. */
    bool was_running =
        hub->has_run || pass->before->has_progress || pass->status->rendezvous.trained > 0;
    bool is_suspended = pass->spec->run_policy.suspend;
    const char *cause =
        hub->failure_count > 0 ? status_last_cause(pass) : WELLKNOWN_REASON_MEMBER_LOST;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (hub->phase == HUB_RUNNING) {
        observe_training(pass);
        return;
    }
    if (hub->is_learning)
        return; /* a new leader: what runs goes on running, its members will say so */
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
        status_tell_waiting(pass, &text);
    (void)status_set(pass, WELLKNOWN_CONDITION_RUNNING, false,
                     is_suspended  ? WELLKNOWN_REASON_SUSPENDED
                     : was_running ? WELLKNOWN_CONDITION_RESTARTING
                                   : WELLKNOWN_REASON_NOT_STARTED,
                     text.text);
    if (!was_running || hub->phase > HUB_RUNNING || is_suspended)
        return;
    tell_lost_state(pass);
    (void)status_set(pass, WELLKNOWN_CONDITION_RESTARTING, true, cause, text.text);
}

static void observe_stalled(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    const char *reason = strcmp(hub->stalled_cause, "TooFewMembers") == 0
                             ? WELLKNOWN_REASON_TOO_FEW_WORKERS
                         : hub->is_superseded ? WELLKNOWN_REASON_HUB_SUPERSEDED
                                              : WELLKNOWN_REASON_NO_PROGRESS;

    if (!hub->stalled[0])
        (void)status_clear(pass, WELLKNOWN_CONDITION_STALLED, WELLKNOWN_REASON_TRAINING,
                           "the training goes on");
    else if (status_set(pass, WELLKNOWN_CONDITION_STALLED, true, reason, hub->stalled))
        pass_event(pass, true, WELLKNOWN_EVENT_STALLED, "%s", hub->stalled);
}

/* Absent while the job trains, and once it is over. */
static void observe_waiting(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char until[FLEET_RFC3339_SIZE];

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
    pass->status->observed_generation = pass->in->job->metadata.generation;
    status_count_workers(pass);
    status_observe_scheduled(pass);
    status_observe_blocked(pass);
    if (pass->status->restarts.count < 0)
        pass->status->restarts.count = 0;
    status_close_lost_restart(pass);
    observe_waiting(pass);
    if (!pass->in->hub.is_hosted)
        return;
    if (pass->in->hub.is_superseded) {
        /* this hub does not know the generation that runs; the next one will */
        observe_stalled(pass);
        return;
    }
    observe_progress(pass);
    observe_lineage(pass);
    observe_restarts(pass);
    observe_running(pass);
    observe_saves(pass);
    observe_stalled(pass);
}

void status_observe_end(struct pass *pass)
{
    pass->status->observed_generation = pass->in->job->metadata.generation;
    status_count_workers(pass);
    close_restart(pass, is_begun_elsewhere(pass)); /* the end says what became of one of ours */
    if (pass->in->hub.is_hosted) {                 /* what members say as they leave */
        observe_progress(pass);
        observe_saves(pass);
    }
}

/* ---- as a whole ------------------------------------------------------------------------------ */

/* What changes while pods come up one by one: counts, and messages that contain them. */
static void remove_counts(cJSON *status)
{
    cJSON *condition;

    cJSON_DeleteItemFromObjectCaseSensitive(status, "workers");
    cJSON_DeleteItemFromObjectCaseSensitive(status, "reason");
    cJSON_ArrayForEach(condition, cJSON_GetObjectItemCaseSensitive(status, "conditions"))
        cJSON_DeleteItemFromObjectCaseSensitive(condition, "message");
}

static bool are_equal_but_counts(const struct fleetjob_status *a, const struct fleetjob_status *b)
{
    FLEET_AUTO_JSON cJSON *x = fleetjob_status_encode(a), *y = fleetjob_status_encode(b);

    remove_counts(x);
    remove_counts(y);
    return fleet_json_equal(x, y);
}

/* No event and no action that only a writer of the status may carry out. */
static bool only_looks(const struct actions *out)
{
    return out->event_count == 0 && out->create_count == 0 && out->delete_count == 0 &&
           !out->delete_job;
}

/* Progress and counts apart, because they change all the time and are written rarely. */
void status_compare(struct pass *pass)
{
    struct fleetjob_status before = *pass->before, after = *pass->status; /* borrowed */
    bool is_equal = fleetjob_status_equal(&before, &after), is_changed;
    bool has_begun = before.has_progress != after.has_progress;

    before.has_progress = after.has_progress = false;
    is_changed = has_begun || !fleetjob_status_equal(&before, &after);
    pass->out->is_counts_changed = is_changed && !has_begun && before.has_workers &&
                                   only_looks(pass->out) && are_equal_but_counts(&before, &after);
    pass->out->is_status_changed = is_changed && !pass->out->is_counts_changed;
    pass->out->is_progress_changed = !is_changed && !is_equal;
}
