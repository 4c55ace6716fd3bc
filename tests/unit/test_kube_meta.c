/* SPDX-License-Identifier: Apache-2.0 */

/* Metadata, conditions, quantities and names, against the rules of the Kubernetes API
 * conventions. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/meta.h"

static cJSON *parse(const char *text)
{
    cJSON *root = NULL;
    struct fleet_error err;

    if (fleet_json_parse(text, strlen(text), 1 << 20, &root, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return root;
}

static void test_kube_meta__views_what_an_object_says(void **state)
{
    FLEET_AUTO_JSON cJSON *pod =
        parse("{\"metadata\":{\"name\":\"p\",\"namespace\":\"n\",\"uid\":\"u\","
              "\"resourceVersion\":\"7\",\"generation\":3,"
              "\"creationTimestamp\":\"1970-01-01T00:00:02Z\","
              "\"labels\":{\"fleetjob.dev/job\":\"x\"},\"ownerReferences\":["
              "{\"uid\":\"a\"},{\"uid\":\"b\",\"controller\":true}]}}");
    struct kube_meta meta;

    (void)state;
    assert_int_equal(kube_meta_view(pod, &meta, NULL), 0);
    assert_string_equal(meta.name, "p");
    assert_string_equal(meta.namespace_, "n");
    assert_string_equal(meta.uid, "u");
    assert_string_equal(meta.resource_version, "7");
    assert_int_equal(meta.generation, 3);
    assert_int_equal(meta.created_wall_ms, 2000);
    assert_int_equal(meta.deleted_wall_ms, 0);
    assert_string_equal(kube_meta_label(pod, "fleetjob.dev/job"), "x");
    assert_null(kube_meta_label(pod, "fleetjob"));
    assert_null(kube_meta_annotation(pod, "fleetjob.dev/job"));
    assert_true(kube_meta_is_controlled_by(pod, "b"));
    assert_false(kube_meta_is_controlled_by(pod, "a")); /* an owner, but not the controller */
}

static void test_kube_meta__refuses_what_is_no_object(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{}", "metadata.name: is missing"},
        {"{\"metadata\":{\"name\":\"\"}}", "metadata.name: is empty"},
        {"{\"metadata\":{\"name\":\"x\",\"deletionTimestamp\":\"soon\"}}",
         "metadata.deletionTimestamp: \"soon\" is not a time"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_JSON cJSON *root = parse(cases[i].text);
        struct kube_meta meta = {.name = "untouched"};
        struct fleet_error err;
        assert_int_equal(kube_meta_view(root, &meta, &err), -EINVAL);
        assert_string_equal(err.text, cases[i].message);
        assert_string_equal(meta.name, "untouched");
    }
}

static void test_kube_meta__sets_labels_where_there_were_none(void **state)
{
    FLEET_AUTO_JSON cJSON *root = parse("{}");
    FLEET_AUTO_FREE char *text = NULL;

    (void)state;
    kube_meta_set_label(root, "a", "1");
    kube_meta_set_label(root, "a", "2");
    kube_meta_set_label(root, "b", "3");
    kube_meta_set_label(root, "b", NULL);
    kube_meta_set_annotation(root, "c", "4");
    text = fleet_json_print(root);
    assert_string_equal(text,
                        "{\"metadata\":{\"labels\":{\"a\":\"2\"},\"annotations\":{\"c\":\"4\"}}}");
}

static void test_kube_meta__an_owner_reference_makes_the_owner_the_controller(void **state)
{
    struct kube_meta owner = {.name = "job", .uid = "u1"};
    FLEET_AUTO_JSON cJSON *root = parse("{\"metadata\":{\"ownerReferences\":[]}}");
    cJSON *list = (cJSON *)fleet_json_at(root, "metadata.ownerReferences");

    (void)state;
    cJSON_AddItemToArray(list, kube_owner_reference("fleetjob.dev/v1alpha1", "FleetJob", &owner));
    assert_true(kube_meta_is_controlled_by(root, "u1"));
    assert_false(kube_meta_is_controlled_by(root, ""));
}

static void test_kube_condition__moves_its_time_only_with_its_status(void **state)
{
    FLEET_AUTO_JSON cJSON *list = parse("[]");
    struct kube_condition c = {
        .type = "Running", .status = "False", .reason = "Waiting", .message = "m"};
    const char *since;

    (void)state;
    assert_true(kube_condition_set(list, &c, 5500));
    assert_false(kube_condition_set(list, &c, 9000)); /* nothing new: not worth a write */
    c.reason = "StillWaiting";
    assert_true(kube_condition_set(list, &c, 10000));
    assert_int_equal(fleet_json_get_string(list, "[0].lastTransitionTime", &since, NULL), 0);
    assert_string_equal(since, "1970-01-01T00:00:05Z");
    assert_false(kube_condition_is_true(list, "Running"));
    c.status = "True";
    assert_true(kube_condition_set(list, &c, 10999));
    assert_int_equal(fleet_json_get_string(list, "[0].lastTransitionTime", &since, NULL), 0);
    assert_string_equal(since, "1970-01-01T00:00:10Z");
    assert_true(kube_condition_is_true(list, "Running"));
    assert_int_equal(cJSON_GetArraySize(list), 1);
    assert_null(kube_condition_find(list, "Failed"));
    assert_null(kube_condition_find(NULL, "Failed"));
}

