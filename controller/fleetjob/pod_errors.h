/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_ERRORS_H
#define CONTROLLER_FLEETJOB_POD_ERRORS_H

/*
 * What the API server has against a worker's pod, in the words and paths of the job: the user wrote
 * spec.worker.template, and knows nothing of the pod that pod_builder.h makes of it.
 */

#include <cjson/cJSON.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/base/errors.h"

struct fleet_error;

/*
 * Append what `refusal` (400 or 422 to the dry run of `pod`) says. Of a strict decoding error each
 * field on its own, with the path as the user wrote it and the name that was probably meant;
 * anything else as one error of the template.
 */
void pod_errors_explain(const struct fleetjob *job, const cJSON *pod,
                        const struct fleet_error *refusal, struct fleet_errors *out);

#endif
