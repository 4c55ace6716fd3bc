/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_IDLE_FIELDS_H
#define LIBFLEET_API_IDLE_FIELDS_H

/*
 * Fields without an effect: a job sets them, but no code reads them yet, or another field makes
 * them pointless. plan_idle.h does the same for the settings of the strategy.
 */

#include <stdbool.h>

struct fleet_errors;
struct fleetjob_spec;
struct strategy;

/* Append a warning for each such field, with its path and the reason. `effective` is the strategy
 * after the selection. Some fields have an effect only in a local run. */
void idle_fields_warn(const struct fleetjob_spec *spec, const struct strategy *effective,
                      bool in_cluster, struct fleet_errors *warnings);

#endif
