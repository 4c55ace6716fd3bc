/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What fleet_json_parse() refuses, where it says the fault is, and that what it reads can be
 * printed and read again.
 */
#include <errno.h>
#include <math.h>
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
#include "libfleet/base/json.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"

#define SIZE_LIMIT 4096

static void test_json__says_where_a_text_is_wrong(void **state)
{
    static const struct {
        const char *text;
        const char *message;
    } rows[] = {
        {"", "line 1, column 1: not JSON: the text ends where a value must stand"},
        {" \n ", "line 2, column 2: not JSON: the text ends where a value must stand"},
        {"{\"a\": 1e999}", "line 1, column 7: not JSON: a number out of range (±1.8e308)"},
        {"[1,\n -1e400]", "line 2, column 2: not JSON: a number out of range (±1.8e308)"},
        {"[01]", "line 1, column 2: not JSON: a number that starts with 0"},
        {"[-]", "line 1, column 2: not JSON: not a number"},
        {"[1.]", "line 1, column 2: not JSON: not a number"},
        {"[.5]", "line 1, column 2: not JSON: no value starts like this"},
        {"[+1]", "line 1, column 2: not JSON: no value starts like this"},
        {"[1e]", "line 1, column 2: not JSON: not a number"},
        {"[NaN]", "line 1, column 2: not JSON: no value starts like this"},
        {"[Infinity]", "line 1, column 2: not JSON: no value starts like this"},
        {"\"\xff\"", "line 1, column 2: not JSON: a byte that is not UTF-8"},
        {"{\"\xc0\x80\": 1}", "line 1, column 3: not JSON: a byte that is not UTF-8"},
        {"\"\xed\xa0\x80\"", "line 1, column 2: not JSON: a byte that is not UTF-8"},
        {"\"\xe4\"", "line 1, column 2: not JSON: a byte that is not UTF-8"},
        {"\"\xe4\xb8", "line 1, column 2: not JSON: a byte that is not UTF-8"},
        {"\"a\nb\"", "line 1, column 3: not JSON: a control character in a string"},
        {"\"\\q\"", "line 1, column 2: not JSON: no such escape in a string"},
        {"\"\\u12g4\"", "line 1, column 2: not JSON: \\u needs four hexadecimal digits"},
        {"\"\\", "line 1, column 2: not JSON: no such escape in a string"},
        {"\"ab", "line 1, column 1: not JSON: a string that does not end"},
        {"{\"a\" 1}", "line 1, column 6: not JSON: a colon must follow a key"},
        {"{a: 1}", "line 1, column 2: not JSON: a key in quotes must stand here"},
        {"{\"a\": 1,}", "line 1, column 9: not JSON: a key in quotes must stand here"},
        {"{\"a\": 1", "line 1, column 8: not JSON: a comma or } must stand here"},
        {"[1 2]", "line 1, column 4: not JSON: a comma or ] must stand here"},
        {"[1,]", "line 1, column 4: not JSON: no value starts like this"},
        {"[1}", "line 1, column 3: not JSON: a comma or ] must stand here"},
        {"{} {}", "line 1, column 4: not JSON: text after the end of the value"},
        {"tru", "line 1, column 1: not JSON: no value starts like this"},
        {"{\"a\": 1, \"a\": 2}", "duplicate key \"a\""},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct fleet_error err;
        cJSON *root = NULL;
        int rc = fleet_json_parse(rows[i].text, strlen(rows[i].text), SIZE_LIMIT, &root, &err);

        if (rc != -EINVAL || root)
            fail_msg("%s: expected a refusal, got %d", rows[i].text, rc);
        if (strcmp(err.text, rows[i].message) != 0)
            fail_msg("%s: expected \"%s\", got \"%s\"", rows[i].text, rows[i].message, err.text);
    }
}

/* A string of C would end at a NUL, and the rest of it, or a second key, would be lost in
 * silence. */
