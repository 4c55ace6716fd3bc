/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_ERRORS_H
#define CONTROLLER_FLEETJOB_POD_ERRORS_H

/*
 * Why the API server refuses the pod of a worker or server, with the paths of the job: the user
 * wrote spec.worker.template or spec.server.template, and does not know the pod that pod_builder.h
 * makes of it.
 */

#include <cjson/cJSON.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/base/errors.h"

struct fleet_error;

/*
 * Append the errors of `refusal` (400 or 422 to the dry run of `pod`). A strict decoding error
 * gives one error for each field, with the user's path and the name that was probably meant; any
 * other refusal is one error of the template.
 */
void pod_errors_explain(const struct fleetjob *job, const cJSON *pod,
                        const struct fleet_error *refusal, struct fleet_errors *out);

#endif
