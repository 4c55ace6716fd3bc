/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Pods that Kubernetes takes away: what ends with one is no failure.
 * test_hub_departures_next_leader.c has the same if the hub that heard of it is lost.
 */
#include "tests/unit/hub_fixture.h"

/* Whether the word comes before the goodbye, or after it. */
static void test_hub_departures__a_preempted_worker_is_called_so(void **state)
{
    (void)state;
    for (int is_late = 0; is_late < 2; is_late++) {
        start(1, 3, NULL);
        form(3);
        if (!is_late)
            departs(1, FLEET_CAUSE_PREEMPTED);
        w.peers[1].status.is_leaving = true;
        heartbeat(1);
        leave(1);
        if (is_late)
            departs(1, FLEET_CAUSE_PREEMPTED);
        restart_all(3, 1);
        assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "Preempted");
        assert_int_equal(hub_restarts_total(w.hub), 0);
        stop();
    }
}

/* The kubelet gives it no time to say goodbye. */
static void test_hub_departures__an_evicted_worker_that_dies_is_no_failure(void **state)
{
    (void)state;
    start(1, 3, NULL);
    form(3);
    departs(1, FLEET_CAUSE_EVICTED);
    gone(1);
    restart_all(3, 1);
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "Evicted");
    assert_int_equal(hub_restarts_total(w.hub), 0);
    stop();
}

/* Its step takes longer than its replacement needs to come. */
static void test_hub_departures__a_replacement_waits_beside_the_one_that_leaves(void **state)
{
    enum {
        OLD = 5
    };

    (void)state;
    start(1, 1, NULL);
    form(1);
    departs(0, FLEET_CAUSE_MEMBER_LEFT);
    w.peers[OLD] = w.peers[0];
    w.peers[0] = (struct peer){
        .attempt = 1, .processes = 1, .place = -1, .level = FLEET_ISA_AMX, .status.step = -1};
    ready(0);
    assert_int_equal(count_events(HUB_EVENT_LOST), 0);
    assert_phase(HUB_RUNNING);
    w.peers[OLD].status.is_leaving = true;
    heartbeat(OLD);
    progress(OLD, 2, 2); /* its last step */
    leave(OLD);
    assert_generation(2);
    assert_int_equal(w.peers[0].place, 0);
    assert_int_equal(hub_restarts_total(w.hub), 0);
    stop();
}

/* The worker `index` leaves, and its replacement is there: `as` is the old one from now on. */
static void replace_for(int index, int as, bool explains)
{
    departs_as(index, FLEET_CAUSE_MEMBER_LEFT, explains);
    w.peers[as] = w.peers[index];
    w.peers[index] = (struct peer){
        .attempt = 1, .processes = 1, .place = -1, .level = FLEET_ISA_AMX, .status.step = -1};
    ready(index);
}

static void replace(int index, int as)
{
    replace_for(index, as, true);
}

/* The one that leaves holds the only state: the replacement ends no generation, though there is
 * room. */
