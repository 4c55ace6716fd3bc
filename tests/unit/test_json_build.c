/* SPDX-License-Identifier: Apache-2.0 */

/* Trees are built as the calls say, and a key is never there twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"

static void assert_text(const cJSON *json, const char *expected)
{
    FLEET_AUTO_FREE char *text = fleet_json_print(json);

    assert_string_equal(text, expected);
}

static void test_json_build__builds_objects_and_lists(void **state)
{
    FLEET_AUTO_JSON cJSON *root = fleet_json_new_object();
    cJSON *list = fleet_json_set_list(root, "list");

    (void)state;
    fleet_json_add_string(list, "a");
    fleet_json_add_number(list, 1.5);
    fleet_json_set_bool(fleet_json_add_object(list), "yes", true);
    fleet_json_add_first(list, fleet_json_new_bool(false));
    fleet_json_set_null(fleet_json_set_object(root, "object"), "none");
    assert_text(root, "{\"list\":[false,\"a\",1.5,{\"yes\":true}],\"object\":{\"none\":null}}");
    fleet_json_replace(list, cJSON_GetArrayItem(list, 1), fleet_json_new_number(2));
    assert_text(list, "[false,2,1.5,{\"yes\":true}]");
}

static void test_json_build__sets_a_key_once(void **state)
{
    FLEET_AUTO_JSON cJSON *root = fleet_json_new_object();

    (void)state;
    fleet_json_set_string(root, "key", "first");
    fleet_json_set_string(root, "key",
                          cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "key")));
    assert_text(root, "{\"key\":\"first\"}");
    fleet_json_set_number(root, "key", 2);
    assert_text(root, "{\"key\":2}");
    (void)fleet_json_set_list(root, "key");
    assert_text(root, "{\"key\":[]}");
}

static void test_json_build__leaves_null_out(void **state)
{
    FLEET_AUTO_JSON cJSON *root = fleet_json_new_object();

    (void)state;
    fleet_json_set_number(root, "key", 1);
    fleet_json_set_string(root, "key", NULL);
    fleet_json_set(root, "other", fleet_json_copy(NULL));
    fleet_json_add_string(fleet_json_set_list(root, "list"), NULL);
    assert_text(root, "{\"key\":1,\"list\":[]}");
}

static void test_json_build__shows_values_of_another_tree(void **state)
{
    FLEET_AUTO_JSON cJSON *other = fleet_json_new_object();
    cJSON *root = fleet_json_new_object();

    (void)state;
    fleet_json_set_string(other, "key", "value");
    fleet_json_set_reference(root, other->child);
    assert_text(root, "{\"key\":\"value\"}");
    cJSON_Delete(root);
    assert_text(other, "{\"key\":\"value\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_build__builds_objects_and_lists),
        cmocka_unit_test(test_json_build__sets_a_key_once),
        cmocka_unit_test(test_json_build__leaves_null_out),
        cmocka_unit_test(test_json_build__shows_values_of_another_tree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
