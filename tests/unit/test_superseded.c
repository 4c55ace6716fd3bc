/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The status and the Lease are lost, restored from a backup or edited by hand while the members
 * train: the hub that is made from them knows less than its members do.
 */
#include "tests/unit/reconciler_fixture.h"

static void run_in(struct world *w, int64_t epoch, int64_t generation)
{
    w->running = (struct message_status){.state = MESSAGE_STATE_RUNNING,
                                         .phase = FLEET_PHASE_FIRST_STEP,
                                         .generation = {epoch, generation},
                                         .step = 40,
                                         .state_generation = {epoch, generation}};
}

static void all_say_hello(struct world *w)
{
    for (int i = 0; i < 3; i++)
        say_hello(w, i);
}

static void start_training(struct world *w, int64_t epoch, int64_t generation)
{
    make_job(w);
    fake_io_run(w->io, 2000);
    run_pods(w);
    fake_io_run(w->io, 1000);
    run_in(w, epoch, generation);
}

static void put_status(struct world *w, const char *status)
{
    FLEET_AUTO_JSON cJSON *object =
        cJSON_Duplicate(fake_apiserver_get(w->server, JOBS "/gpt"), true);
    FLEET_AUTO_FREE char *text = NULL;

    cJSON_DeleteItemFromObject(object, "status");
    if (status)
        cJSON_AddItemToObject(object, "status", cJSON_Parse(status));
    text = cJSON_PrintUnformatted(object);
    assert_int_equal(fake_apiserver_do(w->server, "PUT", JOBS "/gpt/status", text), 200);
}

static int events_with(const struct world *w, const char *text)
{
    size_t count = 0;
    FLEET_AUTO_FREE const cJSON **events = fake_apiserver_list(w->server, EVENTS, &count);
    int found = 0;

    for (size_t i = 0; i < count; i++) {
        const char *note = "";
        (void)fleet_json_opt_string(events[i], "note", &note, NULL);
        found += strstr(note, text) != NULL;
    }
    return found;
}

static void expect_undisturbed(const struct world *w, int64_t epoch, int64_t generation)
{
    assert_int_equal(number_at(w, JOBS "/gpt", "status.rendezvous.epoch"), epoch);
    assert_int_equal(number_at(w, JOBS "/gpt", "status.rendezvous.generation"), generation);
    assert_int_equal(number_at(w, JOBS "/gpt", "status.restarts.count"), 0);
    assert_string_equal(condition(w, "Running"), "True");
    assert_string_not_equal(condition(w, "Stalled"), "True");
    assert_int_equal(w->assigns, 0);
    expect_pods(w, 3, "gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0");
}

/* Lease and status are gone, so epochs count from 1 again, but the members hold generation 3 of
 * epoch 5. */
static void test_superseded__a_greater_epoch_of_the_members_is_adopted(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    start_training(&w, 5, 3);
    all_say_hello(&w);
    tick(&w, 2000);
    assert_int_equal(w.hubs, 2); /* made again */
    all_say_hello(&w);           /* their connections were closed */
    tick(&w, 15000);
    assert_int_equal(hub_epoch(w.network.hubs[0].hub), 6);
    expect_undisturbed(&w, 5, 3);
    assert_true(events_with(&w, "epoch 5") > 0);
    stop(&w);
}

/* A job that is no longer accepted keeps its hub, and has no policy to make another one by. */
static void test_superseded__a_job_that_is_not_accepted_gets_no_hub_from_nothing(void **state)
{
    size_t defects = hub_defects();
    struct world w;

    (void)state;
    start(&w, 1);
    start_training(&w, 5, 3);
    assert_int_equal(
        fake_apiserver_do(
            w.server, "PATCH", JOBS "/gpt",
            "{\"metadata\":{\"generation\":2},\"spec\":{\"worker\":{\"minReplicas\":7}}}"),
        200);
    all_say_hello(&w);
    tick(&w, 5000);
    assert_string_equal(condition(&w, "Accepted"), "False");
    assert_int_equal(hub_defects(), defects);
    assert_int_equal(w.ends, 0);
    assert_int_equal(
        fake_apiserver_do(
            w.server, "PATCH", JOBS "/gpt",
            "{\"metadata\":{\"generation\":3},\"spec\":{\"worker\":{\"minReplicas\":1}}}"),
        200);
    tick(&w, 5000);
    assert_string_equal(condition(&w, "Accepted"), "True");
    assert_int_equal(hub_epoch(w.network.hubs[0].hub), 6);
    all_say_hello(&w);
    tick(&w, 15000);
    expect_undisturbed(&w, 5, 3);
    stop(&w);
}

