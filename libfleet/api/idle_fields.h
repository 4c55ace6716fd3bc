/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_IDLE_FIELDS_H
#define LIBFLEET_API_IDLE_FIELDS_H

/*
 * Fields beside the strategy that a job sets and that nothing acts on: because nothing reads them
 * yet, or because another field leaves them nothing to do. Knobs of the strategy: plan_idle.h.
 */

#include <stdbool.h>

struct fleet_errors;
struct fleetjob_spec;
struct strategy;

/* Append a warning for each, with its path and the reason. `effective` is the strategy after the
 * selection; some fields act in a local run only. */
void idle_fields_warn(const struct fleetjob_spec *spec, const struct strategy *effective,
                      bool in_cluster, struct fleet_errors *warnings);

#endif
