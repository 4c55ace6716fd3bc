/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/errors_json.h"

#include <stdio.h>

#include "libfleet/base/errors.h"
#include "libfleet/base/json_build.h"

static void add(cJSON *list, const char *path, const char *message)
{
    cJSON *error = fleet_json_new_object();

    fleet_json_set_string(error, "path", path);
    fleet_json_set_string(error, "message", message);
    fleet_json_add(list, error);
}

cJSON *errors_json(const struct fleet_errors *errors)
{
    cJSON *json = fleet_json_new_object(), *list = fleet_json_set_list(json, "errors");
    char more[48];

    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++)
        add(list, errors->items[i].path, errors->items[i].message);
    if (errors->count > FLEET_ERRORS_MAX) {
        (void)snprintf(more, sizeof(more), "and %zu more", errors->count - FLEET_ERRORS_MAX);
        add(list, "", more);
    }
    return json;
}
