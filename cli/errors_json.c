/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/errors_json.h"

#include <stdio.h>

#include "libfleet/base/errors.h"

static void add(cJSON *list, const char *path, const char *message)
{
    cJSON *error = cJSON_CreateObject();

    cJSON_AddStringToObject(error, "path", path);
    cJSON_AddStringToObject(error, "message", message);
    cJSON_AddItemToArray(list, error);
}

cJSON *errors_json(const struct fleet_errors *errors)
{
    cJSON *json = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(json, "errors");
    char more[48];

    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++)
        add(list, errors->items[i].path, errors->items[i].message);
    if (errors->count > FLEET_ERRORS_MAX) {
        (void)snprintf(more, sizeof(more), "and %zu more", errors->count - FLEET_ERRORS_MAX);
        add(list, "", more);
    }
    return json;
}
