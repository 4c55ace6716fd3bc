/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_COMMON_H
#define CONTROLLER_FLEETJOB_POD_COMMON_H

/* What the pods of workers and servers have in common. Parts of pod_builder.h. */

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/api/fleetjob.h"

/* ---- variables: `env` is the list of a container --------------------------------------------- */

void pod_common_set(cJSON *env, const char *name, const char *value);
void pod_common_set_number(cJSON *env, const char *name, int64_t value);
/* Its value is a field of the pod. */
void pod_common_set_field(cJSON *env, const char *name, const char *path);
/* Its value is in a Secret. */
void pod_common_set_secret(cJSON *env, const char *name, const char *secret, const char *key);
bool pod_common_has(const cJSON *env, const char *name);
/* Add the variables of `from` whose names are neither in `env` nor in `others`. */
void pod_common_add_missing(cJSON *env, const cJSON *others, const cJSON *from);

/* ---- the pod --------------------------------------------------------------------------------- */

/* The pod security that the "restricted" standard asks for, where the user has not said
 * otherwise. */
void pod_common_restrict(cJSON *spec);

/* If a node does not answer, its pods are evicted soon: the survivors have already gone on. */
void pod_common_tolerate(cJSON *spec);

/* Labels of Kueue, if the job has a queue. */
void pod_common_queue(const struct fleetjob *job, cJSON *pod);

/* The annotation that pod_builder_hash() reads: of the pod as it is now. */
void pod_common_set_hash(cJSON *pod);

#endif
