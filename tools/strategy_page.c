/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/strategy_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/yaml_print.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "libfleet/plan/support.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/units.h"
#include "tests/golden/selection.h"
#include "tools/strategy_example.h"

#define PROSE     "tools/strategy_pages"
#define SIZE_MAX_ (4U << 20)

void strategy_page_fail(const char *page, const char *what)
{
    (void)fprintf(stderr, "generate_strategy: %s: %s\n", page, what);
    exit(1);
}

/* ---- values ---------------------------------------------------------------------------------- */

const char *strategy_page_type(const struct knob_field *field)
{
    switch (field->kind) {
    case KNOB_BOOL:
        return "bool";
    case KNOB_INT:
        return "integer";
    case KNOB_FLOAT:
        return "number";
    case KNOB_STRING:
    case KNOB_WORD:
        return "string";
    case KNOB_MODE:
        return "name";
    case KNOB_STRINGS:
        return "list of strings";
    case KNOB_INTS:
        return "list of integers";
    case KNOB_FLOATS:
        return "list of numbers";
    case KNOB_MESSAGE:
        return "object";
    case KNOB_MESSAGES:
        return "list of objects";
    }
    return "";
}

static void append_number(struct fleet_strbuf *out, const struct knob_field *field, double number)
{
    if (field->kind == KNOB_BOOL)
        fleet_strbuf_append(out, number != 0 ? "`true`" : "`false`");
    else if (field->kind == KNOB_MODE)
        fleet_strbuf_appendf(out, "`%s`", knob_mode_name((int)number));
    else
        fleet_strbuf_appendf(out, "`%g`", number);
}

void strategy_page_default(struct fleet_strbuf *out, const struct knob_field *field)
{
    if (field->kind == KNOB_STRING || field->kind == KNOB_WORD)
        fleet_strbuf_appendf(out, "`\"%s\"`", field->text);
    else if (knob_is_list(field))
        fleet_strbuf_append(out, "`[]`");
    else if (field->kind == KNOB_MESSAGE)
        fleet_strbuf_append(out, "defaults of its fields");
    else
        append_number(out, field, field->number);
}

static const char *since_text(const struct knob_field *field)
{
    static const char *const texts[] = {"2.0.0-rc0", "2.0.0",
                                        "2.1",       "2.6 or a little before",
                                        "after 2.6", "FleetJob and Python only"};
    return texts[field->since];
}

static void append_range(struct fleet_strbuf *out, const struct knob_field *field)
{
    char text[128];

    knob_print_range(field, text, sizeof(text));
    fleet_strbuf_append(out, *text ? text : field->kind == KNOB_FLOAT ? "finite" : "any");
}

/* ---- parts of a page ------------------------------------------------------------------------- */

static void append_facts(struct fleet_strbuf *out, const struct knob_field *field)
{
    fleet_strbuf_appendf(out, "| | |\n|---|---|\n| type | %s |\n| default | ",
                         strategy_page_type(field));
    strategy_page_default(out, field);
    fleet_strbuf_append(out, " |\n| range | ");
    append_range(out, field);
    fleet_strbuf_appendf(out, " |\n| since Paddle | %s |\n", since_text(field));
    if (field->message)
        fleet_strbuf_appendf(out, "| message | `%s` |\n", field->message()->name);
    fleet_strbuf_append(out, "\n");
}

/* Each field has its own page, where the fields below it are. */
static void append_message(struct fleet_strbuf *out, const char *path,
                           const struct knob_message *message)
{
    fleet_strbuf_append(out, "## Fields\n\n| field | type | default | range | since | meaning |\n"
                             "|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];

        fleet_strbuf_appendf(out, "| [%s](%s.%s.md)", field->name, path, field->name);
        if (field->alias)
            fleet_strbuf_appendf(out, ", `%s`", field->alias);
        fleet_strbuf_appendf(out, " | %s | ", strategy_page_type(field));
        strategy_page_default(out, field);
        fleet_strbuf_append(out, " | ");
        append_range(out, field);
        fleet_strbuf_appendf(out, " | %s | %s |\n", since_text(field), field->help);
    }
    fleet_strbuf_append(out, "\n");
}

