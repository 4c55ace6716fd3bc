/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_FLEETJOB_TABLES_H
#define LIBFLEET_API_FLEETJOB_TABLES_H

/* The table of metadata, which only the decoder needs. The others are in fleetjob.h. */

#include "libfleet/base/field.h"

extern const struct fleet_object fleetjob_metadata_type;

#endif
