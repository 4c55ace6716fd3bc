/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Collects the hub's events in one value and decides nothing. A newer event replaces an older one
 * of its kind.
 */
#include "controller/fleetjob/hub_view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/memory.h"

void hub_view_release(struct hub_view *view)
{
    for (size_t i = 0; i < view->history_count; i++)
        free(view->history[i].cause);
    free(view->history);
    free(view->failures);
    free(view->silent);
    free(view->checkpoint.path);
    free(view->result.weights_sha256);
    memset(view, 0, sizeof(*view));
}

static void take_step(struct hub_view *view, const struct hub_event *event, int64_t wall_ms)
{
    if (!view->has_run)
        view->first_step_wall_ms = wall_ms;
    view->has_run = view->has_progress = true;
    view->stalled[0] = view->state_lost[0] = '\0';
    view->progress.step = event->step.step;
    view->progress.steps = event->step.steps;
    view->progress.loss = event->step.loss;
    view->progress.tokens_per_second = event->step.tokens_per_second;
    view->progress.goodput = NAN;
    view->progress.at_wall_ms = wall_ms;
}

static void take_evaluation(struct hub_view *view, const struct hub_event *event)
{
    view->progress.held_out_step = event->step.step;
    view->progress.held_out_loss = event->step.loss;
}

static void take_restart(struct hub_view *view, const struct hub_event *event, int64_t wall_ms)
{
    const struct hub_timeline *t = &event->timeline;
    struct fleetjob_restart restart = {.generation = event->generation.counter,
                                       .at_wall_ms = wall_ms,
                                       .member = event->member,
                                       .exit_code = event->exit_code,
                                       .lost_steps = event->lost_steps};
    double *const to[] = {&restart.detect_ms,  &restart.agree_ms,  &restart.connect_ms,
                          &restart.restore_ms, &restart.resume_ms, &restart.first_step_ms};
    const double from[] = {t->detect_ms,  t->agree_ms,  t->connect_ms,
                           t->restore_ms, t->resume_ms, t->first_step_ms};

    for (size_t i = 0; i < FLEET_COUNT(from); i++)
        *to[i] = from[i] < 0 ? NAN : from[i];
    if (view->history_count == FLEETJOB_HISTORY_MAX) {
        free(view->history[0].cause);
        memmove(view->history, view->history + 1, (--view->history_count) * sizeof(restart));
    }
    fleet_set_text(&restart.cause, event->cause);
    view->history = fleet_grow(view->history, view->history_count, sizeof(restart));
    view->history[view->history_count++] = restart;
    if (event->is_before_first_step)
        view->untrained = event->generation.counter;
    if (t->resume_ms > 0)
        view->lost_ms += t->resume_ms;
}

/* The last line that is not blank; *out_size is its length, 0 if there is none. */
static const char *last_line(const char *text, size_t *out_size)
{
    size_t end = text ? strlen(text) : 0, start;

    while (end > 0 && strchr(" \t\r\n", text[end - 1]))
        end--;
    for (start = end; start > 0 && text[start - 1] != '\n';)
        start--;
    *out_size = end - start;
    return text ? text + start : "";
}

static struct hub_view_failure to_failure(const struct hub_event *event)
{
    struct hub_view_failure failure = {.member = event->member,
                                       .attempt = event->attempt,
                                       .exit_code = event->exit_code,
                                       .names_worker =
                                           event->type == HUB_EVENT_TRAINER_FAILED ||
                                           fleet_cause_find(event->cause) == FLEET_CAUSE_ISOLATED};
    size_t size;
    const char *line = last_line(event->text, &size);

    (void)snprintf(failure.cause, sizeof(failure.cause), "%s",
                   event->cause[0] ? event->cause : fleet_cause_word(FLEET_CAUSE_FAILED));
    (void)snprintf(failure.message, sizeof(failure.message), "%s%s%.*s", event->message,
                   size > 0 ? ": " : "",
                   (int)(size < MESSAGE_REASON_MAX ? size : MESSAGE_REASON_MAX), line);
    return failure;
}

static void take_failure(struct hub_view *view, const struct hub_event *event)
{
    if (view->failure_count == HUB_VIEW_FAILURES_MAX)
        memmove(view->failures, view->failures + 1,
                (--view->failure_count) * sizeof(view->failures[0]));
    view->failures = fleet_grow(view->failures, view->failure_count, sizeof(view->failures[0]));
    view->failures[view->failure_count++] = to_failure(event);
}

static void forget_silent(struct hub_view *view, size_t i)
{
    view->silent_count--;
    memmove(&view->silent[i], &view->silent[i + 1],
            (view->silent_count - i) * sizeof(view->silent[0]));
}

static void take_joined(struct hub_view *view, const struct hub_event *event)
{
    for (size_t i = view->silent_count; i-- > 0;)
        if (strcmp(view->silent[i].pod_uid, event->pod_uid) == 0)
            forget_silent(view, i);
}

static void take_lost(struct hub_view *view, const struct hub_event *event, int64_t wall_ms)
{
    take_joined(view, event); /* once at most */
    if (view->silent_count == HUB_VIEW_SILENT_MAX)
        forget_silent(view, 0);
    view->silent = fleet_grow(view->silent, view->silent_count, sizeof(view->silent[0]));
    view->silent[view->silent_count] = (struct hub_view_silent){.since_wall_ms = wall_ms};
    (void)snprintf(view->silent[view->silent_count++].pod_uid, sizeof(view->silent[0].pod_uid),
                   "%s", event->pod_uid);
}

