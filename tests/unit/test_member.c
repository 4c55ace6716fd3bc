/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The agent's side as a machine: its connection to the hub, and generations. What it tells, hands
 * to the trainers and ignores, and in which order.
 */
#include "tests/unit/member_fixture.h"

/* ---- the connection -------------------------------------------------------------------------- */

static void test_member__dials_says_hello_and_waits_for_the_answer(void **state)
{
    struct message message;

    (void)state;
    start(2);
    assert_true(member_deadline(w.member) <= w.now_ms);
    tick(0);
    assert_int_equal(count(MEMBER_DIAL), 1);
    up(0, -1);
    up(1, -1);
    member_connected(w.member, w.now_ms, &w.out);
    assert_int_equal(count(MEMBER_SEND), 1); /* nothing but hello before the hub has answered */
    assert_int_equal(sent(MESSAGE_HELLO, &message), 1);
    assert_string_equal(message.hello.pod_uid, "pod-b");
    assert_int_equal(message.hello.processes, 2);
    assert_int_equal(message.hello.ports[1], 7001);
    assert_int_equal(message.hello.level, FLEET_ISA_AVX2);
    assert_int_equal(message.hello.status.state, MESSAGE_STATE_WAITING);
    assert_int_equal(message.hello.place, -1);
    message_release(&message);
    assert_false(member_is_connected(w.member));
    hub_heartbeat(0);
    assert_true(member_is_connected(w.member));
    stop();
}

static void test_member__backs_off_with_jitter_up_to_a_limit(void **state)
{
    double wait_ms = 0, last_ms = 0;

    (void)state;
    start(1);
    tick(0);
    for (int i = 0; i < 20; i++) {
        member_disconnected(w.member, w.now_ms, &w.out);
        wait_ms = member_deadline(w.member) - w.now_ms;
        if (i == 0)
            assert_true(wait_ms >= 50 && wait_ms <= 150);
        assert_true(wait_ms <= 7500);
        tick(wait_ms);
        last_ms = wait_ms;
    }
    assert_true(last_ms >= 2500);
    assert_int_equal(count(MEMBER_DIAL), 21);
    member_connected(w.member, w.now_ms, &w.out);
    hub_heartbeat(0); /* success: the next loss is answered quickly again */
    member_disconnected(w.member, w.now_ms, &w.out);
    assert_true(member_deadline(w.member) - w.now_ms <= 150);
    stop();
}

/* A thousand that lost their hub do not all come back within the tenth of a second of a small
 * job. */
static void test_member__backs_off_longer_among_many(void **state)
{
    static struct message_member members[1000];
    static const int ports[] = {1, 2};
    struct message message = {.type = MESSAGE_ASSIGN,
                              .assign = {.generation = {1, 1},
                                         .members = members,
                                         .member_count = 1000,
                                         .world = 1000,
                                         .plan_digest = "",
                                         .step = -1,
                                         .restarts = 1}};
    double shortest_ms = INFINITY, longest_ms = 0;

    (void)state;
    for (size_t i = 0; i < 1000; i++)
        members[i] = (struct message_member){.pod_uid = i == 7 ? "pod-b" : "pod-x",
                                             .index = (int)i,
                                             .address = "a",
                                             .ports = ports,
                                             .processes = 1,
                                             .step = -1};
    start(1);
    connect_hub();
    up(0, -1);
    receive(&message);
    for (int i = 0; i < 50; i++) {
        double wait_ms;
        member_disconnected(w.member, w.now_ms, &w.out);
        wait_ms = member_deadline(w.member) - w.now_ms;
        shortest_ms = fmin(shortest_ms, wait_ms);
        longest_ms = fmax(longest_ms, wait_ms);
        tick(wait_ms);
        member_connected(w.member, w.now_ms, &w.out);
        hub_heartbeat(0);
    }
    assert_true(shortest_ms >= 500 && longest_ms <= 1700); /* 1.1 s, give or take half */
    assert_true(longest_ms > 1.5 * shortest_ms);           /* not all at once */
    stop();
}

static void test_member__leaves_a_silent_hub_and_one_that_never_opens(void **state)
{
    (void)state;
    start(1);
    connect_hub();
    for (int i = 0; i < 9; i++)
        tick(500);
    assert_int_equal(count(MEMBER_CLOSE), 0);
    assert_int_equal(sent(MESSAGE_HEARTBEAT, NULL), 9);
    tick(600);
    assert_int_equal(count(MEMBER_CLOSE), 1);
    assert_string_equal(last(MEMBER_CLOSE)->reason, "the hub is silent");
    tick(200);
    assert_int_equal(count(MEMBER_DIAL), 2);
    tick(10000);
    assert_int_equal(count(MEMBER_CLOSE), 2);
    assert_string_equal(last(MEMBER_CLOSE)->reason, "the hub did not answer in time");
    stop();
}

