/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_WORDS_H
#define CONTROLLER_FLEETJOB_STATUS_WORDS_H

/* The words of `kubectl get`: STATE, and REASON, the most important cause now. */

#include "controller/fleetjob/pass.h"

/* The words for the columns STATE and REASON. */
void status_name_state(struct pass *pass);
void status_name_reason(struct pass *pass);

#endif
