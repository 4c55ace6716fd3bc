/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The agent's side as a machine: what it tells the hub, what it hands to the trainers and in which
 * order, and what it ignores.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/rendezvous/member.h"

/* ---- a member and what it has answered ------------------------------------------------------- */

static struct world {
    struct member *member;
    double now_ms;
    struct member_output out; /* all actions since clear() */
} w;

static void start(int processes)
{
    static const int ports[] = {7000, 7001};
    struct member_config config = {.job_uid = "job",
                                   .pod_uid = "pod-b",
                                   .index = 1,
                                   .address = "10.0.0.2",
                                   .ports = ports,
                                   .processes = processes,
                                   .devices = "cpu",
                                   .version = "1",
                                   .level = FLEET_ISA_AVX2,
                                   .seed = 1};

    w = (struct world){.now_ms = 1000};
    w.member = member_new(&config, w.now_ms);
}

static void stop(void)
{
    member_output_release(&w.out);
    member_free(w.member);
}

static void clear(void)
{
    member_output_release(&w.out);
}

static int count(enum member_action_type type)
{
    int n = 0;

    for (size_t i = 0; i < w.out.count; i++)
        n += w.out.items[i].type == type;
    return n;
}

static const struct member_action *last(enum member_action_type type)
{
    for (size_t i = w.out.count; i > 0; i--)
        if (w.out.items[i - 1].type == type)
            return &w.out.items[i - 1];
    fail_msg("no action of type %d", (int)type);
    return NULL;
}

/* The number of messages of a type that were sent; the last one is decoded into *out. */
static int sent(enum message_type type, struct message *out)
{
    int n = 0;

    for (size_t i = 0; i < w.out.count; i++) {
        struct message message;
        if (w.out.items[i].type != MEMBER_SEND)
            continue;
        assert_int_equal(
            message_decode(w.out.items[i].text->text, w.out.items[i].text->size, &message, NULL),
            0);
        if (message.type != type) {
            message_release(&message);
            continue;
        }
        if (n++ > 0 && out)
            message_release(out);
        if (out)
            *out = message;
        else
            message_release(&message);
    }
    return n;
}

static struct message_status last_status(enum message_type type)
{
    struct message message;
    struct message_status status;

    assert_true(sent(type, &message) > 0);
    status = type == MESSAGE_HELLO   ? message.hello.status
             : type == MESSAGE_READY ? message.ready.status
                                     : message.heartbeat.status;
    message_release(&message);
    return status;
}

static void receive(const struct message *message)
{
    member_receive(w.member, message, w.now_ms, &w.out);
}

static void hub_heartbeat(int64_t progress_step)
{
    struct message message = {
        .type = MESSAGE_HEARTBEAT,
        .heartbeat = {.status = {.step = -1}, .progress_step = progress_step, .interval_ms = 500}};

    receive(&message);
}

static void connect_hub(void)
{
    member_tick(w.member, w.now_ms, &w.out);
    member_connected(w.member, w.now_ms, &w.out);
    hub_heartbeat(0);
}

static void up(int local_rank, int64_t step)
{
    member_trainer_up(w.member, local_rank, step, w.now_ms, &w.out);
}

/* Generation (1, counter) of pod-a and this one, `processes` each. */
static void assign(int64_t counter, int processes, int reporter)
{
    static const int ports[] = {1, 2};
    struct message_member members[] = {
        {.pod_uid = "pod-a", .address = "a", .ports = ports, .processes = processes, .step = -1},
        {.pod_uid = "pod-b",
         .index = 1,
         .address = "b",
         .ports = ports,
         .processes = processes,
         .step = -1},
    };
    struct message message = {.type = MESSAGE_ASSIGN,
                              .assign = {.generation = {1, counter},
                                         .members = members,
                                         .member_count = 2,
                                         .world = 2 * processes,
                                         .plan_digest = "",
                                         .step = -1,
                                         .reporter = reporter,
                                         .restarts = (int)counter}};

    receive(&message);
}

