/* SPDX-License-Identifier: Apache-2.0 */

/* Tables on a made-up object with every kind of field: values, errors with paths, round trips. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/base/field_row.h"
#include "libfleet/base/json.h"

enum shape_name {
    CIRCLE,
    BOX
};

struct point {
    int64_t x;
    char *file;
};

struct sample {
    enum shape_name shape;
    double radius, side;
    int64_t count;
    bool loud, has_origin;
    char *name, *file;
    int64_t resume;
    uint64_t seed;
    int64_t at;
    struct point origin, corner;
    struct {
        struct point *items;
        size_t count;
    } points;
    struct {
        int64_t *items;
        size_t count;
    } numbers;
    struct fleet_string_map labels;
    cJSON *raw;
};

static const char *const shapes[] = {"circle", "box", NULL};
static const char *const resumes[] = {"auto", "never", NULL};

static const struct fleet_field point_fields[] = {
    {.name = "x",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct point, x)},
    {.name = "file",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_PATH,
     .offset = offsetof(struct point, file)},
    {0},
};

static const struct fleet_object point_type = {
    .name = "point", .fields = point_fields, .size = sizeof(struct point)};

static const struct fleet_field sample_fields[] = {
    {.name = "shape",
     .kind = FLEET_FIELD_ENUM,
     .flags = FLEET_REQUIRED,
     .offset = offsetof(struct sample, shape),
     .choices = shapes},
    {.name = "radius",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_MIN | FLEET_BELOW,
     .offset = offsetof(struct sample, radius),
     .default_text = "0.5",
     .min = 0,
     .max = 1,
     .only = 1U << CIRCLE},
    {.name = "side",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_REQUIRED | FLEET_ABOVE,
     .offset = offsetof(struct sample, side),
     .only = 1U << BOX},
    {.name = "count",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN,
     .offset = offsetof(struct sample, count),
     .unset = -1,
     .min = 1},
    {.name = "loud",
     .kind = FLEET_FIELD_BOOL,
     .offset = offsetof(struct sample, loud),
     .default_text = "true"},
    {.name = "name",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct sample, name),
     .count_max = 8,
     .pattern = "^[a-z]+$",
     .pattern_words = "lower-case letters"},
    {.name = "file",
     .kind = FLEET_FIELD_STRING,
     .flags = FLEET_PATH,
     .offset = offsetof(struct sample, file)},
    {.name = "resume",
     .kind = FLEET_FIELD_INT_OR_CHOICE,
     .flags = FLEET_MIN,
     .offset = offsetof(struct sample, resume),
     .default_text = "\"auto\"",
     .choices = resumes},
    {.name = "seed", .kind = FLEET_FIELD_SEED, .offset = offsetof(struct sample, seed)},
    {.name = "at", .kind = FLEET_FIELD_TIME, .offset = offsetof(struct sample, at)},
    {.name = "origin",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct sample, origin),
     .presence = FLEET_PRESENCE(struct sample, has_origin),
     .object = &point_type},
    {.name = "points",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct sample, points),
     .object = &point_type,
     .count_max = 3},
    {.name = "numbers",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_NOT_EMPTY,
     .offset = offsetof(struct sample, numbers),
     .default_text = "[1, 2]",
     .min = 1},
    {.name = "labels", .kind = FLEET_FIELD_MAP, .offset = offsetof(struct sample, labels)},
    {.name = "raw",
     .kind = FLEET_FIELD_JSON,
     .offset = offsetof(struct sample, raw),
     .count_max = 64},
    {0},
};

static const struct fleet_hint sample_hints[] = {{"form", "shape"}, {NULL, NULL}};

static const struct fleet_object sample_type = {.name = "sample",
                                                .hints = sample_hints,
                                                .fields = sample_fields,
                                                .size = sizeof(struct sample),
                                                .discriminator = "shape"};

static int decode(const char *text, struct sample *out, struct fleet_errors *errors)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text);

    assert_non_null(json);
    memset(out, 0xa5, sizeof(*out)); /* what was there must not matter */
    return fleet_object_decode(&sample_type, json, "spec", out, errors);
}

/* The text is refused with exactly these lines. */
static void assert_refused(const char *text, const char *lines)
{
    struct fleet_errors errors = {0};
    FLEET_AUTO_STRBUF struct fleet_strbuf printed = {0};
    struct sample sample;

    assert_int_equal(decode(text, &sample, &errors), -EINVAL);
    fleet_errors_print(&errors, &printed);
    assert_string_equal(fleet_strbuf_text(&printed), lines);
    fleet_errors_release(&errors);
    fleet_object_release(&sample_type, &sample);
}

