/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tables of field_row.h, for what programs exchange: values are read and written back, texts are
 * cut at a character, and a value out of bounds is refused.
 */
#include <errno.h>
#include <math.h>
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
#include "libfleet/base/generation.h"

/* ---- rows for programs ----------------------------------------------------------------------- */

struct part {
    int number;
    int64_t sum;
};

struct record {
    int small;
    int64_t large;
    double loss;
    char *path;
    char word[5];
    uint8_t key[2];
    void *bytes;
    size_t byte_count;
    int *ports;
    int port_count;
    struct fleet_generation generation, older;
    struct part *parts;
    size_t part_count;
    struct part fixed[2];
    int fixed_count;
};

static const struct fleet_field part_fields[] = {
    ROW_INT32(struct part, "number", number, -5, 5, FLEET_REQUIRED),
    ROW_INT(struct part, "sum", sum, 0, 9, 0),
    ROW_END,
};
static const struct fleet_object part_type = ROW_OBJECT_TYPE("part", struct part, part_fields);

static const struct fleet_field record_fields[] = {
    ROW_INT32(struct record, "small", small, -1, 9, 0),
    ROW_INT(struct record, "large", large, 0, INT64_C(9007199254740992), FLEET_REQUIRED),
    ROW_NUMBER(struct record, "loss", loss, NAN, FLEET_REQUIRED),
    ROW_STRING(struct record, "path", path, 6, FLEET_CUT),
    ROW_CHARS(struct record, "word", word, FLEET_CUT),
    ROW_HEX(struct record, "key", key, FLEET_REQUIRED),
    ROW_BASE64(struct record, "bytes", bytes, 4, 0),
    ROW(struct record, "ports", LIST, ports, FLEET_INT_COUNT | FLEET_MIN | FLEET_MAX,
        .item = FLEET_FIELD_INT32, .count_max = 2, .min = 0, .max = 65535),
    ROW_OBJECT(struct record, "generation", generation, fleet_generation_type, FLEET_REQUIRED),
    ROW_OBJECT(struct record, "older", older, fleet_generation_type, FLEET_MAY_MISS),
    ROW_OBJECTS(struct record, "parts", parts, 3, part_type, FLEET_REQUIRED),
    ROW_ARRAY(struct record, "fixed", fixed, part_type, FLEET_INT_COUNT),
    ROW_END,
};
static const struct fleet_object record_type =
    ROW_OBJECT_TYPE("record", struct record, record_fields);

#define RECORD_START                                              \
    "{\"large\":7,\"loss\":null,\"key\":\"00fF\",\"generation\":" \
    "{\"epoch\":1,\"counter\":2},\"parts\":[]"

static void test_field__rows_read_and_write_what_programs_exchange(void **state)
{
    FLEET_AUTO_JSON cJSON *json =
        cJSON_Parse(RECORD_START ",\"small\":-1,\"path\":\"a\",\"word\":\"w\",\"bytes\":\"AAH/\","
                                 "\"ports\":[1,65535],\"new\":[],\"fixed\":[{\"number\":5}]}");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    struct record record, copy;

    (void)state;
    assert_int_equal(fleet_object_decode(&record_type, json, "", &record, &errors), 0);
    assert_int_equal(record.small, -1);
    assert_true(isnan(record.loss));
    assert_memory_equal(record.key, "\x00\xff", 2);
    assert_int_equal(record.byte_count, 3);
    assert_memory_equal(record.bytes, "\x00\x01\xff", 3);
    assert_int_equal(record.port_count, 2);
    assert_int_equal(record.ports[1], 65535);
    assert_int_equal(record.generation.counter, 2);
    assert_int_equal(record.older.counter, 0);
    assert_int_equal(record.fixed_count, 1);
    assert_int_equal(record.fixed[0].number, 5);
    fleet_object_copy(&record_type, &record, &copy);
    fleet_object_release(&record_type, &record);
    fleet_object_append(&record_type, &copy, &text);
    assert_string_equal(text.text,
                        "{\"small\":-1,\"large\":7,\"loss\":null,\"path\":\"a\",\"word\":\"w\","
                        "\"key\":\"00ff\",\"bytes\":\"AAH/\",\"ports\":[1,65535],"
                        "\"generation\":{\"epoch\":1,\"counter\":2},"
                        "\"older\":{\"epoch\":0,\"counter\":0},\"parts\":[],"
                        "\"fixed\":[{\"number\":5}]}");
    fleet_object_release(&record_type, &copy);
}

static void test_field__rows_cut_texts_at_a_character(void **state)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(RECORD_START ",\"word\":\"abc\u00e4\"}");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    struct record record;
    char path[] = "12345\xc3\xa4";
    struct record shown = {.path = path, .loss = 1};

    (void)state;
    assert_int_equal(fleet_object_decode(&record_type, json, "", &record, &errors), 0);
    assert_string_equal(record.word, "abc");
    assert_string_equal(record.path, "");
    fleet_object_release(&record_type, &record);
    fleet_object_append(&record_type, &shown, &text);
    assert_non_null(strstr(text.text, "\"path\":\"12345\","));
}

static void test_field__rows_refuse_what_is_out_of_bounds(void **state)
{
    static const struct {
        const char *more, *error;
    } cases[] = {
        {",\"small\":10}", "small: must be in [-1, 9], not 10"},
        {",\"small\":\"1\"}",
         "small: must be an integer in [-1, 9], not \"1\"; write it without quotes"},
        {",\"path\":\"1234567\"}", "path: must have at most 6 bytes, not 7"},
        {",\"bytes\":\"AAH\"}", "bytes: must be base64 of at most 4 bytes"},
        {",\"bytes\":\"AAECAwQ=\"}", "bytes: must be base64 of at most 4 bytes"},
        {",\"bytes\":7}", "bytes: must be base64 of at most 4 bytes"},
        {",\"ports\":[1,65536]}", "ports[1]: must be in [0, 65535], not 65536"},
        {",\"ports\":[1,2,3]}", "ports: must have at most 2 entries, not 3"},
        {",\"older\":{\"epoch\":1}}", "older.counter: required"},
        {",\"fixed\":[{\"number\":1},{\"number\":1},{\"number\":1}]}",
         "fixed: must have at most 2 entries, not 3"},
        {",\"fixed\":[{\"number\":1},{\"number\":6}]}",
         "fixed[1].number: must be in [-5, 5], not 6"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256];
        struct fleet_errors errors = {0};
        struct record record;
        (void)snprintf(text, sizeof(text), RECORD_START "%s", cases[i].more);
        FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text);
        assert_int_equal(fleet_object_decode(&record_type, json, "", &record, &errors), -EINVAL);
        FLEET_AUTO_STRBUF struct fleet_strbuf all = {0};
        fleet_errors_print(&errors, &all);
        all.text[all.length - 1] = '\0';
        assert_string_equal(all.text, cases[i].error);
        fleet_object_release(&record_type, &record);
        fleet_errors_release(&errors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_field__rows_read_and_write_what_programs_exchange),
        cmocka_unit_test(test_field__rows_cut_texts_at_a_character),
        cmocka_unit_test(test_field__rows_refuse_what_is_out_of_bounds),
    };
    return cmocka_run_group_tests_name("field_rows", tests, NULL, NULL);
}
