/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Prints the progress of a run as JSON lines or text, from the same events. On a terminal, the
 * progress line is erased before any other output and drawn again after it.
 */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "cli/progress_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"

#define RATE_KEEP 0.95 /* weight of the past in the mean time of a step */

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

void progress_write(struct progress *p, const char *text)
{
    if (fputs(text, p->config.out) == EOF || fflush(p->config.out) == EOF)
        p->is_heard = false;
}

void progress_erase_line(struct progress *p)
{
    if (p->line.length > 0)
        progress_write(p, "\r\033[K");
}

void progress_redraw_line(struct progress *p)
{
    if (p->line.length > 0)
        progress_write(p, p->line.text);
}

/* Print a whole line of text on `out`, above the progress line. */
void progress_say(struct progress *p, struct fleet_strbuf *text)
{
    progress_erase_line(p);
    fleet_strbuf_append_char(text, '\n');
    progress_write(p, text->text);
    progress_redraw_line(p);
}

void progress_note(struct progress *p, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&text, format, args);
    va_end(args);
    fleet_strbuf_append_char(&text, '\n');
    progress_erase_line(p);
    (void)fputs(text.text, p->config.notes);
    (void)fflush(p->config.notes);
    progress_redraw_line(p);
}

void progress_output(struct progress *p, bool is_error, const char *text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (is_error || p->config.is_json) {
        progress_note(p, "%s", text);
        return;
    }
    fleet_strbuf_append(&line, text);
    progress_say(p, &line);
}

/* ---- what it shows ------------------------------------------------------------------------- */

void progress_plan(struct progress *p, const cJSON *json, const char *text)
{
    if (p->config.is_json)
        progress_plan_json(p, json);
    else
        progress_write(p, text);
}

/* Steps without measured times are left out. */
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
    p->times.hidden_s += fmax(times->hidden_s, 0.0); /* NaN: not measured */
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
    if (step->steps > 0) /* an own trainer reports the number */
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
        p->step = event->step.step; /* an earlier run made all steps */
    if (event->type == HUB_EVENT_STEP)
        note_step(p, &event->step, now_ms);
    if (event->type == HUB_EVENT_ASSIGNED)
        p->stepped_ms = NAN; /* a restart is no step */
    if (p->config.is_json)
        progress_event_json(p, event);
    else
        progress_event_text(p, event, now_ms);
}

void progress_finish(struct progress *p, const struct progress_end *end)
{
    if (p->config.is_json) {
        progress_end_json(p, end);
        return;
    }
    if (p->line.length > 0)
        progress_write(p, "\n"); /* the last progress line stays on the terminal */
    fleet_strbuf_clear(&p->line);
    progress_end_text(p, end);
}