static void test_field__absent_fields_hold_their_defaults(void **state)
{
    struct fleet_errors errors = {0};
    struct sample s;

    (void)state;
    assert_int_equal(decode("{\"shape\":\"circle\",\"name\":null}", &s, &errors), 0);
    assert_int_equal(s.shape, CIRCLE);
    assert_true(s.radius == 0.5);
    assert_true(s.side == 0);
    assert_int_equal(s.count, -1);
    assert_true(s.loud);
    assert_null(s.name);
    assert_int_equal(s.resume, -1);
    assert_false(s.has_origin);
    assert_int_equal(s.numbers.count, 2);
    assert_int_equal(s.numbers.items[1], 2);
    assert_null(s.raw);
    fleet_object_release(&sample_type, &s);
    assert_null(s.numbers.items);
}

static void test_field__every_kind_is_read_and_written_back(void **state)
{
    const char *text =
        "{\"shape\":\"box\",\"side\":2.5,\"count\":7,\"loud\":false,\"name\":\"abc\","
        "\"file\":\"a/b\",\"resume\":\"never\",\"seed\":\"18446744073709551615\","
        "\"at\":\"2026-01-31T12:00:00Z\",\"origin\":{\"x\":-3},"
        "\"points\":[{\"x\":1,\"file\":\"p\"},{\"x\":2}],\"numbers\":[5],"
        "\"labels\":{\"k\":\"v\"},\"raw\":{\"z\":[1,null]}}";
    struct fleet_errors errors = {0};
    struct sample s;

    (void)state;
    assert_int_equal(decode(text, &s, &errors), 0);
    assert_true(s.seed == UINT64_MAX);
    assert_int_equal(s.resume, -2);
    assert_true(s.has_origin);
    assert_int_equal(s.points.items[0].x, 1);
    assert_string_equal(fleet_string_map_get(&s.labels, "k"), "v");
    assert_null(fleet_string_map_get(&s.labels, "other"));

    FLEET_AUTO_JSON cJSON *json = fleet_object_encode(&sample_type, &s);
    FLEET_AUTO_FREE char *printed = fleet_json_print(json);
    assert_string_equal(printed, text);
    fleet_object_release(&sample_type, &s);
}

/* A part of a text, and what may replace it. */
static const struct {
    const char *from, *to;
} changes[] = {{"", ""},
               {"\"box\",\"side\":2", "\"circle\""},
               {"\"side\":2", "\"side\":3"},
               {"\"name\":\"a\",", ""},
               {"\"seed\":5", "\"seed\":6"},
               {"T12:00:00Z", "T12:00:01Z"},
               {"\"origin\":{\"x\":1},", ""},
               {"\"p\"", "\"q\""},
               {"[{", "[{\"x\":1},{"},
               {"\"k\":\"v\",", ""},
               {"\"z\":1", "\"z\":2"}};

static void decode_changed(size_t i, struct sample *out)
{
    static const char text[] =
        "{\"shape\":\"box\",\"side\":2,\"name\":\"a\",\"seed\":5,\"at\":\"2026-01-31T12:00:00Z\","
        "\"origin\":{\"x\":1},\"points\":[{\"x\":1,\"file\":\"p\"}],\"labels\":{\"k\":\"v\",\"l\":"
        "\"w\"},"
        "\"raw\":{\"z\":1}}";
    const char *at = strstr(text, changes[i].from);
    FLEET_AUTO_STRBUF struct fleet_strbuf changed = {0};
    struct fleet_errors errors = {0};

    fleet_strbuf_append_bytes(&changed, text, (size_t)(at - text));
    fleet_strbuf_append(&changed, changes[i].to);
    fleet_strbuf_append(&changed, at + strlen(changes[i].from));
    assert_int_equal(decode(changed.text, out, &errors), 0);
}

static void test_field__a_copy_is_equal_and_a_change_is_seen(void **state)
{
    struct sample copy, first;

    (void)state;
    decode_changed(0, &first);
    fleet_object_copy(&sample_type, &first, &copy);
    fleet_object_release(&sample_type, &first);
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct sample other;
        decode_changed(i, &other);
        assert_int_equal(fleet_object_equal(&sample_type, &copy, &other), i == 0);
        assert_int_equal(fleet_object_equal(&sample_type, &other, &copy), i == 0);
        fleet_object_release(&sample_type, &other);
    }
    fleet_object_release(&sample_type, &copy);
}

static void test_field__all_errors_are_reported_at_once_with_their_paths(void **state)
{
    (void)state;
    assert_refused(
        "{\"shape\":\"box\",\"side\":0,\"count\":1e18,\"loud\":1,\"name\":\"Abc\","
        "\"points\":[{\"x\":1},{}],\"numbers\":[3,\"4\",0],\"labels\":{\"a\":1},"
        "\"raw\":[]}",
        "spec.side: must be greater than 0, not 0\n"
        "spec.count: must be an integer within 2^53, not 1e+18\n"
        "spec.loud: must be true or false, not 1\n"
        "spec.name: must be lower-case letters, not \"Abc\"\n"
        "spec.points[1].x: required\n"
        "spec.numbers[1]: must be an integer at least 1, not \"4\"; write it without quotes\n"
        "spec.numbers[2]: must be at least 1, not 0\n"
        "spec.labels.a: must be a string, not 1; quote it\n"
        "spec.raw: must be an object, not a list\n");
}

