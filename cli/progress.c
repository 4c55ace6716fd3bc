/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is shown of a run. Both forms, JSON lines and text, are fed by the same events; the line
 * that rewrites itself is taken away before anything else is printed and put back after it.
 */
#include "cli/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/step_line.h"

#define LINES_MS_MIN 500.0 /* text in a pipe: least time between two lines of steps */
#define REDRAW_MS    50.0  /* text on a terminal: least time between two redraws */
#define RATE_KEEP    0.95  /* weight of the past in the mean time of a step */

struct progress {
    struct progress_config config;
    int64_t step;
    double first_loss, last_loss;
    double step_ms;               /* mean time of a step, NaN = not known */
    double stepped_ms;            /* when the last step came, NaN = none since the last restart */
    double shown_ms;              /* when a line of steps was last shown */
    struct fleet_strbuf line;     /* terminal: the progress line as it stands there */
    struct fleet_strbuf restarts; /* text: the first few, for the end */
    int restart_count;
    struct fleet_step_times times; /* of all steps that were measured */
    double total_s;                /* the whole time of these */
    bool is_heard;
};

struct progress *progress_new(const struct progress_config *config)
{
    struct progress *p = calloc(1, sizeof(*p));

    fleet_assert(p);
    *p = (struct progress){.config = *config,
                           .first_loss = NAN,
                           .last_loss = NAN,
                           .step_ms = NAN,
                           .stepped_ms = NAN,
                           .shown_ms = -INFINITY,
                           .is_heard = true};
    if (p->config.every_steps < 1)
        p->config.every_steps = 1;
    return p;
}

void progress_free(struct progress *p)
{
    if (!p)
        return;
    fleet_strbuf_release(&p->line);
    fleet_strbuf_release(&p->restarts);
    free(p);
}

int64_t progress_step(const struct progress *p)
{
    return p->step;
}

bool progress_is_heard(const struct progress *p)
{
    return p->is_heard;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_out(struct progress *p, const char *text)
{
    if (fputs(text, p->config.out) == EOF || fflush(p->config.out) == EOF)
        p->is_heard = false;
}

static void erase_line(struct progress *p)
{
    if (p->line.length > 0)
        write_out(p, "\r\033[K");
}

static void redraw_line(struct progress *p)
{
    if (p->line.length > 0)
        write_out(p, p->line.text);
}

/* A whole line of text on `out`, above the progress line. */
static void say(struct progress *p, struct fleet_strbuf *text)
{
    erase_line(p);
    fleet_strbuf_append_char(text, '\n');
    write_out(p, text->text);
    redraw_line(p);
}

void progress_note(struct progress *p, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&text, format, args);
    va_end(args);
    fleet_strbuf_append_char(&text, '\n');
    erase_line(p);
    (void)fputs(text.text, p->config.notes);
    (void)fflush(p->config.notes);
    redraw_line(p);
}

void progress_output(struct progress *p, bool is_error, const char *text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (is_error || p->config.is_json) {
        progress_note(p, "%s", text);
        return;
    }
    fleet_strbuf_append(&line, text);
    say(p, &line);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void begin_json(struct fleet_strbuf *out, const char *event)
{
    fleet_strbuf_appendf(out, "{\"event\":\"%s\"", event);
}

static void add_int(struct fleet_strbuf *out, const char *key, int64_t value)
{
    fleet_strbuf_appendf(out, ",\"%s\":%lld", key, (long long)value);
}

static void add_number(struct fleet_strbuf *out, const char *key, double value)
{
    fleet_strbuf_appendf(out, ",\"%s\":", key);
    fleet_json_append_number(out, value);
}

static void add_text(struct fleet_strbuf *out, const char *key, const char *value)
{
    fleet_strbuf_appendf(out, ",\"%s\":", key);
    fleet_json_append_string(out, value);
}

static void end_json(struct progress *p, struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, "}\n");
    write_out(p, out->text);
}

static void print_step(struct progress *p, const struct message_step *step)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    begin_json(&out, "step");
    add_int(&out, "step", step->step);
    add_number(&out, "loss", step->loss);
    if (!isnan(step->learning_rate)) { /* the batch made an update */
        add_number(&out, "gradNorm", step->grad_norm);
        add_number(&out, "learningRate", step->learning_rate);
    }
    if (!p->config.own_trainer || step->tokens > 0)
        add_int(&out, "tokens", step->tokens);
    if (!p->config.own_trainer || !isnan(step->tokens_per_second))
        add_number(&out, "tokensPerSecond", round(step->tokens_per_second));
    add_int(&out, "generation", step->generation);
    end_json(p, &out);
}

