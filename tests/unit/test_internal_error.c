/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A broken invariant of one job (controller/fleetjob/internal_error.c): planted where a pass of the
 * job "gpt" decides, or in its hub, while a whole controller manages others on the fake API
 * server.
 */
#include "tests/unit/reconciler_fixture.h"

#define OTHERS 100

static void make_others(struct world *w)
{
    FLEET_AUTO_JSON cJSON *job = cJSON_Parse(JOB_TEXT);
    char name[32];

    for (int i = 0; i < OTHERS; i++) {
        FLEET_AUTO_FREE char *text = NULL;
        (void)snprintf(name, sizeof(name), "other-%d", i);
        cJSON_ReplaceItemInObject(cJSON_GetObjectItem(job, "metadata"), "name",
                                  cJSON_CreateString(name));
        text = fleet_json_print(job);
        assert_int_equal(fake_apiserver_do(w->server, "POST", JOBS, text), 201);
    }
}

/* Message of the job's condition InternalError; "" = it has none. */
static const char *internal_error(const struct world *w)
{
    const char *message = "";

    (void)fleet_json_opt_string(
        kube_condition_find(
            fleet_json_at(fake_apiserver_get(w->server, JOBS "/gpt"), "status.conditions"),
            "InternalError"),
        "message", &message, NULL);
    return message;
}

static void expect_errors(const struct world *w, int count)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char line[64];

    metrics_print(w->metrics, &text);
    (void)snprintf(line, sizeof(line), "fleetjob_internal_errors_total %d\n", count);
    if (!strstr(text.text, line))
        fail_msg("no line %s in\n%s", line, text.text);
}

static void test_internal_error__the_other_jobs_go_on_and_this_one_recovers(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    w.planted = 5;
    make_job(&w);
    make_others(&w);
    fake_io_run(w.io, 5000);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 3 * OTHERS);
    assert_string_equal(condition(&w, "InternalError"), "True");
    assert_non_null(strstr(internal_error(&w), "planted by the test"));
    assert_int_equal(w.ends, 0);
    fake_io_run(w.io, 60000); /* 1, 2, 4, 8, 16 s */
    assert_int_equal(w.planted, 0);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 3 * OTHERS + 3);
    assert_string_equal(condition(&w, "InternalError"), "False");
    assert_string_equal(condition(&w, "Accepted"), "True");
    expect_errors(&w, 5);
    stop(&w);
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
    assert_int_equal(number_at(w, JOBS "/gpt", "status.rendezvous.generation"), 1);
    assert_int_equal(w->hubs, 1);
}