static void test_member__ends_when_its_job_has_been_gone_for_a_while(void **state)
{
    (void)state;
    run_as(0);
    for (int i = 0; i < 3; i++) { /* a hub that finds it again takes nothing amiss */
        member_job_gone(w.member, w.now_ms, &w.out);
        member_disconnected(w.member, w.now_ms, &w.out);
        tick(40000);
        member_connected(w.member, w.now_ms, &w.out);
        member_disconnected(w.member, w.now_ms, &w.out);
    }
    assert_int_equal(count(MEMBER_REFUSED), 0);
    member_job_gone(w.member, w.now_ms, &w.out);
    member_disconnected(w.member, w.now_ms, &w.out);
    tick(59000);
    member_disconnected(w.member, w.now_ms, &w.out); /* another reason: nothing is known */
    tick(2000);
    assert_int_equal(count(MEMBER_REFUSED), 0);
    member_job_gone(w.member, w.now_ms, &w.out);
    member_disconnected(w.member, w.now_ms, &w.out);
    assert_int_equal(count(MEMBER_REFUSED), 1);
    assert_true(isinf(member_deadline(w.member)));
    stop();
}

static void test_member__after_a_reconnect_says_what_is_running(void **state)
{
    struct message message;

    (void)state;
    run_as(0);
    member_disconnected(w.member, w.now_ms, &w.out);
    assert_int_equal(count(MEMBER_ABORT), 0); /* training needs no hub */
    tick(200);
    member_connected(w.member, w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_HELLO, &message), 1);
    assert_int_equal(message.hello.status.state, MESSAGE_STATE_RUNNING);
    assert_int_equal(message.hello.status.generation.counter, 1);
    assert_int_equal(message.hello.status.phase, FLEET_PHASE_FIRST_STEP);
    assert_int_equal(message.hello.status.step, 1);
    assert_int_equal(message.hello.status.state_generation.counter, 1);
    assert_int_equal(message.hello.place, 1);
    assert_int_equal(message.hello.members, 2);
    message_release(&message);
    stop();
}

/* ---- generations ----------------------------------------------------------------------------- */

static void test_member__tells_the_next_hub_why_its_generation_was_ended(void **state)
{
    struct message abort = {.type = MESSAGE_ABORT,
                            .abort = {.generation = {1, 1}, .cause = "Resize", .member = -1}};
    struct message message;

    (void)state;
    run_as(0);
    member_receive(w.member, &abort, w.now_ms, &w.out);
    abort.abort.cause = "Superseded"; /* again, by one that does not know */
    member_receive(w.member, &abort, w.now_ms, &w.out);
    member_disconnected(w.member, w.now_ms, &w.out);
    tick(200);
    member_connected(w.member, w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_HELLO, &message), 1);
    assert_string_equal(message.hello.left_for, "Resize");
    message_release(&message);
    assign(2, 1, 0);
    member_disconnected(w.member, w.now_ms, &w.out);
    tick(200);
    member_connected(w.member, w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_HELLO, &message), 2); /* the second */
    assert_string_equal(message.hello.left_for, "");
    assert_int_equal(message.hello.restarts, 2);
    message_release(&message);
    stop();
}

/* It has lost a peer, and the hub that knows why is lost, too. What its own trainer said stays. */
static void test_member__tells_the_next_hub_why_its_peer_went(void **state)
{
    struct message abort = {.type = MESSAGE_ABORT,
                            .abort = {.generation = {1, 1}, .cause = "MemberLeft", .member = 0}};
    struct message message;

    (void)state;
    for (int has_failed = 0; has_failed < 2; has_failed++) {
        run_as(0);
        if (has_failed)
            fail_trainer(0);
        up(0, 1);
        abort.abort.cause = "PeerUnreachable"; /* as the other survivors say */
        member_receive(w.member, &abort, w.now_ms, &w.out);
        abort.abort.cause = "MemberLeft";
        member_receive(w.member, &abort, w.now_ms, &w.out);
        member_disconnected(w.member, w.now_ms, &w.out);
        clear();
        tick(200);
        member_connected(w.member, w.now_ms, &w.out);
        assert_int_equal(sent(MESSAGE_HELLO, &message), 1);
        assert_string_equal(message.hello.left_for, has_failed ? "MemberLost" : "MemberLeft");
        message_release(&message);
        stop();
    }
}

