/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_DIVISIONS_INTERNAL_H
#define LIBFLEET_API_DIVISIONS_INTERNAL_H

/* What the files behind divisions.h share. */

#include "libfleet/api/divisions.h"

/* An entry of status.plan.search. The caller owns the JSON; false: it is none. */
cJSON *division_encode(const struct division *division);
bool division_decode(const cJSON *json, struct division *out);

/* To three digits: a prediction has no more. */
double divisions_round(double value);

/* Digest of the fields that a search reads, without worker.replicas. */
void divisions_digest_job(const struct fleetjob *job, char out[DIVISIONS_DIGEST_SIZE]);

/* status.plan.search if it is about the job as it is now; NULL: it is not, or there is none. */
const cJSON *divisions_known(const struct fleetjob *job);

#endif
