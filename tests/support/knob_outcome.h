/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_KNOB_OUTCOME_H
#define TESTS_SUPPORT_KNOB_OUTCOME_H

/*
 * The outcome of a job that sets a knob: does it run something else than without the knob, is it
 * refused, is the knob reported? The checks and the plan are those of the controller and of
 * `fleetjob validate`.
 */

#include <stdbool.h>

#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/every_knob.h"

#define KNOB_MODELS 4

struct outcome {
    struct fleet_strbuf runs; /* everything that the knobs of a strategy can change */
    struct fleet_errors errors, warnings;
    struct fleet_strbuf told; /* "knob: because" a line, of all lists of the plan */
    struct fleet_strbuf idle; /* the same, of those without effect */
};

/* "gpt", "llama", "resnet", "mlp". */
const char *knob_model(int model);

/* A small job as JSON, owned by the caller. */
struct knob_job {
    int model, workers;
    const char *optimizer;
    const cJSON *strategy;
    bool is_paddle;   /* strategyPolicy: Paddle */
    const char *data; /* JSON of spec.training.data; NULL: a file that does not exist */
};

cJSON *knob_job_make(const struct knob_job *job);

/* Check and plan a job. *o must be released. */
void outcome_of(const cJSON *job, int workers, struct outcome *o);
void outcome_release(struct outcome *o);

/* True if an error refuses the job and names the knob or another field that it set. */
bool outcome_is_refused(const struct outcome *o, const struct every_knob *knob);

/* True if the plan or a warning names the knob, or a message around it, with a reason. */
bool outcome_is_told(const struct outcome *o, const struct every_knob *knob);

/* True if the plan says that exactly this knob has no effect. */
bool outcome_is_idle(const struct outcome *o, const struct every_knob *knob);

/* True if both run, and they run different things. */
bool outcome_differs(const struct outcome *a, const struct outcome *b);

#endif
