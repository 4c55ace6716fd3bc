/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes: errors, or a job that can be validated at any size and whose training block and status
 * survive being written and read.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/api/document.h"
#include "libfleet/api/judge.h"
#include "libfleet/api/validation.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/training/schedule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_training(const struct training_config *config)
{
    FLEET_AUTO_JSON cJSON *json = training_config_encode(config);
    struct fleet_errors errors = {0};
    struct training_config again;

    fleet_assert(training_config_decode(json, "", &again, &errors) == 0);
    fleet_assert(training_updates(&again, 1) == training_updates(config, 1));
    for (int64_t update = 1; update < 4; update++)
        fleet_assert(schedule_rate(&again, 10, update) == schedule_rate(config, 10, update));
    training_config_release(&again);
}

static void check_job(const struct fleetjob *job)
{
    FLEET_AUTO_JSON cJSON *json = fleetjob_status_encode(&job->status);
    struct fleet_errors errors = {0};
    struct fleetjob_status again;

    if (job->spec.has_training)
        check_training(&job->spec.training);
    (void)validation_check(job, &(struct validation_options){.in_cluster = true}, &errors, &errors);
    (void)validation_check(job, &(struct validation_options){.world_size = 6}, &errors, NULL);
    fleet_errors_release(&errors);
    fleet_assert(fleetjob_status_decode(json, &again, &errors) == 0);
    fleetjob_status_release(&again);
}

/* Large models take long to build; fuzz_plan.c has small ones. */
static bool is_small(const struct training_config *config)
{
    return config->model.layers <= 4 && config->model.depths.count == 0;
}

/* What could not be read is left out of all that is said about the rest. */
static void check_wrong_job(const struct fleetjob *job)
{
    struct fleet_errors errors = {0}, warnings = {0};
    struct judge_options options = {.world_size = 0};
    struct plan plan;

    (void)validation_check(job, &(struct validation_options){.in_cluster = true}, &errors,
                           &warnings);
    if (is_small(&job->spec.training) && judge_job(job, &options, &plan, &errors, &warnings))
        plan_release(&plan);
    fleet_errors_release(&errors);
    fleet_errors_release(&warnings);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fleet_errors errors = {0};
    struct document document;

    if (document_read("fuzz", (const char *)data, size, &document, &errors) == 0) {
        fleet_assert(errors.count == 0);
        if (document.kind == DOCUMENT_JOB)
            check_job(&document.job);
    } else {
        fleet_assert(errors.count > 0);
        if (document.kind == DOCUMENT_JOB && cJSON_IsObject(document.json))
            check_wrong_job(&document.job);
    }
    fleet_errors_release(&errors);
    document_release(&document);
    return 0;
}
