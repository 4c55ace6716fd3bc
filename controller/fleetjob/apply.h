/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_APPLY_H
#define CONTROLLER_FLEETJOB_APPLY_H

/* Carries out what reconcile() decided, and ends the pass (the head of apply.c). */

struct reconciler_pass;

/* Status, events, hub, pods; or, if pods must be looked for first, only these and the hub. Then
 * reconciler_end(). */
void apply_run(struct reconciler_pass *pass);

#endif
