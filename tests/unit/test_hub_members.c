/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub and those it cannot be sure of: members that accuse each other, connections that break,
 * silence, repeated and lost messages, records that cannot be written, hubs before and after it.
 */
#include "tests/unit/hub_fixture.h"

/* ---- accusations ----------------------------------------------------------------------------- */

static void test_hub_members__one_accusation_evicts_nobody_a_second_by_the_pair_does(void **state)
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

static void test_hub_members__nobody_goes_on_without_a_holder_who_may_be_back_at_once(void **state)
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
    /* the fault was when it was last heard of */
    assert_true(fabs(last_event(HUB_EVENT_RESTART)->timeline.detect_ms - 2500) < 101);
    stop();
}

static void test_hub_members__its_own_pause_is_nobodys_silence(void **state)
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

/* Asked to go, it goes on to the end of its step: nothing is aborted, nobody is accused, and its
 * last checkpoint counts although the others have gone on. */
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

/* A member of generation (1, 5) with `count` members that runs, as a hub hears of it later. */
static void remember(int index, int count)
{
    static const int port = 1;
    static const struct message_member nobody = {
        .pod_uid = "x", .address = "a", .ports = &port, .processes = 1};
    struct message_member members[PEERS_MAX];
    struct message message = {.type = MESSAGE_ASSIGN,
                              .assign = {.generation = {1, 5},
                                         .members = members,
                                         .member_count = (size_t)count,
                                         .world = count,
                                         .plan_digest = ""}};

    for (int i = 0; i < count; i++)
        members[i] = nobody;
    w.peers[index].assigns = 1;
    message_copy(&message, &w.peers[index].last_assign);
    w.peers[index].place = index;
    w.peers[index].status = (struct message_status){.state = MESSAGE_STATE_RUNNING,
                                                    .generation = {1, 5},
                                                    .phase = FLEET_PHASE_FIRST_STEP,
                                                    .step = 40,
                                                    .state_generation = {1, 5}};
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

/* Both have left generation (1, 5) when the hub that ended it is gone. */
static void take_over(const char *left_for)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40, .has_trained = true};

    start(2, 2, &s);
    for (int i = 0; i < 2; i++) {
        remember(i, 2);
        w.peers[i].status.state = MESSAGE_STATE_WAITING;
        w.peers[i].left_for = left_for;
        hello(i);
    }
    assert_generation(6);
    run(40);
}

/* Its trainer failed in generation (1, 5) while there was no hub, and was started again. */
static void test_hub_members__a_failure_told_late_ends_no_newer_generation(void **state)
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

static void test_hub_members__a_new_hub_hears_why_a_generation_was_ended(void **state)
{
    (void)state;
    take_over("Resize");
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "Resize");
    assert_int_equal(hub_restarts(w.hub), 0);
    stop();
    take_over("TrainerFailed"); /* seen by the former hub, not recorded: once */
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "TrainerFailed");
    assert_int_equal(hub_restarts_total(w.hub), 1);
    stop();
    take_over(NULL); /* they have noticed by themselves */
    assert_int_equal(hub_restarts_total(w.hub), 1);
    stop();
}

/* The hub that would have heard of it was lost at that moment; the member that leaves comes
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

static void test_hub_members__a_generation_of_which_nobody_is_left_has_failed(void **state)
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

static void test_hub_members__a_new_hub_learns_restarts_that_were_not_recorded(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 4}, .restarts = 1, .restarts_total = 6};

    (void)state;
    start(1, 1, &s);
    remember(0, 1);
    w.peers[0].last_assign.assign.restarts = 7;
    hello(0);
    assert_generation(5);
    assert_int_equal(w.record.restarts_total, 7);
    assert_int_equal(w.record.restarts, 2);
    assert_int_equal(hub_restarts_total(w.hub), 7);
    assert_int_equal(w.record.untold, 0);
    stop();
    start(1, 1, &s);
    remember(0, 1);
    w.peers[0].last_assign.assign.restarts = 9;
    hello(0);
    assert_int_equal(w.record.untold, 2); /* only the last has an entry, of an unknown cause */
    stop();
}

static void test_hub_members__a_new_hub_learns_what_runs_and_leaves_it_alone(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40, .restarts = 1};

    (void)state;
    start(2, 3, &s);
    for (int i = 0; i < 3; i++) {
        remember(i, 3);
        hello(i);
        assert_phase(HUB_RUNNING);
        wait_quietly(100, true);
    }
    wait_quietly(15000, true);
    assert_generation(5);
    assert_int_equal(w.records, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(w.peers[i].aborts, 0);
    gone(1);
    left_generation(0);
    left_generation(2);
    assert_int_equal(hub_generation(w.hub).epoch, 2); /* the next one is this hub's own */
    assert_generation(6);
    assert_int_equal(w.peers[0].place, 0);
    assert_int_equal(hub_restarts(w.hub), 2);
    stop();
}

static void test_hub_members__a_new_hub_waits_for_members_that_it_has_not_heard_of(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40};

    (void)state;
    start(2, 3, &s);
    remember(0, 3);
    remember(2, 3);
    hello(0);
    hello(2);
    wait_quietly(19500, true); /* the other two miss nobody */
    assert_phase(HUB_RUNNING);
    wait_quietly(1000, true);
    assert_phase(HUB_GATHERING); /* 1 did not come */
    left_generation(0);
    left_generation(2);
    assert_generation(6);
    assert_int_equal(w.peers[0].last_assign.assign.step, 40);
    stop();
}