static void abort_generation(int64_t counter)
{
    struct message message = {
        .type = MESSAGE_ABORT,
        .abort = {.generation = {1, counter}, .cause = "MemberLost", .member = 0}};

    receive(&message);
}

static void phase(int local_rank, int64_t counter, enum fleet_phase phase, int64_t step,
                  double age_ms)
{
    member_trainer_phase(w.member, local_rank, (struct fleet_generation){1, counter}, phase, step,
                         w.now_ms - age_ms, w.now_ms, &w.out);
}

static void step(int64_t number)
{
    struct message_step s = {.step = number, .loss = 2};

    member_trainer_step(w.member, &s, w.now_ms, &w.out);
}

static void tick(double ms)
{
    w.now_ms += ms;
    member_tick(w.member, w.now_ms, &w.out);
}

static void fail_trainer(int local_rank)
{
    struct member_failure failure = {.local_rank = local_rank,
                                     .exit_code = -1,
                                     .signal = 9,
                                     .cause = "",
                                     .lines = "boom",
                                     .at_ms = w.now_ms - 3};

    member_trainer_failed(w.member, &failure, w.now_ms, &w.out);
}

/* Connected, up, in generation (1, 1), at step 1. */
static void run_as(int reporter)
{
    start(1);
    connect_hub();
    up(0, -1);
    assign(1, 1, reporter);
    phase(0, 1, FLEET_PHASE_CONNECTED, -1, 0);
    phase(0, 1, FLEET_PHASE_RESTORED, 0, 0);
    phase(0, 1, FLEET_PHASE_FIRST_STEP, 1, 0);
    step(1);
    clear();
}

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

/* ---- trainers -------------------------------------------------------------------------------- */

static void test_member__tells_a_failure_and_makes_the_others_leave(void **state)
{
    struct message message;

    (void)state;
    start(2);
    connect_hub();
    up(0, -1);
    up(1, -1);
    assign(1, 2, 0);
    clear();
    w.now_ms += 5;
    fail_trainer(1);
    assert_int_equal(sent(MESSAGE_FAILED, &message), 1);
    assert_int_equal(message.failed.local_rank, 1);
    assert_int_equal(message.failed.signal, 9);
    assert_int_equal(message.failed.generation.counter, 1);
    assert_string_equal(message.failed.lines, "boom");
    assert_true(fabs(message.failed.age_ms - 3) < 1e-9);
    message_release(&message);
    assert_int_equal(count(MEMBER_ABORT), 1); /* for local rank 0 */
    assert_int_equal(member_state(w.member), MESSAGE_STATE_STARTING);
    up(0, 5);
    member_set_port(w.member, 1, 8001);
    up(1, -1);
    assert_int_equal(sent(MESSAGE_HELLO, &message), 1); /* a new process: a new port */
    assert_int_equal(message.hello.ports[1], 8001);
    assert_int_equal(message.hello.status.state, MESSAGE_STATE_WAITING);
    message_release(&message);
    stop();
}

static void test_member__keeps_a_failure_for_the_next_connection(void **state)
{
    struct message message;

    (void)state;
    run_as(0);
    member_disconnected(w.member, w.now_ms, &w.out);
    fail_trainer(0);
    assert_int_equal(sent(MESSAGE_FAILED, NULL), 0);
    tick(200);
    member_connected(w.member, w.now_ms, &w.out);
    assert_int_equal(last_status(MESSAGE_HELLO).state, MESSAGE_STATE_STARTING);
    hub_heartbeat(0);
    assert_int_equal(sent(MESSAGE_FAILED, &message), 1);
    assert_true(fabs(message.failed.age_ms - 203) < 1e-9);
    assert_false(message.failed.is_back);
    message_release(&message);
    member_disconnected(w.member, w.now_ms, &w.out);
    fail_trainer(0);
    up(0, -1);
    clear();
    tick(10000);
    member_connected(w.member, w.now_ms, &w.out);
    hub_heartbeat(0);
    assert_int_equal(sent(MESSAGE_FAILED, &message), 1);
    assert_true(message.failed.is_back);
    message_release(&message);
    stop();
}

