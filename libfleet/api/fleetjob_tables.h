/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_FLEETJOB_TABLES_H
#define LIBFLEET_API_FLEETJOB_TABLES_H

/*
 * Tables that only the files of this folder need: metadata for the decoder, spec.runPolicy for the
 * table of spec, status.restarts for the table of status. The others are in fleetjob.h.
 */

#include "libfleet/base/field.h"

extern const struct fleet_object fleetjob_metadata_type, fleetjob_run_policy_type,
    fleetjob_restarts_type;

#endif
