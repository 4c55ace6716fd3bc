/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POD_JSON_H
#define CONTROLLER_FLEETJOB_POD_JSON_H

/* The JSON of a pod by hand, for the files that build one. */

#include "libfleet/base/json_build.h"

/* NULL if there is none. Borrowed. */
static inline cJSON *pod_json_get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* The object or list called `key`, made where it is missing (or of another type). */
static inline cJSON *pod_json_child(cJSON *object, const char *key, bool is_list)
{
    cJSON *item = pod_json_get(object, key);

    if (is_list ? cJSON_IsArray(item) : cJSON_IsObject(item))
        return item;
    item = is_list ? fleet_json_set_list(object, key) : fleet_json_set_object(object, key);
    return item;
}

#endif
