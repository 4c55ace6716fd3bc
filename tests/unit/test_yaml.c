/* SPDX-License-Identifier: Apache-2.0 */

/* YAML becomes the JSON that kubectl would make of it; everything else is refused at its place. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"

static void test_yaml__becomes_the_json_that_kubectl_makes(void **state)
{
    static const struct {
        const char *yaml, *json;
    } cases[] = {
        {"a: 1\nb: [x, 'y', \"z\"]\n", "{\"a\":1,\"b\":[\"x\",\"y\",\"z\"]}"},
        {"{\"a\": {\"b\": null}}", "{\"a\":{\"b\":null}}"},
        {"a: {b: c}", "{\"a\":{\"b\":\"c\"}}"},
        {"{a: b}", "{\"a\":\"b\"}"},
        /* booleans of YAML 1.1 */
        {"[yes, No, on, OFF, true, False, y, n]", "[true,false,true,false,true,false,true,false]"},
        {"['yes', \"no\", yEs, trUe]", "[\"yes\",\"no\",\"yEs\",\"trUe\"]"},
        {"{y: 1, no: 2}", "{\"y\":1,\"no\":2}"},
        /* null */
        {"a:\nb: ~\nc: null\nd: Null\ne: ''\n",
         "{\"a\":null,\"b\":null,\"c\":null,\"d\":null,\"e\":\"\"}"},
        /* numbers */
        {"[0, -7, +7, 0x1F, 0o17, 017, 0b101, 1_000, 08, 00]", "[0,-7,7,31,15,15,5,1000,8,0]"},
        {"[1.5, .5, 5., 1e3, 1E-3, -2.5e+2]", "[1.5,0.5,5,1000,0.001,-250]"},
        {"[1.2.3, 0x, 0xg, 1e, '.', -, --1, 12abc, 1:30]",
         "[\"1.2.3\",\"0x\",\"0xg\",\"1e\",\".\",\"-\",\"--1\",\"12abc\",\"1:30\"]"},
        {"[2026-01-31, 2026-01-31T12:00:00Z]", "[\"2026-01-31\",\"2026-01-31T12:00:00Z\"]"},
        {"a: 6.0e-4", "{\"a\":0.0006}"},
        /* strings */
        {"a: |\n  one\n  two\nb: >-\n  three\n  four\n",
         "{\"a\":\"one\\ntwo\\n\",\"b\":\"three four\"}"},
        {"a: \"\\t\\u00e9\\\"\"", "{\"a\":\"\\t\xc3\xa9\\\"\"}"},
        {"[!!str 5, ! 6, !!int '7', !!str yes]", "[\"5\",\"6\",7,\"yes\"]"},
        /* anchors */
        {"a: &x {k: 1}\nb: *x\nc: [*x]\n", "{\"a\":{\"k\":1},\"b\":{\"k\":1},\"c\":[{\"k\":1}]}"},
        {"a: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}\n",
         "{\"a\":{\"k\":1,\"l\":2},\"b\":{\"k\":3,\"l\":2}}"},
        {"a: &x {k: 1}\nb: &y {k: 2, m: 3}\nc: {<<: [*x, *y]}\n",
         "{\"a\":{\"k\":1},\"b\":{\"k\":2,\"m\":3},\"c\":{\"k\":1,\"m\":3}}"},
        {"a: &x 1\nb: &x 2\nc: *x\n", "{\"a\":1,\"b\":2,\"c\":2}"},
        {"a: {<<: &x {k: 1}}\nb: *x\n", "{\"a\":{\"k\":1},\"b\":{\"k\":1}}"},
        /* one document, with or without marks */
        {"%YAML 1.1\n---\na: 1\n...\n", "{\"a\":1}"},
        {"# only\na: 1 # here\n", "{\"a\":1}"},
        {"just text", "\"just text\""},
        {"\xef\xbb\xbf"
         "a: 1",
         "{\"a\":1}"},
        {"---\na: 1\n---\n", "{\"a\":1}"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_JSON cJSON *json = NULL;
        FLEET_AUTO_FREE char *printed = NULL;
        struct fleet_error err;
        if (fleet_yaml_to_json(cases[i].yaml, strlen(cases[i].yaml), &json, &err) < 0)
            fail_msg("%s: refused: %s", cases[i].yaml, err.text);
        printed = fleet_json_print(json);
        assert_string_equal(printed, cases[i].json);
    }
}

