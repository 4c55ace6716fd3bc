/* SPDX-License-Identifier: Apache-2.0 */

/* How often a status without urgent changes is written: for one job, and for a thousand at once. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "controller/fleetjob/status_pace.h"

#define JOBS      1000
#define MINUTES_2 120000.0

static void test_status_pace__a_job_writes_its_progress_rarely(void **state)
{
    struct status_pace all = {0};
    struct status_pace_job job = {0};
    int writes = 0;

    (void)state;
    for (double now_ms = 1; now_ms <= MINUTES_2; now_ms += 10)
        writes += status_pace_progress(&all, &job, now_ms) == 0;
    assert_int_equal(writes, 8); /* at 0, 15 … 105 s */
    assert_true(status_pace_progress(&all, &job, MINUTES_2) > 0);
    assert_true(status_pace_progress(&all, &job, MINUTES_2) <= STATUS_PACE_PROGRESS_MS);
}

static void test_status_pace__a_thousand_jobs_take_turns(void **state)
{
    static struct status_pace_job jobs[JOBS];
    static double wake_ms[JOBS], last_ms[JOBS];
    static int writes[JOBS];
    struct status_pace all = {0};
    double newest_ms = -1e9;
    int asked = 0, total = 0, fewest = INT32_MAX;

    (void)state;
    for (double now_ms = 1; now_ms <= MINUTES_2; now_ms += 10)
        for (int i = 0; i < JOBS; i++) {
            double wait_ms;
            if (now_ms < wake_ms[i])
                continue;
            asked++;
            wait_ms = status_pace_progress(&all, &jobs[i], now_ms);
            if (wait_ms > 0) {
                wake_ms[i] = now_ms + wait_ms;
                continue;
            }
            assert_true(writes[i] == 0 || now_ms - last_ms[i] >= STATUS_PACE_PROGRESS_MS);
            assert_true(now_ms - newest_ms >= STATUS_PACE_EVERY_MS);
            newest_ms = last_ms[i] = now_ms;
            writes[i]++;
            total++;
        }
    for (int i = 0; i < JOBS; i++)
        fewest = writes[i] < fewest ? writes[i] : fewest;
    assert_in_range(total, 2300, 2400); /* 20 a second */
    assert_int_equal(fewest, 2);        /* no job is left out: 50 s for all of them */
    assert_true(asked <= 4 * total + JOBS);
}

static void test_status_pace__counts_wait_for_the_last_write(void **state)
{
    struct status_pace_job job = {0};

    (void)state;
    assert_true(status_pace_after(&job, 100, 7) == 0);
    status_pace_written(&job, 7);
    assert_true(status_pace_after(&job, 100, 8) == 99);
    assert_true(status_pace_after(&job, 100, 107) == 0);
}

static void test_status_pace__jobs_that_start_together_take_turns(void **state)
{
    static struct status_pace_job jobs[JOBS];
    struct status_pace all = {0};
    double last_ms = 0;

    (void)state;
    assert_true(status_pace_start(&all, &jobs[0], 7) == 0); /* it has written nothing yet */
    for (int i = 0; i < JOBS; i++) {
        double wait_ms;
        status_pace_written(&jobs[i], 7);
        wait_ms = status_pace_start(&all, &jobs[i], 7);
        assert_true(wait_ms == (i <= 90 ? STATUS_PACE_START_MS + STATUS_PACE_EVERY_MS * i
                                        : STATUS_PACE_COUNTS_MS));
        assert_true(status_pace_start(&all, &jobs[i], 7) == wait_ms); /* it keeps its turn */
        last_ms = 7 + wait_ms;
        assert_true(status_pace_start(&all, &jobs[i], last_ms) == 0);
    }
    status_pace_written(&jobs[0], last_ms + 1000); /* alone it waits no longer than needed */
    assert_true(status_pace_start(&all, &jobs[0], last_ms + 1000) == STATUS_PACE_START_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_pace__a_job_writes_its_progress_rarely),
        cmocka_unit_test(test_status_pace__a_thousand_jobs_take_turns),
        cmocka_unit_test(test_status_pace__counts_wait_for_the_last_write),
        cmocka_unit_test(test_status_pace__jobs_that_start_together_take_turns),
    };
    return cmocka_run_group_tests_name("status_pace", tests, NULL, NULL);
}
