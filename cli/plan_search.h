/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PLAN_SEARCH_H
#define CLI_PLAN_SEARCH_H

/* `fleetjob plan --search`: the best divisions of a job (libfleet/autoparallel/search), the time
 * that is predicted, and the lines to paste into the job. */

#include <stdbool.h>

#include "libfleet/strategy/select.h"

struct fleet_errors;
struct fleetjob;

struct plan_search_options {
    long long devices;  /* 0: as many as the job has */
    const char *memory; /* of a device, "80G"; NULL: as the links file says */
    const char *links;  /* path */
    const char *save;   /* path, or NULL */
    enum strategy_policy policy;
    bool is_json;
};

/*
 * Search and print. The job has passed its checks and says how many ranks it has. Returns 0, or
 * -EINVAL with errors appended: a file, the options, or that nothing fits.
 */
int plan_search(const struct fleetjob *job, const struct plan_search_options *options,
                struct fleet_errors *errors);

#endif
