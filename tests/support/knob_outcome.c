/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/knob_outcome.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/validation.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/plan/plan.h"
#include "libfleet/program/dgc.h"
#include "libfleet/program/print.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/pipeline_schedule.h"
#include "libfleet/training/averaging.h"
#include "libfleet/training/loss_scaling.h"

static const struct {
    const char *name, *model, *data;
} models[KNOB_MODELS] = {
    {"gpt", "{\"name\":\"gpt\",\"layers\":4,\"heads\":2,\"width\":16,\"context\":8}",
     "{\"path\":\"t\"}"},
    {"llama", "{\"name\":\"llama\",\"layers\":4,\"heads\":2,\"width\":16,\"context\":8}",
     "{\"path\":\"t\"}"},
    {"resnet", "{\"name\":\"resnet\",\"preset\":\"resnet18\",\"baseWidth\":4}",
     "{\"path\":\"t\",\"tokenizer\":\"cifar10\"}"},
    {"mlp", "{\"name\":\"mlp\",\"sizes\":[3072,16,16,10]}",
     "{\"path\":\"t\",\"tokenizer\":\"cifar10\"}"},
};

void outcome_release(struct outcome *o)
{
    fleet_strbuf_release(&o->runs);
    fleet_strbuf_release(&o->told);
    fleet_strbuf_release(&o->idle);
    fleet_errors_release(&o->errors);
    fleet_errors_release(&o->warnings);
}

const char *knob_model(int model)
{
    return models[model].name;
}

cJSON *knob_job_make(const struct knob_job *job)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *strategy = cJSON_PrintUnformatted(job->strategy);
    cJSON *json;

    fleet_strbuf_appendf(
        &text,
        "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":"
        "\"j\"},\"spec\":{\"worker\":{\"replicas\":%d},\"strategyPolicy\":\"%s\",\"strategy\":%s,"
        "\"training\":{\"model\":%s,\"data\":%s,\"optimizer\":{\"name\":\"%s\",\"learningRate\":"
        "0.1},\"globalBatchSize\":8,\"microBatchSize\":2,\"steps\":4}}}",
        job->workers, job->is_paddle ? "Paddle" : "Full", strategy, models[job->model].model,
        job->data ? job->data : models[job->model].data, job->optimizer);
    json = cJSON_Parse(text.text);
    fleet_assert(json);
    return json;
}

static void append_notes(struct fleet_strbuf *out, const struct select_notes *notes)
{
    for (size_t i = 0; i < notes->count; i++)
        fleet_strbuf_appendf(out, "%s: %s\n", notes->items[i].knob, notes->items[i].because);
}

/* The loss scale through many updates without an overflow, and through some with one. */
static void append_scaling(struct fleet_strbuf *out, const struct strategy *s)
{
    struct loss_scaling scaling;

    loss_scaling_init(&scaling, s);
    for (int i = 0; i < 4200; i++) {
        loss_scaling_advance(&scaling, s, i % 2100 >= 2090);
        if (i % 50 == 0 || i % 2100 >= 2090)
            fleet_strbuf_appendf(out, "%a %d %d\n", (double)scaling.scale, scaling.good,
                                 scaling.bad);
    }
}

/* After which of some updates localsgd averages, and how much dgc sends in them. */
static void append_exchange(struct fleet_strbuf *out, const struct strategy *s,
                            const struct program *program)
{
    struct averaging averaging;
    bool kept;

    averaging_init(&averaging, s);
    for (int64_t update = 1; update <= 200; update++) {
        struct averaging_step step = {.update = update,
                                      .loss = 5.0 / (double)update,
                                      .rate = 1.0 / (double)(update * update)};
        if (averaging_is_on(s) && averaging_advance(&averaging, s, NULL, &step, &kept))
            fleet_strbuf_appendf(out, "%lld ", (long long)update);
        if (s->dgc && dgc_words(program, 1, PROGRAM_NONE) > 0)
            fleet_strbuf_appendf(out, "%g ", dgc_ratio(&s->dgc_configs, update - 1));
    }
}

