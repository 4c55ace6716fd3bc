/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_OBSERVE_FIXTURE_H
#define TESTS_UNIT_OBSERVE_FIXTURE_H

/*
 * A pass's observation of a job and its pods, from JSON.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/observe.h"
#include "controller/fleetjob/projection.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"

#define META(name, more)                                                             \
    "\"metadata\":{\"name\":\"" name "\",\"namespace\":\"team\",\"uid\":\"uid-" name \
    "\",\"resourceVersion\":\"7\"" more "}"

#define POD(name, index, attempt)                                                  \
    META(name, ",\"labels\":{\"fleetjob.dev/worker-index\":\"" index               \
               "\",\"fleetjob.dev/worker-attempt\":\"" attempt                     \
               "\"},\"ownerReferences\":[{\"kind\":\"FleetJob\",\"name\":\"gpt\"," \
               "\"uid\":\"uid-gpt\",\"controller\":true}]")

static inline cJSON *parse(const char *text)
{
    cJSON *json = NULL;
    struct fleet_error err;

    if (fleet_json_parse(text, strlen(text), 65536, &json, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return json;
}

struct world {
    struct projection_job *job;
    struct store *pods;
    struct observe_plan plan;
    struct hub_view hub;
    struct observation observation;
};

static inline void release(struct world *w)
{
    observe_release(&w->observation);
    observe_plan_release(&w->plan);
    store_free(w->pods);
    projection_job_kind.release(w->job);
}

#endif
