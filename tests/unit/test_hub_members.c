/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub and those it cannot be sure of: members that accuse each other, connections that break,
 * silence, repeated and lost messages, pods that Kubernetes takes away.
 */
#include "tests/unit/hub_fixture.h"

/* ---- accusations ----------------------------------------------------------------------------- */

static void
test_hub_members__one_accusation_evicts_no_member_a_second_by_the_pair_does(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    accuse(0, 2);
    assert_int_equal(w.peers[1].aborts, 1);
    accuse(1, 0); /* an echo */
    restart_all(3, 1);
    assert_generation(2);
    assert_int_equal(count_events(HUB_EVENT_ISOLATED), 0);
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "PeerUnreachable");
    accuse(2, 0); /* the same two, the other way round */
    restart_all(3, 1);
    assert_int_equal(count_events(HUB_EVENT_ISOLATED), 1);
    assert_int_equal(last_event(HUB_EVENT_ISOLATED)->member, 0); /* no link tells: the accused */
    assert_int_equal(w.peers[0].leaves, 1);
    assert_generation(3);
    assert_int_equal(w.peers[1].last_assign.assign.member_count, 2);
    stop();
}

static void test_hub_members__evicts_the_member_with_fewer_working_links(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    accuse(1, 2);
    restart_all(3, 1);
    accuse(1, 0); /* now 1 has lost both others */
    restart_all(3, 1);
    accuse(1, 0);
    restart_all(3, 1);
    assert_int_equal(last_event(HUB_EVENT_ISOLATED)->member, 1);
    stop();
}

static void test_hub_members__a_seen_failure_explains_the_accusation(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    for (int i = 0; i < 2; i++) {
        accuse(0, 2);
        fail_trainer(2);
        left_generation(0);
        left_generation(1);
        ready(2);
        run(1);
    }
    assert_int_equal(count_events(HUB_EVENT_ISOLATED), 0);
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "MemberLost");
    assert_int_equal(last_event(HUB_EVENT_RESTART)->member, 2);
    assert_int_equal(hub_restarts(w.hub), 2);
    stop();
}

static void test_hub_members__an_accused_member_without_connection_is_lost_at_once(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    disconnect(2);
    assert_phase(HUB_RUNNING); /* it may be back in a moment */
    accuse(0, 2);
    assert_string_equal(last_event(HUB_EVENT_LOST)->message,
                        "its connection is broken and a peer lost it");
    restart_all(2, 1);
    assert_generation(2);
    stop();
}

/* ---- connections and time -------------------------------------------------------------------- */

static void test_hub_members__a_connection_that_comes_back_in_time_disturbs_nothing(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    disconnect(1);
    wait_quietly(400, true);
    hello(1);
    wait_quietly(5000, true);
    assert_phase(HUB_RUNNING);
    assert_generation(1);
    disconnect(1);
    wait_quietly(600, true);
    assert_phase(HUB_GATHERING);
    assert_string_equal(last_event(HUB_EVENT_LOST)->cause, "MemberLost");
    stop();
}

static void test_hub_members__a_newcomer_waits_until_a_broken_connection_is_explained(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    gone(1);
    left_generation(0);
    assert_generation(2);
    run(1);
    disconnect(0);
    w.peers[1].attempt = 1;
    ready(1); /* without the state that 0 holds, which may be dead */
    wait_quietly(300, true);
    assert_phase(HUB_RUNNING);
    hello(0); /* it is not */
    wait_quietly(300, true);
    assert_phase(HUB_GATHERING);
    left_generation(0);
    assert_generation(3);
    assert_int_equal(w.peers[0].last_assign.assign.step, 2);
    stop();
}

static void
test_hub_members__no_member_goes_on_without_a_holder_that_may_be_back_at_once(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    fail_trainer(0);
    disconnect(1);
    ready(0);
    assert_generation(1);
    hello(1);
    left_generation(1);
    assert_generation(2);
    assert_int_equal(w.peers[0].last_assign.assign.step, 1);
    stop();
}

