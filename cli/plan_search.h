/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PLAN_SEARCH_H
#define CLI_PLAN_SEARCH_H

/* `fleetjob plan --search`: the best divisions of a job (libfleet/autoparallel/search), the time
 * that is predicted, and the lines to paste into the job. */

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "libfleet/strategy/select.h"

struct fleet_errors;
struct fleet_strbuf;
struct fleetjob;
struct links;
struct plan;

struct plan_search_options {
    long long devices;  /* 0: as many as the job has */
    const char *memory; /* of a device, "80G"; NULL: as the links file says */
    const char *links;  /* path; NULL: links_file_place() */
    const char *save;   /* path, or NULL */
    enum strategy_policy policy;
    bool is_json;
    bool of_operators; /* dynamic_programming: ways to divide single operators, of one grid */
};

/*
 * Search and print. The job has passed its checks and says how many ranks it has. Returns 0, or
 * -EINVAL with errors appended: a file, the options, or that nothing fits.
 */
int plan_search(const struct fleetjob *job, const struct plan_search_options *options,
                struct fleet_errors *errors);

/* The time of an update of the job as it is, into `json`, or as lines into `out` if that is NULL.
 * `plan` is the job's. -EINVAL with errors appended. */
int plan_search_predict(const struct fleetjob *job, const struct plan *plan, const char *file,
                        struct fleet_strbuf *out, cJSON *json, struct fleet_errors *errors);

/* Read --links, or what --calibrate has stored. -EINVAL with errors appended. */
int plan_search_links(const char *file, struct links *out, struct fleet_errors *errors);

/* Read --memory; NULL leaves *out alone. -EINVAL with an error appended. */
int plan_search_memory(const char *text, double *out, struct fleet_errors *errors);

#endif
