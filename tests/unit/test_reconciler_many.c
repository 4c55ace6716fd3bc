/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One job of hundreds of workers, and many of one, on the fake API server: what grows with their
 * number is the pods' own requests, and nothing else. The fixture is that of test_reconciler.c.
 */
#include "tests/unit/reconciler_fixture.h"

#define WORKERS 300

static void make_job_of(struct world *w, int workers)
{
    char text[512];

    (void)snprintf(text, sizeof(text),
                   "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\","
                   "\"metadata\":{\"name\":\"gpt\"},\"spec\":{\"worker\":{\"replicas\":%d,"
                   "\"minReplicas\":1,\"template\":{\"spec\":{\"containers\":[{\"name\":"
                   "\"worker\",\"image\":\"runtime:1\",\"command\":[\"train\"]}]}}}}}",
                   workers);
    assert_int_equal(fake_apiserver_do(w->server, "POST", JOBS, text), 201);
}

static void make_big_job(struct world *w)
{
    make_job_of(w, WORKERS);
}

static size_t writes(const struct world *w)
{
    return fake_apiserver_requests(w->server, "PATCH " JOBS);
}

static void
test_reconciler_many__workers_that_are_placed_one_by_one_are_not_a_write_each(void **state)
{
    struct world w;
    size_t before, ours;
    char path[100];

    (void)state;
    start(&w, 1);
    make_big_job(&w);
    while (writes(&w) < 2) /* that it is accepted, that all pods are made */
        fake_io_run(w.io, 10);
    assert_int_equal(fake_apiserver_count(w.server, PODS), WORKERS);
    before = writes(&w);
    for (int i = 0; i < WORKERS; i++) {
        snprintf(path, sizeof(path), PODS "/gpt-worker-%d-0", i);
        assert_int_equal(
            fake_apiserver_do(w.server, "PATCH", path, "{\"spec\":{\"nodeName\":\"n\"}}"), 200);
        fake_io_run(w.io, 10);
    }
    fake_io_run(w.io, 100);
    assert_string_equal(condition(&w, "Scheduled"), "True");
    assert_in_range(writes(&w) - before, 1, 2); /* in 3 s */
    ours = fake_apiserver_requests(w.server, "") - fake_apiserver_requests(w.server, "WATCH") -
           fake_apiserver_requests(w.server, "limit=") - WORKERS - 1;
    assert_in_range(ours, WORKERS, WORKERS + 10); /* one create a worker, and a few more */
    fake_io_run(w.io, 60000);
    assert_in_range(writes(&w) - before, 1, 4); /* no more of them than there is to say */
    stop(&w);
}

/* How often a job of so many pods is looked at while one of them changes every two
 * milliseconds, which is how long the fake API server takes to say so. */
static int count_looks(int workers, int changes)
{
    struct world w;

    start(&w, 1);
    make_job_of(&w, workers);
    while (fake_apiserver_count(w.server, PODS) < (size_t)workers)
        fake_io_run(w.io, 10);
    fake_io_run(w.io, 60000);
    w.looks = 0;
    for (int i = 0; i < changes; i++) {
        char note[100];
        (void)snprintf(note, sizeof(note), "{\"metadata\":{\"annotations\":{\"n\":\"%d\"}}}", i);
        assert_int_equal(fake_apiserver_do(w.server, "PATCH", PODS "/gpt-worker-0-0", note), 200);
        fake_io_run(w.io, 2);
    }
    stop(&w);
    return w.looks;
}

/* Each look costs more the more pods there are: 0.02 ms of rest for each of 300 leave 6 ms between
 * two looks. */
static void test_reconciler_many__only_big_jobs_rest_between_looks(void **state)
{
    (void)state;
    assert_int_equal(count_looks(49, 120), 120);
    assert_in_range(count_looks(WORKERS, 120), 120 / 5, 120 / 3);
}

static void test_reconciler_many__the_first_refusal_of_many_pods_ends_the_asking(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_big_job(&w);
    while (fake_apiserver_requests(w.server, "dryRun=All") == 0)
        fake_io_run(w.io, 1);
    fake_apiserver_fail(w.server, &(struct fake_failure){.method = "POST",
                                                         .path = "/pods?fieldManager=fleetjob",
                                                         .count = WORKERS,
                                                         .status = 403,
                                                         .cause = "Forbidden"});
    while (fake_apiserver_requests(w.server, "POST " PODS) < 2)
        fake_io_run(w.io, 1);
    fake_io_run(w.io, 5);
    assert_in_range(fake_apiserver_requests(w.server, "POST " PODS), 2,
                    WORKERS / 2); /* of several looks */
    assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
    fake_io_run(w.io, 600000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), WORKERS);
    assert_non_null(find_pod(&w, "gpt-worker-299-0")); /* the others kept their numbers */
    stop(&w);
}

