/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/assignments.json: `s.name = value`, accepted or not, and the value afterwards.
 *
 * What Paddle refuses is refused here (it warns and keeps the old value in
 * places), except for the names of 2.0 and whole numbers for the one float that insists on a point.
 * What it accepts is accepted, except where that is Python's looseness about types or a value
 * beyond a range that is checked here: both are recomputed from the table of knobs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/knobs.h"
#include "tests/golden/paddle_strategy.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

/* ---- from Python to JSON --------------------------------------------------------------------- */

/* Python's words for values that JSON spells otherwise. */
static const char *const python_words[][2] = {
    {"True", "true"},
    {"False", "false"},
    {"None", "null"},
    {"float(\"nan\")", "\"nan\""},
    {"float(\"inf\")", "\"inf\""},
    {"float(\"-inf\")", "\"-inf\""},
    {"-float(\"inf\")", "\"-inf\""},
    {"2**31", "2147483648"},
    {"2**32", "4294967296"},
    {"2**40", "1099511627776"},
    {"2**63", "9223372036854775808"},
    {"{1:", "{\"1\":"},
};

static void append_value(struct fleet_strbuf *out, const char *value)
{
    bool in_string = false;

    for (const char *c = value; *c;) {
        size_t i = in_string ? FLEET_COUNT(python_words) : 0;
        while (i < FLEET_COUNT(python_words) &&
               strncmp(c, python_words[i][0], strlen(python_words[i][0])) != 0)
            i++;
        if (i < FLEET_COUNT(python_words)) {
            fleet_strbuf_append(out, python_words[i][1]);
            c += strlen(python_words[i][0]);
            continue;
        }
        in_string ^= *c == '"';
        fleet_strbuf_append_char(out, *c++);
    }
}

/* "s.name = value" as {"name": value}; the caller deletes. */
static cJSON *assignment_json(const char *assignment)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *equals = strstr(assignment, " = ");
    cJSON *root = NULL;

    if (strncmp(assignment, "s.", 2) != 0 || !equals || strchr(assignment, ';'))
        golden_skip("not an assignment of one value");
    if (strstr(equals, "np."))
        golden_skip("a type of numpy cannot be said in JSON");
    fleet_strbuf_appendf(&text, "{\"%.*s\": ", (int)(equals - assignment - 2), assignment + 2);
    append_value(&text, equals + 3);
    fleet_strbuf_append(&text, "}");
    if (fleet_yaml_to_json(text.text, text.length, &root, NULL) < 0)
        golden_skip("a Python expression that JSON cannot say");
    return root;
}

/* ---- what may differ ------------------------------------------------------------------------- */

static bool is_type(const struct knob_field *field, const cJSON *value)
{
    bool is_word = cJSON_IsString(value) && (strcmp(value->valuestring, "inf") == 0 ||
                                             strcmp(value->valuestring, "-inf") == 0 ||
                                             strcmp(value->valuestring, "nan") == 0);

    switch (field->kind) {
    case KNOB_BOOL:
        return cJSON_IsBool(value);
    case KNOB_INT:
        return cJSON_IsNumber(value) && value->valuedouble == rint(value->valuedouble) &&
               !fleet_json_float_spelling(value);
    case KNOB_FLOAT:
        return cJSON_IsNumber(value) || is_word;
    case KNOB_STRING:
    case KNOB_WORD:
    case KNOB_MODE:
        return cJSON_IsString(value);
    case KNOB_MESSAGE:
        return cJSON_IsObject(value);
    default:
        return cJSON_IsArray(value);
    }
}

static bool is_word_of(const char *words, const char *text)
{
    size_t length = strlen(text);

    for (const char *at = words; (at = strstr(at, text)) && length > 0; at++)
        if ((at == words || at[-1] == '|') && (at[length] == '|' || at[length] == '\0'))
            return true;
    return false;
}

