/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/optimizer/lr_schedules.json: learning rates of Paddle's schedulers, 1e-9 relative.
 *
 * Ours are read off by libfleet/training/schedule.h, which puts a warm-up and Noam one place later
 * than the recording: there place 0 is `start` (Noam: 0), here update 1 is one n-th of the way. A
 * cosine has an end here, so the recording is compared up to its T_max.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/training/schedule.h"
#include "libfleet/training/training.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

#define LONG_JOB 100000 /* updates, for schedules without an end */

/* One of Paddle's schedulers as ours. */
struct translation {
    cJSON *schedule; /* ours, as in spec.training.schedule */
    double rate;     /* learningRate */
    int64_t updates; /* of the job, the warm-up not counted */
    int64_t places;  /* of the recording that can be compared; 0: all */
};

static void copy_number(cJSON *to, const char *ours, const cJSON *from, const char *theirs)
{
    cJSON_AddNumberToObject(to, ours, golden_number(from, theirs));
}

static void translate_cosine(const cJSON *a, struct translation *t)
{
    golden_known_keys(a, (const char *const[]){"learning_rate", "T_max", "eta_min", NULL});
    cJSON_AddNumberToObject(t->schedule, "minLearningRate", golden_number_or(a, "eta_min", 0));
    t->updates = golden_int(a, "T_max") + 1;
    t->places = t->updates;
}

static void translate_polynomial(const cJSON *a, struct translation *t)
{
    golden_known_keys(
        a, (const char *const[]){"learning_rate", "decay_steps", "end_lr", "power", "cycle", NULL});
    if (golden_bool_or(a, "cycle", false))
        golden_skip("a polynomial with cycle: ours ends");
    copy_number(t->schedule, "decaySteps", a, "decay_steps");
    cJSON_AddNumberToObject(t->schedule, "endLearningRate", golden_number_or(a, "end_lr", 0.0001));
    cJSON_AddNumberToObject(t->schedule, "power", golden_number_or(a, "power", 1));
}

static void translate_piecewise(const cJSON *a, struct translation *t)
{
    golden_known_keys(a, (const char *const[]){"boundaries", "values", NULL});
    cJSON_AddItemToObject(t->schedule, "boundaries",
                          cJSON_Duplicate(golden_array(a, "boundaries"), true));
    cJSON_AddItemToObject(t->schedule, "values", cJSON_Duplicate(golden_array(a, "values"), true));
}

static void translate_multi_step(const cJSON *a, struct translation *t)
{
    cJSON *values = cJSON_AddArrayToObject(t->schedule, "values");
    const cJSON *milestones = golden_array(a, "milestones");

    golden_known_keys(a, (const char *const[]){"learning_rate", "milestones", "gamma", NULL});
    cJSON_AddItemToObject(t->schedule, "boundaries", cJSON_Duplicate(milestones, true));
    for (int i = 0; i <= cJSON_GetArraySize(milestones); i++)
        cJSON_AddItemToArray(
            values, cJSON_CreateNumber(t->rate * pow(golden_number_or(a, "gamma", 0.1), i)));
}

static void translate_gamma(const cJSON *a, struct translation *t)
{
    golden_known_keys(a, (const char *const[]){"learning_rate", "gamma", NULL});
    copy_number(t->schedule, "gamma", a, "gamma");
}

static void translate_step(const cJSON *a, struct translation *t)
{
    golden_known_keys(a, (const char *const[]){"learning_rate", "step_size", "gamma", NULL});
    copy_number(t->schedule, "stepSize", a, "step_size");
    cJSON_AddNumberToObject(t->schedule, "gamma", golden_number_or(a, "gamma", 0.1));
}

static void translate_noam(const cJSON *a, struct translation *t)
{
    golden_known_keys(a, (const char *const[]){"learning_rate", "d_model", "warmup_steps", NULL});
    copy_number(t->schedule, "modelSize", a, "d_model");
    copy_number(t->schedule, "warmupSteps", a, "warmup_steps");
}

static const struct {
    const char *theirs, *ours;
    void (*translate)(const cJSON *arguments, struct translation *t);
} schedules[] = {
    {"CosineAnnealingDecay", "cosine", translate_cosine},
    {"PolynomialDecay", "polynomial", translate_polynomial},
    {"PiecewiseDecay", "piecewise", translate_piecewise},
    {"MultiStepDecay", "piecewise", translate_multi_step},
    {"ExponentialDecay", "exponential", translate_gamma},
    {"NaturalExpDecay", "naturalExponential", translate_gamma},
    {"InverseTimeDecay", "inverseTime", translate_gamma},
    {"StepDecay", "step", translate_step},
    {"NoamDecay", "noam", translate_noam},
};

