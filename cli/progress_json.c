/* SPDX-License-Identifier: Apache-2.0 */

/* Prints a run as JSON lines: one object for each event. */
#include <math.h>

#include "cli/progress_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"

static cJSON *new_event(const char *event)
{
    cJSON *json = fleet_json_new_object();

    fleet_json_set_string(json, "event", event);
    return json;
}

/* Print the event, and free it. */
static void print(struct progress *p, cJSON *event)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_json_append(&text, event);
    fleet_strbuf_append_char(&text, '\n');
    progress_write(p, text.text);
    cJSON_Delete(event);
}

static void print_step(struct progress *p, const struct message_step *step)
{
    cJSON *json = new_event("step");

    fleet_json_set_number(json, "step", (double)step->step);
    fleet_json_set_number(json, "loss", step->loss);
    if (!isnan(step->learning_rate)) { /* the batch made an update */
        fleet_json_set_number(json, "gradNorm", step->grad_norm);
        fleet_json_set_number(json, "learningRate", step->learning_rate);
    }
    if (!p->config.own_trainer || step->tokens > 0)
        fleet_json_set_number(json, "tokens", (double)step->tokens);
    if (!p->config.own_trainer || !isnan(step->tokens_per_second))
        fleet_json_set_number(json, "tokensPerSecond", round(step->tokens_per_second));
    fleet_json_set_number(json, "generation", (double)step->generation);
    print(p, json);
}

/* In tenths of milliseconds, so that the printed phases still add up. NaN = not reached. */
static double tenths(double ms)
{
    return ms < 0 ? NAN : round(ms * 10.0);
}

static void print_restart(struct progress *p, const struct hub_event *event)
{
    const struct hub_timeline *t = &event->timeline;
    double phases[] = {tenths(t->detect_ms), tenths(t->agree_ms), tenths(t->connect_ms),
                       tenths(t->restore_ms)};
    cJSON *json = new_event("restart");

    fleet_json_set_number(json, "generation", (double)event->generation.counter);
    fleet_json_set_string(json, "cause", event->cause);
    fleet_json_set_number(json, "member", (double)event->member);
    fleet_json_set_number(json, "detectMs", phases[0] / 10.0);
    fleet_json_set_number(json, "agreeMs", phases[1] / 10.0);
    fleet_json_set_number(json, "connectMs", phases[2] / 10.0);
    fleet_json_set_number(json, "restoreMs", phases[3] / 10.0);
    fleet_json_set_number(json, "resumeMs", (phases[0] + phases[1] + phases[2] + phases[3]) / 10.0);
    fleet_json_set_number(json, "firstStepMs", tenths(t->first_step_ms) / 10.0);
    if (event->lost_steps >= 0)
        fleet_json_set_number(json, "lostSteps", (double)event->lost_steps);
    print(p, json);
}

static void print_evaluation(struct progress *p, const struct hub_event *event)
{
    cJSON *json = new_event("evaluation");

    fleet_json_set_number(json, "step", (double)event->step.step);
    fleet_json_set_number(json, "loss", event->step.loss);
    print(p, json);
}

static void print_waiting(struct progress *p, const struct hub_event *event)
{
    cJSON *json;

    if (!event->message[0])
        return;
    json = new_event("waiting");
    fleet_json_set_string(json, "message", event->message);
    fleet_json_set_number(json, "seconds",
                          isinf(event->until_ms) ? NAN
                                                 : round((event->until_ms - event->at_ms) / 1e3));
    print(p, json);
}

static void print_checkpoint(struct progress *p, const struct hub_event *event)
{
    cJSON *json = new_event("checkpoint");

    fleet_json_set_number(json, "step", (double)event->step.step);
    fleet_json_set_string(json, "path", event->text ? event->text : "");
    print(p, json);
}

static void print_checkpoint_failed(struct progress *p, const struct hub_event *event)
{
    cJSON *json = new_event("checkpointFailed");

    fleet_json_set_number(json, "step", (double)event->step.step);
    fleet_json_set_string(json, "message", event->message);
    print(p, json);
}

static void print_state_lost(struct progress *p, const struct hub_event *event)
{
    cJSON *json = new_event("stateLost");

    fleet_json_set_number(json, "lostSteps", (double)event->lost_steps);
    fleet_json_set_string(json, "message", event->message);
    print(p, json);
}

void progress_end_json(struct progress *p, const struct progress_end *end)
{
    cJSON *json = new_event("end");

    fleet_json_set_string(json, "state", end->state);
    if (end->message[0])
        fleet_json_set_string(json, "message", end->message);
    if (p->step > 0 || !p->config.own_trainer) {
        fleet_json_set_number(json, "steps", (double)p->step);
        fleet_json_set_number(json, "loss", p->last_loss);
    }
    if (end->weights_sha256[0])
        fleet_json_set_string(json, "weightsSha256", end->weights_sha256);
    fleet_json_set_number(json, "restarts", (double)end->restarts);
    fleet_json_set_number(json, "seconds", round(end->seconds * 10.0) / 10.0);
    print(p, json);
}

void progress_event_json(struct progress *p, const struct hub_event *event)
{
    switch (event->type) {
    case HUB_EVENT_STATE_LOST:
        print_state_lost(p, event);
        break;
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

void progress_plan_json(struct progress *p, const cJSON *plan)
{
    cJSON *json = new_event("plan");
    const cJSON *part;

    cJSON_ArrayForEach(part, plan) fleet_json_set(json, part->string, fleet_json_copy(part));
    print(p, json);
}
