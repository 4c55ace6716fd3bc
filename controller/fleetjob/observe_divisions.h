/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_OBSERVE_DIVISIONS_H
#define CONTROLLER_FLEETJOB_OBSERVE_DIVISIONS_H

/*
 * A change of the division that a search finds (libfleet/api/divisions.h), as a job is resized.
 * Other degrees need other programs, so the workers stop and start again:
 *
 *   the strategy is another than that of status.plan.search.running
 *     ─▶ the job is observed as suspended: the workers save and leave (suspend.c)
 *     ─▶ none is left and the status says so ─▶ the new division is recorded, the job goes on
 *
 * Without a checkpoint to go on from, the change is an error of the spec, and the workers train on.
 */

#include "controller/fleetjob/observe.h"

/* If the workers have to stop first, the job in `out` becomes suspended, and `redivides` says what
 * changes. After the pods are collected. */
void observe_divisions_change(struct observation *out);

/* status.plan of a job whose strategy a search finds: owned by the caller, NULL: as the cached plan
 * has it. Appends the event StrategyChosen if the division that runs is another. */
cJSON *observe_divisions_plan(const struct observation *o, struct actions *actions);

#endif
