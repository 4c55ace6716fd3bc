/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_JOIN_DEVICE_H
#define AGENT_RUNTIME_JOIN_DEVICE_H

/* The back end and the executor of a generation (struct trainer_device). */

#include "libfleet/base/isa.h"

struct fleet_error;
struct trainer;

/* Compute at `level` from now on: make the back end and the executor for it, unless they are there.
 * Errors of making them; the old ones stay then. `err` may not be NULL. */
int device_use_level(struct trainer *trainer, enum fleet_isa level, struct fleet_error *err);

/* The executor points into a plan, and to memory, that are about to change, or have changed. */
void device_drop_executor(struct trainer *trainer);

#endif
