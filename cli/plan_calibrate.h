/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PLAN_CALIBRATE_H
#define CLI_PLAN_CALIBRATE_H

/* `fleetjob plan --calibrate`: measure this machine (agent/runtime/calibrate), print and store the
 * rates. */

#include <stdbool.h>

struct fleet_errors;
struct fleetjob;

struct plan_calibrate_options {
    long long devices;  /* ranks on this machine */
    const char *memory; /* of a device, "80G"; NULL: the machine's, divided by the ranks */
    const char *links;  /* the file to write; NULL: links_file_place() */
    bool is_json;       /* print the rates as JSON, with the fields of the links file */
    bool is_quiet;      /* print nothing: a search follows that prints JSON */
};

/* `job` has passed its checks, and its model is measured; NULL: a small gpt. Returns 0, or -EINVAL
 * with errors appended. */
int plan_calibrate(const struct fleetjob *job, const struct plan_calibrate_options *options,
                   struct fleet_errors *errors);

#endif
