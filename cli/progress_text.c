/* SPDX-License-Identifier: Apache-2.0 */

/* Prints a run as text: one line for each event, and a summary at the end. */
#include <math.h>
#include <string.h>

#include "cli/progress_internal.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/step_line.h"

#define LINES_MS_MIN 500.0 /* in a pipe: minimum time between two lines of steps */
#define REDRAW_MS    50.0  /* on a terminal: minimum time between two redraws */

static void describe_step(const struct progress *p, const struct message_step *step,
                          struct fleet_strbuf *out)
{
    struct step_line line = {.step = step->step,
                             .steps = p->config.steps,
                             .loss = step->loss,
                             .norm = step->grad_norm,
                             .learning_rate = step->learning_rate,
                             .tokens_per_second = step->tokens_per_second,
                             .is_reported = p->config.own_trainer,
                             .eta_s =
                                 p->config.steps > step->step
                                     ? (double)(p->config.steps - step->step) * p->step_ms / 1e3
                                     : NAN};

    step_line_append(&line, out);
}

static void show_step(struct progress *p, const struct message_step *step, double now_ms)
{
    bool is_edge = step->step == 1 || step->step == p->config.steps;
    double interval = p->config.is_terminal ? REDRAW_MS : LINES_MS_MIN;

    if (!is_edge && (now_ms - p->shown_ms < interval ||
                     (!p->config.is_terminal && step->step % p->config.every_steps != 0)))
        return;
    p->shown_ms = now_ms;
    if (p->config.is_terminal) {
        progress_erase_line(p);
        fleet_strbuf_clear(&p->line);
        describe_step(p, step, &p->line);
        if (p->config.columns > 1 && p->line.length >= (size_t)p->config.columns) {
            p->line.length = (size_t)p->config.columns - 1;
            p->line.text[p->line.length] = '\0';
        }
        progress_redraw_line(p);
    } else {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        describe_step(p, step, &text);
        progress_say(p, &text);
    }
}

static void append_phase(struct fleet_strbuf *out, const char *what, double ms)
{
    if (ms >= 0)
        fleet_strbuf_appendf(out, ", %s in %.0f ms", what, ms);
}

#define RESTARTS_LISTED 5

/* Remember cause and time of a restart for the summary. */
static void note_restart(struct progress *p, const struct hub_event *event)
{
    if (++p->restart_count > RESTARTS_LISTED)
        return;
    fleet_strbuf_appendf(&p->restarts, "%s%s", p->restart_count > 1 ? "; " : "", event->cause);
    if (event->member >= 0)
        fleet_strbuf_appendf(&p->restarts, " of worker %d", event->member);
    if (event->timeline.resume_ms >= 0)
        fleet_strbuf_appendf(&p->restarts, " %.0f ms", event->timeline.resume_ms);
    if (event->timeline.first_step_ms >= 0)
        fleet_strbuf_appendf(&p->restarts, " + first step %.0f ms", event->timeline.first_step_ms);
}

static void show_restart(struct progress *p, const struct hub_event *event)
{
    const struct hub_timeline *t = &event->timeline;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (event->counted) {
        fleet_strbuf_appendf(&text, "restart %d: ", event->restarts);
        note_restart(p, event);
    }
    fleet_strbuf_append(&text, event->cause);
    if (event->member >= 0)
        fleet_strbuf_appendf(&text, " of worker %d", event->member);
    append_phase(&text, "noticed", t->detect_ms);
    append_phase(&text, "agreed", t->agree_ms);
    append_phase(&text, p->config.own_trainer ? "trainers started" : "connected", t->connect_ms);
    append_phase(&text, "restored", t->restore_ms);
    if (t->resume_ms >= 0)
        fleet_strbuf_appendf(&text, " = %.0f ms", t->resume_ms);
    append_phase(&text, "first step", t->first_step_ms);
    if (event->lost_steps == 0 && event->is_before_first_step)
        fleet_strbuf_append(&text, "; no step had been made yet");
    else if (event->lost_steps >= 0)
        fleet_strbuf_appendf(&text, "; %lld step%s lost", (long long)event->lost_steps,
                             event->lost_steps == 1 ? "" : "s");
    fleet_strbuf_appendf(&text, "; generation %lld, %d worker%s",
                         (long long)event->generation.counter, event->members,
                         event->members == 1 ? "" : "s");
    progress_say(p, &text);
}

#define EXIT_RESTART_PLAN 102 /* of a trainer, as in Paddle */

static void show_trainer_failed(struct progress *p, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(&text, "worker %d: its trainer ", event->member);
    if (event->signal)
        fleet_strbuf_appendf(&text, "was ended by signal %d (%s)", event->signal,
                             strsignal(event->signal));
    else
        fleet_strbuf_appendf(&text, "exited with code %d", event->exit_code);
    if (fleet_cause_find(event->cause) == FLEET_CAUSE_RESTART_REQUESTED)
        fleet_strbuf_appendf(&text, " (it asks for a restart%s)",
                             event->exit_code == EXIT_RESTART_PLAN ? " with a new parallel plan"
                                                                   : "");
    if (p->step > 0 || !p->config.own_trainer)
        fleet_strbuf_appendf(&text, " after step %lld", (long long)p->step);
    progress_say(p, &text);
}

