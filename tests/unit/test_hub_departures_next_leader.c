/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Pods that Kubernetes takes away, under the hub of the next leader: what a departure explains of
 * the generation that the former hub left behind, and what it does not explain.
 */
#include "tests/unit/hub_fixture.h"

/* The next hub of a job whose members were in generation (1, 5) and that may not restart. */
static void take_over(int min, int desired, int members)
{
    struct hub_start s = {.epoch = 2,
                          .recorded = {1, 5},
                          .recorded_members = members,
                          .progress_step = 40,
                          .has_trained = true};
    struct hub_policy p = policy(min, desired);
    struct hub_output out = {0};

    start(min, desired, &s);
    p.restarts_max = 0;
    hub_configure(w.hub, &p, w.now_ms, &out);
    carry_out(&out);
    for (int i = 0; i < members; i++) {
        remember(i, members);
        w.peers[i].status.state = MESSAGE_STATE_WAITING;
    }
}

/* A new pod in the place of peer `index`. */
static void begin_anew(int index)
{
    if (w.peers[index].assigns > 0)
        message_release(&w.peers[index].last_assign);
    w.peers[index] = (struct peer){
        .attempt = 1, .processes = 1, .place = -1, .level = FLEET_ISA_AMX, .status.step = -1};
}

static void assert_wanted(const char *cause, int member)
{
    assert_generation(6);
    run(40);
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, cause);
    assert_int_equal(last_event(HUB_EVENT_RESTART)->member, member);
    assert_int_equal(count_events(HUB_EVENT_FAILED), 0);
    assert_int_equal(hub_restarts_total(w.hub), 0);
}

/* The survivor lost it in the middle of a step and comes first. */
static void test_hub_departures__are_known_before_the_member_comes(void **state)
{
    (void)state;
    take_over(1, 1, 2);
    departs(1, FLEET_CAUSE_EVICTED);
    hello(0);
    w.peers[1].status.is_leaving = true;
    hello(1);
    leave(1);
    assert_wanted("Evicted", 1);
    stop();
}

static void test_hub_departures__explain_a_member_that_never_comes(void **state)
{
    (void)state;
    take_over(1, 1, 2);
    departs(1, FLEET_CAUSE_PREEMPTED);
    hello(0);
    wait_quietly(12000, true);
    assert_wanted("Preempted", 1);
    stop();
}

/* The survivor has not noticed yet when it comes. */
static void test_hub_departures__explain_a_lost_peer(void **state)
{
    (void)state;
    take_over(1, 1, 2);
    departs(1, FLEET_CAUSE_EVICTED);
    w.peers[0].status.state = MESSAGE_STATE_RUNNING;
    hello(0);
    accuse(0, 1);
    left_generation(0);
    wait_quietly(12000, true);
    assert_wanted("Evicted", 1);
    stop();
}

/* It hangs in a step that will not end. */
static void test_hub_departures__explain_a_member_that_nobody_misses(void **state)
{
    (void)state;
    take_over(1, 1, 2);
    departs(1, FLEET_CAUSE_EVICTED);
    w.peers[0].status.state = MESSAGE_STATE_RUNNING;
    hello(0);
    wait_quietly(21000, true);
    assert_phase(HUB_GATHERING);
    left_generation(0);
    assert_wanted("Evicted", 1);
    stop();
}

static void test_hub_departures__of_all_members_are_no_failure(void **state)
{
    (void)state;
    take_over(1, 2, 2);
    departs(0, FLEET_CAUSE_EVICTED);
    departs(1, FLEET_CAUSE_EVICTED);
    for (int i = 0; i < 2; i++) {
        begin_anew(i);
        ready(i);
    }
    wait_quietly(11000, true);
    assert_wanted("Evicted", 0);
    stop();
}

/* The former hub had ended the generation, and did not know why the member went. */
static void test_hub_departures__say_more_than_the_former_hub(void **state)
{
    (void)state;
    take_over(1, 1, 2);
    departs(1, FLEET_CAUSE_EVICTED);
    w.peers[0].left_for = "MemberLeft";
    hello(0);
    wait_quietly(12000, true);
    assert_wanted("Evicted", 1);
    stop();
}

