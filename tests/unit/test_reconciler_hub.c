/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The reconciler over time: generations are recorded before they are assigned, a controller that
 * takes over makes nothing again, deleted and suspended jobs leave no pods.
 */
#include "tests/unit/reconciler_fixture.h"

static bool was_told(const struct world *w, const char *note)
{
    size_t count;
    FLEET_AUTO_FREE const cJSON **events = fake_apiserver_list(w->server, EVENTS, &count);

    for (size_t i = 0; i < count; i++)
        if (strcmp(cJSON_GetStringValue(fleet_json_at(events[i], "note")), note) == 0)
            return true;
    return false;
}

static void test_reconciler__a_generation_is_recorded_before_it_is_assigned(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    run_pods(&w);
    for (int i = 0; i < 3; i++)
        say_hello(&w, i);
    tick(&w, 15000);
    assert_true(w.assigns >= 3); /* and again, for members that do not say they have it */
    assert_int_equal(w.recorded_at_first_assign, 1);
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.rendezvous.epoch"), 1);
    stop(&w);
}

static void test_reconciler__nobody_is_assigned_while_nothing_can_be_recorded(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    run_pods(&w);
    fake_io_run(w.io, 1000);
    fake_io_weather(w.io)->unreachable = true;
    for (int i = 0; i < 3; i++)
        say_hello(&w, i);
    tick(&w, 20000);
    assert_int_equal(w.assigns, 0);
    fake_io_weather(w.io)->unreachable = false;
    tick(&w, 20000);
    assert_true(w.assigns >= 3);
    assert_int_equal(w.recorded_at_first_assign, 1);
    stop(&w);
}

static void test_reconciler__a_deleted_job_leaves_no_hub_and_its_name_is_free(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    assert_non_null(w.network.hubs[0].hub);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", JOBS "/gpt", NULL), 200);
    make_job(&w); /* at once: the pods of the first are still there */
    fake_io_run(w.io, 5000);
    assert_int_equal(w.hubs, 2);
    expect_pods(&w, 6, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0", "gpt-worker-0-1",
                "gpt-worker-1-1", "gpt-worker-2-1");
    assert_int_equal(fake_apiserver_count(w.server, SECRETS), 2); /* of different names */
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", JOBS "/gpt", NULL), 200);
    fake_io_run(w.io, 2000);
    assert_null(w.network.hubs[0].hub);
    assert_null(w.network.hubs[1].hub);
    stop(&w);
}

static void test_reconciler__the_next_controller_makes_nothing_again(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    run_pods(&w);
    fake_io_run(w.io, 2000);
    end_controller(&w);
    start_controller(&w);
    fake_io_run(w.io, 5000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 3);
    assert_int_equal(w.hubs, 2);
    assert_int_equal(fake_apiserver_count(w.server, SECRETS), 1);
    stop(&w);
}

/* Only the status knows of them: they are looked for; one is not there, the other is no worker any
 * more. */
static void test_reconciler__pods_that_vanished_while_nobody_led_are_replaced(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    run_pods(&w);
    fake_io_run(w.io, 2000);
    end_controller(&w);
    assert_int_equal(
        fake_apiserver_do(w.server, "DELETE", PODS "/gpt-worker-1-0", "{\"gracePeriodSeconds\":0}"),
        200);
    assert_int_equal(
        fake_apiserver_do(w.server, "PATCH", PODS "/gpt-worker-2-0",
                          "{\"metadata\":{\"labels\":{\"fleetjob.dev/job-uid\":null}}}"),
        200);
    start_controller(&w);
    fake_io_run(w.io, 5000);
    expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-1", "gpt-worker-2-0");
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.attempts.1"), 1);
    assert_true(was_told(&w, "Worker 1 has vanished: attempt 1"));
    assert_false(was_told(&w, "Worker 2 has vanished: attempt 1")); /* its label was taken off */
    stop(&w);
}

static void test_reconciler__suspended_jobs_have_no_pods(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    set_pod(&w, "gpt-worker-1-0",
            "{\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":\"worker\","
            "\"imageID\":\"runtime@sha256:1\"}]}}");
    fake_io_run(w.io, 2000);
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.image"), "runtime@sha256:1");
    assert_string_equal(text_at(&w, JOBS "/gpt", "status.agentImage"), "runtime@sha256:1");
    assert_int_equal(fake_apiserver_do(w.server, "PATCH", JOBS "/gpt",
                                       "{\"spec\":{\"runPolicy\":{\"suspend\":true}}}"),
                     200);
    fake_io_run(w.io, 5000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
    assert_string_equal(condition(&w, "Suspended"), "True");
    assert_null(fleet_json_at(fake_apiserver_get(w.server, JOBS "/gpt"), "status.image"));
    assert_null(fleet_json_at(fake_apiserver_get(w.server, JOBS "/gpt"), "status.agentImage"));
    assert_int_equal(fake_apiserver_do(w.server, "PATCH", JOBS "/gpt",
                                       "{\"spec\":{\"runPolicy\":{\"suspend\":false}}}"),
                     200);
    fake_io_run(w.io, 5000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 3);
    assert_string_equal(condition(&w, "Suspended"), "False");
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reconciler__a_generation_is_recorded_before_it_is_assigned),
        cmocka_unit_test(test_reconciler__nobody_is_assigned_while_nothing_can_be_recorded),
        cmocka_unit_test(test_reconciler__a_deleted_job_leaves_no_hub_and_its_name_is_free),
        cmocka_unit_test(test_reconciler__the_next_controller_makes_nothing_again),
        cmocka_unit_test(test_reconciler__pods_that_vanished_while_nobody_led_are_replaced),
        cmocka_unit_test(test_reconciler__suspended_jobs_have_no_pods),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