static void test_kube_quantity__reads_what_kubernetes_reads(void **state)
{
    static const struct {
        const char *text;
        int64_t scale, value;
    } cases[] = {
        {"2", 1000, 2000},
        {"500m", 1000, 500},
        {"0.1", 1000, 100},
        {"1.5Gi", 1, 1610612736},
        {"128Mi", 1, 134217728},
        {"12e3", 1, 12000},
        {"1E", 1, 1000000000000000000},
        {"1k", 1, 1000},
        {"100n", 1000, 1}, /* rounded up */
        {"1500m", 1, 2},
        {"0", 1, 0},
        {"1u", 1000000, 1},
        {".5", 1000, 500},
        {"5.", 1, 5},
        {"1e-3", 1000, 1},
        {"-0", 1, 0},
        {"+3", 1, 3},
        {"7Ei", 1, INT64_C(8070450532247928832)},
        {"9223372036854775807", 1, INT64_MAX},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct fleet_error err;
        int64_t value = -1;
        if (kube_quantity_parse(cases[i].text, cases[i].scale, &value, &err) < 0)
            fail_msg("\"%s\": %s", cases[i].text, err.text);
        if (value != cases[i].value)
            fail_msg("\"%s\" x %lld: expected %lld, got %lld", cases[i].text,
                     (long long)cases[i].scale, (long long)cases[i].value, (long long)value);
    }
}

static void test_kube_quantity__refuses_the_rest(void **state)
{
    static const struct {
        const char *text;
        int code;
    } cases[] = {
        {"", -EINVAL},
        {"x", -EINVAL},
        {"1.2.3", -EINVAL},
        {"1 Gi", -EINVAL},
        {"Gi", -EINVAL},
        {"1gi", -EINVAL},
        {"1e", -EINVAL},
        {"1e+ 3", -EINVAL},
        {"-1", -ERANGE},
        {"8Ei", -ERANGE},
        {"1e99", -ERANGE},
        {"9223372036854775808", -ERANGE},
        {"1ii", -EINVAL},
        {"0x10", -EINVAL},
        {"1.", 0},
        {"1.m", 0},
        {"9999999999999999999999999", -ERANGE},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        int64_t value = 42;
        int rc = kube_quantity_parse(cases[i].text, 1, &value, NULL);
        if (rc != cases[i].code)
            fail_msg("\"%s\": expected %d, got %d", cases[i].text, cases[i].code, rc);
        if (rc < 0)
            assert_int_equal(value, 42);
    }
}

static void test_kube_names__keep_to_their_limits(void **state)
{
    char label[KUBE_LABEL_MAX + 2] = {0};

    (void)state;
    memset(label, 'a', KUBE_LABEL_MAX);
    assert_true(kube_name_is_label(label));
    assert_true(kube_label_value_is_valid(label));
    label[KUBE_LABEL_MAX] = 'a';
    assert_false(kube_name_is_label(label));
    assert_false(kube_label_value_is_valid(label));
    assert_true(kube_name_is_label("a-0"));
    assert_false(kube_name_is_label("A"));
    assert_false(kube_name_is_label("-a"));
    assert_false(kube_name_is_label("a-"));
    assert_false(kube_name_is_label(""));
    assert_false(kube_name_is_label("a.b"));
    assert_true(kube_name_is_subdomain("a.b-c.d"));
    assert_false(kube_name_is_subdomain("a..b"));
    assert_false(kube_name_is_subdomain("a."));
    assert_true(kube_label_key_is_valid("fleetjob.dev/worker-index"));
    assert_true(kube_label_key_is_valid("App_1.x"));
    assert_false(kube_label_key_is_valid("/x"));
    assert_false(kube_label_key_is_valid("x/"));
    assert_false(kube_label_key_is_valid("x/y/z"));
    assert_true(kube_label_value_is_valid(""));
    assert_false(kube_label_value_is_valid("a b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kube_meta__views_what_an_object_says),
        cmocka_unit_test(test_kube_meta__refuses_what_is_no_object),
        cmocka_unit_test(test_kube_meta__sets_labels_where_there_were_none),
        cmocka_unit_test(test_kube_meta__an_owner_reference_makes_the_owner_the_controller),
        cmocka_unit_test(test_kube_condition__moves_its_time_only_with_its_status),
        cmocka_unit_test(test_kube_quantity__reads_what_kubernetes_reads),
        cmocka_unit_test(test_kube_quantity__refuses_the_rest),
        cmocka_unit_test(test_kube_names__keep_to_their_limits),
    };
    return cmocka_run_group_tests_name("kube_meta", tests, NULL, NULL);
}
