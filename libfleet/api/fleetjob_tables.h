/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_FLEETJOB_TABLES_H
#define LIBFLEET_API_FLEETJOB_TABLES_H

/*
 * Field tables (base/field.h) that only this folder uses: metadata, which the decoder reads;
 * spec.runPolicy, a part of the table of spec; status.restarts, a part of the table of status.
 * fleetjob.h declares the other tables.
 */

#include "libfleet/base/field.h"

extern const struct fleet_object fleetjob_metadata_type, fleetjob_run_policy_type,
    fleetjob_restarts_type;

#endif
