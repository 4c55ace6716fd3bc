/* SPDX-License-Identifier: Apache-2.0 */

/* One function for each subject; the list at the end has all of them. Unless gradients are merged,
 * an update is a step. */
#include "libfleet/api/odd_fields.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/worker_resources.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

struct odd {
    const struct fleetjob *job;
    const struct training_config *training; /* if the job has one */
    int64_t updates;                        /* of the whole job */
    struct fleet_errors *warnings;
};

static bool is_known(const struct odd *o, const char *path)
{
    return !fleet_errors_touch(&o->job->unread, path);
}

/* Did the user write the field? An unlikely default is not the user's mistake. */
static bool is_given(const struct odd *o, const char *path)
{
    return fleet_json_at(o->job->spec.training_json, path + strlen("spec.training.")) != NULL;
}

/* ---- the learning rate ----------------------------------------------------------------------- */

static void warn_of_warmup(const struct odd *o)
{
    const struct training_schedule *schedule = &o->training->schedule;

    if (!is_known(o, "spec.training.schedule") || schedule->warmup_steps < 1 ||
        schedule->warmup_steps < o->updates)
        return;
    fleet_errors_add(o->warnings, "spec.training.schedule.warmupSteps",
                     "%" PRId64 " updates of warm-up, but the job has only %" PRId64 ": %s",
                     schedule->warmup_steps, o->updates,
                     schedule->name == TRAINING_SCHEDULE_NOAM
                         ? "the rate rises to the end"
                         : "the learning rate never gets to optimizer.learningRate");
}

static void warn_of_late_changes(const struct odd *o)
{
    const struct training_schedule *schedule = &o->training->schedule;
    int64_t left = o->updates - schedule->warmup_steps;

    if (!is_known(o, "spec.training.schedule") || left <= 0)
        return;
    if (schedule->name == TRAINING_SCHEDULE_POLYNOMIAL && schedule->decay_steps > left)
        fleet_errors_add(o->warnings, "spec.training.schedule.decaySteps",
                         "%" PRId64 " is more than the %" PRId64
                         " updates after the warm-up: the rate never gets to endLearningRate",
                         schedule->decay_steps, left);
    if (schedule->name == TRAINING_SCHEDULE_STEP && schedule->step_size >= left)
        fleet_errors_add(o->warnings, "spec.training.schedule.stepSize",
                         "%" PRId64 ", but there are only %" PRId64
                         " updates after the warm-up: the rate never changes",
                         schedule->step_size, left);
    if (schedule->name == TRAINING_SCHEDULE_PIECEWISE && schedule->boundaries.count > 0 &&
        schedule->boundaries.items[schedule->boundaries.count - 1] >= left)
        fleet_errors_add(o->warnings, "spec.training.schedule.boundaries",
                         "%" PRId64 " is not reached: there are only %" PRId64
                         " updates after the warm-up",
                         schedule->boundaries.items[schedule->boundaries.count - 1], left);
}

static void warn_of_rising(const struct odd *o)
{
    const struct training_schedule *schedule = &o->training->schedule;
    double rate = o->training->optimizer.learning_rate;

    if (!is_known(o, "spec.training.schedule") ||
        !is_known(o, "spec.training.optimizer.learningRate"))
        return;
    if (schedule->name == TRAINING_SCHEDULE_COSINE && schedule->min_learning_rate > rate)
        fleet_errors_add(o->warnings, "spec.training.schedule.minLearningRate",
                         "%g is more than optimizer.learningRate (%g): the rate rises",
                         schedule->min_learning_rate, rate);
    if (schedule->name == TRAINING_SCHEDULE_POLYNOMIAL && schedule->end_learning_rate > rate)
        fleet_errors_add(o->warnings, "spec.training.schedule.endLearningRate",
                         "%g is more than optimizer.learningRate (%g): the rate rises",
                         schedule->end_learning_rate, rate);
    if (schedule->warmup_steps > 0 && schedule->name != TRAINING_SCHEDULE_NOAM &&
        schedule->start_learning_rate > rate)
        fleet_errors_add(o->warnings, "spec.training.schedule.startLearningRate",
                         "%g is more than optimizer.learningRate (%g): the warm-up falls",
                         schedule->start_learning_rate, rate);
}

/* ---- what happens every so often ------------------------------------------------------------- */

/* Allowed: it then happens only at the end. */
static void warn_of_rare(const struct odd *o)
{
    const struct {
        const char *path, *what;
        int64_t every;
    } rows[] = {
        {"spec.training.checkpoint.everySteps", "the only checkpoint is the one at the end",
         o->training->has_checkpoint ? o->training->checkpoint.every_steps : 0},
        {"spec.training.evaluation.everySteps", "there is one evaluation, at the end",
         o->training->has_evaluation ? o->training->evaluation.every_steps : 0},
        {"spec.training.log.everySteps", "the log has the first and the last step only",
         o->training->log.every_steps},
    };

    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        if (rows[i].every > o->training->steps && is_given(o, rows[i].path) &&
            is_known(o, rows[i].path))
            fleet_errors_add(o->warnings, rows[i].path,
                             "%" PRId64 " is more than steps (%" PRId64 "): %s", rows[i].every,
                             o->training->steps, rows[i].what);
}

