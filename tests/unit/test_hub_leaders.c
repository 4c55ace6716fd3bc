/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A hub and those before and after it: records that cannot be written, restarts that are counted
 * once, what a new hub learns from its members.
 */
#include <limits.h>

#include "tests/unit/hub_fixture.h"
#include "tests/unit/hub_takeover_fixture.h"

/* ---- records and other hubs ------------------------------------------------------------------ */

static void test_hub_members__without_a_record_only_a_majority_goes_on(void **state)
{
    struct hub_output out = {0};

    (void)state;
    start(1, 3, NULL);
    form(3);
    w.confirms = false;
    gone(2);
    left_generation(0);
    left_generation(1);
    hub_record_failed(w.hub, w.record.generation, w.now_ms, &out);
    carry_out(&out);
    assert_generation(2); /* 2 of 3 */
    assert_int_equal(w.records, 2);
    tick(1000);
    assert_int_equal(w.records, 3); /* asked for again */
    hub_record_done(w.hub, w.record.generation, w.now_ms, &out);
    carry_out(&out);
    run(1);
    gone(1);
    left_generation(0);
    hub_record_failed(w.hub, w.record.generation, w.now_ms, &out);
    carry_out(&out);
    assert_generation(2); /* 1 of 2 is no majority */
    assert_phase(HUB_RECORDING);
    tick(999);
    assert_int_equal(w.records, 4);
    tick(1);
    assert_int_equal(w.records, 5);
    hub_record_done(w.hub, w.record.generation, w.now_ms, &out);
    carry_out(&out);
    assert_generation(3);
    stop();
}

/* What a record says of failures that were counted meanwhile: its leader may be lost with the next
 * write. */
static void test_hub_members__a_late_record_counts_what_could_not_be_written(void **state)
{
    struct hub_output out = {0};

    (void)state;
    start(1, 3, NULL);
    form(3);
    w.confirms = false;
    for (int i = 0; i < 2; i++) { /* generations 2 and 3 without a record */
        fail_trainer(0);
        left_generation(1);
        left_generation(2);
        ready(0);
        tick(300);
        assert_int_equal(w.record.generation.counter, i + 2);
        assert_int_equal(w.record.restarts_total, i + 1);
        assert_int_equal(w.record.untold, i);
        hub_record_failed(w.hub, w.record.generation, w.now_ms, &out);
        carry_out(&out);
        assert_generation(i + 2);
        run(-1);
    }
    tick(1000);
    assert_int_equal(w.record.generation.counter, 3);
    assert_int_equal(w.record.untold, 1); /* the last one has its words */
    hub_record_done(w.hub, w.record.generation, w.now_ms, &out);
    carry_out(&out);
    w.confirms = true;
    fail_trainer(0);
    left_generation(1);
    left_generation(2);
    ready(0);
    tick(300);
    assert_generation(4);
    assert_int_equal(w.record.untold, 0);
    stop();
}

/* A later record includes an earlier one: the earlier one is not written after it. */
static void test_hub_members__an_earlier_record_does_not_follow_a_later_one(void **state)
{
    struct hub_output out = {0};

    (void)state;
    start(1, 3, NULL);
    form(3);
    w.confirms = false;
    gone(2);
    left_generation(0);
    left_generation(1);
    hub_record_failed(w.hub, w.record.generation, w.now_ms, &out);
    carry_out(&out);
    assert_generation(2);
    run(1);
    w.peers[2].attempt = 1;
    w.peers[2].status = (struct message_status){.step = -1};
    ready(2);
    tick(300);
    left_generation(0);
    left_generation(1);
    assert_phase(HUB_RECORDING);
    assert_int_equal(w.record.generation.counter, 3);
    fail_trainer(1); /* it was chosen: the proposal is given up */
    for (int i = 0; i < 30; i++) {
        tick(100);
        assert_true(w.record.generation.counter >= 3);
    }
    stop();
}

/* The one that holds the state is given up, and comes back while the generation that does without
 * it waits for its record. */