static void test_hub_members__when_most_are_out_of_reach_it_waits_longer(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    disconnect(0);
    disconnect(1);
    wait_quietly(2000, true);
    assert_phase(HUB_RUNNING);
    hello(0);
    hello(1);
    assert_phase(HUB_RUNNING);
    assert_int_equal(w.peers[0].aborts + w.peers[1].aborts + w.peers[2].aborts, 0);
    stop();
}

static void test_hub_members__a_silent_member_is_lost_within_three_seconds(void **state)
{
    double silent_since_ms;

    (void)state;
    start(1, 2, NULL);
    form(2);
    silent_since_ms = w.now_ms;
    while (count_events(HUB_EVENT_LOST) == 0) {
        heartbeat(0);
        tick(100);
        assert_true(w.now_ms < silent_since_ms + 3000);
    }
    assert_int_equal(last_event(HUB_EVENT_LOST)->member, 1);
    assert_int_equal(w.peers[1].closed, 1);
    left_generation(0);
    run(1);
    /* the fault was when it was last heard from */
    assert_true(fabs(last_event(HUB_EVENT_RESTART)->timeline.detect_ms - 2500) < 101);
    stop();
}

static void test_hub_members__its_own_pause_is_no_members_silence(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    tick(60000); /* stopped and continued */
    assert_int_equal(count_events(HUB_EVENT_LOST), 0);
    wait_quietly(3000, true);
    assert_phase(HUB_RUNNING);
    stop();
}

static void test_hub_members__a_member_that_leaves_does_not_count_as_a_failure(void **state)
{
    struct message message = {.type = MESSAGE_LEFT, .left = {.reason = "SIGTERM"}};

    (void)state;
    start(1, 2, NULL);
    form(2);
    send_to_hub(&w.peers[1], &message);
    left_generation(0);
    run(1);
    assert_generation(2);
    assert_int_equal(hub_restarts(w.hub), 0);
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "MemberLeft");
    stop();
}

/* A member that is asked to leave finishes its step. Nothing is aborted, no member gets the blame,
 * and its last checkpoint counts although the others have gone on. */
static void test_hub_members__a_leaving_member_ends_its_step_and_is_heard_to_the_end(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    progress(0, 2, 9);
    w.peers[1].status.step = 9;
    w.peers[1].status.is_leaving = true;
    heartbeat(1);
    assert_int_equal(w.peers[0].aborts, 0);
    w.peers[0].status.step = 9;
    accuse(0, 1); /* its connections are gone: it has left at the end of step 9 */
    assert_int_equal(count_events(HUB_EVENT_LOST), 0);
    left_generation(0);
    assert_generation(2);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 1);
    checkpoint(1, 1, 9);
    assert_int_equal(last_event(HUB_EVENT_CHECKPOINT)->step.step, 9);
    assert_int_equal(w.peers[1].checkpoint_step, 9);
    run(9);
    leave(1);
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "MemberLeft");
    assert_int_equal(last_event(HUB_EVENT_RESTART)->lost_steps, 0);
    assert_int_equal(hub_restarts(w.hub), 0);
    assert_generation(2);
    stop();
}

static void test_hub_members__a_pod_that_a_smaller_wish_ends_is_a_resize(void **state)
{
    struct hub_policy smaller = policy(1, 1);
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    form(2);
    hub_configure(w.hub, &smaller, w.now_ms, &out);
    carry_out(&out);
    leave(1);
    left_generation(0);
    run(1);
    assert_string_equal(last_event(HUB_EVENT_LOST)->cause, "Resize");
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "Resize");
    assert_int_equal(hub_restarts(w.hub), 0);
    stop();
}

static void test_hub_members__refuses_one_that_restored_another_step_than_agreed(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    progress(0, 2, 9);
    fail_trainer(1);
    left_generation(0);
    ready(1);
    assert_generation(2);
    assert_int_equal(w.peers[1].last_assign.assign.step, 9);
    tell_phase(0, FLEET_PHASE_RESTORED, 9, 0);
    tell_phase(1, FLEET_PHASE_RESTORED, 4, 0);
    assert_int_equal(w.peers[1].refused, 1);
    assert_string_equal(w.peers[1].reason, "it restored step 4, agreed was step 9");
    assert_string_equal(last_event(HUB_EVENT_LOST)->cause, "WrongState");
    assert_int_equal(w.peers[0].refused, 0);
    stop();
}