/* Numbers, names and defaults that differ between the generations, of the field and below it. */
static void append_versions_of(struct fleet_strbuf *out, const struct knob_field *field)
{
    if (field->since >= KNOB_V21 && field->since != KNOB_OWN)
        fleet_strbuf_appendf(out, "- Paddle 2.0 does not know `%s` (since %s) and rejects it.\n",
                             field->name, since_text(field));
    if (field->alias)
        fleet_strbuf_appendf(out,
                             "- From 2.1 on, `%s` is called `%s`. FleetJob reads both names; if "
                             "both are given, they must agree.\n",
                             field->name, field->alias);
    if (field->kind != KNOB_STRING && field->kind != KNOB_WORD && !knob_is_list(field) &&
        field->number != field->number_2_0) {
        fleet_strbuf_appendf(out, "- The default of `%s` was ", field->name);
        append_number(out, field, field->number_2_0);
        fleet_strbuf_append(out, " in 2.0.\n");
    }
    for (size_t i = 0; field->message && i < field->message()->count; i++)
        append_versions_of(out, &field->message()->fields[i]);
}

static void append_versions(struct fleet_strbuf *out, const struct knob_field *field)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf list = {0};

    append_versions_of(&list, field);
    fleet_strbuf_appendf(out, "## 2.0 and later\n\n%s",
                         list.length ? list.text : "All versions that have it agree.\n");
}

/* ---- what goes together ---------------------------------------------------------------------- */

static void make_pair(struct strategy *s, enum unit a, enum unit b)
{
    strategy_init(s);
    unit_set(s, a, true);
    unit_set(s, b, true);
    s->gradient_merge_configs.k_steps = 2;
    s->gradient_merge_configs.has_k_steps = s->has_gradient_merge_configs = KNOB_BY_NAME;
    knob_append_string(&s->recompute_configs.checkpoints, "x");
    s->recompute_configs.has_checkpoints = s->has_recompute_configs = KNOB_BY_NAME;
}

static void append_outcome(struct fleet_strbuf *out, const struct strategy *s,
                           enum strategy_policy policy)
{
    struct select_options options = {.policy = policy, .world_size = STRATEGY_EXAMPLE_WORLD};
    struct fleet_errors errors = {0};
    SELECT_AUTO_RESULT struct select_result result = {0};

    if (strategy_select(s, &options, "", &result, &errors) < 0) {
        const char *reason = strchr(errors.items[0].message, ':');
        fleet_strbuf_appendf(out, "refused%s", reason ? reason : "");
        fleet_errors_release(&errors);
        return;
    }
    for (size_t i = 0; i < result.applied.count; i++)
        fleet_strbuf_appendf(out, "%s%s", i ? " > " : "", result.applied.items[i]);
    for (size_t i = 0; i < result.dropped.count; i++)
        fleet_strbuf_appendf(out, "; %s is dropped", result.dropped.items[i].knob);
}

static void append_pairs(struct fleet_strbuf *out, enum unit unit)
{
    fleet_strbuf_appendf(out,
                         "## Together with other settings\n\nThe settings that act, outermost "
                         "first, on %d workers and with the optimizer that they need.\n\n"
                         "| with | `Full` | `Paddle` |\n"
                         "|---|---|---|\n",
                         STRATEGY_EXAMPLE_WORLD);
    for (int other = 0; other < UNITS; other++) {
        STRATEGY_AUTO struct strategy s = {0};

        if (other == (int)unit)
            continue;
        make_pair(&s, unit, (enum unit)other);
        fleet_strbuf_appendf(out, "| [%s](%s.md) | ", unit_name((enum unit)other),
                             unit_name((enum unit)other));
        append_outcome(out, &s, STRATEGY_FULL);
        fleet_strbuf_append(out, " | ");
        append_outcome(out, &s, STRATEGY_PADDLE);
        fleet_strbuf_append(out, " |\n");
    }
    fleet_strbuf_append(out, "\n");
}

/* ---- prose ----------------------------------------------------------------------------------- */

