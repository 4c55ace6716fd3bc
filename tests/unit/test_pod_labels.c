/* SPDX-License-Identifier: Apache-2.0 */

/* Other tools write labels, too: a worker whose labels are changed or taken off trains on, and is
 * made once. */
#include "tests/unit/reconciler_fixture.h"

#define WORKER_0 PODS "/gpt-worker-0-0"

static void change_label(struct world *w, const char *key, const char *value)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf patch = {0};

    fleet_strbuf_appendf(&patch, "{\"metadata\":{\"labels\":{\"%s\":%s}}}", key, value);
    assert_int_equal(fake_apiserver_do(w->server, "PATCH", WORKER_0, patch.text), 200);
}

static void start_training(struct world *w)
{
    start(w, 1);
    make_job(w);
    fake_io_run(w->io, 2000);
    run_pods(w);
    for (int i = 0; i < 3; i++)
        say_hello(w, i);
    tick(w, 5000);
    assert_int_equal(hub_generation(w->network.hubs[0].hub).counter, 1);
}

static void expect_undisturbed(struct world *w)
{
    tick(w, 60000);
    expect_pods(w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
    assert_int_equal(hub_generation(w->network.hubs[0].hub).counter, 1);
    assert_int_equal(number_at(w, JOBS "/gpt", "status.restarts.count"), 0);
    assert_int_equal(number_at(w, JOBS "/gpt", "status.workers.active"), 3);
}

static void test_pod_labels__the_labels_of_others_are_nothing_to_us(void **state)
{
    struct world w;

    (void)state;
    start_training(&w);
    change_label(&w, "app.kubernetes.io/managed-by", "\"Helm\"");
    change_label(&w, "app.kubernetes.io/managed-by", "null");
    expect_undisturbed(&w);
    stop(&w);
}

static void test_pod_labels__our_labels_may_be_changed(void **state)
{
    struct world w;

    (void)state;
    start_training(&w);
    change_label(&w, "fleetjob.dev/job-uid", "\"another\"");
    change_label(&w, "fleetjob.dev/worker-index", "\"2\"");
    change_label(&w, "fleetjob.dev/worker-attempt", "null");
    expect_undisturbed(&w);
    stop(&w);
}

static void test_pod_labels__a_label_that_is_taken_off_is_put_back(void **state)
{
    struct world w;

    (void)state;
    start_training(&w);
    change_label(&w, "fleetjob.dev/job-uid", "null");
    expect_undisturbed(&w);
    assert_string_equal(kube_meta_label(find_pod(&w, "gpt-worker-0-0"), "fleetjob.dev/job-uid"),
                        text_at(&w, JOBS "/gpt", "metadata.uid"));
    stop(&w);
}

/* The API server does not answer the reading, then the writing. */
static void test_pod_labels__a_label_is_put_back_after_errors(void **state)
{
    static const char *const verbs[] = {"GET", "PATCH"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(verbs); i++) {
        struct world w;
        start_training(&w);
        change_label(&w, "fleetjob.dev/job-uid", "null");
        fake_apiserver_fail(
            w.server, &(struct fake_failure){.method = verbs[i], .path = WORKER_0, .count = 3});
        expect_undisturbed(&w);
        assert_non_null(kube_meta_label(find_pod(&w, "gpt-worker-0-0"), "fleetjob.dev/job-uid"));
        stop(&w);
    }
}

/* Also a label that was removed while no controller ran. */
static void test_pod_labels__the_next_controller_puts_it_back(void **state)
{
    struct world w;

    (void)state;
    start_training(&w);
    change_label(&w, "fleetjob.dev/job-uid", "null");
    restart_controller(&w);
    fake_io_run(w.io, 60000);
    expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
    assert_non_null(kube_meta_label(find_pod(&w, "gpt-worker-0-0"), "fleetjob.dev/job-uid"));
    stop(&w);
}

/* The status, which counts the attempts of each worker, is removed, too. */
static void test_pod_labels__a_controller_that_knows_no_attempts_puts_it_back(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    fake_io_run(w.io, 2000);
    run_pods(&w);
    assert_int_equal(
        fake_apiserver_do(w.server, "DELETE", PODS "/gpt-worker-1-0", "{\"gracePeriodSeconds\":0}"),
        200);
    fake_io_run(w.io, 2000);
    expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-1", "gpt-worker-2-0");
    assert_int_equal(
        fake_apiserver_do(w.server, "PATCH", PODS "/gpt-worker-1-1",
                          "{\"metadata\":{\"labels\":{\"fleetjob.dev/job-uid\":null}}}"),
        200);
    assert_int_equal(fake_apiserver_do(w.server, "PATCH", JOBS "/gpt/status", "{\"status\":null}"),
                     200);
    restart_controller(&w);
    fake_io_run(w.io, 60000);
    expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-1", "gpt-worker-2-0");
    assert_non_null(kube_meta_label(find_pod(&w, "gpt-worker-1-1"), "fleetjob.dev/job-uid"));
    stop(&w);
}

/* ---- a policy that will not have our labels -------------------------------------------------- */

/* It takes the label off, as often as it is there, but `times` at most; returns how often. */
static int run_with_policy(struct world *w, double duration_ms, int times)
{
    int taken = 0;

    for (double t = 0; t < duration_ms; t += 5) {
        const cJSON *pod;
        fake_io_run(w->io, 5);
        pod = find_pod(w, "gpt-worker-0-0");
        if (taken == times || !pod || !kube_meta_label(pod, "fleetjob.dev/job-uid"))
            continue;
        change_label(w, "fleetjob.dev/job-uid", "null");
        taken++;
    }
    return taken;
}

static void test_pod_labels__a_label_that_is_taken_off_at_once_is_put_back(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    assert_int_equal(run_with_policy(&w, 60000, 1), 1);
    expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.workers.active"), 3);
    stop(&w);
}

/* The label cannot be restored. But there is only one pod, an event reports it, and the API server
 * is not flooded. */
static void test_pod_labels__a_label_that_stays_off_makes_no_second_pod(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job(&w);
    assert_in_range(run_with_policy(&w, 300000, 1000), 3, 12);
    expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
    assert_non_null(note_of(&w, "LabelsRemoved"));
    stop(&w);
}

/* ---- really gone ----------------------------------------------------------------------------- */

static void test_pod_labels__a_pod_that_is_deleted_at_once_is_replaced(void **state)
{
    struct world w;

    (void)state;
    start_training(&w);
    assert_int_equal(fake_apiserver_do(w.server, "DELETE", WORKER_0, NULL), 200);
    tick(&w, 2000);
    expect_pods(&w, 3, "gpt-worker-0-1", "gpt-worker-1-0", "gpt-worker-2-0");
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pod_labels__the_labels_of_others_are_nothing_to_us),
        cmocka_unit_test(test_pod_labels__our_labels_may_be_changed),
        cmocka_unit_test(test_pod_labels__a_label_that_is_taken_off_is_put_back),
        cmocka_unit_test(test_pod_labels__a_label_is_put_back_after_errors),
        cmocka_unit_test(test_pod_labels__the_next_controller_puts_it_back),
        cmocka_unit_test(test_pod_labels__a_controller_that_knows_no_attempts_puts_it_back),
        cmocka_unit_test(test_pod_labels__a_label_that_is_taken_off_at_once_is_put_back),
        cmocka_unit_test(test_pod_labels__a_label_that_stays_off_makes_no_second_pod),
        cmocka_unit_test(test_pod_labels__a_pod_that_is_deleted_at_once_is_replaced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