/* … and this one hears it when the generation has ended. */
static void test_hub_departures__come_after_what_the_former_hub_said(void **state)
{
    (void)state;
    take_over(1, 1, 2);
    w.peers[0].left_for = "MemberLeft";
    hello(0);
    departs(1, FLEET_CAUSE_EVICTED);
    wait_quietly(12000, true);
    assert_wanted("Evicted", 1);
    stop();
}

/* kubectl delete pod */
static void test_hub_departures__of_deleted_pods_are_no_failure(void **state)
{
    (void)state;
    take_over(1, 1, 2);
    departs(1, FLEET_CAUSE_MEMBER_LEFT);
    hello(0);
    wait_quietly(12000, true);
    assert_wanted("MemberLeft", 1);
    stop();
}

/* ---- what they do not explain ---------------------------------------------------------------- */

static void test_hub_departures__hide_no_failure(void **state)
{
    (void)state;
    take_over(1, 2, 3);
    departs(2, FLEET_CAUSE_EVICTED);
    hello(0);
    w.peers[1].left_for = "TrainerFailed";
    w.peers[1].status.step = -1;
    hello(1);
    assert_int_equal(count_events(HUB_EVENT_FAILED), 1); /* none is allowed */
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "TrainerFailed");
    stop();
}

/* The replacement of member 0 of `members` comes before it. */
static void replaced_member_comes(int members, bool is_leaving, const char *left_for)
{
    begin_anew(0);
    ready(0);
    disconnect(0);
    w.peers[0].attempt = 0; /* the old pod */
    remember(0, members);
    w.peers[0].status.state = MESSAGE_STATE_WAITING;
    w.peers[0].status.is_leaving = is_leaving;
    w.peers[0].left_for = left_for;
    hello(0);
    assert_int_equal(w.peers[0].refused, 1);
}

/* A hub of `workers` takes over; the only member departs, and its replacement comes before it. */
static void replaced_pod_comes(int workers, enum fleet_cause cause, const char *left_for)
{
    take_over(1, workers, 1);
    departs(0, cause);
    replaced_member_comes(1, false, left_for);
}

/* Its trainer failed, then its pod was deleted, and its replacement came before it. */
static void test_hub_departures__hide_no_failure_of_a_replaced_worker(void **state)
{
    (void)state;
    replaced_pod_comes(1, FLEET_CAUSE_MEMBER_LEFT, "TrainerFailed");
    assert_int_equal(count_events(HUB_EVENT_FAILED), 1);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "TrainerFailed");
    stop();
}

/* The former hub had ended the generation by a resize; then the only member was evicted. */
static void test_hub_departures__make_no_failure_of_a_resize(void **state)
{
    (void)state;
    replaced_pod_comes(2, FLEET_CAUSE_EVICTED, "Resize");
    w.peers[1].connection = 0; /* a newcomer */
    begin_anew(1);
    ready(1);
    wait_quietly(31000, true);
    assert_int_equal(count_events(HUB_EVENT_FAILED), 0);
    assert_generation(6);
    assert_int_equal(hub_restarts_total(w.hub), 0);
    stop();
}

/* One of two is evicted, the other dies and reports nothing: its pod is not being taken away. */
static void test_hub_departures__explain_no_more_members_than_go(void **state)
{
    (void)state;
    take_over(1, 2, 2);
    departs(1, FLEET_CAUSE_EVICTED);
    begin_anew(0);
    ready(0);
    wait_quietly(11000, true);
    assert_int_equal(count_events(HUB_EVENT_FAILED), 1);
    stop();
}

/* The job was made smaller since: one of two goes for that, the other died. */
static void test_hub_departures__explain_no_more_members_than_there_were(void **state)
{
    (void)state;
    take_over(1, 1, 2);
    departs(1, FLEET_CAUSE_MEMBER_LEFT);
    begin_anew(0);
    ready(0);
    wait_quietly(11000, true);
    assert_int_equal(count_events(HUB_EVENT_FAILED), 1);
    stop();
}

