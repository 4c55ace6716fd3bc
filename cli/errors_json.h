/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_ERRORS_JSON_H
#define CLI_ERRORS_JSON_H

#include <cjson/cJSON.h>

struct fleet_errors;

/* {"errors": [{"path": …, "message": …}]}: what commands print instead of their answer. Owned by
 * the caller. */
cJSON *errors_json(const struct fleet_errors *errors);

#endif
