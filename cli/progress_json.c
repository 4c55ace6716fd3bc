/* SPDX-License-Identifier: Apache-2.0 */

/* A run as JSON lines: an object an event. */
#include <math.h>

#include "cli/progress_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

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
    progress_write(p, out->text);
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

void progress_end_json(struct progress *p, const struct progress_end *end)
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

void progress_event_json(struct progress *p, const struct hub_event *event)
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

void progress_plan_json(struct progress *p, const cJSON *json)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    FLEET_AUTO_FREE char *plan = fleet_json_print(json);

    fleet_assert(plan[0] == '{');
    begin_json(&out, "plan");
    if (plan[1] != '}')
        fleet_strbuf_append_char(&out, ',');
    fleet_strbuf_append(&out, plan + 1); /* with its closing brace */
    fleet_strbuf_append_char(&out, '\n');
    progress_write(p, out.text);
}