/* As `kubectl replace --subresource=status` with none: the hub in memory knows all that matters. */
static void test_superseded__a_status_removed_by_hand_is_written_again(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    start_training(&w, 1, 3);
    all_say_hello(&w);
    tick(&w, 2000);
    expect_undisturbed(&w, 1, 3);
    put_status(&w, NULL);
    tick(&w, 15000);
    assert_int_equal(w.hubs, 1);
    expect_undisturbed(&w, 1, 3);
    assert_true(text_at(&w, JOBS "/gpt", "status.startTime")[0] != '\0');
    stop(&w);
}

/* The same without a leader: the next hub learns it from the members. */
static void
test_superseded__a_status_removed_while_nobody_leads_is_learnt_from_the_members(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    start_training(&w, 4, 3);
    put_status(&w, NULL);
    restart_controller(&w);
    fake_io_run(w.io, 1000);
    all_say_hello(&w);
    tick(&w, 1000);
    all_say_hello(&w);
    tick(&w, 15000);
    expect_undisturbed(&w, 4, 3);
    stop(&w);
}

/* Restored from a cluster that was further: nothing may be recorded below it. */
static void test_superseded__a_greater_epoch_of_the_status_is_outranked(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    start_training(&w, 1, 3);
    all_say_hello(&w);
    tick(&w, 2000);
    put_status(&w, "{\"rendezvous\":{\"epoch\":9,\"generation\":12,\"lineage\":[{\"epoch\":9,"
                   "\"generation\":12,\"firstStep\":1}]}}");
    tick(&w, 1000);
    w.running = (struct message_status){0}; /* told to leave it, they wait for the next */
    all_say_hello(&w);
    tick(&w, 30000);
    assert_true(w.assigns >= 3);
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.rendezvous.epoch"), 10);
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.rendezvous.generation"), 13);
    stop(&w);
}

/* A replica that is not the leader any more adopts nothing: its Lease must have been renewed
 * since. */
static void test_superseded__an_epoch_is_adopted_with_a_renewed_lease_alone(void **state)
{
    struct world w;
    int hubs;

    (void)state;
    start_elected(&w, 1);
    start_training(&w, 5, 3);
    fake_io_run(w.io, 2000);
    fake_apiserver_fail(
        w.server, &(struct fake_failure){
                      .method = "PUT", .path = "/leases/fleetjob", .status = 503, .count = 2});
    hubs = w.hubs;
    all_say_hello(&w);
    tick(&w, 2500);
    assert_int_equal(w.hubs, hubs);
    assert_string_equal(condition(&w, "Stalled"), "True");
    assert_int_equal(number_at(&w, JOBS "/gpt", "status.rendezvous.epoch"), -1);
    tick(&w, 6000);
    assert_int_equal(w.hubs, hubs + 1);
    all_say_hello(&w);
    tick(&w, 15000);
    expect_undisturbed(&w, 5, 3);
    stop(&w);
}

/* Numbers of the status are 64 bits wide, those of the hub are not. */
static void test_superseded__counts_beyond_an_int_do_not_turn_around(void **state)
{
    struct world w;

    (void)state;
    start(&w, 1);
    start_training(&w, 4, 3);
    put_status(&w, "{\"rendezvous\":{\"epoch\":4,\"generation\":3,\"lineage\":[{\"epoch\":4,"
                   "\"generation\":3,\"firstStep\":1}]},\"restarts\":{\"count\":4294967295,"
                   "\"sinceReset\":-4294967295,\"ignored\":6442450943}}");
    restart_controller(&w);
    fake_io_run(w.io, 1000);
    all_say_hello(&w);
    tick(&w, 15000);
    assert_non_null(w.network.hubs[0].hub);
    assert_true(hub_restarts_total(w.network.hubs[0].hub) >= 1000000000);
    assert_true(hub_restarts_ignored(w.network.hubs[0].hub) >= 1000000000);
    assert_int_equal(hub_restarts(w.network.hubs[0].hub), 0);
    assert_string_not_equal(condition(&w, "Failed"), "True");
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_superseded__a_greater_epoch_of_the_members_is_adopted),
        cmocka_unit_test(test_superseded__a_job_that_is_not_accepted_gets_no_hub_from_nothing),
        cmocka_unit_test(test_superseded__a_status_removed_by_hand_is_written_again),
        cmocka_unit_test(
            test_superseded__a_status_removed_while_nobody_leads_is_learnt_from_the_members),
        cmocka_unit_test(test_superseded__a_greater_epoch_of_the_status_is_outranked),
        cmocka_unit_test(test_superseded__an_epoch_is_adopted_with_a_renewed_lease_alone),
        cmocka_unit_test(test_superseded__counts_beyond_an_int_do_not_turn_around),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