static void translate(const char *name, const cJSON *arguments, struct translation *t)
{
    size_t i = 0;

    while (i < FLEET_COUNT(schedules) && strcmp(schedules[i].theirs, name) != 0)
        i++;
    if (i == FLEET_COUNT(schedules))
        golden_skip("there is no schedule for %s", name);
    t->rate = golden_number_or(arguments, "learning_rate", 1);
    t->updates = LONG_JOB;
    cJSON_AddStringToObject(t->schedule, "name", schedules[i].ours);
    schedules[i].translate(arguments, t);
}

/* LinearWarmup around a rate or around another scheduler; returns its steps. */
static int64_t translate_warmup(const cJSON *a, struct translation *t)
{
    const cJSON *inner = golden_at(a, "learning_rate");

    golden_known_keys(
        a, (const char *const[]){"learning_rate", "warmup_steps", "start_lr", "end_lr", NULL});
    if (cJSON_IsNumber(inner)) {
        t->rate = inner->valuedouble;
        t->updates = LONG_JOB;
        cJSON_AddStringToObject(t->schedule, "name", "constant");
    } else {
        golden_check(cJSON_IsObject(inner) && inner->child);
        translate(inner->child->string, inner->child, t);
    }
    if (cJSON_GetObjectItem(t->schedule, "warmupSteps"))
        golden_skip("a warm-up in front of Noam, which is its own");
    copy_number(t->schedule, "warmupSteps", a, "warmup_steps");
    copy_number(t->schedule, "startLearningRate", a, "start_lr");
    return golden_int(a, "warmup_steps");
}

static void read_config(const struct translation *t, struct training_config *out)
{
    FLEET_AUTO_FREE char *schedule = fleet_json_print(t->schedule);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_errors errors = {0};

    fleet_strbuf_appendf(&text,
                         "{\"model\":{\"name\":\"mlp\",\"sizes\":[2,2]},\"data\":{\"path\":\"x\"},"
                         "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":%.17g},"
                         "\"schedule\":%s,\"globalBatchSize\":1,\"microBatchSize\":1,"
                         "\"steps\":%d}",
                         t->rate, schedule, LONG_JOB);
    json = cJSON_Parse(text.text);
    golden_check(json);
    if (training_config_decode(json, "", out, &errors) < 0) {
        fleet_strbuf_clear(&text);
        fleet_errors_print(&errors, &text);
        golden_fail("ours refuses it: %s", text.text);
    }
}

static void check_place(const struct training_config *config, int64_t updates, int64_t update,
                        const cJSON *rates, int place)
{
    double expected = golden_item(rates, place);
    char what[48];

    (void)snprintf(what, sizeof(what), "rate of step %d", place);
    golden_close(what, schedule_rate(config, updates, update), expected,
                 1e-9 * fabs(expected) + 1e-15);
}

/* What a warm-up ends at is not the first rate behind it: ours always is. */
static void refuse_jump(const cJSON *arguments, const struct training_config *config,
                        int64_t updates, int64_t warmup)
{
    double end = golden_number(arguments, "end_lr");

    if (fabs(schedule_rate(config, updates, warmup + 1) - end) > 1e-9 * fabs(end))
        golden_skip("a warm-up that does not end at the schedule's first rate");
}

static void run_case(void *context)
{
    const cJSON *row = context, *arguments = golden_at(row, "arguments");
    const cJSON *rates = golden_array(row, "lr_at_step_0_1_2");
    const char *name = golden_string(row, "schedule");
    struct translation t = {.schedule = cJSON_CreateObject()};
    struct training_config config;
    int64_t warmup = 0, updates;
    bool noam = strcmp(name, "NoamDecay") == 0;

    if (strcmp(name, "LinearWarmup") == 0)
        warmup = translate_warmup(arguments, &t);
    else
        translate(name, arguments, &t);
    read_config(&t, &config);
    updates = t.updates + warmup;
    if (strcmp(name, "LinearWarmup") == 0)
        refuse_jump(arguments, &config, updates, warmup);
    for (int i = warmup > 0 || noam ? 1 : 0; i < cJSON_GetArraySize(rates); i++) {
        if (t.places > 0 && i - warmup >= t.places)
            break;
        if (noam || i <= warmup)
            check_place(&config, updates, i + (warmup == 0 && !noam), rates, i);
        if (!noam && i >= warmup)
            check_place(&config, updates, i + 1, rates, i);
    }
    training_config_release(&config);
    cJSON_Delete(t.schedule);
}

void golden_paddle_schedules(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;

    cJSON_ArrayForEach(row, golden_array(root, "schedules"))
        golden_case(run_case, row, "%s", golden_string(row, "schedule"));
    cJSON_Delete(root);
}
