/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_COMPARE_H
#define CONTROLLER_FLEETJOB_STATUS_COMPARE_H

/* Decides whether a new status is worth a write, and how soon. */

#include "controller/fleetjob/pass.h"

/* Compare the status before and after the pass: out->write becomes the least write that the
 * difference needs. */
void status_compare(struct pass *pass);

#endif
