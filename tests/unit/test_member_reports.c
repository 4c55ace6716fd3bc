/* SPDX-License-Identifier: Apache-2.0 */

/* What a member reports: failures of its trainers, steps, the end; the store, and leaving. */
#include "tests/unit/member_fixture.h"

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

static void evaluation(int64_t step)
{
    member_trainer_evaluation(w.member, step, (double)step / 10, w.now_ms, &w.out);
}

/* Evaluations come in order, each once on a connection, after their steps. */
static void test_member__the_reporter_tells_each_evaluation_once(void **state)
{
    struct message message;

    (void)state;
    run_as(1);
    step(2);
    evaluation(2);
    evaluation(2); /* repeated by a trainer that joins */
    evaluation(1);
    assert_int_equal(sent(MESSAGE_EVALUATION, &message), 1);
    assert_int_equal(message.evaluation.step, 2);
    assert_true(message.evaluation.loss == 0.2);
    message_release(&message);
    stop();
}

/* The reporter is lost with two evaluations that the hub does not know. This member becomes the
 * reporter and sends both. What the hub knows is not kept. */
static void test_member__others_keep_evaluations_until_the_hub_knows_them(void **state)
{
    struct message message,
        known = {.type = MESSAGE_HEARTBEAT,
                 .heartbeat = {.status = {.step = -1}, .evaluation_step = 3, .interval_ms = 500}};

    (void)state;
    run_as(0);
    for (int i = 2; i <= 5; i++) {
        step(i);
        evaluation(i);
    }
    assert_int_equal(sent(MESSAGE_EVALUATION, NULL), 0);
    receive(&known);
    abort_generation(1);
    member_disconnected(w.member, w.now_ms, &w.out); /* this hub is lost, too */
    tick(200);
    member_connected(w.member, w.now_ms, &w.out);
    clear();
    hub_heartbeat(5);
    assert_int_equal(sent(MESSAGE_EVALUATION, &message), 2);
    assert_int_equal(message.evaluation.step, 5);
    message_release(&message);
    clear();
    up(0, 5);
    assign(2, 1, 1);
    evaluation(5);
    assert_int_equal(sent(MESSAGE_EVALUATION, &message), 2); /* the hub has not confirmed them */
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

static void test_member__finishing_is_reported_until_the_hub_says_done(void **state)
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

static void test_member__leaves_when_ordered_and_when_asked(void **state)
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
        TEST(tells_a_failure_and_makes_the_others_leave),
        TEST(keeps_a_failure_for_the_next_connection),
        TEST(tells_a_lost_peer_of_this_generation_only),
        TEST(holds_the_newest_state_of_its_processes),
        TEST(the_reporter_tells_each_step_once),
        TEST(others_keep_steps_until_the_hub_knows_them),
        TEST(sends_unknown_steps_again_after_a_reconnect),
        TEST(the_reporter_tells_each_evaluation_once),
        TEST(others_keep_evaluations_until_the_hub_knows_them),
        TEST(batches_steps_as_the_hub_wishes),
        TEST(finishing_is_reported_until_the_hub_says_done),
        TEST(answers_the_process_that_asked_the_store),
        TEST(leaves_when_ordered_and_when_asked),
        TEST(says_goodbye_when_its_checkpoint_is_known),
        TEST(leaves_a_hub_that_talks_nonsense),
    };
    return cmocka_run_group_tests_name("member_reports", tests, NULL, NULL);
}
