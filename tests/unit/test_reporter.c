/* SPDX-License-Identifier: Apache-2.0 */

/* What the termination message of a pod says (agent/reporter.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "agent/reporter.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"

static void test_reporter__says_cause_code_and_last_lines(void **state)
{
    struct member_failure failure = {
        .exit_code = -1, .signal = 9, .cause = "", .lines = "one\ntwo\n", .local_rank = 1};
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    (void)state;
    reporter_format(&failure, "", &out);
    assert_string_equal(out.text,
                        "{\"cause\":\"Killed\",\"localRank\":1,\"exitCode\":137,"
                        "\"permanent\":false,\"message\":\"\",\"lines\":\"one\\ntwo\\n\"}");
}

static void test_reporter__drops_old_lines_until_it_fits(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0}, lines = {0};
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct member_failure failure = {.exit_code = 1, .cause = "", .fatal = true};

    (void)state;
    for (int i = 0; i < 1000; i++)
        fleet_strbuf_appendf(&lines, "line \"%d\" of the log\n", i);
    failure.lines = lines.text;
    reporter_format(&failure, "why", &out);
    assert_true(out.length <= REPORTER_TERMINATION_SIZE_MAX && out.length > 3900);
    assert_int_equal(fleet_json_parse(out.text, out.length, out.length, &json, NULL), 0);
    assert_non_null(strstr(out.text, "999"));
    failure.lines = "";
    fleet_strbuf_clear(&lines);
    for (int i = 0; i < 5000; i++)
        fleet_strbuf_append_char(&lines, 'x'); /* one line that is too long alone */
    failure.lines = lines.text;
    reporter_format(&failure, "why", &out);
    assert_true(out.length <= REPORTER_TERMINATION_SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reporter__says_cause_code_and_last_lines),
        cmocka_unit_test(test_reporter__drops_old_lines_until_it_fits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
