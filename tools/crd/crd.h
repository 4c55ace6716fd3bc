/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_CRD_CRD_H
#define TOOLS_CRD_CRD_H

/*
 * The CustomResourceDefinition of FleetJob, built from the tables. crds/ holds it as a file, which
 * `make generate` writes and a unit test compares.
 */

#include <cjson/cJSON.h>

/* apiextensions.k8s.io/v1, complete. Owned by the caller. */
cJSON *crd_build(void);

#endif
