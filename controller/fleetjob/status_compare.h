/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_COMPARE_H
#define CONTROLLER_FLEETJOB_STATUS_COMPARE_H

/* Is a new status worth a write, and how soon? */

#include "controller/fleetjob/pass.h"

/* In what before and after differ, into out->write. */
void status_compare(struct pass *pass);

#endif
