/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/errors_json.h"

#include "libfleet/base/errors.h"

cJSON *errors_json(const struct fleet_errors *errors)
{
    cJSON *json = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(json, "errors");

    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++) {
        cJSON *error = cJSON_CreateObject();

        cJSON_AddStringToObject(error, "path", errors->items[i].path);
        cJSON_AddStringToObject(error, "message", errors->items[i].message);
        cJSON_AddItemToArray(list, error);
    }
    return json;
}