static bool in_range(const struct knob_field *field, const cJSON *value)
{
    const struct knob_range *range = &field->range;
    double x = value->valuedouble;

    if (field->kind == KNOB_FLOAT || field->kind == KNOB_FLOATS) {
        if (cJSON_IsString(value) || fabs(x) > 3.5e38)
            return false; /* finite everywhere */
        x = (double)(float)x;
    }
    switch (range->kind) {
    case KNOB_AT_LEAST:
        return x >= range->low;
    case KNOB_ABOVE:
        return x > range->low;
    case KNOB_FROM_TO:
        return x >= range->low && x <= range->high;
    case KNOB_BETWEEN:
        return x > range->low && x < range->high;
    case KNOB_DEGREE_OR_REST:
        return x == -1 || x >= 1;
    case KNOB_ONE_OF:
        return cJSON_IsString(value) && is_word_of(range->words, value->valuestring);
    case KNOB_ANY:
        break;
    }
    return true;
}

/* May ours refuse what Paddle accepts: a type or a range, anywhere below? */
static bool may_refuse(const struct knob_message *message, const cJSON *values)
{
    const cJSON *value, *item;

    cJSON_ArrayForEach(value, values)
    {
        const char *name = value->string;
        const struct knob_field *field = knobs_find(message, name, NULL);

        if (!field && name[0] == '_')
            field = knobs_find(message, name + 1, NULL);
        if (!field || !is_type(field, value))
            return true;
        if (field->kind == KNOB_MESSAGE ? may_refuse(field->message(), value)
            : cJSON_IsArray(value)      ? false
                                        : !in_range(field, value))
            return true;
        cJSON_ArrayForEach(item, value)
        {
            if (cJSON_IsArray(value) && !in_range(field, item))
                return true;
        }
    }
    return false;
}

/* May ours accept what Paddle refuses? */
static bool may_accept(const char *assignment)
{
    static const char *const names[] = {"\"micro_batch\"", "\"fuse_broadcast_MB\"",
                                        "\"sharding_group_size\"",  /* of 2.0 */
                                        "fuse_grad_size_in_TFLOPS", /* any number */
                                        "s.calc_comm_same_stream",
                                        /* an object of a class there, a mapping here */
                                        "s.build_strategy = {", "s.execution_strategy = {",
                                        /* a mapping that 2.6 forgets to take */
                                        "\"sharding_configs\": {"};

    for (size_t i = 0; i < FLEET_COUNT(names); i++)
        if (strstr(assignment, names[i]))
            return true;
    return false;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void expect_value(const struct strategy *s, const cJSON *set_after)
{
    STRATEGY_AUTO struct strategy recorded = {0};
    struct fleet_errors errors = {0};

    if (strategy_json_decode(set_after, "", &recorded, &errors) < 0)
        golden_fail("the recorded values: %s: %s", errors.items[0].path, errors.items[0].message);
    recorded_expect_same(s, &recorded);
}

static void judge(const char *assignment, const cJSON *json, bool recorded,
                  const struct fleet_errors *errors)
{
    const char *path = errors->count ? errors->items[0].path : "";
    const char *message = errors->count ? errors->items[0].message : "";
    bool accepted = errors->count == 0;

    if (accepted && !recorded && !may_accept(assignment))
        golden_fail("ours accepts it, Paddle does not");
    if (!accepted && recorded && !may_refuse(knobs_root(), json))
        golden_fail("ours refuses it (%s: %s), Paddle does not", path, message);
}

static void check_row(void *context)
{
    const cJSON *row = context;
    const char *assignment = golden_string(row, "assignment");
    bool recorded = strcmp(golden_string(row, "result"), "accepted") == 0;
    FLEET_AUTO_JSON cJSON *json = assignment_json(assignment);
    STRATEGY_AUTO struct strategy s = {0};
    struct fleet_errors errors = {0};

    (void)strategy_json_decode(json, "", &s, &errors);
    (void)strategy_check_values(&s, "", &errors); /* one value: companions may come later */
    judge(assignment, json, recorded, &errors);
    if (errors.count == 0 && recorded)
        expect_value(&s, golden_at(row, "set_after"));
    fleet_errors_release(&errors);
}

void golden_paddle_assignments(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;

    cJSON_ArrayForEach(row, golden_array(root, "rows"))
        golden_case(check_row, row, "%s", golden_string(row, "assignment"));
    cJSON_Delete(root);
}
