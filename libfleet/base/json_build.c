/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/json_build.h"

#include "libfleet/base/assert.h"

/* cJSON returns NULL only if memory is exhausted. */
static cJSON *checked(cJSON *value)
{
    fleet_assert(value != NULL);
    return value;
}

cJSON *fleet_json_new_object(void)
{
    return checked(cJSON_CreateObject());
}

cJSON *fleet_json_new_list(void)
{
    return checked(cJSON_CreateArray());
}

cJSON *fleet_json_new_string(const char *value)
{
    return checked(cJSON_CreateString(value));
}

cJSON *fleet_json_new_number(double value)
{
    return checked(cJSON_CreateNumber(value));
}

cJSON *fleet_json_new_bool(bool value)
{
    return checked(cJSON_CreateBool(value));
}

cJSON *fleet_json_copy(const cJSON *value)
{
    return value ? checked(cJSON_Duplicate(value, true)) : NULL;
}

/* ---- objects --------------------------------------------------------------------------------- */

void fleet_json_set_new(cJSON *object, const char *key, cJSON *value)
{
    bool is_set = cJSON_AddItemToObject(object, key, value);

    fleet_assert(is_set);
}

void fleet_json_set(cJSON *object, const char *key, cJSON *value)
{
    bool is_replaced = true;

    if (!value)
        return;
    if (cJSON_GetObjectItemCaseSensitive(object, key))
        is_replaced = cJSON_ReplaceItemInObjectCaseSensitive(object, key, value);
    else
        fleet_json_set_new(object, key, value);
    fleet_assert(is_replaced);
}

void fleet_json_set_string(cJSON *object, const char *key, const char *value)
{
    if (value)
        fleet_json_set(object, key, fleet_json_new_string(value));
}

void fleet_json_set_number(cJSON *object, const char *key, double value)
{
    fleet_json_set(object, key, fleet_json_new_number(value));
}

void fleet_json_set_bool(cJSON *object, const char *key, bool value)
{
    fleet_json_set(object, key, fleet_json_new_bool(value));
}

void fleet_json_set_null(cJSON *object, const char *key)
{
    fleet_json_set(object, key, checked(cJSON_CreateNull()));
}

void fleet_json_set_reference(cJSON *object, cJSON *value)
{
    bool is_set = cJSON_AddItemReferenceToObject(object, value->string, value);

    fleet_assert(is_set);
}

cJSON *fleet_json_set_object(cJSON *object, const char *key)
{
    cJSON *child = fleet_json_new_object();

    fleet_json_set(object, key, child);
    return child;
}

cJSON *fleet_json_set_list(cJSON *object, const char *key)
{
    cJSON *child = fleet_json_new_list();

    fleet_json_set(object, key, child);
    return child;
}

/* ---- lists ----------------------------------------------------------------------------------- */

void fleet_json_add(cJSON *list, cJSON *value)
{
    bool is_added = !value || cJSON_AddItemToArray(list, value);

    fleet_assert(is_added);
}

void fleet_json_add_string(cJSON *list, const char *value)
{
    if (value)
        fleet_json_add(list, fleet_json_new_string(value));
}

void fleet_json_add_number(cJSON *list, double value)
{
    fleet_json_add(list, fleet_json_new_number(value));
}

cJSON *fleet_json_add_object(cJSON *list)
{
    cJSON *object = fleet_json_new_object();

    fleet_json_add(list, object);
    return object;
}

void fleet_json_add_first(cJSON *list, cJSON *value)
{
    bool is_added = cJSON_InsertItemInArray(list, 0, value);

    fleet_assert(is_added);
}

void fleet_json_replace(cJSON *parent, const cJSON *old, cJSON *value)
{
    bool is_replaced = cJSON_ReplaceItemViaPointer(parent, (cJSON *)old, value);

    fleet_assert(is_replaced);
}