static void test_json__refuses_an_escaped_nul_with_its_path(void **state)
{
    static const struct {
        const char *text, *path, *replaced;
    } rows[] = {
        {"\"a\\u0000b\"", "line 1, column 3: ", "\"a\\uffffb\""},
        {"{\"a\": {\"b\": [1, {\"c\": \"\\u0000\"}]}}",
         "line 1, column 24: a.b[1].c: ", "{\"a\":{\"b\":[1,{\"c\":\"\\uffff\"}]}}"},
        {"{\"x\": 1,\n \"a\": 1, \"a\\u0000\": 2}",
         "line 2, column 12: a\xef\xbf\xbf: ", "{\"x\":1,\"a\":1,\"a\\uffff\":2}"},
        {"[\"\\\\u0000\", \"\\\\\\u0000\"]", "line 1, column 16: [1]: ",
         "[\"\\\\u0000\",\"\\\\\\uffff\"]"}, /* the first is a backslash and letters */
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        FLEET_AUTO_JSON cJSON *foreign = NULL;
        FLEET_AUTO_FREE char *printed = NULL;
        FLEET_AUTO_STRBUF struct fleet_strbuf expected = {0};
        struct fleet_error err;
        cJSON *root = NULL;

        fleet_strbuf_appendf(&expected, "%sa NUL character (\\u0000) in a string: leave it out",
                             rows[i].path);
        assert_int_equal(
            fleet_json_parse(rows[i].text, strlen(rows[i].text), SIZE_LIMIT, &root, &err), -EINVAL);
        assert_null(root);
        assert_string_equal(err.text, expected.text);
        assert_int_equal(fleet_json_parse_foreign(rows[i].text, strlen(rows[i].text), SIZE_LIMIT,
                                                  &foreign, &err),
                         0);
        printed = fleet_json_print(foreign);
        assert_string_equal(printed, rows[i].replaced);
        fleet_strbuf_clear(&expected);
        assert_true(fleet_json_find_nul(foreign, &expected));
    }
}

static void test_json__other_escapes_are_no_nul(void **state)
{
    static const char text[] =
        "{\"a\": [\"\\u0001\", \"\\\\u0000\", \"u0000\", \"\\u00001\\u1000\"]}";
    static const char fine[] = "{\"a\": [\"\\u0001\", \"\\\\u0000\", \"u0000\", \"\\u1000\"]}";
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    FLEET_AUTO_JSON cJSON *root = NULL;
    cJSON *other = NULL;

    (void)state;
    assert_int_equal(fleet_json_parse(text, sizeof(text) - 1, SIZE_LIMIT, &other, NULL), -EINVAL);
    assert_int_equal(fleet_json_parse(fine, sizeof(fine) - 1, SIZE_LIMIT, &root, NULL), 0);
    assert_false(fleet_json_find_nul(root, &path));
    assert_string_equal(fleet_strbuf_text(&path), "");
}

static void test_json__keeps_its_limits(void **state)
{
    char deep[2 * FLEET_JSON_DEPTH_MAX + 3];
    struct fleet_error err;
    cJSON *root = NULL;

    (void)state;
    memset(deep, '[', FLEET_JSON_DEPTH_MAX);
    memset(deep + FLEET_JSON_DEPTH_MAX, ']', FLEET_JSON_DEPTH_MAX);
    assert_int_equal(
        fleet_json_parse(deep, 2 * (size_t)FLEET_JSON_DEPTH_MAX, SIZE_LIMIT, &root, &err), 0);
    cJSON_Delete(root);
    memset(deep, '[', FLEET_JSON_DEPTH_MAX + 1);
    memset(deep + FLEET_JSON_DEPTH_MAX + 1, ']', FLEET_JSON_DEPTH_MAX + 1);
    assert_int_equal(
        fleet_json_parse(deep, 2 * (size_t)FLEET_JSON_DEPTH_MAX + 2, SIZE_LIMIT, &root, &err),
        -EINVAL);
    assert_string_equal(err.text, "line 1, column 65: not JSON: nested too deeply");
    assert_int_equal(fleet_json_parse("[]", 2, 1, &root, &err), -EFBIG);
    assert_int_equal(fleet_json_parse("1\0", 2, SIZE_LIMIT, &root, &err), -EINVAL);
    assert_string_equal(err.text, "line 1, column 2: not JSON: a NUL byte");
}