static void test_hub_departures__a_replacement_is_no_resize(void **state)
{
    enum {
        OLD = 5
    };

    (void)state;
    start(1, 2, NULL);
    ready(0);
    wait_quietly(31000, true);
    run(0);
    progress(0, 1, 1);
    replace(0, OLD);
    wait_quietly(1000, true);
    assert_phase(HUB_RUNNING);
    assert_int_equal(w.peers[OLD].aborts, 0);
    checkpoint(OLD, 1, 1);
    leave(OLD);
    assert_generation(2);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/* Another member fails. What the one that leaves holds is not lost while it is there. */
static void test_hub_departures__the_state_of_one_that_leaves_is_waited_for(void **state)
{
    enum {
        OLD = 5
    };

    (void)state;
    start(1, 2, NULL);
    form(2);
    replace(0, OLD);
    fail_trainer(1);
    left_generation(OLD);
    ready(1);
    assert_phase(HUB_GATHERING);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    checkpoint(OLD, 1, 1);
    leave(OLD);
    assert_generation(2);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/* The job has waited long, then the holder comes back, and after it its replacement. */
static void test_hub_departures__a_late_holder_that_leaves_is_waited_for_anew(void **state)
{
    enum {
        OLD = 5
    };

    (void)state;
    start(2, 2, NULL);
    form(2);
    disconnect(0);
    gone(1);
    wait_quietly(40000, true);
    w.peers[0].status.state = MESSAGE_STATE_WAITING;
    w.peers[0].status.is_leaving = true;
    ready(0);
    replace(0, OLD);
    w.peers[1].attempt = 1;
    w.peers[1].status = (struct message_status){.step = -1};
    ready(1);
    assert_phase(HUB_GATHERING);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    checkpoint(OLD, 1, 1);
    leave(OLD);
    assert_generation(2);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/* Its pod is deleted while its node does not answer: nobody asks it to save, and it alone holds the
 * state. It goes on, and its replacement waits behind it until another member has that state. */
static void test_hub_departures__the_only_holder_goes_on_unless_it_leaves(void **state)
{
    enum {
        OLD = 5
    };

    (void)state;
    start(2, 2, NULL);
    form(2);
    progress(0, 2, 9);
    gone(1);
    left_generation(0);
    replace(0, OLD);
    assert_int_equal(count_events(HUB_EVENT_LOST), 1); /* worker 1 */
    w.peers[1].attempt = 1;
    w.peers[1].status = (struct message_status){.step = -1};
    ready(1);
    assert_generation(2);
    assert_int_equal(w.peers[OLD].last_assign.assign.generation.counter, 2);
    assert_int_equal(w.peers[OLD].last_assign.assign.step, 9);
    assert_int_equal(w.peers[0].assigns, 0);
    heartbeat(0);
    assert_int_equal(count_events(HUB_EVENT_LOST), 1); /* worker 1 has not restored it yet */

    w.peers[OLD].place = 0; /* the fixture knows it as worker 0 */
    run(9);
    heartbeat(0); /* worker 1 has the state: its replacement waits beside the old one */
    assert_phase(HUB_RUNNING);
    assert_int_equal(count_events(HUB_EVENT_LOST), 1);
    leave(OLD);
    left_generation(1);
    assert_generation(3);
    assert_true(w.peers[0].place >= 0);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/* It says goodbye: its replacement no longer waits behind it, but beside it. */
static void test_hub_departures__the_only_holder_leaves_later(void **state)
{
    enum {
        OLD = 5
    };

    (void)state;
    start(1, 1, NULL);
    form(1);
    progress(0, 1, 4);
    replace(0, OLD);
    w.peers[OLD].status.is_leaving = true;
    heartbeat(OLD);
    progress(OLD, 5, 5);
    leave(OLD);
    assert_generation(2);
    assert_int_equal(w.peers[0].place, 0);
    assert_int_equal(count_events(HUB_EVENT_LOST), 1);
    stop();
}

/* Nobody is left who could tell the next hub why: the status must. */
static void test_hub_departures__of_all_members_desert_a_generation(void **state)
{
    (void)state;
    for (int is_asked = 0; is_asked < 2; is_asked++) {
        start(1, 1, NULL);
        form(1);
        assert_false(hub_is_deserted(w.hub));
        w.peers[0].status.is_leaving = is_asked;
        heartbeat(0);
        if (is_asked)
            leave(0);
        else
            gone(0);
        assert_int_equal(hub_is_deserted(w.hub), is_asked);
        w.peers[0].status = (struct message_status){.step = -1};
        w.peers[0].attempt = 1;
        ready(0);
        assert_generation(2);
        assert_false(hub_is_deserted(w.hub));
        stop();
    }
}

/* Survivors remember the cause for the next hub, so they learn of it when it becomes known. */
static void test_hub_departures__are_told_to_survivors(void **state)
{
    (void)state;
    start(1, 3, NULL);
    form(3);
    accuse(0, 1);
    assert_string_equal(w.peers[2].abort_cause, "PeerUnreachable");
    fail_trainer(1);
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(w.peers[i].aborts, 2);
        assert_string_equal(w.peers[i].abort_cause, "MemberLost");
    }
    stop();
}

/* Its replacement failed, so its removal explains no end of a generation. It is a member still, and
 * the next replacement waits for its goodbye (seed 3117038443). */
static void test_hub_departures__may_explain_nothing(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    run(5);
    replace_for(0, 5, false);
    assert_int_equal(count_events(HUB_EVENT_LOST), 0);
    assert_generation(1);
    assert_int_equal(hub_restarts_total(w.hub), 0);
    stop();
}

/* The pod goes before its worker and a first generation come; a replacement takes no place from it
 * (seed 3117084171). */
static void test_hub_departures__are_remembered_until_the_member_comes(void **state)
{
    (void)state;
    start(1, 1, NULL);
    departs_as(0, FLEET_CAUSE_MEMBER_LEFT, false);
    w.confirms = false; /* no generation yet */
    ready(0);
    w.peers[5] = w.peers[0];
    w.peers[0] = (struct peer){
        .attempt = 1, .processes = 1, .place = -1, .level = FLEET_ISA_AMX, .status.step = -1};
    hello(0);
    assert_int_equal(count_events(HUB_EVENT_LOST), 0);
    stop();
}

/* Two workers lost the third one, whose connection is broken. Then one of the two is drained: that
 * explains nothing, because the next generation begins without the third one. */
static void test_hub_departures__do_not_excuse_a_member_that_is_missing(void **state)
{
    (void)state;
    for (int is_missing = 0; is_missing < 2; is_missing++) {
        start(1, 3, NULL);
        form(3);
        run(5);
        accuse(0, 2);
        if (is_missing)
            disconnect(2);
        w.peers[0].status.is_leaving = true;
        left_generation(0);
        leave(0);
        if (!is_missing)
            left_generation(2);
        left_generation(1);
        assert_generation(2);
        assert_int_equal(hub_restarts(w.hub), is_missing);
        stop();
    }
}

#define TEST(name) cmocka_unit_test(test_hub_departures__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_preempted_worker_is_called_so),
        TEST(an_evicted_worker_that_dies_is_no_failure),
        TEST(a_replacement_waits_beside_the_one_that_leaves),
        TEST(a_replacement_is_no_resize),
        TEST(the_state_of_one_that_leaves_is_waited_for),
        TEST(a_late_holder_that_leaves_is_waited_for_anew),
        TEST(the_only_holder_goes_on_unless_it_leaves),
        TEST(the_only_holder_leaves_later),
        TEST(of_all_members_desert_a_generation),
        TEST(are_told_to_survivors),
        TEST(do_not_excuse_a_member_that_is_missing),
        TEST(may_explain_nothing),
        TEST(are_remembered_until_the_member_comes),
    };
    return cmocka_run_group_tests_name("hub_departures", tests, NULL, NULL);
}