static void test_hub_members__old_and_repeated_messages_change_nothing(void **state)
{
    struct message message = {.type = MESSAGE_PEER_LOST,
                              .peer_lost = {.generation = {1, 1}, .rank = 1}};
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    form(2);
    fail_trainer(1);
    left_generation(0);
    ready(1);
    run(1);
    assert_generation(2);
    send_to_hub(&w.peers[0], &message); /* of generation 1 */
    assert_phase(HUB_RUNNING);
    message.peer_lost.generation.counter = 2;
    message.sequence = w.peers[0].sequence; /* already seen */
    hub_receive(w.hub, w.peers[0].connection, &message, w.now_ms, &out);
    assert_int_equal(out.count, 0);
    assert_phase(HUB_RUNNING);
    stop();
}

static void test_hub_members__repeats_what_was_lost(void **state)
{
    (void)state;
    start(1, 2, NULL);
    ready(0);
    ready(1);
    assert_int_equal(w.peers[1].assigns, 1);
    w.now_ms += 500;
    heartbeat(1); /* still waits: the assign was lost */
    assert_int_equal(w.peers[1].assigns, 2);
    run(0);
    fail_trainer(0);
    assert_int_equal(w.peers[1].aborts, 1);
    w.now_ms += 500;
    heartbeat(1); /* still runs: the abort was lost */
    assert_int_equal(w.peers[1].aborts, 2);
    stop();
}

static void test_hub_members__one_pod_an_index(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    w.peers[1].connection = 0; /* a replacement of 1, while the old one is still connected */
    w.peers[1].attempt = 1;
    w.peers[1].status = (struct message_status){.step = -1};
    ready(1);
    assert_int_equal(last_event(HUB_EVENT_LOST)->attempt, 0);
    left_generation(0);
    assert_generation(2);
    assert_int_equal(w.peers[1].place, 1);
    w.peers[1].connection = 0; /* the old one again */
    w.peers[1].attempt = 0;
    hello(1);
    assert_int_equal(w.peers[1].refused, 1);
    assert_string_equal(w.peers[1].reason, "index 1 is held by attempt 1 of pod pod-1-1");
    stop();
}

static void test_hub_members__hello_comes_first(void **state)
{
    (void)state;
    start(1, 1, NULL);
    w.peers[0].connection = 5;
    heartbeat(0);
    assert_int_equal(w.peers[0].closed, 1);
    assert_int_equal(count_events(HUB_EVENT_JOINED), 0);
    stop();
}

#define TEST(name) cmocka_unit_test(test_hub_members__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_accusation_evicts_no_member_a_second_by_the_pair_does),
        TEST(evicts_the_member_with_fewer_working_links),
        TEST(a_seen_failure_explains_the_accusation),
        TEST(an_accused_member_without_connection_is_lost_at_once),
        TEST(a_connection_that_comes_back_in_time_disturbs_nothing),
        TEST(a_newcomer_waits_until_a_broken_connection_is_explained),
        TEST(no_member_goes_on_without_a_holder_that_may_be_back_at_once),
        TEST(when_most_are_out_of_reach_it_waits_longer),
        TEST(a_silent_member_is_lost_within_three_seconds),
        TEST(its_own_pause_is_no_members_silence),
        TEST(a_member_that_leaves_does_not_count_as_a_failure),
        TEST(a_leaving_member_ends_its_step_and_is_heard_to_the_end),
        TEST(a_pod_that_a_smaller_wish_ends_is_a_resize),
        TEST(refuses_one_that_restored_another_step_than_agreed),
        TEST(old_and_repeated_messages_change_nothing),
        TEST(repeats_what_was_lost),
        TEST(one_pod_an_index),
        TEST(hello_comes_first),
    };
    return cmocka_run_group_tests_name("hub_members", tests, NULL, NULL);
}