static void test_member__tells_a_lost_peer_of_this_generation_only(void **state)
{
    struct message message;

    (void)state;
    run_as(0);
    member_peer_lost(w.member, (struct fleet_generation){1, 0}, 0, w.now_ms, w.now_ms, &w.out);
    assert_int_equal(w.out.count, 0);
    member_peer_lost(w.member, (struct fleet_generation){1, 1}, 0, w.now_ms - 7, w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_PEER_LOST, &message), 1);
    assert_int_equal(message.peer_lost.rank, 0);
    assert_true(fabs(message.peer_lost.age_ms - 7) < 1e-9);
    message_release(&message);
    up(0, 1); /* it has left by itself */
    assert_int_equal(last_status(MESSAGE_READY).state, MESSAGE_STATE_WAITING);
    assert_int_equal(last_status(MESSAGE_READY).generation.counter, 1);
    abort_generation(1);
    assert_int_equal(count(MEMBER_ABORT), 0);
    stop();
}

static void test_member__holds_the_newest_state_of_its_processes(void **state)
{
    (void)state;
    start(2);
    connect_hub();
    up(0, -1);
    up(1, -1);
    assign(1, 2, 0);
    for (int p = 0; p < 2; p++) {
        phase(p, 1, FLEET_PHASE_CONNECTED, -1, 0);
        phase(p, 1, FLEET_PHASE_RESTORED, 0, 0);
    }
    step(1);
    step(2);
    fail_trainer(1);
    up(0, 2);
    up(1, -1);
    assert_int_equal(last_status(MESSAGE_HELLO).step, 2);
    assert_int_equal(last_status(MESSAGE_HELLO).state_generation.counter, 1);
    fail_trainer(0);
    up(0, -1);
    assert_int_equal(last_status(MESSAGE_HELLO).step, -1);
    assert_int_equal(last_status(MESSAGE_HELLO).state_generation.counter, 0);
    stop();
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void test_member__the_reporter_tells_each_step_once(void **state)
{
    struct message message;

    (void)state;
    run_as(1);
    step(2);
    step(2); /* of another process of the pod */
    step(3);
    assert_int_equal(sent(MESSAGE_PROGRESS, &message), 2);
    assert_int_equal(message.progress.count, 1);
    assert_int_equal(message.progress.steps[0].step, 3);
    assert_int_equal(message.progress.steps[0].generation, 1);
    message_release(&message);
    stop();
}

static void test_member__others_keep_steps_until_the_hub_knows_them(void **state)
{
    struct message message;

    (void)state;
    run_as(0); /* the other member reports */
    for (int i = 2; i <= 6; i++)
        step(i);
    assert_int_equal(sent(MESSAGE_PROGRESS, NULL), 0);
    hub_heartbeat(4);
    abort_generation(1);
    up(0, 6);
    assert_int_equal(sent(MESSAGE_PROGRESS, &message),
                     1); /* the reporter may have died with them */
    assert_int_equal(message.progress.steps_from, 5);
    assert_int_equal(message.progress.count, 2);
    assert_int_equal(message.progress.steps[0].step, 5);
    message_release(&message);
    stop();
}

static void test_member__sends_unknown_steps_again_after_a_reconnect(void **state)
{
    struct message message;

    (void)state;
    run_as(1);
    step(2);
    step(3);
    member_disconnected(w.member, w.now_ms, &w.out);
    step(4);
    clear();
    tick(200);
    member_connected(w.member, w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_PROGRESS, NULL), 0);
    hub_heartbeat(1);
    assert_int_equal(sent(MESSAGE_PROGRESS, &message), 1);
    assert_int_equal(message.progress.count, 3);
    assert_int_equal(message.progress.steps[0].step, 2);
    message_release(&message);
    stop();
}