static void test_yaml__errors_name_line_and_column(void **state)
{
    static const struct {
        const char *yaml, *text;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "line 3, column 1: duplicate key \"a\", first on line 1"},
        {"{\"a\":1,\"a\":2}", "line 1, column 8: duplicate key \"a\", first on line 1"},
        {"a: 1\n---\nb: 2\n", "line 2, column 1: a second document; one is expected"},
        {"", "line 1, column 1: the file is empty, or has only comments"},
        {"# nothing\n", "line 1, column 1: the file is empty, or has only comments"},
        {"a: [1, 2\n", "line 1, column 4: \"[\" is not closed: \",\" or \"]\" is expected"},
        {"a: *nobody\n", "line 1, column 4: a: no complete value has the anchor \"nobody\""},
        {"a: &x [1, *x]\n", "line 1, column 11: a[1]: no complete value has the anchor \"x\""},
        {"a: &x 1\nb: &x [*x]\n", "line 2, column 8: b[0]: no complete value has the anchor \"x\""},
        {"a: .inf\n", "line 1, column 4: a: must be a finite number, not .inf"},
        {"[5e517]", "line 1, column 2: [0]: must be a finite number, not 5e517"},
        {"a:\n  b: [1, {c: 2, d: .nan}]\n",
         "line 2, column 20: a.b[1].d: must be a finite number, not .nan"},
        {"\xff\xfe"
         "a",
         "the file is UTF-16; save it as UTF-8"},
        {"b: 1\na:\n  b: 2\n  a: 3\n  b: 4\n",
         "line 5, column 3: duplicate key \"b\", first on line 3"},
        {"a: !!binary aGk=\n", "line 1, column 4: a: unknown tag \"tag:yaml.org,2002:binary\""},
        {"a: !!int x\n",
         "line 1, column 4: a: the value is not what its tag says: \"tag:yaml.org,2002:int\""},
        {"? [a]\n: 1\n", "line 1, column 3: a key must be a single word or text"},
        {"a: {<<: 1}\n", "line 1, column 10: << must name a mapping or a list of mappings"},
        {"{\"a\": \"\xff\"}", "line 1, column 8: bytes that are no UTF-8: save the file as UTF-8"},
        {"a: \"\\0\"\n", "line 1, column 4: a: a NUL character in a string: leave it out"},
        {"{\"a\": [1, {\"b\": \"x\\u0000\"}]}",
         "line 1, column 17: a[1].b: a NUL character in a string: leave it out"},
        {"a:\n\t- b\n", "line 2, column 1: a tab: indent with spaces"},
        {"a: \xc3\xa4\n\tb", "line 2, column 1: a tab: indent with spaces"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_JSON cJSON *json = NULL;
        struct fleet_error err;
        if (fleet_yaml_to_json(cases[i].yaml, strlen(cases[i].yaml), &json, &err) == 0)
            fail_msg("expected \"%s\" to be refused", cases[i].yaml);
        assert_int_equal(err.code, -EINVAL);
        assert_string_equal(err.text, cases[i].text);
    }
}

static void test_yaml__reads_every_document_of_a_file(void **state)
{
    static const char text[] = "# first\n---\na: &x 1\n---\n---\nb: [x]\n...\n";
    FLEET_AUTO_JSON cJSON *list = NULL;
    FLEET_AUTO_FREE char *printed = NULL;
    struct fleet_error err;

    (void)state;
    assert_int_equal(fleet_yaml_documents(text, strlen(text), &list, &err), 0);
    printed = fleet_json_print(list);
    assert_string_equal(printed, "[{\"a\":1},{\"b\":[\"x\"]}]");
    cJSON_Delete(list);
    list = NULL;
    assert_int_equal(fleet_yaml_documents("a: &x 1\n---\nb: *x\n", 18, &list, &err), -EINVAL);
    assert_string_equal(err.text, "line 3, column 4: b: no complete value has the anchor \"x\"");
}