static void
test_hub_members__who_comes_back_with_the_state_is_not_left_out_for_a_slow_record(void **state)
{
    struct hub_output out = {0};
    struct fleet_generation first;

    (void)state;
    start(1, 2, NULL);
    form(2);
    w.confirms = false;
    fail_trainer(1);
    hub_disconnected(w.hub, w.peers[0].connection, w.now_ms, &out);
    carry_out(&out);
    w.peers[0].connection = 0;
    ready(1);
    wait_quietly(40000, true); /* longer than timeout_ms */
    assert_phase(HUB_RECORDING);
    first = w.record.generation;
    w.peers[0].status.state = MESSAGE_STATE_WAITING;
    hello(0);
    hub_record_done(w.hub, first, w.now_ms, &out);
    carry_out(&out);
    hub_record_done(w.hub, w.record.generation, w.now_ms, &out);
    carry_out(&out);
    assert_int_equal(w.peers[0].last_assign.assign.generation.counter, first.counter + 1);
    assert_int_equal(w.peers[0].last_assign.assign.step, 1);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/* ---- restarts are counted once, across leaders ----------------------------------------------- */

static void test_hub_members__a_restart_is_recorded_with_the_generation_it_leads_to(void **state)
{
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    form(2);
    w.confirms = false;
    gone(1);
    assert_int_equal(hub_restarts(w.hub), 0); /* nothing has been started again yet */
    left_generation(0);
    assert_int_equal(w.record.restarts, 1);
    assert_int_equal(w.record.restarts_total, 1);
    assert_string_equal(w.record.cause, "MemberLost");
    assert_int_equal(w.record.member, 1);
    hub_record_done(w.hub, w.record.generation, w.now_ms, &out);
    carry_out(&out);
    assert_int_equal(hub_restarts(w.hub), 1);
    assert_int_equal(hub_restarts_total(w.hub), 1);
    assert_int_equal(w.peers[0].last_assign.assign.restarts, 1);
    stop();
}

/* A status that was written by hand, and a member that claims as many: later restarts count on. */
static void test_hub_members__counts_on_from_any_number_of_restarts(void **state)
{
    struct hub_start s = {.restarts_total = INT_MAX, .restarts_ignored = INT_MAX};
    int before;

    (void)state;
    for (int by_member = 0; by_member < 2; by_member++) {
        start(1, 1, by_member ? &(struct hub_start){.recorded = {1, 4}} : &s);
        if (by_member) {
            remember(0, 1);
            w.peers[0].last_assign.assign.restarts = INT_MAX;
            hello(0);
        } else {
            form(1);
        }
        before = hub_restarts_total(w.hub);
        assert_int_equal(before, 1000000000);
        if (!by_member) { /* else they are used up */
            fail_trainer(0);
            ready(0);
            assert_int_equal(hub_restarts_total(w.hub), before + 1);
            assert_int_equal(w.peers[0].last_assign.assign.restarts, before + 1);
        }
        stop();
    }
}

/* Its trainer failed in generation (1, 5) while there was no hub, and was started again. */
static void test_hub_members__a_failure_reported_late_ends_no_newer_generation(void **state)
{
    struct message failed = {.type = MESSAGE_FAILED,
                             .failed = {.generation = {1, 5},
                                        .exit_code = -1,
                                        .signal = 9,
                                        .cause = "",
                                        .is_back = true,
                                        .lines = "boom"}};

    (void)state;
    take_over("MemberLost");
    send_to_hub(&w.peers[0], &failed);
    assert_int_equal(last_event(HUB_EVENT_TRAINER_FAILED)->exit_code, 137); /* told all the same */
    assert_phase(HUB_RUNNING);
    assert_int_equal(hub_restarts_total(w.hub), 1);
    failed.failed.is_back = false; /* it failed before the assign reached it: it is down */
    send_to_hub(&w.peers[0], &failed);
    assert_phase(HUB_GATHERING);
    stop();
}

/* The hub that would have learnt of it was lost at that moment; the member that leaves comes
 * first. */
static void
test_hub_members__a_failure_that_no_hub_has_seen_counts_though_another_leaves(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40, .has_trained = true};

    (void)state;
    start(1, 2, &s);
    for (int i = 0; i < 3; i++) {
        remember(i, 3);
        w.peers[i].status.state = MESSAGE_STATE_WAITING;
    }
    w.peers[2].status.is_leaving = true;
    w.peers[1].left_for = "TrainerFailed";
    w.peers[1].status.step = -1;
    hello(2);
    hello(0);
    hello(1);
    leave(2);
    assert_generation(6);
    run(40);
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "TrainerFailed");
    assert_int_equal(hub_restarts_total(w.hub), 1);
    stop();
}

/* The only one of the generation that is left says it, and was asked to go. */
static void test_hub_members__a_failure_that_only_a_leaver_knows_counts(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40, .has_trained = true};

    (void)state;
    start(1, 1, &s);
    remember(1, 2);
    w.peers[1].status.state = MESSAGE_STATE_WAITING;
    w.peers[1].status.is_leaving = true;
    w.peers[1].left_for = "TrainerFailed";
    hello(1);
    leave(1);
    w.peers[0].attempt = 1;
    ready(0);
    wait_quietly(10500, true);
    assert_generation(6);
    assert_int_equal(hub_restarts_total(w.hub), 1);
    stop();
}