static void warn_of_window(const struct odd *o)
{
    const struct training_health *health = &o->training->health;

    if (is_known(o, "spec.training.health") && health->loss_spike != TRAINING_LOSS_SPIKE_OFF &&
        is_given(o, "spec.training.health.window") && health->window >= o->training->steps)
        fleet_errors_add(o->warnings, "spec.training.health.window",
                         "%" PRId64 " steps, but the job has only %" PRId64
                         ": no loss is ever called a spike",
                         health->window, o->training->steps);
}

static void warn_of_resume(const struct odd *o)
{
    const struct training_checkpoint *checkpoint = &o->training->checkpoint;

    if (o->training->has_checkpoint && is_known(o, "spec.training.checkpoint.resume") &&
        checkpoint->resume >= o->training->steps)
        fleet_errors_add(o->warnings, "spec.training.checkpoint.resume",
                         "goes on from step %" PRId64 ", but steps is %" PRId64
                         ": nothing is left to do",
                         checkpoint->resume, o->training->steps);
}

/* ---- data and machines ----------------------------------------------------------------------- */

static void warn_of_unused_share(const struct odd *o)
{
    if (o->training->data.validation > 0 && !o->training->has_evaluation &&
        is_known(o, "spec.training.evaluation") && is_known(o, "spec.training.data.validation"))
        fleet_errors_add(o->warnings, "spec.training.data.validation",
                         "%g of the data is held out, and nothing looks at it: add "
                         "spec.training.evaluation, or leave it out",
                         o->training->data.validation);
}

static void warn_of_unread_data(const struct odd *o)
{
    const struct training_data *data = &o->training->data;

    if (data->path && data->tokenizer == TRAINING_TOKENIZER_SYNTHETIC_MARKOV &&
        is_known(o, "spec.training.data"))
        fleet_errors_add(o->warnings, "spec.training.data.path",
                         "\"%.200s\" has no effect: tokenizer synthetic-markov makes the tokens",
                         data->path);
}

static bool is_nothing(const cJSON *quantity)
{
    return (cJSON_IsNumber(quantity) && quantity->valuedouble == 0) ||
           (cJSON_IsString(quantity) && strcmp(quantity->valuestring, "0") == 0);
}

static void warn_of_gpus(const struct odd *o)
{
    const struct fleetjob_worker *worker = &o->job->spec.worker;
    static const char *const lists[] = {"limits", "requests"};
    const cJSON *resources = worker->template_
                                 ? fleet_json_at(worker->template_, "spec.containers[0].resources")
                                 : worker->resources;
    const char *front = worker->template_ ? "spec.worker.template.spec.containers[0].resources"
                                          : "spec.worker.resources";
    const cJSON *item;

    for (size_t i = 0; i < FLEET_COUNT(lists); i++)
        cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(resources, lists[i]))
        {
            FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

            if (!item->string || !worker_resources_is_gpu(item->string) ||
                is_nothing(item)) /* a list is refused */
                continue;
            fleet_strbuf_appendf(&path, "%s.%s[%s]", front, lists[i], item->string);
            fleet_errors_add(
                o->warnings, path.text,
                "the built-in trainer computes on CPUs only so far: these GPUs would be "
                "reserved and stay idle; leave them out");
        }
}

/* ---- own trainers ---------------------------------------------------------------------------- */

static void warn_of_plain_data(const struct odd *o)
{
    if (o->job->spec.run_policy.data_encryption == FLEETJOB_ENCRYPTION_AES_GCM &&
        is_known(o, "spec.runPolicy.dataEncryption"))
        fleet_errors_add(o->warnings, "spec.runPolicy.dataEncryption",
                         "an own trainer gets it as FLEET_DATA_ENCRYPTION: fleet.h encrypts, other "
                         "libraries do not read it");
}

/* ---- the list -------------------------------------------------------------------------------- */

static void (*const subjects[])(const struct odd *) = {
    warn_of_warmup, warn_of_late_changes, warn_of_rising, warn_of_rare,        warn_of_unread_data,
    warn_of_window, warn_of_resume,       warn_of_gpus,   warn_of_unused_share};

void odd_fields_warn(const struct fleetjob *job, struct fleet_errors *warnings)
{
    struct odd odd = {.job = job, .training = &job->spec.training, .warnings = warnings};

    if (!job->spec.has_training)
        warn_of_plain_data(&odd);
    if (!job->spec.has_training || !is_known(&odd, "spec.training.steps"))
        return;
    odd.updates = training_updates(odd.training, fleetjob_gradient_merge_k(job));
    for (size_t i = 0; i < FLEET_COUNT(subjects); i++)
        subjects[i](&odd);
}
