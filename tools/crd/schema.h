/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_CRD_SCHEMA_H
#define TOOLS_CRD_SCHEMA_H

/*
 * Tables as OpenAPI v3 in the structural form that Kubernetes asks of a CRD: types, ranges,
 * choices, defaults, descriptions, limits, and CEL rules for what belongs to a discriminator's
 * choice.
 *
 * Defaults of fields that belong to one choice only are left out: the API server would write them
 * into objects that made another choice.
 */

#include <cjson/cJSON.h>

struct fleet_object;

/* Schema of an object by its table. Owned by the caller. */
cJSON *schema_of_object(const struct fleet_object *type);

/*
 * Schema of spec.strategy by knobs.def. Unknown fields are kept at every level, so that the
 * controller can refuse them by name; nothing has a default, because set and unset differ.
 */
cJSON *schema_of_strategy(void);

#endif
