/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_CRD_KNOWN_H
#define TOOLS_CRD_KNOWN_H

/*
 * What `kubectl explain` can say of fields that are kept as they are: worker.resources,
 * worker.template and status.plan. Their schemas keep unknown fields; they name and type those that
 * most jobs use. A dry run of the pod checks the rest.
 */

#include <cjson/cJSON.h>

/* The properties of the field `name` (resources, template, plan), or NULL. Owned by the caller. */
cJSON *known_properties(const char *name);

#endif