static void test_hub_members__a_hub_that_has_moved_waits_longer(void **state)
{
    struct hub_start s = {
        .epoch = 2, .recorded = {1, 5}, .progress_step = 40, .unheard_ms = 150000};

    (void)state;
    start(2, 3, &s);
    wait_quietly(40000, true); /* Secrets come to each node at another time */
    remember(0, 3);
    hello(0);
    wait_quietly(60000, true);
    remember(2, 3);
    hello(2);
    wait_quietly(45000, true);
    remember(1, 3);
    hello(1);
    wait_quietly(15000, true);
    assert_phase(HUB_RUNNING);
    assert_generation(5);
    assert_int_equal(hub_restarts(w.hub), 0);
    stop();
}

static void test_hub_members__a_new_hub_believes_a_member_that_misses_another(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40};

    (void)state;
    start(2, 3, &s);
    remember(0, 3);
    remember(2, 3);
    hello(0);
    hello(2);
    wait_quietly(11000, true);
    assert_phase(HUB_RUNNING);
    left_generation(0); /* its connection to 1 broke */
    assert_phase(HUB_GATHERING);
    left_generation(2);
    assert_generation(6);
    stop();
}

static void test_hub_members__a_new_hub_loses_nobody_while_steps_are_made(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40};

    (void)state;
    start(2, 3, &s);
    wait_quietly(40000, true); /* they do not know where it is */
    remember(0, 3);
    hello(0);
    for (int64_t step = 41; step <= 46; step++) { /* 1 and 2 vote, so they live */
        wait_quietly(9000, true);
        progress(0, step, step);
        assert_phase(HUB_RUNNING);
    }
    for (int i = 1; i < 3; i++) {
        remember(i, 3);
        w.peers[i].status.step = 46;
    }
    hello(1);
    wait_quietly(19500, true);
    assert_phase(HUB_RUNNING);
    assert_generation(5);
    wait_quietly(1000, true); /* no step, and 2 has not come */
    assert_phase(HUB_GATHERING);
    left_generation(0);
    left_generation(1);
    assert_generation(6);
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

/* ---- pods that Kubernetes takes away --------------------------------------------------------- */

static void departs(int index, enum fleet_cause cause)
{
    char uid[32];

    (void)snprintf(uid, sizeof(uid), "pod-%d-%d", index, w.peers[index].attempt);
    hub_member_departs(w.hub, uid, index, w.peers[index].attempt, cause);
}

/* Whether the word comes before the goodbye, or after it. */
static void test_hub_members__a_preempted_worker_is_called_so(void **state)
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
static void test_hub_members__an_evicted_worker_that_dies_is_no_failure(void **state)
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

#define TEST(name) cmocka_unit_test(test_hub_members__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_accusation_evicts_nobody_a_second_by_the_pair_does),
        TEST(evicts_the_member_with_fewer_working_links),
        TEST(a_seen_failure_explains_the_accusation),
        TEST(an_accused_member_without_connection_is_lost_at_once),
        TEST(a_connection_that_comes_back_in_time_disturbs_nothing),
        TEST(a_newcomer_waits_until_a_broken_connection_is_explained),
        TEST(nobody_goes_on_without_a_holder_who_may_be_back_at_once),
        TEST(when_most_are_out_of_reach_it_waits_longer),
        TEST(a_silent_member_is_lost_within_three_seconds),
        TEST(its_own_pause_is_nobodys_silence),
        TEST(a_member_that_leaves_does_not_count_as_a_failure),
        TEST(a_leaving_member_ends_its_step_and_is_heard_to_the_end),
        TEST(a_pod_that_a_smaller_wish_ends_is_a_resize),
        TEST(refuses_one_that_restored_another_step_than_agreed),
        TEST(old_and_repeated_messages_change_nothing),
        TEST(repeats_what_was_lost),
        TEST(one_pod_an_index),
        TEST(hello_comes_first),
        TEST(without_a_record_only_a_majority_goes_on),
        TEST(a_late_record_counts_what_could_not_be_written),
        TEST(a_restart_is_recorded_with_the_generation_it_leads_to),
        TEST(a_new_hub_hears_why_a_generation_was_ended),
        TEST(a_failure_told_late_ends_no_newer_generation),
        TEST(a_failure_that_no_hub_has_seen_counts_though_another_leaves),
        TEST(a_failure_that_only_a_leaver_knows_counts),
        TEST(a_generation_of_which_nobody_is_left_has_failed),
        TEST(a_new_hub_learns_restarts_that_were_not_recorded),
        TEST(who_comes_back_with_the_state_is_not_left_out_for_a_slow_record),
        TEST(a_new_hub_learns_what_runs_and_leaves_it_alone),
        TEST(a_new_hub_waits_for_members_that_it_has_not_heard_of),
        TEST(a_hub_that_has_moved_waits_longer),
        TEST(a_new_hub_believes_a_member_that_misses_another),
        TEST(a_new_hub_loses_nobody_while_steps_are_made),
        TEST(stops_when_a_member_knows_a_newer_hub),
        TEST(a_preempted_worker_is_called_so),
        TEST(an_evicted_worker_that_dies_is_no_failure),
    };
    return cmocka_run_group_tests_name("hub_members", tests, NULL, NULL);
}