/* Its hub is kept, so the members notice nothing, and pods are replaced again afterwards. */
static void test_internal_error__a_job_that_trains_goes_on(void **state)
{
    struct world w;

    (void)state;
    start_training(&w);
    w.planted = 1;
    set_pod(&w, "gpt-worker-1-0", "{\"status\":{\"phase\":\"Failed\"}}");
    tick(&w, 500);
    assert_string_equal(condition(&w, "InternalError"), "True");
    tick(&w, 20000);
    assert_string_equal(condition(&w, "InternalError"), "False");
    assert_int_equal(w.hubs, 1);
    expect_pods(&w, 4, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-1-1", "gpt-worker-2-0");
    stop(&w);
}

/* The write of the condition takes longer than the wait that follows it. */
static void test_internal_error__a_condition_that_cannot_be_written_delays_nothing(void **state)
{
    struct world w;

    (void)state;
    start_training(&w);
    w.planted = 1;
    set_pod(&w, "gpt-worker-1-0", "{\"status\":{\"phase\":\"Failed\"}}");
    while (w.planted > 0)
        fake_io_run(w.io, 1);
    fake_io_weather(w.io)->lost_request = 1;
    fake_io_run(w.io, 15000);
    fake_io_weather(w.io)->lost_request = 0;
    tick(&w, 60000);
    assert_true(w.troubles > 0);
    assert_non_null(find_pod(&w, "gpt-worker-1-1"));
    stop(&w);
}

static void test_internal_error__the_hub_is_made_anew_if_it_happens_again(void **state)
{
    struct world w;

    (void)state;
    start_training(&w);
    w.planted = 2;
    set_pod(&w, "gpt-worker-1-0", "{\"status\":{\"phase\":\"Failed\"}}");
    fake_io_run(w.io, 20000);
    assert_string_equal(condition(&w, "InternalError"), "False");
    assert_int_equal(w.hubs, 2);
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.rendezvous.generation"), 1);
    expect_errors(&w, 2);
    stop(&w);
}

/* Time never goes back, says an assertion at the beginning of each call (hub.c): the next one,
 * however it is, fails. */
static void plant_in_hub(struct world *w)
{
    struct hub_output out = {0};

    for (size_t i = 0; i < FLEET_COUNT(w->network.hubs); i++)
        if (w->network.hubs[i].hub &&
            strcmp(w->network.hubs[i].job_uid, text_at(w, JOBS "/gpt", "metadata.uid")) == 0)
            hub_tick(w->network.hubs[i].hub, network_now(w) + 1e9, &out);
    hub_output_release(&out); /* no one receives its later messages */
}

static int count_hubs(const struct world *w)
{
    int count = 0;

    for (size_t i = 0; i < FLEET_COUNT(w->network.hubs); i++)
        count += w->network.hubs[i].hub != NULL && !hub_defect(w->network.hubs[i].hub);
    return count;
}

/* The members come to the hub that was made from the status, and train on in the same
 * generation. */
static void test_internal_error__a_hub_that_breaks_is_made_anew_from_the_status(void **state)
{
    size_t defects = hub_defects();
    struct world w;

    (void)state;
    start_training(&w);
    w.running = (struct message_status){.state = MESSAGE_STATE_RUNNING,
                                        .generation = {1, 1},
                                        .phase = FLEET_PHASE_FIRST_STEP,
                                        .step = 7};
    tick(&w, 3000);
    assert_string_equal(condition(&w, "Running"), "True");
    plant_in_hub(&w);
    tick(&w, 300);
    assert_string_equal(condition(&w, "InternalError"), "True");
    assert_non_null(strstr(internal_error(&w), "hub: libfleet/rendezvous/hub.c:"));
    assert_int_equal(hub_defects(), defects + 1);
    assert_int_equal(count_hubs(&w), 0);
    tick(&w, 3000);
    assert_int_equal(count_hubs(&w), 1);
    for (int i = 0; i < 3; i++)
        say_hello(&w, i);
    w.running.step = 8;
    tick(&w, 20000);
    assert_string_equal(condition(&w, "InternalError"), "False");
    assert_string_equal(condition(&w, "Running"), "True");
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.rendezvous.generation"), 1);
    assert_true(number_at(&w, JOBS "/gpt", "status.restarts.count") <= 0);
    assert_int_equal(w.hubs, 2);
    expect_pods(&w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
    expect_errors(&w, 1);
    stop(&w);
}

/* 1, 2, 4 … 300 s, and up to a quarter more; after ten minutes without one it begins again. */
static void test_internal_error__hubs_that_break_again_and_again_come_ever_later(void **state)
{
    double last_ms = 0, gap_ms = 0;
    struct world w;

    (void)state;
    start_training(&w);
    make_others(&w);
    fake_io_run(w.io, 5000);
    for (int i = 0; i < 12; i++) {
        int hubs = w.hubs;
        plant_in_hub(&w);
        while (w.hubs == hubs)
            tick(&w, 100);
        gap_ms = network_now(&w) - last_ms;
        last_ms = network_now(&w);
    }
    assert_true(gap_ms >= 300000 && gap_ms <= 380000);
    expect_errors(&w, 12);
    assert_int_equal(count_hubs(&w), OTHERS + 1); /* all the others are what they were */
    assert_int_equal(w.hubs, OTHERS + 13);
    assert_int_equal(fake_apiserver_count(w.server, PODS), 3 * OTHERS + 3);
    fake_io_run(w.io, 700000);
    plant_in_hub(&w);
    tick(&w, 5000);
    assert_int_equal(w.hubs, OTHERS + 14);
    stop(&w);
}

static void fail_inside(void *user)
{
    ++*(int *)user;
    fleet_assert(!"inner");
    ++*(int *)user;
}

static void fail_after_inside(void *user)
{
    char text[128];

    assert_false(fleet_assert_guard(fail_inside, user, text, sizeof(text)));
    assert_non_null(strstr(text, "inner"));
    fleet_assert(!"outer");
}

static void test_internal_error__a_guard_ends_the_work_and_may_be_nested(void **state)
{
    char text[128] = "";
    int count = 0;

    (void)state;
    assert_false(fleet_assert_guard(fail_after_inside, &count, text, sizeof(text)));
    assert_non_null(strstr(text, "outer"));
    assert_int_equal(count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_internal_error__the_other_jobs_go_on_and_this_one_recovers),
        cmocka_unit_test(test_internal_error__a_job_that_trains_goes_on),
        cmocka_unit_test(test_internal_error__a_condition_that_cannot_be_written_delays_nothing),
        cmocka_unit_test(test_internal_error__the_hub_is_made_anew_if_it_happens_again),
        cmocka_unit_test(test_internal_error__a_hub_that_breaks_is_made_anew_from_the_status),
        cmocka_unit_test(test_internal_error__hubs_that_break_again_and_again_come_ever_later),
        cmocka_unit_test(test_internal_error__a_guard_ends_the_work_and_may_be_nested),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
