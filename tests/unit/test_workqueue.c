/* SPDX-License-Identifier: Apache-2.0 */

/* The five promises of workqueue.h, by hand and against a slow model at random. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/machinery/workqueue.h"

static void expect_next(struct workqueue *queue, double now_ms, const char *expected)
{
    const char *key = workqueue_get(queue, now_ms, NULL);

    if (!key != !expected || (key && strcmp(key, expected) != 0))
        fail_msg("at %g ms: expected %s, got %s", now_ms, expected ? expected : "nothing",
                 key ? key : "nothing");
}

static void test_workqueue__is_fair_and_holds_a_key_once(void **state)
{
    struct workqueue *queue = workqueue_new();

    (void)state;
    workqueue_add(queue, "a", 0);
    workqueue_add(queue, "b", 0);
    workqueue_add(queue, "a", 0);
    assert_int_equal(workqueue_length(queue), 2);
    expect_next(queue, 0, "a");
    expect_next(queue, 0, "b");
    expect_next(queue, 0, NULL);
    workqueue_free(queue);
}

static void test_workqueue__gives_a_key_to_one_worker_and_loses_no_add(void **state)
{
    struct workqueue *queue = workqueue_new();

    (void)state;
    workqueue_add(queue, "a", 0);
    expect_next(queue, 0, "a");
    workqueue_add(queue, "a", 0);
    workqueue_add(queue, "a", 0);
    expect_next(queue, 0, NULL); /* (3) */
    workqueue_done(queue, "a");
    expect_next(queue, 0, "a"); /* (4), once */
    workqueue_done(queue, "a");
    expect_next(queue, 0, NULL);
    assert_int_equal(workqueue_working(queue), 0);
    workqueue_free(queue);
}

static void test_workqueue__of_several_delays_the_earliest_counts(void **state)
{
    struct workqueue *queue = workqueue_new();

    (void)state;
    assert_true(isinf(workqueue_wake_ms(queue)));
    workqueue_add_at(queue, "a", 300);
    workqueue_add_at(queue, "a", 100);
    workqueue_add_at(queue, "a", 200);
    workqueue_add_at(queue, "b", 150);
    assert_true(workqueue_wake_ms(queue) == 100);
    expect_next(queue, 99, NULL);
    expect_next(queue, 100, "a");
    workqueue_done(queue, "a");
    expect_next(queue, 149, NULL);
    workqueue_add(queue, "b", 0); /* now: the delay is over */
    expect_next(queue, 149, "b");
    workqueue_done(queue, "b");
    expect_next(queue, 1e9, NULL);
    workqueue_free(queue);
}

static void test_workqueue__a_delay_set_while_working_survives_done(void **state)
{
    struct workqueue *queue = workqueue_new();

    (void)state;
    workqueue_add(queue, "a", 0);
    expect_next(queue, 0, "a");
    workqueue_add_at(queue, "a", 50);
    expect_next(queue, 60, NULL); /* due, but still out */
    workqueue_done(queue, "a");
    expect_next(queue, 60, "a");
    workqueue_done(queue, "a");
    assert_int_equal(workqueue_delayed(queue), 0);
    workqueue_free(queue);
}

/* The same promises, spelled out over a handful of keys. */
struct model {
    int order[16], count; /* ready, first first */
    bool working[8], again[8];
    double due[8];
};

static bool model_is_ready(const struct model *m, int k)
{
    for (int i = 0; i < m->count; i++)
        if (m->order[i] == k)
            return true;
    return false;
}

static void model_add(struct model *m, int k)
{
    m->due[k] = HUGE_VAL;
    if (m->working[k])
        m->again[k] = true;
    else if (!model_is_ready(m, k))
        m->order[m->count++] = k;
}

static int model_get(struct model *m, double now)
{
    for (;;) {
        int best = -1;
        for (int k = 0; k < 8; k++)
            if (m->due[k] <= now && (best < 0 || m->due[k] < m->due[best]))
                best = k;
        if (best < 0)
            break;
        model_add(m, best);
    }
    if (m->count == 0)
        return -1;
    int k = m->order[0];
    memmove(m->order, m->order + 1, sizeof(int) * (size_t)--m->count);
    m->working[k] = true;
    return k;
}

static void run_history(unsigned int seed)
{
    static const char *const names[8] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    struct workqueue *queue = workqueue_new();
    struct model m = {
        .due = {HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL}};
    unsigned int random = seed;
    double now = 0;

    for (int step = 0; step < 400; step++) {
        int k = rand_r(&random) % 8, expected;
        const char *key;
        double due;
        now += rand_r(&random) % 3;
        switch (rand_r(&random) % 4) {
        case 0:
            workqueue_add(queue, names[k], 0);
            model_add(&m, k);
            break;
        case 1: /* odd thousandths: no two are due at once, whose order the model does not know */
            due = now + rand_r(&random) % 20 + step / 1000.0;
            workqueue_add_at(queue, names[k], due);
            if (!model_is_ready(&m, k) && !m.again[k] && due < m.due[k])
                m.due[k] = due;
            break;
        case 2:
            key = workqueue_get(queue, now, NULL);
            expected = model_get(&m, now);
            if ((key ? atoi(key) : -1) != expected)
                fail_msg("seed %u, step %d: expected %d, got %s", seed, step, expected,
                         key ? key : "nothing");
            break;
        default:
            if (m.working[k]) {
                workqueue_done(queue, names[k]);
                m.working[k] = false;
                if (m.again[k])
                    m.order[m.count++] = k;
                m.again[k] = false;
            }
        }
    }
    workqueue_free(queue);
}

static void test_workqueue__behaves_like_the_model_at_random(void **state)
{
    (void)state;
    for (unsigned int seed = 0; seed < 2000; seed++)
        run_history(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workqueue__is_fair_and_holds_a_key_once),
        cmocka_unit_test(test_workqueue__gives_a_key_to_one_worker_and_loses_no_add),
        cmocka_unit_test(test_workqueue__of_several_delays_the_earliest_counts),
        cmocka_unit_test(test_workqueue__a_delay_set_while_working_survives_done),
        cmocka_unit_test(test_workqueue__behaves_like_the_model_at_random),
    };
    return cmocka_run_group_tests_name("workqueue", tests, NULL, NULL);
}
