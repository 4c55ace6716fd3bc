/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_APPLY_H
#define CONTROLLER_FLEETJOB_APPLY_H

/* Carries out what reconcile() decided, and ends the pass (the head of apply.c). */

#include "libfleet/base/json.h"

struct reconciler_pass;

/* Status, events, hub, pods; or, if pods have to be looked for first, these and the hub. Then
 * reconciler_end(). */
void apply_run(struct reconciler_pass *pass);

/* The pod of a worker as this installation makes it. Owned by the caller. */
cJSON *apply_build_pod(const struct reconciler_pass *pass, int index, int attempt);

#endif
