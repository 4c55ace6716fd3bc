/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The ways of bench_nccl (tests/bench/nccl) to go on after a lost rank, over the fakes: each ends
 * with right sums, and each call of ncclCommRevoke(), ncclCommShrink(), ncclCommGetUniqueId() and
 * ncclCommGrow() fails once and hangs once. Then the benchmark names the call, or gives up after
 * its limit, and no process is left.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/child_process.h"
#include "tests/support/own_folder.h"

#define BENCH   "build/cuda_fake/release/bench_nccl"
#define LIBRARY "build/nccl_fake/libnccl.so.2"
#define LONG    "600000" /* ms: a run that ends does not meet it */
#define SHORT   "300"    /* a call that hangs lets it pass, on a slow machine, too */

static const struct {
    const char *way, *function;
    int calls;        /* of all processes */
    const char *what; /* what the benchmark calls it */
} cases[] = {
    {"shrink", "ncclCommShrink", 2, "shrink"},        {"revoke", "ncclCommRevoke", 2, "revoke"},
    {"revoke", "ncclCommShrink", 2, "shrink"},        {"grow", "ncclCommShrink", 2, "shrink"},
    {"grow", "ncclCommGetUniqueId", 1, "make an id"}, {"grow", "ncclCommGrow", 3, "grow"},
};

/* One way, with variable=value for the fake; what it prints goes into `out` and `err`. */
static void run(const char *way, const char *variable, const char *value, const char *limit,
                struct fleet_strbuf *out, struct fleet_strbuf *err)
{
    const char *arguments[] = {BENCH, way, NULL};
    struct child_process bench;

    assert_int_equal(setenv("FLEET_NCCL_LIBRARY", LIBRARY, 1), 0);
    assert_int_equal(setenv("FAKE_NCCL_FOLDER", own_folder, 1), 0);
    assert_int_equal(setenv("BENCH_NCCL_LIMIT_MS", limit, 1), 0);
    assert_int_equal(setenv(variable, value, 1), 0);
    bench = child_process_start(BENCH, arguments);
    assert_int_equal(unsetenv(variable), 0);
    assert_int_equal(child_process_finish(&bench, out, err),
                     0); /* all of its processes have ended */
    if (strncmp(out->text, way, strlen(way)) != 0)
        fail_msg("%s, %s=%s: \"%s\" \"%s\"", way, variable, value, out->text,
                 err->text ? err->text : "");
}

static void expect_end(const char *way, const char *variable, const char *value)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0}, err = {0};

    run(way, variable, value, LONG, &out, &err);
    if (strstr(out.text, "DID NOT END"))
        fail_msg("%s, %s=%s: %s%s", way, variable, value, out.text, err.text ? err.text : "");
}

static void test_nccl_ways__each_ends_with_right_sums(void **state)
{
    static const char *const ways[] = {"fresh", "beside", "shrink", "revoke",
                                       "spare", "rejoin", "grow"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(ways); i++) {
        expect_end(ways[i], "FAKE_NCCL_SEED", "1");
        expect_end(ways[i], "FAKE_NCCL_SEED", "2");
    }
}

static void test_nccl_ways__a_call_that_fails_is_named(void **state)
{
    char value[128];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++)
        for (int n = 0; n <= cases[i].calls; n++) {
            FLEET_AUTO_STRBUF struct fleet_strbuf out = {0}, err = {0};
            (void)snprintf(value, sizeof(value), "%s#%d:2:%s/fail-%zu-%d", cases[i].function, n,
                           own_folder, i, n);
            if (n == cases[i].calls) { /* there is no such call */
                expect_end(cases[i].way, "FAKE_NCCL_FAIL", value);
                continue;
            }
            run(cases[i].way, "FAKE_NCCL_FAIL", value, LONG, &out, &err);
            if (!strstr(out.text, "DID NOT END") || !err.text || !strstr(err.text, cases[i].what) ||
                !strstr(err.text, "unhandled system error"))
                fail_msg("%s: \"%s\" \"%s\"", value, out.text, err.text ? err.text : "");
        }
}

static void test_nccl_ways__a_call_that_hangs_ends_at_the_limit(void **state)
{
    char value[128];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++)
        for (int n = 0; n < cases[i].calls; n++) {
            FLEET_AUTO_STRBUF struct fleet_strbuf out = {0}, err = {0};
            (void)snprintf(value, sizeof(value), "%s#%d:%s/hang-%zu-%d", cases[i].function, n,
                           own_folder, i, n);
            run(cases[i].way, "FAKE_NCCL_HANG", value, SHORT, &out, &err);
            if (!strstr(out.text, "DID NOT END"))
                fail_msg("%s: \"%s\"", value, out.text);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccl_ways__each_ends_with_right_sums),
        cmocka_unit_test(test_nccl_ways__a_call_that_fails_is_named),
        cmocka_unit_test(test_nccl_ways__a_call_that_hangs_ends_at_the_limit),
    };
    const char *variant = getenv("FLEET_TEST_VARIANT");

    if (variant && strcmp(variant, "release") != 0)
        return 0; /* the benchmark over the fakes is built for one variant */
    return cmocka_run_group_tests(tests, own_folder_make, own_folder_remove);
}