/*
 * Generation 6 could not be recorded, and ended with a resize. Worker 2 was frozen in generation 5
 * and comes first; it only knows that a later generation was made (SEED=4002027516).
 */
static void test_hub_members__one_that_was_left_behind_explains_nothing(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40, .has_trained = true};

    (void)state;
    start(1, 3, &s);
    for (int i = 0; i < 3; i++) {
        remember(i, i == 2 ? 3 : 2);
        w.peers[i].status.state = MESSAGE_STATE_WAITING;
        w.peers[i].left_for = i == 2 ? "Superseded" : "Resize";
        if (i < 2)
            w.peers[i].status.generation = w.peers[i].status.state_generation =
                (struct fleet_generation){1, 6};
    }
    hello(2);
    hello(0);
    hello(1);
    wait_quietly(1000, true);
    assert_generation(7);
    run(40);
    assert_int_equal(hub_restarts_total(w.hub), 0);
    stop();
}

/* No member of the later generation comes: it has failed. */
static void test_hub_members__one_that_was_left_behind_waits_for_the_others(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40, .has_trained = true};

    (void)state;
    start(1, 1, &s);
    remember(0, 3);
    w.peers[0].status.state = MESSAGE_STATE_WAITING;
    w.peers[0].left_for = "Superseded";
    hello(0);
    wait_quietly(9000, true);
    assert_int_equal(w.peers[0].assigns, 1);
    wait_quietly(35000, true);
    assert_true(w.peers[0].assigns > 1);
    assert_int_equal(hub_restarts_total(w.hub), 1);
    stop();
}

static void newcomers_only(bool has_trained, bool is_alone)
{
    struct hub_start s = {.epoch = 2,
                          .recorded = {1, 5},
                          .restarts_total = 4,
                          .has_trained = has_trained,
                          .is_alone = is_alone};

    start(1, 1, &s);
    w.peers[0].attempt = 1;
    ready(0);
    wait_quietly(10500, true);
    assert_generation(6);
}

static void test_hub_members__a_generation_without_members_has_failed(void **state)
{
    (void)state;
    for (int is_alone = 0; is_alone < 2; is_alone++) {
        newcomers_only(true, is_alone);
        assert_int_equal(hub_restarts_total(w.hub), 5);
        assert_int_equal(w.record.restarts_total, 5);
        stop();
        newcomers_only(false, is_alone); /* never begun, or suspended */
        assert_int_equal(hub_restarts_total(w.hub), 4);
        stop();
    }
}

static void
test_hub_members__a_pod_with_a_dead_trainer_is_not_left_out_for_a_slow_record(void **state)
{
    (void)state;
    left_behind();
    w.confirms = false;
    wait_quietly(10500, true);
    assert_phase(HUB_RECORDING); /* worker 0 alone */
    hello(1);
    assert_phase(HUB_GATHERING);
    w.confirms = true;
    w.peers[1].status.state = MESSAGE_STATE_WAITING;
    hello(1);
    assert_int_equal(w.peers[0].last_assign.assign.step, 40);
    stop();
}

static void test_hub_members__stops_when_a_member_knows_a_newer_hub(void **state)
{
    struct hub_start s = {.epoch = 2};

    (void)state;
    start(1, 1, &s);
    w.peers[0].status =
        (struct message_status){.state = MESSAGE_STATE_WAITING, .generation = {3, 9}, .step = -1};
    hello(0);
    assert_int_equal(count_events(HUB_EVENT_SUPERSEDED), 1);
    assert_true(isinf(hub_deadline(w.hub)));
    tick(60000);
    assert_int_equal(w.records, 0);
    stop();
}

#define TEST(name) cmocka_unit_test(test_hub_members__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(without_a_record_only_a_majority_goes_on),
        TEST(a_late_record_counts_what_could_not_be_written),
        TEST(an_earlier_record_does_not_follow_a_later_one),
        TEST(a_restart_is_recorded_with_the_generation_it_leads_to),
        TEST(counts_on_from_any_number_of_restarts),
        TEST(a_failure_reported_late_ends_no_newer_generation),
        TEST(a_failure_that_no_hub_has_seen_counts_though_another_leaves),
        TEST(a_failure_that_only_a_leaver_knows_counts),
        TEST(one_that_was_left_behind_explains_nothing),
        TEST(one_that_was_left_behind_waits_for_the_others),
        TEST(a_generation_without_members_has_failed),
        TEST(who_comes_back_with_the_state_is_not_left_out_for_a_slow_record),
        TEST(a_pod_with_a_dead_trainer_is_not_left_out_for_a_slow_record),
        TEST(stops_when_a_member_knows_a_newer_hub),
    };
    return cmocka_run_group_tests_name("hub_leaders", tests, NULL, NULL);
}
