/* SPDX-License-Identifier: Apache-2.0 */

/* A flood of refused connections is one line, then one line a period. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "controller/refusal_log.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"

static int lines;
static char last[1024];

static void note(const struct refusal_log *log)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf counts = {0};

    lines++;
    refusal_log_print_counts(log, &counts);
    (void)snprintf(last, sizeof(last), "%s; %s %s", counts.text, log->last_job, log->last_peer);
}

static void test_refusal_log__one_line_a_period(void **state)
{
    const struct hub_server_refusal token = {HUB_REFUSED_TOKEN, "u1", "team/gpt", "10.0.0.1:5",
                                             "x"};
    const struct hub_server_refusal slow = {HUB_REFUSED_HANDSHAKE_TIME, "", "", "10.0.0.2:6", "y"};
    struct refusal_log log;
    uv_loop_t loop;

    (void)state;
    lines = 0;
    assert_int_equal(uv_loop_init(&loop), 0);
    refusal_log_init(&log, &loop, note);
    refusal_log_add(&log, &token);
    assert_int_equal(lines, 1); /* the first at once */
    assert_string_equal(last, "wrong_token=1; team/gpt 10.0.0.1:5");
    for (int i = 0; i < 1000; i++) {
        refusal_log_add(&log, &token);
        if (i % 10 == 0)
            refusal_log_add(&log, &slow);
    }
    assert_int_equal(lines, 1);
    refusal_log_close(&log); /* as at the end of a period */
    assert_int_equal(lines, 2);
    assert_string_equal(last, "wrong_token=1000 handshake_timeout=100; team/gpt 10.0.0.1:5");
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusal_log__one_line_a_period),
    };
    return cmocka_run_group_tests_name("refusal_log", tests, NULL, NULL);
}