static void test_json__reads_what_it_prints(void **state)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "[[],{},[{}]]",
        "{\"a\":[1,-0.5,1e-07,1.7976931348623157e+308,5e-324],\"b\":{\"c\":null}}",
        "[true,false,null,\"\",\"\\\"\\\\\\n\\t\\u0001\"]",
        "\"\xc3\xa4\xe4\xb8\xad\xf0\x9f\x98\x80\"",
        "\"\\u007f\\u0085\\u2028\\u2029\\ufeff\\uffff\"", /* not as they are: it is YAML as well */
        "0",
        "-0.25",
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(texts); i++) {
        struct fleet_error err;
        FLEET_AUTO_JSON cJSON *root = NULL;
        FLEET_AUTO_FREE char *printed = NULL;

        if (fleet_json_parse(texts[i], strlen(texts[i]), SIZE_LIMIT, &root, &err) < 0)
            fail_msg("%s: %s", texts[i], err.text);
        printed = fleet_json_print(root);
        assert_string_equal(printed, texts[i]);
    }
}

/* Integers in full, else the shortest of all texts that read as the same number, as trying them one
 * by one finds it. */
static void expect_shortest(double value)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char shortest[40];

    (void)snprintf(shortest, sizeof(shortest), "%.0f", value);
    for (int digits = 1;
         digits <= 17 && !(fabs(value) <= 9007199254740992.0 && value == floor(value)); digits++) {
        (void)snprintf(shortest, sizeof(shortest), "%.*g", digits, value);
        if (strtod(shortest, NULL) == value)
            break;
    }
    fleet_json_append_number(&text, value);
    assert_string_equal(text.text, shortest);
}

static void test_json__prints_numbers_as_short_as_can_be(void **state)
{
    static const double some[] = {0.1,     -0.25,
                                  1e-4,    9.9e-5,
                                  5e-324,  2.2250738585072014e-308,
                                  1e16,    9.1e15,
                                  1e300,   1.5e20,
                                  1.0 / 3, 123456.789,
                                  100.05,  6e-4,
                                  1e-300,  0.30000000000000004};
    struct fleet_random_key key = fleet_random_key(1, "numbers", 0);

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(some); i++)
        expect_shortest(some[i]);
    for (uint64_t i = 0; i < 3000; i++) { /* of any size, of few digits and of all */
        double value = ldexp(fleet_random_uniform(key, 3 * i) + 0.5,
                             (int)(1200 * fleet_random_uniform(key, 3 * i + 1)) - 600);
        expect_shortest(value);
        expect_shortest(floor(1e4 * fleet_random_uniform(key, 3 * i + 2)) / 1e3 + 1e-4);
    }
}

static void test_json__finds_a_key_twice_in_objects_of_any_size(void **state)
{
    struct fleet_error err;
    cJSON *root;

    (void)state;
    for (int count = 1; count < 40; count++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        for (int i = 0; i <= count; i++)
            fleet_strbuf_appendf(&text, "%s\"k%d\":0", i ? "," : "{", i < count ? i : count / 2);
        fleet_strbuf_append(&text, "}");
        assert_int_equal(fleet_json_parse(text.text, text.length, 4096, &root, &err), -EINVAL);
        assert_non_null(strstr(err.text, "duplicate key"));
    }
}

static void test_json__reads_white_space_and_escapes(void **state)
{
    static const char text[] =
        "\xef\xbb\xbf \r\n{ \"a\" : [ 1 , \"\\u00e4\\ud83d\\ude00\\/\" ] }\t";
    FLEET_AUTO_JSON cJSON *root = NULL;
    const char *value;

    (void)state;
    assert_int_equal(fleet_json_parse(text, sizeof(text) - 1, SIZE_LIMIT, &root, NULL), 0);
    assert_int_equal(fleet_json_get_string(root, "a[1]", &value, NULL), 0);
    assert_string_equal(value, "\xc3\xa4\xf0\x9f\x98\x80/");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json__says_where_a_text_is_wrong),
        cmocka_unit_test(test_json__refuses_an_escaped_nul_with_its_path),
        cmocka_unit_test(test_json__other_escapes_are_no_nul),
        cmocka_unit_test(test_json__keeps_its_limits),
        cmocka_unit_test(test_json__reads_what_it_prints),
        cmocka_unit_test(test_json__prints_numbers_as_short_as_can_be),
        cmocka_unit_test(test_json__finds_a_key_twice_in_objects_of_any_size),
        cmocka_unit_test(test_json__reads_white_space_and_escapes),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
