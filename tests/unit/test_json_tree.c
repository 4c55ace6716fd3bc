/* SPDX-License-Identifier: Apache-2.0 */

/* fleet_json_tree() builds the same tree as cJSON's own parser, to the last bit of each number. */
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
#include "libfleet/base/json_tree.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"

static bool are_texts_equal(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Each field, and the pointers of the lists. */
static void expect_same(const cJSON *found, const cJSON *wanted, const char *text)
{
    const cJSON *a, *b;

    if (found->type != wanted->type || found->valueint != wanted->valueint ||
        found->valuedouble != wanted->valuedouble ||
        signbit(found->valuedouble) != signbit(wanted->valuedouble) ||
        !are_texts_equal(found->string, wanted->string) ||
        !are_texts_equal(found->valuestring, wanted->valuestring))
        fail_msg("%s: another value at %s", text, wanted->string ? wanted->string : "an element");
    for (a = found->child, b = wanted->child; a && b; a = a->next, b = b->next) {
        expect_same(a, b, text);
        assert_ptr_equal(a->prev->next, a == found->child ? NULL : a);
    }
    if (a || b)
        fail_msg("%s: another number of elements", text);
}

static void expect_tree_of(const char *text)
{
    const char *half;
    size_t size = strlen(text);
    FLEET_AUTO_FREE char *exact = malloc(size); /* no byte behind the text may be read */
    FLEET_AUTO_JSON cJSON *found = NULL, *wanted = cJSON_ParseWithLength(text, size);

    assert_non_null(exact);
    for (size_t i = 0; i < size; i++)
        exact[i] = text[i];
    found = fleet_json_tree(exact, size, &half);
    assert_non_null(found);
    assert_non_null(wanted);
    assert_null(half);
    expect_same(found, wanted, text);
}

static void test_json_tree__is_that_of_cjson(void **state)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        " [ [ ] , { } , [ { } ] ] ",
        "null",
        "true",
        "false",
        "\"\"",
        "7",
        "{\"a\":[1,2,{\"b\":null}],\"c\":{\"d\":[true,false]},\"e\":\"f\"}",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\\u00e4\\u4e2d\\ud83d\\ude00\\uFFFF\\u007f\\u0080\"",
        "\"\xc3\xa4\xe4\xb8\xad\xf0\x9f\x98\x80\"",
        "{\"\\u0061\\\"\":\"\\\\u0000\"}",
        "\xef\xbb\xbf[1]",
        "[0,-0,0.0,-0.0,0e5,2147483647,2147483648,-2147483648,-2147483649]",
        "[1e22,1e23,1E+2,1e-22,1e-23,123456789012345,1234567890123456,9007199254740993]",
        "[0.1,1.7976931348623157e308,5e-324,2.2250738585072014e-308,1e-400,0.000000000000001]",
        "[0.30000000000000004,100000000000000000000000,12345.678901234567,4.35,8.5e-5]"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(texts); i++)
        expect_tree_of(texts[i]);
}

/* Digits, point and exponent by chance; 63 bytes are the most that cJSON reads. */
static void test_json_tree__reads_any_number_exactly(void **state)
{
    struct fleet_random_key key = fleet_random_key(1, "numbers", 0);
    uint64_t draw = 0;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        int digits = 1 + (int)(fleet_random_u64(key, draw++) % 18);
        int point = (int)(fleet_random_u64(key, draw++) % 19);
        int power = (int)(fleet_random_u64(key, draw++) % 60) - 30;

        fleet_strbuf_append(&text, fleet_random_u64(key, draw++) % 2 ? "-" : "");
        for (int d = 0; d < digits; d++) {
            uint64_t digit = fleet_random_u64(key, draw++) % 10;
            if (d == point && d > 0)
                fleet_strbuf_append_char(&text, '.');
            fleet_strbuf_append_int(&text, (int64_t)(d == 0 && digit == 0 ? 1 : digit));
        }
        if (power % 3 != 0)
            fleet_strbuf_appendf(&text, "%s%d", power % 2 ? "e" : "E", power);
        expect_tree_of(text.text);
    }
}

/* cJSON's parser reads 63 bytes of a number. */
static void test_json_tree__reads_numbers_of_many_digits(void **state)
{
    char text[400];
    FLEET_AUTO_JSON cJSON *root = NULL;

    (void)state;
    memset(text, '1', 300);
    text[2] = '.';
    assert_int_equal(fleet_json_parse(text, 300, 400, &root, NULL), 0);
    assert_true(root->valuedouble == 11.0 + 1.0 / 9);
}

static void test_json_tree__says_where_half_of_a_pair_is(void **state)
{
    static const struct {
        const char *text;
        int column; /* of the first escape that is half of a pair */
    } rows[] = {{"\"\\ud83d\"", 2},
                {"\"a\\ude00\"", 3},
                {"\"\\ud83d\\u0041\"", 2},
                {"\"\\ud83dx\"", 2},
                {"\"\\ud83d\\n\"", 2},
                {"[\"\\ude00\", \"\\ud83d\"]", 3},
                {"{\"\\ud83d\\ud83d\": 1}", 3},
                {"\"\\ud83d\\ude00\\ud83d\"", 14}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct fleet_error err;
        char message[80];
        cJSON *root = NULL;

        assert_int_equal(fleet_json_parse(rows[i].text, strlen(rows[i].text), 100, &root, &err),
                         -22);
        assert_null(root);
        (void)snprintf(message, sizeof(message),
                       "line 1, column %d: not JSON: half of a surrogate pair", rows[i].column);
        assert_string_equal(err.text, message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_tree__is_that_of_cjson),
        cmocka_unit_test(test_json_tree__reads_any_number_exactly),
        cmocka_unit_test(test_json_tree__reads_numbers_of_many_digits),
        cmocka_unit_test(test_json_tree__says_where_half_of_a_pair_is),
    };
    return cmocka_run_group_tests_name("json_tree", tests, NULL, NULL);
}