static void
test_reconciler_many__no_more_pods_are_made_for_a_job_that_was_changed_meanwhile(void **state)
{
    struct world w;
    size_t pods;

    (void)state;
    start(&w, 1);
    make_big_job(&w);
    while (fake_apiserver_count(w.server, PODS) < 10)
        fake_io_run(w.io, 1);
    assert_int_equal(fake_apiserver_do(w.server, "PATCH", JOBS "/gpt",
                                       "{\"spec\":{\"worker\":{\"replicas\":5}}}"),
                     200);
    fake_io_run(w.io, 20000);
    pods = fake_apiserver_requests(w.server, "POST " PODS);
    assert_in_range(pods, 10, WORKERS / 2);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 5);
    stop(&w);
}

static void post_job_called(struct world *w, const char *name, const char *container)
{
    char text[512];

    (void)snprintf(text, sizeof(text),
                   "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\","
                   "\"metadata\":{\"name\":\"%s\"},\"spec\":{\"worker\":{\"replicas\":1,"
                   "\"template\":{\"spec\":{\"containers\":[{\"name\":\"worker\",%s"
                   "\"image\":\"runtime:1\",\"command\":[\"train\"]}]}}}}}",
                   name, container);
    assert_int_equal(fake_apiserver_do(w->server, "POST", JOBS, text), 201);
}

static void make_job_called(struct world *w, const char *name, const char *container)
{
    post_job_called(w, name, container);
    fake_io_run(w->io, 2000);
}

/* A sweep: the template was found valid with the first one. */
static void test_reconciler_many__jobs_that_say_the_same_share_a_dry_run(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    make_job_called(&w, "a", "");
    make_job_called(&w, "b", "");
    make_job_called(&w, "train", "");
    assert_int_equal(fake_apiserver_count(w.server, PODS), 3);
    assert_int_equal(fake_apiserver_requests(w.server, "dryRun=All"), 1);
    make_job_called(&w, "c", "\"tty\":true,");
    assert_int_equal(fake_apiserver_requests(w.server, "dryRun=All"), 2);
    fake_io_run(w.io, 601000); /* the server may be another one by now */
    make_job_called(&w, "d", "");
    assert_int_equal(fake_apiserver_requests(w.server, "dryRun=All"), 3);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 5);
    stop(&w);
}

static void test_reconciler_many__jobs_that_come_together_share_a_dry_run(void **state)
{
    static const char *const names[] = {"a", "b", "c", "train"};

    (void)state;
    for (int failures = 0; failures < 2; failures++) {
        struct world w;

        start(&w, 1);
        if (failures > 0)
            fake_apiserver_fail(w.server, &(struct fake_failure){.method = "POST",
                                                                 .path = "dryRun=All",
                                                                 .count = failures,
                                                                 .status = 422});
        for (size_t i = 0; i < FLEET_COUNT(names); i++)
            post_job_called(&w, names[i], "");
        fake_io_run(w.io, 2000);
        assert_int_equal(fake_apiserver_count(w.server, PODS), 4 - failures);
        assert_int_equal(fake_apiserver_requests(w.server, "dryRun=All"), 1 + failures);
        stop(&w);
    }
}

static void test_reconciler_many__a_template_that_was_refused_is_tried_again(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    fake_apiserver_fail(
        w.server,
        &(struct fake_failure){.method = "POST", .path = "dryRun=All", .count = 1, .status = 422});
    make_job_called(&w, "a", "");
    assert_int_equal(fake_apiserver_count(w.server, PODS), 0);
    make_job_called(&w, "b", "");
    assert_int_equal(fake_apiserver_requests(w.server, "dryRun=All"), 2);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 1);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_reconciler_many__workers_that_are_placed_one_by_one_are_not_a_write_each),
        cmocka_unit_test(test_reconciler_many__only_big_jobs_rest_between_looks),
        cmocka_unit_test(test_reconciler_many__the_first_refusal_of_many_pods_ends_the_asking),
        cmocka_unit_test(
            test_reconciler_many__no_more_pods_are_made_for_a_job_that_was_changed_meanwhile),
        cmocka_unit_test(test_reconciler_many__jobs_that_say_the_same_share_a_dry_run),
        cmocka_unit_test(test_reconciler_many__jobs_that_come_together_share_a_dry_run),
        cmocka_unit_test(test_reconciler_many__a_template_that_was_refused_is_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