static void test_member__tells_the_next_hub_that_its_trainer_failed(void **state)
{
    struct message message;

    (void)state;
    run_as(0);
    fail_trainer(0); /* told to a hub that is just lost */
    member_disconnected(w.member, w.now_ms, &w.out);
    tick(200);
    member_connected(w.member, w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_HELLO, &message), 1);
    assert_string_equal(message.hello.left_for, "MemberLost"); /* by a signal */
    message_release(&message);
    stop();
}

static void test_member__hands_an_assignment_to_waiting_trainers(void **state)
{
    (void)state;
    start(2);
    connect_hub();
    up(0, -1);
    assert_int_equal(sent(MESSAGE_HELLO, NULL), 1); /* not all are up: nothing to say yet */
    up(1, -1);
    assert_int_equal(last_status(MESSAGE_HELLO).state, MESSAGE_STATE_WAITING);
    assign(1, 2, 0);
    assert_int_equal(count(MEMBER_ASSIGN), 1);
    assert_int_equal(last(MEMBER_ASSIGN)->place, 1);
    assert_int_equal(last(MEMBER_ASSIGN)->first_rank, 2);
    assert_int_equal(last(MEMBER_ASSIGN)->assign->world, 4);
    assert_int_equal(member_generation(w.member).counter, 1);
    phase(0, 1, FLEET_PHASE_CONNECTED, -1, 5);
    assert_int_equal(sent(MESSAGE_READY, NULL), 0);
    w.now_ms += 10;
    phase(1, 1, FLEET_PHASE_CONNECTED, -1, 2);
    assert_int_equal(sent(MESSAGE_READY, NULL), 1); /* when the last has reached it */
    assert_int_equal(last_status(MESSAGE_READY).phase, FLEET_PHASE_CONNECTED);
    stop();
}

/* The hub compares the step with the one agreed upon: one process may be ahead by the first
 * step. */
static void test_member__while_restored_it_says_the_step_it_restored(void **state)
{
    struct message_step first = {.step = 8};

    (void)state;
    start(2);
    connect_hub();
    up(0, -1);
    up(1, -1);
    assign(1, 2, 0);
    for (int process = 0; process < 2; process++)
        phase(process, 1, FLEET_PHASE_CONNECTED, -1, 1);
    for (int process = 0; process < 2; process++)
        phase(process, 1, FLEET_PHASE_RESTORED, 7, 1);
    member_trainer_step(w.member, &first, w.now_ms, &w.out);
    phase(0, 1, FLEET_PHASE_FIRST_STEP, 8, 1);
    tick(1000);
    assert_int_equal(last_status(MESSAGE_HEARTBEAT).phase, FLEET_PHASE_RESTORED);
    assert_int_equal(last_status(MESSAGE_HEARTBEAT).step, 7);
    phase(1, 1, FLEET_PHASE_FIRST_STEP, 8, 1);
    assert_int_equal(last_status(MESSAGE_READY).step, 8);
    stop();
}

static void test_member__says_how_long_ago_a_phase_was_reached(void **state)
{
    struct message message;

    (void)state;
    start(2);
    connect_hub();
    up(0, -1);
    up(1, -1);
    assign(1, 2, 0);
    phase(0, 1, FLEET_PHASE_CONNECTED, -1, 5);
    w.now_ms += 10;
    phase(1, 1, FLEET_PHASE_CONNECTED, -1, 2);
    assert_int_equal(sent(MESSAGE_READY, &message), 1);
    assert_true(fabs(message.ready.age_ms - 2) < 1e-9);
    message_release(&message);
    stop();
}

static void test_member__obeys_only_greater_generations(void **state)
{
    (void)state;
    run_as(0);
    assign(1, 1, 0); /* repeated */
    abort_generation(0);
    assert_int_equal(w.out.count, 0);
    abort_generation(1);
    assert_int_equal(count(MEMBER_ABORT), 1);
    assert_string_equal(last(MEMBER_ABORT)->reason, "MemberLost");
    assert_int_equal(last(MEMBER_ABORT)->generation.counter, 1);
    abort_generation(1); /* repeated */
    assert_int_equal(count(MEMBER_ABORT), 1);
    up(0, 1);
    assert_int_equal(last_status(MESSAGE_READY).state, MESSAGE_STATE_WAITING);
    assert_int_equal(last_status(MESSAGE_READY).step, 1);
    assign(3, 1, 0);
    assign(2, 1, 0); /* overtaken */
    assert_int_equal(count(MEMBER_ASSIGN), 1);
    assert_int_equal(member_generation(w.member).counter, 3);
    stop();
}

