/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/prototxt, prototxt_styles: what save_to_prototxt() wrote is read, equals the recorded
 * values and is written back byte for byte; what other writers made of the same cases reads the
 * same.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/prototxt.h"
#include "tests/golden/paddle_strategy.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

/* ---- recorded values ------------------------------------------------------------------------- */

void recorded_strategy(const cJSON *recorded, struct strategy *out)
{
    cJSON *json = cJSON_Duplicate(recorded, true);
    cJSON *mode = cJSON_DetachItemFromObject(json, "mode");
    struct fleet_errors errors = {0};

    if (strategy_json_decode(json, "", out, &errors) < 0)
        golden_fail("the recorded values: %s: %s", errors.items[0].path, errors.items[0].message);
    if (!cJSON_GetObjectItem(json, "a_sync_configs")) { /* a file says a_sync without its effect */
        out->has_a_sync_configs = out->a_sync_configs.has_k_steps = 0;
        out->a_sync_configs.k_steps = -1;
    }
    if (cJSON_IsString(mode)) {
        out->mode = knob_mode_number(mode->valuestring);
        out->has_mode = KNOB_BY_NAME;
    }
    cJSON_Delete(mode);
    cJSON_Delete(json);
}

void recorded_expect_same(const struct strategy *got, const struct strategy *wanted)
{
    FLEET_AUTO_JSON cJSON *a = strategy_json_encode(got), *b = strategy_json_encode(wanted);
    FLEET_AUTO_FREE char *a_text = fleet_json_print(a), *b_text = fleet_json_print(b);

    if (!strategy_means_same(got, wanted))
        golden_fail("read as\n      %s\n    recorded\n      %s", a_text, b_text);
}

/* Floats as recorded: non-finite ones are words. */
static bool is_float(const cJSON *item, float number)
{
    if (cJSON_IsNumber(item))
        return (float)item->valuedouble == number;
    if (!cJSON_IsString(item))
        return false;
    if (strcmp(item->valuestring, "nan") == 0)
        return isnan(number);
    return isinf(number) && (number < 0) == (item->valuestring[0] == '-');
}

/* One attribute as Python shows it against the value of our field. */
static bool is_attribute(const struct knob_field *field, const cJSON *item, const void *value)
{
    if (field->kind == KNOB_BOOL)
        return cJSON_IsTrue(item) == *(const bool *)value;
    if (field->kind == KNOB_INT)
        return cJSON_IsNumber(item) && item->valuedouble == *(const int32_t *)value;
    if (field->kind == KNOB_STRING)
        return cJSON_IsString(item) && strcmp(item->valuestring, *(char *const *)value) == 0;
    if (field->kind == KNOB_FLOAT)
        return is_float(item, *(const float *)value);
    return cJSON_GetArraySize(item) == (int)((const struct strategy_strings *)value)->count;
}

static void check_attributes(const struct knob_message *message, const cJSON *attributes,
                             const void *value)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, attributes)
    {
        const char *name = item->string;
        const struct knob_field *field;

        if (strcmp(name, "is_with_coordinator") == 0)
            name = "with_coordinator";
        field = knobs_find(message, name, NULL);
        if (!field && name[0] == '_')
            field = knobs_find(message, name + 1, NULL);
        if (!field)
            golden_fail("attribute %s is no field", item->string);
        if (strcmp(name, "reduce_strategy") == 0 && cJSON_IsString(item))
            continue; /* Python shows an enumeration of its own */
        if (field->kind == KNOB_MESSAGE)
            check_attributes(field->message(), item, knob_value(field, value));
        else if (!is_attribute(field, item, knob_value(field, value)))
            golden_fail("attribute %s has another value than recorded", item->string);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static void expect_written(const struct strategy *s, enum strategy_dialect dialect,
                           const char *text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    struct fleet_error err;

    fleet_strbuf_append(&out, "");
    if (prototxt_print(s, dialect, &out, &err) < 0)
        golden_fail("%s", err.text);
    if (strcmp(out.text, text) != 0)
        golden_fail("is written back as\n%s", out.text);
}

static void read_file(const struct golden_file *file, struct strategy *out, char **out_text)
{
    struct fleet_error err;
    size_t size;

    *out_text = golden_text(file->path, &size);
    strategy_init(out);
    if (prototxt_merge(out, file->name, *out_text, size, &err) < 0)
        golden_fail("%s", err.text);
}

/* The recorded case of the same name; a file of another writer may lack one. */
static cJSON *recorded_case(const char *folder)
{
    const struct golden_file *file = golden_at_work();
    const char *name = strrchr(file->name, '/') + 1;
    char beside[512];

    (void)snprintf(beside, sizeof(beside), "%s%.*s.json", folder,
                   (int)(strlen(name) - strlen(".prototxt")), name);
    if (!golden_exists(golden_beside(beside)))
        golden_skip("there is no recorded case of this name to compare with");
    return golden_json(golden_beside(beside));
}

static void check_file(void *context)
{
    cJSON *recorded = recorded_case("");
    STRATEGY_AUTO struct strategy s = {0}, wanted = {0};
    FLEET_AUTO_FREE char *text = NULL;

    read_file(context, &s, &text);
    recorded_strategy(golden_at(recorded, "set"), &wanted);
    recorded_expect_same(&s, &wanted);
    check_attributes(knobs_root(), golden_at(recorded, "attributes"), &s);
    expect_written(&s, STRATEGY_AS_READ, text);
    expect_written(&s, STRATEGY_2_1, text); /* Paddle 2.6 wrote it */
    cJSON_Delete(recorded);
}

void golden_paddle_prototxt(const struct golden_file *file)
{
    golden_case(check_file, (void *)(uintptr_t)file, "%s", "");
}

/* Is every value of `part` in `whole`? */
static bool contains(const cJSON *whole, const cJSON *part)
{
    const cJSON *item;

    if (!cJSON_IsObject(part))
        return cJSON_Compare(whole, part, true);
    cJSON_ArrayForEach(item, part)
    {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(whole, item->string);
        if (!other || !contains(other, item))
            return false;
    }
    return true;
}

static void check_style(void *context)
{
    const struct golden_file *file = context;
    cJSON *recorded = recorded_case("../../prototxt/");
    STRATEGY_AUTO struct strategy s = {0}, wanted = {0};
    FLEET_AUTO_FREE char *text = NULL;

    read_file(file, &s, &text);
    recorded_strategy(golden_at(recorded, "set"), &wanted);
    if (strstr(file->name, "/gpu_build/")) { /* its constructor sets four fields more */
        FLEET_AUTO_JSON cJSON *whole = strategy_json_encode(&s);
        FLEET_AUTO_JSON cJSON *part = strategy_json_encode(&wanted);
        if (!contains(whole, part))
            golden_fail("lacks values that the case sets");
    } else {
        recorded_expect_same(&s, &wanted);
    }
    cJSON_Delete(recorded);
}

void golden_paddle_prototxt_style(const struct golden_file *file)
{
    golden_case(check_style, (void *)(uintptr_t)file, "%s", "");
}