/* Tenths of milliseconds, so that the phases still add up when printed. NaN = not reached. */
static double tenths(double ms)
{
    return ms < 0 ? NAN : round(ms * 10.0);
}

static void print_restart(struct progress *p, const struct hub_event *event)
{
    const struct hub_timeline *t = &event->timeline;
    double phases[] = {tenths(t->detect_ms), tenths(t->agree_ms), tenths(t->connect_ms),
                       tenths(t->restore_ms)};
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    begin_json(&out, "restart");
    add_int(&out, "generation", event->generation.counter);
    add_text(&out, "cause", event->cause);
    add_int(&out, "member", event->member);
    add_number(&out, "detectMs", phases[0] / 10.0);
    add_number(&out, "agreeMs", phases[1] / 10.0);
    add_number(&out, "connectMs", phases[2] / 10.0);
    add_number(&out, "restoreMs", phases[3] / 10.0);
    add_number(&out, "resumeMs", (phases[0] + phases[1] + phases[2] + phases[3]) / 10.0);
    add_number(&out, "firstStepMs", tenths(t->first_step_ms) / 10.0);
    if (event->lost_steps >= 0)
        add_int(&out, "lostSteps", event->lost_steps);
    end_json(p, &out);
}

static void print_evaluation(struct progress *p, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    begin_json(&out, "evaluation");
    add_int(&out, "step", event->step.step);
    add_number(&out, "loss", event->step.loss);
    end_json(p, &out);
}

static void print_waiting(struct progress *p, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    if (!event->message[0])
        return;
    begin_json(&out, "waiting");
    add_text(&out, "message", event->message);
    add_number(&out, "seconds",
               isinf(event->until_ms) ? NAN : round((event->until_ms - event->at_ms) / 1e3));
    end_json(p, &out);
}

static void print_checkpoint(struct progress *p, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    begin_json(&out, "checkpoint");
    add_int(&out, "step", event->step.step);
    add_text(&out, "path", event->text ? event->text : "");
    end_json(p, &out);
}

static void print_checkpoint_failed(struct progress *p, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    begin_json(&out, "checkpointFailed");
    add_int(&out, "step", event->step.step);
    add_text(&out, "message", event->message);
    end_json(p, &out);
}

static void print_end(struct progress *p, const struct progress_end *end)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    begin_json(&out, "end");
    add_text(&out, "state", end->state);
    if (end->message[0])
        add_text(&out, "message", end->message);
    if (p->step > 0 || !p->config.own_trainer) {
        add_int(&out, "steps", p->step);
        add_number(&out, "loss", p->last_loss);
    }
    if (end->weights_sha256[0])
        add_text(&out, "weightsSha256", end->weights_sha256);
    add_int(&out, "restarts", end->restarts);
    add_number(&out, "seconds", round(end->seconds * 10.0) / 10.0);
    end_json(p, &out);
}

static void event_as_json(struct progress *p, const struct hub_event *event)
{
    switch (event->type) {
    case HUB_EVENT_STEP:
        print_step(p, &event->step);
        break;
    case HUB_EVENT_RESTART:
        print_restart(p, event);
        break;
    case HUB_EVENT_EVALUATION:
        print_evaluation(p, event);
        break;
    case HUB_EVENT_WAITING:
        print_waiting(p, event);
        break;
    case HUB_EVENT_CHECKPOINT:
        print_checkpoint(p, event);
        break;
    case HUB_EVENT_CHECKPOINT_FAILED:
        print_checkpoint_failed(p, event);
        break;
    default:
        break;
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

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
        erase_line(p);
        fleet_strbuf_clear(&p->line);
        describe_step(p, step, &p->line);
        if (p->config.columns > 1 && p->line.length >= (size_t)p->config.columns) {
            p->line.length = (size_t)p->config.columns - 1;
            p->line.text[p->line.length] = '\0';
        }
        redraw_line(p);
    } else {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        describe_step(p, step, &text);
        say(p, &text);
    }
}

static void append_phase(struct fleet_strbuf *out, const char *what, double ms)
{
    if (ms >= 0)
        fleet_strbuf_appendf(out, ", %s in %.0f ms", what, ms);
}

#define RESTARTS_LISTED 5

/* Keep cause and time of a restart for the summary. */
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
    say(p, &text);
}