static void test_member__an_assign_waits_until_the_trainers_have_left(void **state)
{
    (void)state;
    run_as(0);
    assign(2, 1, 0); /* the abort was lost */
    assert_int_equal(count(MEMBER_ABORT), 1);
    assert_int_equal(count(MEMBER_ASSIGN), 0);
    assert_int_equal(member_generation(w.member).counter, 1); /* what the trainers have */
    up(0, 1);
    assert_int_equal(count(MEMBER_ASSIGN), 1);
    assert_int_equal(member_generation(w.member).counter, 2);
    phase(0, 1, FLEET_PHASE_FIRST_STEP, 9, 0); /* of the old one */
    assert_int_equal(sent(MESSAGE_READY, NULL), 0);
    stop();
}

static void test_member__an_assign_it_is_not_part_of_is_ignored(void **state)
{
    static const int port = 1;
    struct message_member other = {
        .pod_uid = "pod-c", .address = "c", .ports = &port, .processes = 1};
    struct message message = {.type = MESSAGE_ASSIGN,
                              .assign = {.generation = {1, 1},
                                         .members = &other,
                                         .member_count = 1,
                                         .world = 1,
                                         .plan_digest = ""}};

    (void)state;
    start(1);
    connect_hub();
    up(0, -1);
    clear();
    receive(&message);
    assert_int_equal(w.out.count, 0);
    stop();
}

static void test_member__an_abort_of_what_it_never_got_is_confirmed(void **state)
{
    (void)state;
    start(1);
    connect_hub();
    up(0, -1);
    clear();
    abort_generation(4);
    assert_int_equal(count(MEMBER_ABORT), 0);
    assert_int_equal(last_status(MESSAGE_READY).generation.counter, 4);
    assert_int_equal(last_status(MESSAGE_READY).state, MESSAGE_STATE_WAITING);
    assign(4, 1, 0); /* arrives after all: too late */
    assert_int_equal(count(MEMBER_ASSIGN), 0);
    stop();
}

/* Another member of its generation fails, and the hub does not know yet that this one is done. Only
 * a later generation, which it heard nothing of, ends its wait (seed 3117004088). */
static void test_member__has_done_all_steps_unless_a_later_generation_began(void **state)
{
    (void)state;
    run_as(0);
    step(2);
    member_trainer_finished(w.member, 0, 2, 1.25, "ab", w.now_ms, &w.out);
    clear();
    abort_generation(1);
    assert_int_equal(w.out.count, 0);
    abort_generation(2);
    assert_int_equal(count(MEMBER_ABORT), 1);
    up(0, 2);
    assert_int_equal(last_status(MESSAGE_READY).state, MESSAGE_STATE_WAITING);
    assert_int_equal(last_status(MESSAGE_READY).step, 2);
    assert_int_equal(sent(MESSAGE_FINISHED, NULL), 0);
    assign(3, 1, 0);
    assert_int_equal(count(MEMBER_ASSIGN), 1);
    stop();
}

#define TEST(name) cmocka_unit_test(test_member__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(dials_says_hello_and_waits_for_the_answer),
        TEST(backs_off_with_jitter_up_to_a_limit),
        TEST(backs_off_longer_among_many),
        TEST(leaves_a_silent_hub_and_one_that_never_opens),
        TEST(ends_when_its_job_has_been_gone_for_a_while),
        TEST(after_a_reconnect_says_what_is_running),
        TEST(tells_the_next_hub_why_its_generation_was_ended),
        TEST(tells_the_next_hub_why_its_peer_went),
        TEST(tells_the_next_hub_that_its_trainer_failed),
        TEST(hands_an_assignment_to_waiting_trainers),
        TEST(while_restored_it_says_the_step_it_restored),
        TEST(says_how_long_ago_a_phase_was_reached),
        TEST(obeys_only_greater_generations),
        TEST(an_assign_waits_until_the_trainers_have_left),
        TEST(an_assign_it_is_not_part_of_is_ignored),
        TEST(an_abort_of_what_it_never_got_is_confirmed),
        TEST(has_done_all_steps_unless_a_later_generation_began),
    };
    return cmocka_run_group_tests_name("member", tests, NULL, NULL);
}