static void test_field__unknown_keys_are_refused_with_the_nearest(void **state)
{
    (void)state;
    assert_refused("{\"shape\":\"circle\",\"cuont\":3,\"zzzzzz\":1,\"origin\":{\"x\":1,\"y\":2}}",
                   "spec.origin.y: unknown field; did you mean \"x\"?\n"
                   "spec.cuont: unknown field; did you mean \"count\"?\n"
                   "spec.zzzzzz: unknown field of sample, which has shape, radius, count, loud, "
                   "name, file, resume, seed, at, origin, points, numbers, labels, raw\n");
    assert_refused("{\"shape\":\"circle\",\"form\":1}", "spec.form: unknown field: write shape\n");
}

static void test_field__words_that_are_no_choice_list_the_choices(void **state)
{
    (void)state;
    assert_refused("{\"shape\":\"cirle\"}",
                   "spec.shape: \"cirle\" is unknown; did you mean \"circle\"? Must be one of "
                   "circle, box\n");
    assert_refused("{\"shape\":3}", "spec.shape: must be one of circle, box, not 3\n");
    assert_refused("{\"shape\":\"circle\",\"resume\":-1}",
                   "spec.resume: must be at least 0, not -1\n");
    assert_refused("{}", "spec.shape: required\n");
}

static void test_field__keys_of_another_choice_are_refused(void **state)
{
    (void)state;
    assert_refused("{\"shape\":\"circle\",\"side\":1}",
                   "spec.side: belongs to shape box, not to circle, which has radius\n");
}

static void test_field__limits_hold(void **state)
{
    (void)state;
    assert_refused(
        "{\"shape\":\"circle\",\"name\":\"abcdefghi\",\"points\":[1,2,3,4],"
        "\"numbers\":[],\"seed\":9007199254740993,\"radius\":1,"
        "\"raw\":{\"a\":\"0123456789012345678901234567890123456789012345678901234567\"}}",
        "spec.radius: must be in [0, 1), not 1\n"
        "spec.name: must have at most 8 bytes, not 9\n"
        "spec.seed: integers above 2^53 - 1 must be written as a string of digits\n"
        "spec.points: must have at most 3 entries, not 4\n"
        "spec.numbers: must not be empty\n"
        "spec.raw: must have at most 64 bytes of JSON, not 66\n");
}

static void test_field__seeds_are_digits_only(void **state)
{
    static const char *const bad[] = {"\"\"", "\"-1\"", "\"1e3\"", "\"18446744073709551616\"",
                                      "-1",   "1.5",    "true"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct fleet_errors errors = {0};
        struct sample s;
        char text[80];
        (void)snprintf(text, sizeof(text), "{\"shape\":\"circle\",\"seed\":%s}", bad[i]);
        if (decode(text, &s, &errors) == 0)
            fail_msg("expected %s to be refused, got seed %llu", text, (unsigned long long)s.seed);
        fleet_errors_release(&errors);
        fleet_object_release(&sample_type, &s);
    }
}

static void add_visit(void *context, const char *name, char **value)
{
    fleet_strbuf_appendf(context, "%s=%s ", name, *value);
}

static void test_field__paths_are_visited_where_they_are(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf seen = {0};
    struct fleet_errors errors = {0};
    struct sample s;

    (void)state;
    assert_int_equal(
        decode("{\"shape\":\"circle\",\"file\":\"a\",\"origin\":{\"x\":1,\"file\":\"b\"},"
               "\"points\":[{\"x\":1},{\"x\":1,\"file\":\"c\"}]}",
               &s, &errors),
        0);
    fleet_object_paths(&sample_type, &s, "spec", add_visit, &seen);
    assert_string_equal(fleet_strbuf_text(&seen),
                        "spec.file=a spec.origin.file=b spec.points[1].file=c ");
    fleet_object_release(&sample_type, &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_field__absent_fields_hold_their_defaults),
        cmocka_unit_test(test_field__every_kind_is_read_and_written_back),
        cmocka_unit_test(test_field__a_copy_is_equal_and_a_change_is_seen),
        cmocka_unit_test(test_field__all_errors_are_reported_at_once_with_their_paths),
        cmocka_unit_test(test_field__unknown_keys_are_refused_with_the_nearest),
        cmocka_unit_test(test_field__words_that_are_no_choice_list_the_choices),
        cmocka_unit_test(test_field__keys_of_another_choice_are_refused),
        cmocka_unit_test(test_field__limits_hold),
        cmocka_unit_test(test_field__seeds_are_digits_only),
        cmocka_unit_test(test_field__paths_are_visited_where_they_are),
    };
    return cmocka_run_group_tests_name("field", tests, NULL, NULL);
}
