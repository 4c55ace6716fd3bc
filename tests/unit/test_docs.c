/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The documentation against the programs: every YAML example of every page is a job, or a part of
 * one, that is accepted; every page of a knob says what a page of a knob has to say.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/validation.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"

#define SIZE_LIMIT ((size_t)1 << 20)
#define WORLD      8 /* ranks on which examples of a strategy alone are tried */

static char *read_page(const char *path)
{
    struct fleet_error err;
    char *text = NULL;
    size_t size;

    if (fleet_file_read(path, SIZE_LIMIT, &text, &size, &err) < 0)
        fail_msg("%s", err.text);
    return text;
}

/* ---- examples -------------------------------------------------------------------------------- */

static int count_examples;

static void expect_strategy(const char *page, const cJSON *json)
{
    struct select_options options = {.policy = STRATEGY_FULL, .world_size = WORLD};
    SELECT_AUTO_RESULT struct select_result result = {0};
    STRATEGY_AUTO struct strategy s = {0};
    struct fleet_errors errors = {0};
    struct fleet_error err;

    if (strategy_json_decode(json, "strategy", &s, &errors) == 0)
        (void)strategy_select(&s, &options, "strategy", &result, &errors);
    if (fleet_errors_result(&errors, &err) < 0)
        fail_msg("%s: the example is refused: %s", page, err.text);
    fleet_errors_release(&errors);
    count_examples++;
}

static void expect_job(const char *page, const cJSON *json)
{
    struct fleet_errors errors = {0};
    struct fleet_error err;
    struct fleetjob job;

    if (fleetjob_decode(json, &job, &errors) == 0)
        (void)validation_check(&job, &(struct validation_options){0}, &errors, NULL);
    if (fleet_errors_result(&errors, &err) < 0)
        fail_msg("%s: the example is refused: %s", page, err.text);
    fleetjob_release(&job);
    fleet_errors_release(&errors);
    count_examples++;
}

/* A whole FleetJob, or its strategy. Other YAML (values of a chart, parts of a spec) is only
 * read. */
static void check_example(const char *page, const char *yaml, size_t size)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_error err;
    const cJSON *kind, *strategy;

    if (fleet_yaml_to_json(yaml, size, &json, &err) < 0)
        fail_msg("%s: the example is no YAML: %s", page, err.text);
    kind = cJSON_GetObjectItemCaseSensitive(json, "kind");
    strategy = cJSON_GetObjectItemCaseSensitive(json, "strategy");
    if (cJSON_IsString(kind) && strcmp(kind->valuestring, "FleetJob") == 0)
        expect_job(page, json);
    else if (strategy)
        expect_strategy(page, strategy);
}

/* Text between ```yaml and ```. Placeholders are no examples: they are in blocks without a
 * name. */
static void check_page(const char *path)
{
    static const char start[] = "```yaml\n", end[] = "\n```";
    FLEET_AUTO_FREE char *text = read_page(path);

    for (const char *at = strstr(text, start); at; at = strstr(at, start)) {
        const char *from = at + strlen(start), *to = strstr(from, end);

        if (!to)
            fail_msg("%s: an example does not end", path);
        check_example(path, from, (size_t)(to - from) + 1);
        at = to;
    }
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);

    return length > tail && strcmp(name + length - tail, end) == 0;
}

static void walk(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;

    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, entry->d_name);

        if (entry->d_name[0] == '.')
            continue;
        if (entry->d_type == DT_DIR) {
            walk(path);
        } else if (ends_with(entry->d_name, ".md")) {
            check_page(path);
        } else if (ends_with(entry->d_name, ".yaml")) {
            FLEET_AUTO_FREE char *text = read_page(path);
            check_example(path, text, strlen(text));
        }
    }
    (void)closedir(dir);
}

static void test_docs__every_example_is_accepted(void **state)
{
    (void)state;
    count_examples = 0;
    walk("docs");
    check_page("README.md");
    assert_true(count_examples > 200);
}

/* ---- pages of knobs -------------------------------------------------------------------------- */

static void expect_part(const char *path, const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("%s: lacks \"%s\"", path, part);
}

static void check_knob(const char *parent, const struct knob_field *field)
{
    static const char *const parts[] = {
        "| type |",         "| default |",
        "| range |",        "## Paper",
        "## Example",       "## Effect on plan and status",
        "## 2.0 and later", "## Together with other settings",
    };
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0}, path = {0};
    FLEET_AUTO_FREE char *text = NULL;

    fleet_strbuf_appendf(&name, "%s%s%s", parent, *parent ? "." : "", field->name);
    fleet_strbuf_appendf(&path, "docs/reference/strategy/%s.md", name.text);
    text = read_page(path.text);
    expect_part(path.text, text, field->help);
    for (size_t i = 0; i < FLEET_COUNT(parts); i++)
        expect_part(path.text, text, parts[i]);
    for (size_t i = 0; field->message && i < field->message()->count; i++)
        check_knob(name.text, &field->message()->fields[i]);
}

static void test_docs__every_knob_has_a_complete_page(void **state)
{
    const struct knob_message *root = knobs_root();

    (void)state;
    for (size_t i = 0; i < root->count; i++)
        check_knob("", &root->fields[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_docs__every_example_is_accepted),
        cmocka_unit_test(test_docs__every_knob_has_a_complete_page),
    };
    return cmocka_run_group_tests_name("docs", tests, NULL, NULL);
}
