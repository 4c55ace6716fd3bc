/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_PLANNED_JOB_H
#define TESTS_SUPPORT_PLANNED_JOB_H

/* A job that is given as two JSON texts, and its plan. A text that is refused fails the test. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"

struct job {
    struct training_config training;
    struct strategy strategy;
    struct plan plan;           /* valid if rc is 0 */
    struct fleet_errors errors; /* of the plan */
    int rc;                     /* of plan_build() */
};

/* Read both texts. `training` NULL: a job without a training. */
static inline void job_decode(struct job *job, const char *training, const char *strategy)
{
    FLEET_AUTO_JSON cJSON *t = training ? cJSON_Parse(training) : NULL, *s = cJSON_Parse(strategy);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    *job = (struct job){0};
    if (!s || (training && !t))
        fail_msg("not JSON: %s %s", training ? training : "", strategy);
    if (t)
        job->rc = training_config_decode(t, "spec.training", &job->training, &job->errors);
    job->rc |= strategy_json_decode(s, "spec.strategy", &job->strategy, &job->errors);
    fleet_errors_print(&job->errors, &text);
    if (job->rc)
        fail_msg("job of the test is refused: %s", fleet_strbuf_text(&text));
}

/* Read both texts, and build the plan for `world` ranks; job->rc is the result. */
static inline void job_init_for(struct job *job, const char *training, const char *strategy,
                                int world)
{
    struct plan_request request = {
        .training = &job->training, .strategy = &job->strategy, .world = world};

    job_decode(job, training, strategy);
    job->rc = plan_build(&request, &job->plan, &job->errors);
}

static inline void job_release(struct job *job)
{
    if (job->rc == 0)
        plan_release(&job->plan);
    training_config_release(&job->training);
    strategy_release(&job->strategy);
    fleet_errors_release(&job->errors);
}

#endif