/* The survivor comes first, and this hub does not know yet that the other pod is being deleted. */
static void test_hub_departures__explain_a_lost_peer_when_it_says_goodbye(void **state)
{
    (void)state;
    take_over(1, 2, 2);
    hello(1); /* no restart is left, but a hub that is new waits for a goodbye */
    assert_int_equal(count_events(HUB_EVENT_FAILED), 0);
    w.peers[0].status.is_leaving = true;
    hello(0);
    leave(0);
    assert_wanted("MemberLeft", 0);
    stop();
}

/* The goodbye that the hub waited for does not come. */
static void test_hub_departures__without_a_goodbye_end_the_job(void **state)
{
    (void)state;
    take_over(1, 2, 2);
    hello(1);
    wait_quietly(31000, true);
    assert_int_equal(count_events(HUB_EVENT_FAILED), 1);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "PeerUnreachable");
    stop();
}

/* The former hub ended the generation since another member left, which never comes. */
static void test_hub_departures__are_told_by_a_replaced_worker(void **state)
{
    (void)state;
    take_over(1, 2, 2);
    replaced_member_comes(2, true, "MemberLeft");
    w.peers[0].connection = 0; /* its replacement */
    begin_anew(0);
    ready(0);
    wait_quietly(31000, true);
    assert_int_equal(count_events(HUB_EVENT_FAILED), 0);
    assert_generation(6);
    assert_int_equal(hub_restarts_total(w.hub), 0);
    stop();
}

/* A pod that was never in the generation that this hub has made. */
static void test_hub_departures__of_strangers_explain_nothing(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    departs(5, FLEET_CAUSE_EVICTED);
    accuse(0, 1);
    restart_all(2, 1);
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "PeerUnreachable");
    assert_int_equal(hub_restarts_total(w.hub), 1);
    stop();
}

/* A newcomer that the new hub has heard from, and that goes again, was not in the generation. */
static void test_hub_departures__of_newcomers_explain_nothing(void **state)
{
    (void)state;
    take_over(1, 1, 1);
    begin_anew(0);
    ready(0);
    leave(0);
    departs(0, FLEET_CAUSE_MEMBER_LEFT);
    w.peers[0] = (struct peer){
        .attempt = 2, .processes = 1, .place = -1, .level = FLEET_ISA_AMX, .status.step = -1};
    ready(0);
    wait_quietly(11000, true);
    assert_int_equal(count_events(HUB_EVENT_FAILED), 1);
    stop();
}

/* Its pod is being deleted, and it dies without the goodbye that it had time for. */
static void test_hub_departures__of_deleted_pods_need_a_goodbye(void **state)
{
    (void)state;
    start(1, 3, NULL);
    form(3);
    departs(1, FLEET_CAUSE_MEMBER_LEFT);
    gone(1);
    restart_all(3, 1);
    assert_int_equal(hub_restarts_total(w.hub), 1);
    stop();
}

#define TEST(name) cmocka_unit_test(test_hub_departures__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(are_known_before_the_member_comes),
        TEST(explain_a_member_that_never_comes),
        TEST(explain_a_lost_peer),
        TEST(explain_a_member_that_nobody_misses),
        TEST(of_all_members_are_no_failure),
        TEST(say_more_than_the_former_hub),
        TEST(come_after_what_the_former_hub_said),
        TEST(of_deleted_pods_are_no_failure),
        TEST(hide_no_failure),
        TEST(hide_no_failure_of_a_replaced_worker),
        TEST(make_no_failure_of_a_resize),
        TEST(explain_no_more_members_than_go),
        TEST(explain_no_more_members_than_there_were),
        TEST(explain_a_lost_peer_when_it_says_goodbye),
        TEST(without_a_goodbye_end_the_job),
        TEST(are_told_by_a_replaced_worker),
        TEST(of_strangers_explain_nothing),
        TEST(of_newcomers_explain_nothing),
        TEST(of_deleted_pods_need_a_goodbye),
    };
    return cmocka_run_group_tests_name("hub_departures, next leader", tests, NULL, NULL);
}
