/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_APPLY_PODS_H
#define CONTROLLER_FLEETJOB_APPLY_PODS_H

/* The pods of a pass: made, deleted and looked for, as was decided (the head of apply_pods.c). */

#include <stdint.h>

#include "libfleet/base/digest.h"
#include "libfleet/base/json.h"

struct observed_attempt;
struct reconciler_pass;

/* Does this process still lead, and does the job that the pass decided about still exist? */
bool apply_may_act(const struct reconciler_pass *pass);

/* The pod of a worker as this installation makes it. Owned by the caller. */
cJSON *apply_build_pod(const struct reconciler_pass *pass, int index, int attempt);

/* A digest of the job's first pod without the job's name, its UID and names made of them. Jobs with
 * equal specs in one namespace have the same digest. */
void apply_digest_pod(const struct reconciler_pass *pass, uint8_t out[FLEET_SHA256_SIZE]);

/* Make the pods of actions.creates, some at a time; the pass is pending until the last one. */
void apply_create_pods(struct reconciler_pass *pass);

/* Delete the pod of that name. `at_once`: it does not answer, so it gets two seconds instead of
 * its whole grace period. */
void apply_delete_pod(struct reconciler_pass *pass, const char *name, bool at_once);

/* Ask the API server for a pod that the status knows and the cache has not. */
void apply_look_for_pod(struct reconciler_pass *pass, const struct observed_attempt *look);

/* The pod of a server, owned by the caller. */
cJSON *apply_build_server(const struct reconciler_pass *pass, int index);

/* Create the pod of a server. If there is a pod of that name, the job waits until it is gone, or in
 * the cache. */
void apply_create_server(struct reconciler_pass *pass, int index);

#endif