static void append_plan(struct outcome *o, const struct plan *plan)
{
    for (size_t i = 0; i < plan->selection.applied.count; i++)
        fleet_strbuf_appendf(&o->runs, "%s\n", plan->selection.applied.items[i]);
    for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
        fleet_strbuf_appendf(&o->runs, "%d\n", plan->topology.degree[axis]);
    print_program(&plan->program, &o->runs);
    if (plan->topology.degree[TOPOLOGY_MODEL] > 1) /* the start of the parameters */
        fleet_strbuf_appendf(&o->runs, "%d\n",
                             plan->selection.final.tensor_parallel_configs.tensor_init_seed);
    if (plan->is_cut)
        pipeline_print_all(&plan->schedule, &o->runs);
    append_scaling(&o->runs, &plan->selection.final);
    if (plan->world > 1)
        append_exchange(&o->runs, &plan->selection.final, &plan->program);
    append_notes(&o->told, &plan->selection.dropped);
    append_notes(&o->told, &plan->selection.without_effect);
    append_notes(&o->idle, &plan->selection.without_effect);
    append_notes(&o->told, &plan->selection.notes);
}

void outcome_of(const cJSON *json, int workers, struct outcome *o)
{
    struct plan_request request = {.world = workers};
    struct fleetjob job;
    struct plan plan;

    *o = (struct outcome){0};
    if (fleetjob_decode(json, &job, &o->errors) == 0 &&
        validation_check(&job, &(struct validation_options){0}, &o->errors, &o->warnings) == 0) {
        request.training = &job.spec.training;
        request.strategy = &job.spec.strategy;
        request.options = &job.spec.strategy_options;
        request.policy = job.spec.strategy_policy;
        if (plan_build(&request, &plan, &o->errors) == 0) {
            append_plan(o, &plan);
            fleet_strbuf_appendf(&o->runs, "%d %d\n", choices_scale(&plan.selection.final),
                                 job.spec.strategy_options.repeated_loss_adds);
            plan_release(&plan);
        }
    }
    fleetjob_release(&job);
}

/* ---- (a), (b), (c) --------------------------------------------------------------------------- */

#define STRATEGY "spec.strategy."

/* `path` is `field` or a message around it. */
static bool encloses(const char *path, size_t length, const char *field)
{
    return length > 0 && strncmp(field, path, length) == 0 &&
           (field[length] == '\0' || field[length] == '.' || field[length] == '[');
}

/* The error names the field, or another that the job wrote. */
static bool is_blamed(const struct every_knob *knob, const char *path, const char *message)
{
    const char *last = strrchr(knob->path, '.');
    FLEET_AUTO_STRBUF struct fleet_strbuf written = {0};

    if (strncmp(path, STRATEGY, strlen(STRATEGY)) != 0)
        return false;
    path += strlen(STRATEGY);
    fleet_strbuf_appendf(&written, "%.*s", (int)strcspn(path, "["), path);
    return encloses(knob->path, strlen(knob->path), path) ||
           strstr(message, last ? last + 1 : knob->path) ||
           fleet_json_at(knob->strategy, written.text) != NULL;
}

bool outcome_is_refused(const struct outcome *o, const struct every_knob *knob)
{
    for (size_t i = 0; i < o->errors.count; i++)
        if (is_blamed(knob, o->errors.items[i].path, o->errors.items[i].message))
            return true;
    return false;
}

bool outcome_is_told(const struct outcome *o, const struct every_knob *knob)
{
    for (const char *line = fleet_strbuf_text(&o->told); *line; line = strchr(line, '\n') + 1)
        if (encloses(line, strcspn(line, ":"), knob->path))
            return true;
    for (size_t i = 0; i < o->warnings.count; i++) {
        const char *path = o->warnings.items[i].path;

        if (strncmp(path, STRATEGY, strlen(STRATEGY)) == 0 &&
            encloses(path + strlen(STRATEGY), strlen(path) - strlen(STRATEGY), knob->path))
            return true;
    }
    return false;
}

bool outcome_is_idle(const struct outcome *o, const struct every_knob *knob)
{
    size_t length = strlen(knob->path);

    for (const char *line = fleet_strbuf_text(&o->idle); *line; line = strchr(line, '\n') + 1)
        if (strncmp(line, knob->path, length) == 0 && line[length] == ':')
            return true;
    return false;
}

bool outcome_differs(const struct outcome *a, const struct outcome *b)
{
    return a->errors.count == 0 && b->errors.count == 0 &&
           strcmp(fleet_strbuf_text(&a->runs), fleet_strbuf_text(&b->runs)) != 0;
}
