/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_ODD_FIELDS_H
#define LIBFLEET_API_ODD_FIELDS_H

/*
 * Values that are legal, but together probably a mistake: a warm-up that is longer than the job,
 * held-out data that is never evaluated, GPUs that stay idle, data that only some trainers encrypt.
 * idle_fields.h has fields without any effect.
 */

struct fleet_errors;
struct fleetjob;

/* Append a warning for each. Checks that depend on an unreadable value are skipped. */
void odd_fields_warn(const struct fleetjob *job, struct fleet_errors *warnings);

#endif