static void test_member__batches_steps_as_the_hub_wishes(void **state)
{
    static const int port = 1;
    struct message_member self = {
        .pod_uid = "pod-b", .index = 1, .address = "b", .ports = &port, .processes = 1};
    struct message message = {.type = MESSAGE_ASSIGN,
                              .assign = {.generation = {1, 1},
                                         .members = &self,
                                         .member_count = 1,
                                         .world = 1,
                                         .plan_digest = "",
                                         .progress_interval_ms = 100}};

    (void)state;
    start(1);
    connect_hub();
    up(0, -1);
    receive(&message);
    step(1);
    clear();
    w.now_ms += 10;
    step(2);
    step(3);
    assert_int_equal(sent(MESSAGE_PROGRESS, NULL), 0);
    assert_true(fabs(member_deadline(w.member) - (w.now_ms + 90)) < 1e-9);
    tick(90);
    assert_int_equal(sent(MESSAGE_PROGRESS, &message), 1);
    assert_int_equal(message.progress.count, 2);
    message_release(&message);
    stop();
}

static void test_member__finishing_is_told_until_the_hub_says_done(void **state)
{
    struct message message,
        done = {.type = MESSAGE_DONE, .done = {.succeeded = true, .reason = "fine"}};

    (void)state;
    run_as(0);
    step(2);
    member_trainer_finished(w.member, 0, 2, 1.25, "ab", w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_PROGRESS, NULL), 1); /* everything it knows, reporter or not */
    assert_int_equal(sent(MESSAGE_FINISHED, &message), 1);
    assert_int_equal(message.finished.steps, 2);
    assert_string_equal(message.finished.weights_sha256, "ab");
    message_release(&message);
    tick(500);
    assert_int_equal(sent(MESSAGE_FINISHED, NULL), 2);
    receive(&done);
    receive(&done);
    assert_int_equal(count(MEMBER_DONE), 1);
    assert_true(last(MEMBER_DONE)->succeeded);
    member_leave(w.member, "fine", w.now_ms, &w.out);
    member_disconnected(w.member, w.now_ms, &w.out);
    assert_true(isinf(member_deadline(w.member))); /* no reason to dial again */
    stop();
}

/* ---- the store, leaving ---------------------------------------------------------------------- */

static void test_member__answers_the_process_that_asked_the_store(void **state)
{
    struct message message, value = {.type = MESSAGE_VALUE, .value = {{1, 1}, "id", "xyz", 3}};
    struct fleet_error err;

    (void)state;
    start(1);
    assert_int_equal(member_put(w.member, "id", "x", 1, w.now_ms, &w.out, &err), -EINVAL);
    assert_string_equal(err.text, "key id: there is no generation");
    stop();
    run_as(0);
    assert_int_equal(member_get(w.member, 0, "id", w.now_ms, &w.out, NULL), 0);
    assert_int_equal(member_put(w.member, "mine", "m", 1, w.now_ms, &w.out, NULL), 0);
    assert_int_equal(sent(MESSAGE_GET, &message), 1);
    assert_string_equal(message.get.key, "id");
    message_release(&message);
    member_disconnected(w.member, w.now_ms, &w.out);
    clear();
    tick(200);
    member_connected(w.member, w.now_ms, &w.out);
    hub_heartbeat(0); /* perhaps another hub: the member sends it again */
    assert_int_equal(sent(MESSAGE_GET, NULL), 1);
    assert_int_equal(sent(MESSAGE_PUT, NULL), 1);
    receive(&value);
    receive(&value);
    assert_int_equal(count(MEMBER_VALUE), 1);
    assert_int_equal(last(MEMBER_VALUE)->value_size, 3);
    assert_memory_equal(last(MEMBER_VALUE)->value, "xyz", 3);
    stop();
}

