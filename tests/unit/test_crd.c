/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The committed CRD and reference pages are what the tables say; the schema is structural, and
 * every field has a description and a limit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "tools/crd/crd.h"
#include "tools/crd/reference.h"

static char *read_file(const char *path, size_t *size)
{
    struct fleet_error err;
    char *text = NULL;

    if (fleet_file_read(path, FLEET_YAML_SIZE_MAX, &text, size, &err) < 0)
        fail_msg("%s", err.text);
    return text;
}

static void test_crd__the_committed_file_is_what_the_tables_say(void **state)
{
    size_t size;
    FLEET_AUTO_FREE char *text = read_file("crds/fleetjobs.fleetjob.dev.yaml", &size);
    FLEET_AUTO_JSON cJSON *committed = NULL, *built = crd_build();
    struct fleet_error err;

    (void)state;
    if (fleet_yaml_to_json(text, size, &committed, &err) < 0)
        fail_msg("%s", err.text);
    if (!fleet_json_equal(committed, built))
        fail_msg("crds/fleetjobs.fleetjob.dev.yaml is stale: make generate");
}

static void test_crd__the_reference_pages_are_what_the_tables_say(void **state)
{
    static const char *const pages[] = {"fleetjob.md", "training.md", "status.md"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(pages); i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join("docs/reference", pages[i]);
        FLEET_AUTO_STRBUF struct fleet_strbuf page = {0};
        size_t size;
        FLEET_AUTO_FREE char *text = read_file(path, &size);
        assert_int_equal(reference_page(pages[i], &page), 0);
        if (strcmp(text, page.text) != 0)
            fail_msg("%s is stale: make generate", path);
    }
}

/* Rules of structural schemas, with our own: a description and a limit for everything that
 * grows. */
static void check_schema(const cJSON *schema, const char *path)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(schema, "type");
    const cJSON *child;
    char below[512];

    if (!cJSON_IsString(type) &&
        !cJSON_GetObjectItemCaseSensitive(schema, "x-kubernetes-int-or-string"))
        fail_msg("%s has no type", path);
    if (cJSON_IsString(type) && strcmp(type->valuestring, "array") == 0) {
        if (!cJSON_GetObjectItemCaseSensitive(schema, "maxItems"))
            fail_msg("%s has no maxItems", path);
        (void)snprintf(below, sizeof(below), "%s[]", path);
        check_schema(cJSON_GetObjectItemCaseSensitive(schema, "items"), below);
    }
    if (cJSON_IsString(type) && strcmp(type->valuestring, "string") == 0 &&
        !cJSON_GetObjectItemCaseSensitive(schema, "maxLength") &&
        !cJSON_GetObjectItemCaseSensitive(schema, "enum") &&
        !cJSON_GetObjectItemCaseSensitive(schema, "format"))
        fail_msg("%s has no maxLength", path);
    cJSON_ArrayForEach(child, cJSON_GetObjectItemCaseSensitive(schema, "properties"))
    {
        (void)snprintf(below, sizeof(below), "%s.%s", path, child->string);
        if (!cJSON_GetObjectItemCaseSensitive(child, "description"))
            fail_msg("%s has no description", below);
        check_schema(child, below);
    }
}

static void test_crd__every_field_has_type_description_and_limit(void **state)
{
    FLEET_AUTO_JSON cJSON *crd = crd_build();
    const char *schema = "spec.versions[0].schema.openAPIV3Schema.properties";
    char path[128];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s.spec", schema);
    check_schema(fleet_json_at(crd, path), "spec");
    (void)snprintf(path, sizeof(path), "%s.status", schema);
    check_schema(fleet_json_at(crd, path), "status");
}

/* `kubectl explain fleetjob.spec.worker.template.spec.containers.args` and the like answer. */
static void test_crd__explains_what_is_kept_as_it_is(void **state)
{
    static const char *const fields[] = {
        "spec.properties.worker.properties.resources.properties.limits",
        "spec.properties.worker.properties.template.properties.metadata.properties.labels",
        "spec.properties.worker.properties.template.properties.spec.properties.containers"
        ".items.properties.args",
        "status.properties.plan.properties.bytesPerRank",
    };
    FLEET_AUTO_JSON cJSON *crd = crd_build();

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(fields); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
        const cJSON *schema;
        fleet_strbuf_appendf(&path, "spec.versions[0].schema.openAPIV3Schema.properties.%s",
                             fields[i]);
        schema = fleet_json_at(crd, path.text);
        if (!schema || !cJSON_GetObjectItemCaseSensitive(schema, "description"))
            fail_msg("%s is not explained", fields[i]);
    }
}

/* Set and unset differ in Paddle and MindSpore, so nothing there may have a default. */
static bool has_default(const cJSON *schema)
{
    const cJSON *child;

    if (cJSON_GetObjectItemCaseSensitive(schema, "default"))
        return true;
    cJSON_ArrayForEach(child, cJSON_GetObjectItemCaseSensitive(
                                  schema, "properties")) if (has_default(child)) return true;
    return false;
}

static void test_crd__embedded_vocabularies_keep_what_they_do_not_know(void **state)
{
    static const char *const open[] = {"strategy", "strategy.properties.amp_configs",
                                       "autoParallel", "worker.properties.template"};
    FLEET_AUTO_JSON cJSON *crd = crd_build();

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(open); i++) {
        char path[256];
        (void)snprintf(path, sizeof(path),
                       "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.%s",
                       open[i]);
        const cJSON *schema = fleet_json_at(crd, path);
        assert_non_null(schema);
        if (!cJSON_IsTrue(
                cJSON_GetObjectItemCaseSensitive(schema, "x-kubernetes-preserve-unknown-fields")))
            fail_msg("%s prunes unknown fields", open[i]);
        if (has_default(schema))
            fail_msg("%s has a default", open[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crd__the_committed_file_is_what_the_tables_say),
        cmocka_unit_test(test_crd__the_reference_pages_are_what_the_tables_say),
        cmocka_unit_test(test_crd__every_field_has_type_description_and_limit),
        cmocka_unit_test(test_crd__explains_what_is_kept_as_it_is),
        cmocka_unit_test(test_crd__embedded_vocabularies_keep_what_they_do_not_know),
    };
    return cmocka_run_group_tests_name("crd", tests, NULL, NULL);
}