/* Each of them would be the only error without a list for them. */
static void test_yaml__faults_of_values_do_not_end_the_reading(void **state)
{
    static const char text[] = "x: 1\n---\n"
                               "a: .nan\n"
                               "b: {c: [1, *none], d: !odd 2}\n"
                               "a: {f: &inside 3}\n"
                               "&key e: *inside\n"
                               "<<: 4\n"
                               "g: 5\n";
    FLEET_AUTO_JSON cJSON *list = NULL, *other = NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf lines = {0};
    struct fleet_errors faults = {0}, none = {0};
    struct fleet_error err;
    const cJSON *last;

    (void)state;
    assert_int_equal(fleet_yaml_tolerate(text, strlen(text), 1, &list, &faults, &err), 0);
    fleet_errors_print(&faults, &lines);
    assert_string_equal(
        lines.text, "a: line 3, column 4: a: must be a finite number, not .nan\n"
                    "b.c[1]: line 4, column 12: b.c[1]: no complete value has the anchor \"none\"\n"
                    "b.d: line 4, column 23: b.d: unknown tag \"!odd\"\n"
                    "line 5, column 1: duplicate key \"a\", first on line 3\n"
                    "line 6, column 1: an anchor on a key is not supported\n"
                    "line 9, column 1: << must name a mapping or a list of mappings\n");
    last = cJSON_GetArrayItem(list, 1);
    assert_true(isinf(cJSON_GetObjectItem(last, "a")->valuedouble)); /* the first one counts */
    assert_true(cJSON_GetObjectItem(last, "e")->valuedouble == 3);
    assert_true(cJSON_GetObjectItem(last, "g")->valuedouble == 5);
    assert_int_equal(fleet_yaml_tolerate(text, strlen(text), 0, &other, &none, &err), 0);
    assert_int_equal(none.count, 0); /* they are of the other document */
    fleet_errors_release(&faults);
}

static void assert_limited(const char *yaml, size_t size, int code, const char *part)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_error err;

    assert_int_equal(fleet_yaml_to_json(yaml, size, &json, &err), code);
    if (!strstr(err.text, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err.text);
}

static void test_yaml__what_grows_is_limited(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf deep = {0}, bomb = {0}, wide = {0}, large = {0};

    (void)state;
    for (int i = 0; i < 65; i++)
        fleet_strbuf_append(&deep, "[a, ");
    assert_limited(deep.text, deep.length, -EINVAL, "nested deeper than 64");

    fleet_strbuf_append(&bomb, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 9; i++) {
        fleet_strbuf_appendf(&bomb, "a%d: &a%d [", i, i);
        for (int j = 0; j < 10; j++)
            fleet_strbuf_appendf(&bomb, "%s*a%d", j ? ", " : "", i - 1);
        fleet_strbuf_append(&bomb, "]\n");
    }
    assert_limited(bomb.text, bomb.length, -EINVAL, "more values than fit the limit of 100000");

    for (int i = 0; i < 5000; i++)
        fleet_strbuf_appendf(&wide, "k%d: 1\n", i);
    assert_limited(wide.text, wide.length, -EINVAL, "line 4097, column 1: more than 4096 keys");

    for (int i = 0; i < FLEET_YAML_SIZE_MAX; i++)
        fleet_strbuf_append_char(&large, 'x');
    fleet_strbuf_append_char(&large, 'x');
    assert_limited(large.text, large.length, -EFBIG, "1048577 bytes are more than the limit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yaml__becomes_the_json_that_kubectl_makes),
        cmocka_unit_test(test_yaml__errors_name_line_and_column),
        cmocka_unit_test(test_yaml__reads_every_document_of_a_file),
        cmocka_unit_test(test_yaml__faults_of_values_do_not_end_the_reading),
        cmocka_unit_test(test_yaml__what_grows_is_limited),
    };
    return cmocka_run_group_tests_name("yaml", tests, NULL, NULL);
}