static void test_member__leaves_when_told_and_when_asked(void **state)
{
    struct message leave = {.type = MESSAGE_LEAVE, .leave = {.reason = "scaled down"}};
    struct message refused = {.type = MESSAGE_REFUSED, .refused = {.reason = "index taken"}};

    (void)state;
    run_as(0);
    receive(&leave);
    assert_string_equal(last(MEMBER_LEAVE)->reason, "scaled down");
    stop();
    run_as(0);
    receive(&refused);
    assert_string_equal(last(MEMBER_REFUSED)->reason, "index taken");
    stop();
    run_as(0);
    member_leave(w.member, "SIGTERM", w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_LEFT, NULL), 1);
    member_disconnected(w.member, w.now_ms, &w.out);
    assert_true(isinf(member_deadline(w.member)));
    stop();
}

/* The member reports the last checkpoint until the hub knows it, over any connection; goodbye
 * comes after. */
static void test_member__says_goodbye_when_its_checkpoint_is_known(void **state)
{
    struct message message,
        known = {.type = MESSAGE_HEARTBEAT,
                 .heartbeat = {.status = {.step = -1}, .checkpoint_step = 3, .interval_ms = 500}};

    (void)state;
    run_as(0);
    member_leaving(w.member, w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_HEARTBEAT, &message), 1);
    assert_true(message.heartbeat.status.is_leaving);
    message_release(&message);
    step(3);
    member_trainer_checkpoint(w.member, member_generation(w.member), 3, "/c/3", w.now_ms, &w.out);
    assert_int_equal(sent(MESSAGE_CHECKPOINT_DONE, &message), 1);
    assert_int_equal(message.checkpoint_done.step, 3);
    message_release(&message);
    member_leave(w.member, "Signal15", w.now_ms, &w.out);
    assert_true(member_owes_checkpoint(w.member));
    assert_int_equal(sent(MESSAGE_LEFT, NULL), 0);
    member_disconnected(w.member, w.now_ms, &w.out); /* the hub did not get it */
    assert_false(isinf(member_deadline(w.member)));
    clear();
    w.now_ms = member_deadline(w.member);
    connect_hub();
    assert_int_equal(sent(MESSAGE_CHECKPOINT_DONE, NULL), 1);
    assert_int_equal(sent(MESSAGE_LEFT, NULL), 0);
    receive(&known);
    assert_int_equal(sent(MESSAGE_LEFT, NULL), 1);
    assert_true(member_has_left(w.member));
    stop();
}

static void test_member__leaves_a_hub_that_talks_nonsense(void **state)
{
    struct message hello = {.type = MESSAGE_LEFT, .left = {.reason = ""}};

    (void)state;
    run_as(0);
    receive(&hello);
    assert_int_equal(count(MEMBER_CLOSE), 1);
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
        TEST(tells_the_next_hub_that_its_trainer_failed),
        TEST(hands_an_assignment_to_waiting_trainers),
        TEST(while_restored_it_says_the_step_it_restored),
        TEST(says_how_long_ago_a_phase_was_reached),
        TEST(obeys_only_greater_generations),
        TEST(an_assign_waits_until_the_trainers_have_left),
        TEST(an_assign_it_is_not_part_of_is_ignored),
        TEST(an_abort_of_what_it_never_got_is_confirmed),
        TEST(tells_a_failure_and_makes_the_others_leave),
        TEST(keeps_a_failure_for_the_next_connection),
        TEST(tells_a_lost_peer_of_this_generation_only),
        TEST(holds_the_newest_state_of_its_processes),
        TEST(the_reporter_tells_each_step_once),
        TEST(others_keep_steps_until_the_hub_knows_them),
        TEST(sends_unknown_steps_again_after_a_reconnect),
        TEST(batches_steps_as_the_hub_wishes),
        TEST(finishing_is_told_until_the_hub_says_done),
        TEST(answers_the_process_that_asked_the_store),
        TEST(leaves_when_told_and_when_asked),
        TEST(says_goodbye_when_its_checkpoint_is_known),
        TEST(leaves_a_hub_that_talks_nonsense),
    };
    return cmocka_run_group_tests_name("member", tests, NULL, NULL);
}