/* It was asked to leave and has said goodbye. */
static bool is_going(const struct hub_event *event)
{
    enum fleet_cause cause = fleet_cause_find(event->cause);

    return cause == FLEET_CAUSE_MEMBER_LEFT || cause == FLEET_CAUSE_RESIZE;
}

static void take_waiting(struct hub_view *view, const struct hub_event *event, int64_t wall_ms)
{
    memcpy(view->waiting, event->message, sizeof(view->waiting));
    view->waiting_until_wall_ms =
        isinf(event->until_ms) ? 0 : wall_ms + llround(event->until_ms - event->at_ms);
}

static void take_checkpoint(struct hub_view *view, const struct hub_event *event, int64_t wall_ms)
{
    view->save_failed[0] = '\0';
    view->has_checkpoint = view->has_saved = true;
    view->checkpoint.step = event->step.step;
    view->checkpoint.at_wall_ms = wall_ms;
    fleet_set_text(&view->checkpoint.path, event->text);
}

static void take_stall(struct hub_view *view, const struct hub_event *event)
{
    view->stall = event->stall;
    memcpy(view->stalled, event->message, sizeof(view->stalled));
}

static void take_result(struct hub_view *view, const struct hub_event *event)
{
    view->result.steps = event->step.step;
    view->result.loss = event->step.loss;
    fleet_set_text(&view->result.weights_sha256, event->weights_sha256);
}

void hub_view_event(struct hub_view *view, const struct hub_event *event, int64_t wall_ms)
{
    view->restarts = event->restarts;
    switch (event->type) {
    case HUB_EVENT_STEP:
        take_step(view, event, wall_ms);
        break;
    case HUB_EVENT_EVALUATION:
        take_evaluation(view, event);
        break;
    case HUB_EVENT_RESTART:
        take_restart(view, event, wall_ms);
        break;
    case HUB_EVENT_JOINED:
        take_joined(view, event);
        break;
    case HUB_EVENT_LOST:
        if (is_going(event))
            break;
        if (!fleet_cause_is_wanted(fleet_cause_find(event->cause)))
            take_lost(view, event, wall_ms);
        take_failure(view, event); /* a failure rule may match it */
        break;
    case HUB_EVENT_TRAINER_FAILED:
        take_failure(view, event);
        break;
    case HUB_EVENT_CHECKPOINT_FAILED:
        memcpy(view->save_failed, event->message, sizeof(view->save_failed));
        view->has_saved = false;
        break;
    case HUB_EVENT_CHECKPOINT:
        take_checkpoint(view, event, wall_ms);
        break;
    case HUB_EVENT_STATE_LOST:
        memcpy(view->state_lost, event->message, sizeof(view->state_lost));
        break;
    case HUB_EVENT_STALLED:
        take_stall(view, event);
        break;
    case HUB_EVENT_WAITING:
        take_waiting(view, event, wall_ms);
        break;
    case HUB_EVENT_ASSIGNED:
        view->stalled[0] = view->waiting[0] = '\0';
        break;
    case HUB_EVENT_FAILED:
        view->end = to_failure(event);
        view->restarts_used_up = event->restarts_used_up;
        break;
    case HUB_EVENT_FINISHED:
        take_result(view, event);
        break;
    case HUB_EVENT_SUPERSEDED:
        view->is_superseded = true;
        take_stall(view, event);
        break;
    default:
        break;
    }
}

struct fleetjob_restart hub_view_begun(const struct hub_record *record, int64_t wall_ms,
                                       char message[HUB_VIEW_UNTOLD_SIZE])
{
    message[0] = '\0';
    if (record->untold > 0)
        (void)snprintf(message, HUB_VIEW_UNTOLD_SIZE,
                       "up to %d restarts before it are not listed: they came while the status "
                       "could not be written",
                       record->untold);
    return (struct fleetjob_restart){.generation = record->generation.counter,
                                     .at_wall_ms = wall_ms,
                                     .cause = (char *)record->cause,
                                     .message = message[0] ? message : NULL,
                                     .member = record->member,
                                     .exit_code = record->exit_code,
                                     .detect_ms = NAN,
                                     .agree_ms = NAN,
                                     .connect_ms = NAN,
                                     .restore_ms = NAN,
                                     .resume_ms = NAN,
                                     .first_step_ms = NAN,
                                     .lost_steps = -1};
}

void hub_view_refresh(struct hub_view *view, const struct hub *hub)
{
    size_t count = hub_members(hub, NULL, 0);
    FLEET_AUTO_FREE struct hub_member *members = calloc(count ? count : 1, sizeof(*members));

    fleet_assert(members);
    view->is_hosted = true;
    view->phase = hub_phase(hub);
    view->is_learning = hub_is_learning(hub);
    view->epoch = hub_epoch(hub);
    view->generation = hub_generation(hub);
    view->members = hub_generation_members(hub);
    view->trained = hub_trained(hub);
    view->is_deserted = hub_is_deserted(hub);
    view->restarts = hub_restarts(hub);
    view->restarts_total = hub_restarts_total(hub);
    view->restarts_ignored = hub_restarts_ignored(hub);
    view->lineage = hub_lineage(hub);
    view->has_begun = hub_begun(hub, &view->begun);
    count = hub_members(hub, members, count);
    for (size_t i = 0; i < view->silent_count; i++)
        view->silent[i].is_awaited = hub_is_awaited(hub, view->silent[i].pod_uid);
    view->spares = hub_spares(hub);
    view->ready = 0;
    for (size_t i = 0; i < count; i++)
        view->ready += members[i].is_connected && members[i].state != MESSAGE_STATE_STARTING;
}
