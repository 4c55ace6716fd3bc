/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Points of a job's charts arrive in the files once each: also those whose writer died before it
 * wrote them, those that no disk took at first, and those of a step that is computed a second time.
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
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/charts.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "tests/support/event_reader.h"
#include "tests/support/job_run.h"

static void add(struct charts *charts, int64_t step, double loss, double norm)
{
    struct chart_point point = chart_point_now(step);

    point.values[CHART_LOSS] = loss;
    point.values[CHART_NORM] = norm;
    charts_add(charts, &point);
}

static void expect_losses(const char *folder, int first, int last, double factor)
{
    struct event_points points;
    bool ascending;
    size_t count;

    event_points_read(folder, &points);
    if (points.problem[0])
        fail_msg("%s", points.problem);
    count = event_points_count(&points, "loss", &ascending);
    if (count != (size_t)(last - first + 1) || !ascending)
        fail_msg("%zu losses, ascending %d; expected steps %d to %d", count, ascending, first,
                 last);
    for (int s = first; s <= last; s++)
        if (event_points_at(&points, "loss", s) != s * factor)
            fail_msg("step %d: %g, expected %g", s, event_points_at(&points, "loss", s),
                     s * factor);
    event_points_release(&points);
}

static void test_charts__a_dead_writers_step_is_written_by_the_next(void **state)
{
    char *folder = job_run_folder();
    struct charts dead, next;
    struct fleet_error err;

    (void)state;
    charts_init(&dead, folder, "gpt");
    charts_init(&next, folder, "gpt");
    assert_int_equal(charts_resume(&dead, 0, &err), 0);
    for (int s = 1; s <= 100; s++) {
        add(&dead, s, s, NAN);
        add(&next, s, s, NAN);
        if (s <= 97)
            assert_int_equal(charts_write(&dead, &err), 0);
    }
    charts_release(&dead);
    assert_int_equal(charts_resume(&next, 100, &err), 0);
    expect_losses(folder, 1, 100, 1.0);
    add(&next, 101, 101, NAN);
    assert_int_equal(charts_write(&next, &err), 0);
    expect_losses(folder, 1, 101, 1.0);
    charts_release(&next);
    job_run_remove(folder);
    free(folder);
}

/* A generation that begins at an earlier step: nothing of the other future stays. */
static void test_charts__an_earlier_step_is_computed_again(void **state)
{
    char *folder = job_run_folder();
    struct fleet_error err;
    struct charts charts;

    (void)state;
    charts_init(&charts, folder, "gpt");
    assert_int_equal(charts_resume(&charts, 0, &err), 0);
    for (int s = 1; s <= 200; s++) {
        add(&charts, s, s < 190 ? s * 2.0 : -1.0, NAN);
        assert_int_equal(charts_write(&charts, &err), 0);
    }
    assert_int_equal(charts_resume(&charts, 189, &err), 0);
    expect_losses(folder, 1, 189, 2.0);
    for (int s = 190; s <= 260; s++)
        add(&charts, s, s * 2.0, NAN); /* more than are kept, none written on the way */
    assert_int_equal(charts_resume(&charts, 260, &err), 0);
    charts_release(&charts);
    {
        struct event_points points;
        bool ascending;
        event_points_read(folder, &points);
        assert_string_equal(points.problem, "");
        assert_int_equal(event_points_count(&points, "loss", &ascending), 189 + CHARTS_KEPT);
        assert_true(ascending);
        event_points_release(&points);
    }
    job_run_remove(folder);
    free(folder);
}

static void test_charts__one_warning_and_another_try(void **state)
{
    char *folder = job_run_folder();
    FLEET_AUTO_FREE char *below = fleet_file_join(folder, "file/charts");
    FLEET_AUTO_FREE char *file = fleet_file_join(folder, "file");
    struct fleet_error err;
    struct charts charts;

    (void)state;
    assert_int_equal(fleet_file_write(file, "x", 1, NULL), 0); /* in the way of the folder */
    charts_init(&charts, below, "gpt");
    assert_true(charts_resume(&charts, 0, &err) < 0);
    assert_non_null(strstr(err.text, "spec.training.log.tensorboard: "));
    assert_non_null(strstr(err.text, file));
    add(&charts, 1, 1, 1);
    assert_int_equal(charts_write(&charts, &err), 0); /* was reported already */
    add(&charts, 2, 2, NAN);
    assert_int_equal(charts_write(&charts, &err), 0);
    assert_int_equal(unlink(file), 0);
    add(&charts, 3, 3, 0.5);
    assert_int_equal(charts_write(&charts, &err), 0);
    expect_losses(below, 1, 3, 1.0);
    charts_release(&charts);
    job_run_remove(folder);
    free(folder);
}

/* A rank that does not write, or not any more, leaves the files alone. */
static void test_charts__another_rank_writes(void **state)
{
    char *folder = job_run_folder();
    struct charts first, second;
    struct fleet_error err;

    (void)state;
    charts_init(&first, folder, "gpt");
    charts_init(&second, folder, "gpt");
    assert_int_equal(charts_resume(&first, 0, &err), 0);
    for (int s = 1; s <= 5; s++) {
        add(&first, s, s, NAN);
        add(&second, s, s, NAN);
        assert_int_equal(charts_write(&first, &err), 0);
        assert_int_equal(charts_write(&second, &err), 0);
    }
    charts_pause(&first);
    assert_int_equal(charts_resume(&second, 5, &err), 0);
    add(&first, 6, 6, NAN);
    add(&second, 6, 6, NAN);
    assert_int_equal(charts_write(&first, &err), 0);
    expect_losses(folder, 1, 5, 1.0);
    assert_int_equal(charts_write(&second, &err), 0);
    assert_int_equal(charts_resume(&first, 6, &err), 0); /* and back again */
    add(&first, 7, 7, NAN);
    assert_int_equal(charts_write(&first, &err), 0);
    expect_losses(folder, 1, 7, 1.0);
    charts_release(&first);
    charts_release(&second);
    job_run_remove(folder);
    free(folder);
}

static void test_charts__are_off(void **state)
{
    struct fleet_error err;
    struct charts charts;

    (void)state;
    charts_init(&charts, NULL, "gpt");
    add(&charts, 1, 1, 1);
    assert_int_equal(charts_resume(&charts, 1, &err), 0);
    assert_int_equal(charts_write(&charts, &err), 0);
    charts_release(&charts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_charts__a_dead_writers_step_is_written_by_the_next),
        cmocka_unit_test(test_charts__an_earlier_step_is_computed_again),
        cmocka_unit_test(test_charts__one_warning_and_another_try),
        cmocka_unit_test(test_charts__another_rank_writes),
        cmocka_unit_test(test_charts__are_off),
    };

    return cmocka_run_group_tests_name("charts", tests, NULL, NULL);
}