/* An example must be a strategy that is accepted on STRATEGY_EXAMPLE_WORLD ranks. */
static void check_example(const char *page, const char *yaml, size_t size)
{
    struct select_options options = {.policy = STRATEGY_FULL, .world_size = STRATEGY_EXAMPLE_WORLD};
    FLEET_AUTO_JSON cJSON *json = NULL;
    SELECT_AUTO_RESULT struct select_result result = {0};
    STRATEGY_AUTO struct strategy s = {0};
    struct fleet_errors errors = {0};
    struct fleet_error err;

    if (fleet_yaml_to_json(yaml, size, &json, &err) < 0)
        strategy_page_fail(page, err.text);
    (void)strategy_json_decode(cJSON_GetObjectItem(json, "strategy"), "strategy", &s, &errors);
    if (errors.count == 0)
        (void)strategy_select(&s, &options, "strategy", &result, &errors);
    if (fleet_errors_result(&errors, &err) < 0)
        strategy_page_fail(page, err.text);
}

static void append_prose(struct fleet_strbuf *out, const char *page, const char *text)
{
    static const char start[] = "```yaml\n", end[] = "```\n";
    const char *block = strstr(text, start);

    if (block) {
        const char *from = block + strlen(start), *to = strstr(from, end);
        if (!to)
            strategy_page_fail(page, "an example without end");
        check_example(page, from, (size_t)(to - from));
    }
    fleet_strbuf_appendf(out, "%s\n", text);
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* The switch of "amp_configs", or the configs of "amp"; NULL if there is none. */
static const struct knob_field *partner(const struct knob_field *field)
{
    char name[128];
    size_t length = strlen(field->name);

    if (field->kind == KNOB_MESSAGE && length > 8 &&
        strcmp(field->name + length - 8, "_configs") == 0)
        (void)snprintf(name, sizeof(name), "%.*s", (int)(length - 8), field->name);
    else
        (void)snprintf(name, sizeof(name), "%s_configs", field->name);
    return knobs_find(knobs_root(), name, NULL);
}

static bool has_section(const char *prose, const char *title)
{
    return prose && strstr(prose, title) != NULL;
}

/* What no page of prose has: effect, paper and example, from the example that is accepted. */
static void append_generated(struct fleet_strbuf *out, const char *path,
                             const struct knob_field *field, const char *prose)
{
    FLEET_AUTO_JSON cJSON *example = strategy_example(path, field);
    FLEET_AUTO_STRBUF struct fleet_strbuf why = {0};
    FLEET_AUTO_JSON cJSON *plan = NULL;
    FLEET_AUTO_FREE char *text = NULL;

    if (example && !strategy_example_is_good(example, &why))
        strategy_page_fail(path, why.text);
    if (!has_section(prose, "## Paper"))
        fleet_strbuf_appendf(out, "## Paper\n\n%s\n\n", strategy_example_paper(path));
    if (!example)
        return;
    if (!has_section(prose, "## Example")) {
        cJSON *wrapped = fleet_json_new_object();
        fleet_json_set(wrapped, "strategy", fleet_json_copy(example));
        fleet_strbuf_append(out, "## Example\n\n```yaml\n");
        yaml_print(wrapped, out);
        fleet_strbuf_append(out, "```\n\n");
        cJSON_Delete(wrapped);
    }
    if (has_section(prose, "## Effect"))
        return;
    plan = strategy_example_plan(example);
    text = cJSON_Print(plan);
    for (char *c = text; *c; c++)
        if (*c == '\t')
            *c = ' ';
    fleet_strbuf_appendf(out,
                         "## Effect on plan and status\n\n`status.plan` with %s on %d workers:\n\n"
                         "```json\n%s\n```\n\n",
                         has_section(prose, "## Example") ? "it" : "the example",
                         STRATEGY_EXAMPLE_WORLD, text);
}

static bool is_unit(const char *name)
{
    for (int unit = 0; unit < UNITS; unit++)
        if (strcmp(unit_name((enum unit)unit), name) == 0)
            return true;
    return false;
}

static void append_neighbours(struct fleet_strbuf *out, const char *path,
                              const struct knob_field *field)
{
    FLEET_AUTO_JSON cJSON *example = strategy_example(path, field);
    char unit[64];
    const char *configs = strstr(path, "_configs");

    if (!example)
        return;
    fleet_strbuf_append(out, "## Together with other settings\n\n");
    (void)snprintf(unit, sizeof(unit), "%.*s", configs ? (int)(configs - path) : 0, path);
    if (is_unit(unit))
        fleet_strbuf_appendf(
            out,
            "It is part of [%s](%s.md) and can be combined with the same settings. "
            "Without `%s: true` it is listed under `withoutEffect`.\n",
            unit, unit, unit);
    else
        strategy_example_neighbours(example, out);
    fleet_strbuf_append(out, "\n");
}

/* ---- what does not run yet ------------------------------------------------------------------- */

/* "localsgd_configs" and all below it describe "localsgd". */
static bool is_config_of(const char *path, const char *knob)
{
    size_t length = strlen(knob);

    return strncmp(path, knob, length) == 0 && strncmp(path + length, "_configs", 8) == 0 &&
           (path[length + 8] == '\0' || path[length + 8] == '.');
}

static bool is_degree_of(const char *path, const struct support_gap *gap)
{
    for (int i = 0; i < SUPPORT_DEGREES_MAX && gap->degrees[i]; i++)
        if (strcmp(path, gap->degrees[i]) == 0)
            return true;
    return false;
}

bool strategy_page_is_gap(const char *knob)
{
    for (const struct support_gap *gap = support_gaps; gap->knob; gap++)
        if (strcmp(gap->knob, knob) == 0)
            return true;
    return false;
}

/* The first line of a page whose knob the built-in runtime refuses, from the table that refuses
 * it. */
static void append_gaps(struct fleet_strbuf *out, const char *path)
{
    for (const struct support_gap *gap = support_gaps; gap->knob; gap++) {
        bool is_itself = strcmp(path, gap->knob) == 0, is_degree = is_degree_of(path, gap);

        if (!is_itself && !is_degree && !is_config_of(path, gap->knob))
            continue;
        fleet_strbuf_append(out, "**Does not run yet.** The built-in runtime refuses a job that ");
        if (is_itself)
            fleet_strbuf_append(out, "uses it");
        else if (is_degree)
            fleet_strbuf_appendf(out, "uses it for `%s`", gap->knob);
        else
            fleet_strbuf_appendf(out, "uses [%s](%s.md)", gap->knob, gap->knob);
        fleet_strbuf_appendf(out,
                             " %s: %s. This page describes its meaning; `fleetjob plan` explains "
                             "such a job.\n\n",
                             gap->when, gap->because);
    }
}

/* `path` is the field's, `parent` that of the message around it or NULL. */
void strategy_page_build(struct fleet_strbuf *out, const char *path, const char *parent,
                         const struct knob_field *field)
{
    FLEET_AUTO_FREE char *file_path = NULL, *prose = NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf file = {0};
    const struct knob_field *other = parent ? NULL : partner(field);
    size_t size;

    fleet_strbuf_appendf(out, "<!-- Generated by `make generate`. Do not edit. -->\n# %s\n\n",
                         path);
    append_gaps(out, path);
    fleet_strbuf_appendf(out, "%s.\n\n", field->help);
    append_facts(out, field);
    fleet_strbuf_appendf(&file, "%s.md", path);
    file_path = fleet_file_join(PROSE, file.text);
    if (fleet_file_read(file_path, SIZE_MAX_, &prose, &size, NULL) == 0)
        append_prose(out, path, prose);
    if (other)
        fleet_strbuf_appendf(out, "See also [%s](%s.md).\n\n", other->name, other->name);
    if (parent)
        fleet_strbuf_appendf(out, "Part of [%s](%s.md).\n\n", parent, parent);
    append_generated(out, path, field, prose);
    if (field->message)
        append_message(out, path, field->message());
    if (parent || !is_unit(path))
        append_neighbours(out, path, field);
    for (int unit = 0; unit < UNITS && !parent; unit++)
        if (strcmp(unit_name((enum unit)unit), path) == 0)
            append_pairs(out, (enum unit)unit);
    append_versions(out, field);
}