/* Print a line with the event's own text. */
static void show_words(struct progress *p, const char *what, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (event->member >= 0)
        fleet_strbuf_appendf(&text, "worker %d: ", event->member);
    fleet_strbuf_appendf(&text, "%s%s", what, event->message);
    progress_say(p, &text);
}

static void show_waiting(struct progress *p, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (!event->message[0])
        return;
    fleet_strbuf_append(&text, event->message);
    if (!isinf(event->until_ms))
        fleet_strbuf_appendf(&text, " (%.0f s at most)", (event->until_ms - event->at_ms) / 1e3);
    progress_say(p, &text);
}

static void show_place(struct progress *p, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (event->type == HUB_EVENT_CHECKPOINT) {
        fleet_strbuf_appendf(&text, "checkpoint of step %lld: %s", (long long)event->step.step,
                             event->text ? event->text : "");
    } else {
        fleet_strbuf_appendf(&text, "held-out loss after step %lld: ", (long long)event->step.step);
        step_line_append_loss(event->step.loss, &text);
    }
    progress_say(p, &text);
}

void progress_event_text(struct progress *p, const struct hub_event *event, double now_ms)
{
    switch (event->type) {
    case HUB_EVENT_STEP:
        show_step(p, &event->step, now_ms);
        break;
    case HUB_EVENT_RESTART:
        show_restart(p, event);
        break;
    case HUB_EVENT_TRAINER_FAILED:
        show_trainer_failed(p, event);
        break;
    case HUB_EVENT_LOST:
        show_words(p, "", event);
        break;
    case HUB_EVENT_STATE_LOST:
        show_words(p, "warning: ", event);
        break;
    case HUB_EVENT_STALLED:
        show_words(p, "waiting: ", event);
        break;
    case HUB_EVENT_WAITING:
        show_waiting(p, event);
        break;
    case HUB_EVENT_CHECKPOINT:
    case HUB_EVENT_EVALUATION:
        show_place(p, event);
        break;
    default:
        break;
    }
}

static void append_times(struct fleet_strbuf *out, const struct fleet_step_times *times,
                         double total_s)
{
    double percent = 100.0 / total_s;
    double rest = total_s - times->data_s - times->forward_s - times->backward_s -
                  times->exchange_s - times->optimizer_s;

    fleet_strbuf_appendf(out,
                         "\n  time      data %.1f%%, forward %.1f%%, backward %.1f%%, exchange "
                         "%.1f%%",
                         times->data_s * percent, times->forward_s * percent,
                         times->backward_s * percent, times->exchange_s * percent);
    if (times->hidden_s > 0)
        fleet_strbuf_appendf(out, " (%.1f%% more hidden)", times->hidden_s * percent);
    fleet_strbuf_appendf(out, ", optimizer %.1f%%, other %.1f%%", times->optimizer_s * percent,
                         fmax(rest, 0.0) * percent);
}

/* The only facts about an own trainer are its reports and how its processes ended. */
static void describe_what_was_done(const struct progress *p, const struct progress_end *end,
                                   struct fleet_strbuf *out)
{
    if (p->config.own_trainer && end->has_succeeded)
        fleet_strbuf_append(out, ": every worker exited with 0");
    if (p->config.own_trainer && p->step == 0)
        return;
    fleet_strbuf_appendf(out, "%s %lld", p->config.own_trainer && end->has_succeeded ? "," : ":",
                         (long long)p->step);
    if (p->config.steps > 0)
        fleet_strbuf_appendf(out, " of %lld", (long long)p->config.steps);
    fleet_strbuf_append(out, " steps");
}

static void append_losses(double first, double last, struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, "\n  loss      ");
    step_line_append_loss(first, out);
    fleet_strbuf_append(out, " at first, ");
    step_line_append_loss(last, out);
    fleet_strbuf_append(out, " at last");
}

void progress_end_text(struct progress *p, const struct progress_end *end)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    fleet_strbuf_appendf(&out, "\n%s after ", end->state);
    step_line_append_duration(end->seconds, &out);
    describe_what_was_done(p, end, &out);
    if (end->message[0])
        fleet_strbuf_appendf(&out, "\n  %s", end->message);
    if (!isnan(p->first_loss))
        append_losses(p->first_loss, p->last_loss, &out);
    if (p->total_s > 0)
        append_times(&out, &p->times, p->total_s);
    if (end->curve_path[0])
        fleet_strbuf_appendf(&out, "\n  curve     %s", end->curve_path);
    fleet_strbuf_appendf(&out, "\n  restarts  %d", end->restarts);
    if (p->restart_count > 0)
        fleet_strbuf_appendf(&out, " (%s%s)", p->restarts.text,
                             p->restart_count > RESTARTS_LISTED ? "; …" : "");
    if (end->weights_sha256[0])
        fleet_strbuf_appendf(&out, "\n  weights   SHA-256 %s", end->weights_sha256);
    progress_say(p, &out);
}
