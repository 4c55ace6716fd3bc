/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub and the state that members hold: how long it waits for a member that alone holds the
 * newest step, and what it reports when that state is lost.
 */
#include "tests/unit/hub_fixture.h"

/* ---- progress and checkpoints ---------------------------------------------------------------- */

static void test_hub_steps__says_loudly_that_the_state_is_lost(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    progress(0, 2, 40);
    gone(0);
    gone(1);
    w.peers[0].attempt = w.peers[1].attempt = 1;
    w.peers[0].status = w.peers[1].status = (struct message_status){.step = -1};
    ready(0);
    ready(1);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 1);
    assert_int_equal(last_event(HUB_EVENT_STATE_LOST)->lost_steps, 40);
    assert_non_null(strstr(last_event(HUB_EVENT_STATE_LOST)->message, "there is no checkpoint"));
    run(0);
    assert_int_equal(last_event(HUB_EVENT_RESTART)->lost_steps, 40);
    stop();
}

/* Two of three die while the third, which was left behind, is out of reach: it is waited for, and
 * what it holds is better than nothing. */
static void test_hub_steps__waits_for_a_frozen_member_that_alone_holds_state(void **state)
{
    (void)state;
    start(1, 3, NULL);
    form(3);
    progress(0, 2, 10);
    w.peers[2].status.step = 10;
    heartbeat(2);
    disconnect(2); /* frozen */
    wait_quietly(1000, true);
    left_generation(0);
    left_generation(1);
    run(10);
    progress(0, 11, 30);
    assert_generation(2);
    fail_trainer(0);
    fail_trainer(1);
    ready(0);
    ready(1);
    wait_quietly(20000, true);
    assert_generation(2); /* they wait */
    assert_string_equal(last_event(HUB_EVENT_STALLED)->cause, "HolderAway");
    assert_int_equal(last_event(HUB_EVENT_STALLED)->generation.counter, 2);
    ready(2); /* it thaws */
    assert_generation(3);
    assert_int_equal(w.peers[0].last_assign.assign.step, 10);
    assert_int_equal(w.peers[0].last_assign.assign.members[0].step, -1);
    assert_int_equal(last_event(HUB_EVENT_STATE_LOST)->lost_steps, 20);
    run(0);
    assert_int_equal(last_event(HUB_EVENT_RESTART)->lost_steps, 20);
    stop();
}

/* It is back, but its trainer has yet to leave the generation that it was stopped in. */
static void test_hub_steps__waits_for_a_holder_that_is_just_back(void **state)
{
    (void)state;
    start(1, 3, NULL);
    form(3);
    progress(0, 2, 10);
    w.peers[2].status.step = 10;
    heartbeat(2);
    wait_quietly(600000, true);
    disconnect(2); /* frozen */
    wait_quietly(1000, true);
    left_generation(0);
    left_generation(1);
    run(10);
    progress(0, 11, 30);
    fail_trainer(0);
    fail_trainer(1);
    ready(0);
    ready(1);
    hello(2); /* and still in the first generation */
    wait_quietly(1000, true);
    assert_generation(2);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    left_generation(2);
    assert_generation(3);
    assert_int_equal(w.peers[0].last_assign.assign.step, 10);
    stop();
}

static void test_hub_steps__waits_no_longer_for_a_member_that_is_known_to_be_dead(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    progress(0, 2, 10);
    w.peers[1].status.step = 10;
    heartbeat(1);
    disconnect(1);
    wait_quietly(1000, true);
    fail_trainer(0);
    ready(0);
    wait_quietly(1000, true);
    assert_phase(HUB_GATHERING);
    gone(1); /* now the API says so */
    wait_quietly(1000, true);
    assert_true(hub_generation(w.hub).counter > 1);
    assert_int_equal(w.peers[0].last_assign.assign.step, -1);
    stop();
}

static void test_hub_steps__waits_until_one_that_leaves_has_saved_what_it_alone_holds(void **state)
{
    struct hub_policy p = policy(1, 1);
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    form(2);
    hub_configure(w.hub, &p, w.now_ms, &out);
    carry_out(&out);
    left_generation(0);
    left_generation(1);
    assert_int_equal(w.peers[1].leaves, 1); /* it saves step 1 */
    w.peers[1].status.is_leaving = true;
    w.peers[1].place = -1;
    run(1);
    fail_trainer(0);
    ready(0);
    wait_quietly(1000, true);
    assert_generation(2);
    checkpoint(1, 1, 1);
    leave(1);
    assert_generation(3);
    assert_int_equal(w.record.first_step, 2);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/* It is known from the report of the steps: the next heartbeat, which tells its state, is still to
 * come. */
static void test_hub_steps__one_of_two_trainers_keeps_what_it_has_reported(void **state)
{
    (void)state;
    start(1, 1, NULL);
    w.peers[0].processes = 2;
    form(1);
    checkpoint(0, 1, 1);
    ready(1); /* holds nothing */
    progress(0, 2, 3);
    fail_trainer(0);
    assert_phase(HUB_GATHERING);
    w.peers[0].status.step = 3;
    w.peers[0].status.state_generation = hub_generation(w.hub);
    ready(0);
    assert_generation(2);
    assert_int_equal(w.peers[0].last_assign.assign.step, 3);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

#define TEST(name) cmocka_unit_test(test_hub_steps__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(says_loudly_that_the_state_is_lost),
        TEST(waits_for_a_frozen_member_that_alone_holds_state),
        TEST(waits_for_a_holder_that_is_just_back),
        TEST(waits_no_longer_for_a_member_that_is_known_to_be_dead),
        TEST(waits_until_one_that_leaves_has_saved_what_it_alone_holds),
        TEST(one_of_two_trainers_keeps_what_it_has_reported),
    };
    return cmocka_run_group_tests_name("hub_state", tests, NULL, NULL);
}
