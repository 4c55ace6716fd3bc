/* SPDX-License-Identifier: Apache-2.0 */

/* The pool runs every task exactly once, for every number of threads; quotas are read right. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/backend/cpu/thread_pool.h"
#include "libfleet/base/error.h"

#define TASKS 1000

struct counts {
    atomic_int runs[TASKS];
    int threads;
    atomic_bool bad_thread;
};

static void count_task(void *context, int64_t task, int thread)
{
    struct counts *counts = context;

    atomic_fetch_add(&counts->runs[task], 1);
    if (thread < 0 || thread >= counts->threads)
        atomic_store(&counts->bad_thread, true);
}

static struct thread_pool *pool_of(int threads)
{
    struct thread_pool *pool = NULL;
    struct fleet_error err;

    if (thread_pool_new(threads, &pool, &err) < 0)
        fail_msg("%s", err.text);
    return pool;
}

static void test_thread_pool__runs_every_task_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        struct thread_pool *pool = pool_of(threads);
        struct counts counts = {.threads = threads};
        for (int64_t count = 0; count <= TASKS; count += 125)
            thread_pool_run(pool, count, count_task, &counts);
        for (int i = 0; i < TASKS; i++)
            if (counts.runs[i] != 8 - i / 125)
                fail_msg("%d threads: task %d ran %d times, expected %d", threads, i,
                         counts.runs[i], 8 - i / 125);
        assert_false(counts.bad_thread);
        thread_pool_free(pool);
    }
}

/* A loop writes plain memory that the next one reads on other threads. */
static void shift_task(void *context, int64_t task, int thread)
{
    int64_t *cells = context;

    (void)thread;
    cells[task]++;
}

static void test_thread_pool__loops_follow_each_other(void **state)
{
    struct thread_pool *pool = pool_of(4);
    int64_t cells[16] = {0};

    (void)state;
    for (int round = 0; round < 5000; round++)
        thread_pool_run(pool, 16, shift_task, cells);
    for (int i = 0; i < 16; i++)
        assert_int_equal(cells[i], 5000);
    thread_pool_free(pool);
}

static void test_thread_pool__refuses_silly_sizes(void **state)
{
    struct thread_pool *pool = NULL;
    struct fleet_error err;

    (void)state;
    assert_int_equal(thread_pool_new(0, &pool, &err), -EINVAL);
    assert_string_equal(err.text, "thread pool: 0 threads, must be 1 to 1024");
    assert_int_equal(thread_pool_new(1025, &pool, &err), -EINVAL);
    assert_null(pool);
    thread_pool_free(NULL);
}

static void test_thread_pool__reads_quotas(void **state)
{
    static const struct {
        const char *quota, *period;
        int expected;
    } cases[] = {
        {"max 100000", NULL, 0},
        {"100000 100000", NULL, 1},
        {"150000 100000", NULL, 2},
        {"50000 100000", NULL, 1},
        {"400000 100000", NULL, 4},
        {"-1", "100000", 0},
        {"200000", "100000", 2},
        {"250000", "100000", 3},
        {"", NULL, 0},
        {"nonsense", NULL, 0},
        {"100000", "0", 0},
        {"100000", "", 0},
        {"9223372036854775807 1", NULL, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int actual = thread_pool_quota_parse(cases[i].quota, cases[i].period);
        if (actual != cases[i].expected)
            fail_msg("quota \"%s\" period \"%s\": %d, expected %d", cases[i].quota,
                     cases[i].period ? cases[i].period : "(none)", actual, cases[i].expected);
    }
    assert_true(backend_cpu_thread_count() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_pool__runs_every_task_once),
        cmocka_unit_test(test_thread_pool__loops_follow_each_other),
        cmocka_unit_test(test_thread_pool__refuses_silly_sizes),
        cmocka_unit_test(test_thread_pool__reads_quotas),
    };

    return cmocka_run_group_tests_name("thread_pool", tests, NULL, NULL);
}
