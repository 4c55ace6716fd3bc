/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the API server refuses: the reconciler tells it, tries again with patience, and goes on with
 * what does not need it. The fixture is that of test_reconciler.c.
 */
#include "tests/unit/reconciler_fixture.h"

static void test_reconciler__a_pod_that_is_invalid_refuses_the_job_and_is_tried_again(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    fake_apiserver_fail(
        w.server,
        &(struct fake_failure){.method = "POST", .path = "dryRun=All", .count = 1, .status = 422});
    make_job(&w);
    fake_io_run(w.io, 50000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
    assert_string_equal(condition(&w, "Accepted"), "False");
    assert_int_equal(fake_apiserver_requests(w.server, "dryRun=All"), 1);

    fake_io_run(w.io, 20000); /* admission has nothing against it any more */
    assert_int_equal(fake_apiserver_count(w.server, PODS), 3);
    assert_string_equal(condition(&w, "Accepted"), "True");
    stop(&w);
}

/* Scheduled, as kubectl describe shows it. */
static void expect_scheduled(const struct world *w, const char *reason, const char *words)
{
    const cJSON *scheduled = kube_condition_find(
        fleet_json_at(fake_apiserver_get(w->server, JOBS "/gpt"), "status.conditions"),
        "Scheduled");
    const char *actual = "", *message = "";

    (void)fleet_json_opt_string(scheduled, "reason", &actual, NULL);
    (void)fleet_json_opt_string(scheduled, "message", &message, NULL);
    assert_string_equal(actual, reason);
    if (!strstr(message, words))
        fail_msg("expected: %s\nactual: %s", words, message);
}

static void test_reconciler__what_is_refused_is_reported_and_tried_again(void **state)
{
    static const char *const what[] = {"secrets", "pods"};
    static const int counts[] = {8, 31};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(what); i++) {
        struct world w;
        start(&w, 1);
        fake_apiserver_fail(w.server, &(struct fake_failure){.method = "POST",
                                                             .path = what[i],
                                                             .count = counts[i],
                                                             .status = 403,
                                                             .cause = "Forbidden"});
        make_job(&w);
        fake_io_run(w.io, 1500);
        assert_string_equal(text_at(&w, JOBS "/gpt", "status.state"), "Pending");
        expect_scheduled(&w, "CreateRefused", "403");
        assert_in_range(fake_apiserver_count(w.server, EVENTS), 1, 6);
        assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
        assert_null(note_of(&w, "CreatedPods"));
        assert_in_range(fake_apiserver_requests(w.server, "POST"), 2, 40); /* it backs off */
        fake_io_run(w.io, 600000);
        expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
        expect_scheduled(&w, "PodsPending", "3 of 3");
        assert_non_null(strstr(note_of(&w, "CreatedPods"), "Created "));
        stop(&w);
    }
}

static void test_reconciler__nothing_follows_a_write_that_was_refused(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    fake_apiserver_fail(w.server, &(struct fake_failure){.method = "PATCH",
                                                         .path = "fleetjobs/gpt/status",
                                                         .count = 1,
                                                         .status = 409});
    make_job(&w);
    while (fake_apiserver_requests(w.server, "PATCH " JOBS) == 0)
        fake_io_run(w.io, 1);
    fake_io_run(w.io, 100);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
    assert_int_equal(fake_apiserver_count(w.server, EVENTS), 0);
    assert_int_equal(w.hubs, 0);
    fake_io_run(w.io, 2000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 3);
    assert_int_equal(fake_apiserver_count(w.server, EVENTS), 1); /* CreatedPods */
    stop(&w);
}

/* A full quota of Secrets, a new leader, and a hub that records a generation while a request of
 * prepare is on its way, `phase` ms after a spec that needs one: what the pass had seen before the
 * answer is out of date. */
static void record_while_secrets_are_refused(int phase)
{
    struct world w;
    char patch[80];

    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    run_pods(&w);
    for (int i = 0; i < 3; i++)
        say_hello(&w, i);
    tick(&w, 5000);
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.rendezvous.generation"), 1);
    end_controller(&w);
    fake_apiserver_fail(w.server, &(struct fake_failure){.method = "POST",
                                                         .path = "secrets",
                                                         .count = 1000000,
                                                         .status = 403,
                                                         .cause = "Forbidden"});
    *fake_io_weather(w.io) = (struct fake_weather){.latency_min_ms = 40, .latency_max_ms = 40};
    start_controller(&w);
    while (w.hubs < 2)
        fake_io_run(w.io, 10);
    for (int i = 0; i < 3; i++)
        say_hello(&w, i);
    fake_io_run(w.io, phase);
    for (int i = 0; i < 40; i++) {
        (void)snprintf(patch, sizeof(patch), "{\"spec\":{\"training\":{\"steps\":%d}}}",
                       300 + i % 2);
        assert_int_equal(fake_apiserver_do(w.server, "PATCH", JOBS "/gpt", patch), 200);
        tick(&w, 450);
    }
    assert_true(number_at(&w, JOBS "/gpt", "status.rendezvous.generation") > 1);
    stop(&w);
}

static void test_reconciler__a_hub_may_record_while_what_pods_need_is_refused(void **state)
{
    (void)state;
    for (int phase = 0; phase < 450; phase += 50)
        record_while_secrets_are_refused(phase);
}

/* A hub that has news ten times a second begins a pass each time; what was refused is not asked
 * for, and not logged, each time. */
static void test_reconciler__what_is_refused_is_not_asked_for_at_each_change(void **state)
{
    static const char *const what[] = {"secrets", "/pods?fieldManager=fleetjob"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(what); i++) {
        struct world w;
        size_t asked;
        start(&w, 1);
        make_job(&w);
        fake_io_run(w.io, 2000);
        run_pods(&w);
        for (int j = 0; j < 3; j++)
            say_hello(&w, j);
        tick(&w, 5000);
        fake_apiserver_fail(w.server, &(struct fake_failure){.method = "POST",
                                                             .path = what[i],
                                                             .count = 1000000,
                                                             .status = 403,
                                                             .cause = "Forbidden"});
        asked = fake_apiserver_requests(w.server, "POST /api/v1");
        assert_int_equal(fake_apiserver_do(w.server, "PATCH", JOBS "/gpt",
                                           "{\"spec\":{\"worker\":{\"replicas\":4},"
                                           "\"training\":{\"steps\":400}}}"),
                         200);
        for (int j = 0; j < 600; j++) {
            tick(&w, 100);
            say_hello(&w, j % 3);
        }
        assert_in_range(fake_apiserver_requests(w.server, "POST /api/v1") - asked, 5, 40);
        assert_in_range(w.troubles, 1, 8);
        stop(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reconciler__a_pod_that_is_invalid_refuses_the_job_and_is_tried_again),
        cmocka_unit_test(test_reconciler__what_is_refused_is_reported_and_tried_again),
        cmocka_unit_test(test_reconciler__nothing_follows_a_write_that_was_refused),
        cmocka_unit_test(test_reconciler__a_hub_may_record_while_what_pods_need_is_refused),
        cmocka_unit_test(test_reconciler__what_is_refused_is_not_asked_for_at_each_change),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