static void show_trainer_failed(struct progress *p, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(&text, "worker %d: its trainer ", event->member);
    if (event->signal)
        fleet_strbuf_appendf(&text, "was ended by signal %d (%s)", event->signal,
                             strsignal(event->signal));
    else
        fleet_strbuf_appendf(&text, "exited with code %d", event->exit_code);
    if (p->step > 0 || !p->config.own_trainer)
        fleet_strbuf_appendf(&text, " after step %lld", (long long)p->step);
    say(p, &text);
}

/* A line made of the event's own words. */
static void show_words(struct progress *p, const char *what, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (event->member >= 0)
        fleet_strbuf_appendf(&text, "worker %d: ", event->member);
    fleet_strbuf_appendf(&text, "%s%s", what, event->message);
    say(p, &text);
}

static void show_waiting(struct progress *p, const struct hub_event *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (!event->message[0])
        return;
    fleet_strbuf_append(&text, event->message);
    if (!isinf(event->until_ms))
        fleet_strbuf_appendf(&text, " (%.0f s at most)", (event->until_ms - event->at_ms) / 1e3);
    say(p, &text);
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
    say(p, &text);
}

static void event_as_text(struct progress *p, const struct hub_event *event, double now_ms)
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
                         "%.1f%%, optimizer %.1f%%, other %.1f%%",
                         times->data_s * percent, times->forward_s * percent,
                         times->backward_s * percent, times->exchange_s * percent,
                         times->optimizer_s * percent, fmax(rest, 0.0) * percent);
}

/* Of an own trainer only what it has reported is known, and how its processes ended. */
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

static void show_end(struct progress *p, const struct progress_end *end)
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
    say(p, &out);
}

/* ---- what it shows ------------------------------------------------------------------------- */

void progress_plan(struct progress *p, const cJSON *json, const char *text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    char *plan;

    if (!p->config.is_json) {
        write_out(p, text);
        return;
    }
    plan = fleet_json_print(json);
    fleet_assert(plan[0] == '{');
    begin_json(&out, "plan");
    if (plan[1] != '}')
        fleet_strbuf_append_char(&out, ',');
    fleet_strbuf_append(&out, plan + 1); /* with its closing brace */
    fleet_strbuf_append_char(&out, '\n');
    write_out(p, out.text);
    free(plan);
}

/* Steps whose times nobody has measured are left out. */
static void note_times(struct progress *p, const struct message_step *step)
{
    const struct fleet_step_times *times = &step->times;
    double sum = times->data_s + times->forward_s + times->backward_s + times->exchange_s +
                 times->optimizer_s;

    if (!(sum > 0) || !(step->tokens_per_second > 0))
        return;
    p->total_s += fmax(sum, (double)step->tokens / step->tokens_per_second);
    p->times.data_s += times->data_s;
    p->times.forward_s += times->forward_s;
    p->times.backward_s += times->backward_s;
    p->times.exchange_s += times->exchange_s;
    p->times.optimizer_s += times->optimizer_s;
}

static void note_step(struct progress *p, const struct message_step *step, double now_ms)
{
    if (!isnan(p->stepped_ms)) {
        int64_t count = step->step > p->step ? step->step - p->step : 1;
        double step_ms = (now_ms - p->stepped_ms) / (double)count;
        p->step_ms =
            isnan(p->step_ms) ? step_ms : RATE_KEEP * p->step_ms + (1.0 - RATE_KEEP) * step_ms;
    }
    p->stepped_ms = now_ms;
    p->step = step->step;
    if (step->steps > 0) /* an own trainer says how many there are */
        p->config.steps = step->steps;
    p->first_loss = isnan(p->first_loss) ? step->loss : p->first_loss;
    p->last_loss = step->loss;
    note_times(p, step);
}

void progress_began(struct progress *p, double first_loss, double last_loss)
{
    p->first_loss = first_loss;
    p->last_loss = last_loss;
}

void progress_event(struct progress *p, const struct hub_event *event, double now_ms)
{
    if (event->type == HUB_EVENT_FINISHED && event->step.step > p->step)
        p->step = event->step.step; /* all were made in an earlier run */
    if (event->type == HUB_EVENT_STEP)
        note_step(p, &event->step, now_ms);
    if (event->type == HUB_EVENT_ASSIGNED)
        p->stepped_ms = NAN; /* a restart is no step */
    if (p->config.is_json)
        event_as_json(p, event);
    else
        event_as_text(p, event, now_ms);
}

void progress_finish(struct progress *p, const struct progress_end *end)
{
    if (p->config.is_json) {
        print_end(p, end);
        return;
    }
    if (p->line.length > 0)
        write_out(p, "\n"); /* the last progress line stays */
    fleet_strbuf_clear(&p->line);
    show_end(p, end);
}
