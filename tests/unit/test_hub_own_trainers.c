/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub and a job with its own trainers (no spec.training): each exits for itself, and the job has
 * succeeded only when all ranks of one generation have exited with 0.
 */
#include "tests/unit/hub_fixture.h"

/* A hub with `count` own trainers that run. */
static void start_own(int count, const struct hub_policy *change)
{
    struct hub_policy p = change ? *change : policy(count, count);
    struct hub_output out = {0};

    start(count, count, NULL);
    p.own_trainer = true;
    hub_configure(w.hub, &p, w.now_ms, &out);
    carry_out(&out);
    for (int i = 0; i < count; i++)
        ready(i);
    run(-1);
    assert_phase(HUB_RUNNING);
}

/* Its trainer has exited with 0. */
static void finish(int index)
{
    struct message message = {.type = MESSAGE_FINISHED,
                              .finished = {.generation = w.peers[index].status.generation,
                                           .loss = NAN,
                                           .weights_sha256 = ""}};

    send_to_hub(&w.peers[index], &message);
}

static void exit_with(int index, int code)
{
    fail_trainer_with(index, code, 0, "", false);
}

/* It is started again in the next generation: until then it waits. */
static void go_down(int index)
{
    w.peers[index].status.step = -1;
    left_generation(index);
}

static void test_hub_own_trainers__all_must_exit_with_0(void **state)
{
    (void)state;
    start_own(3, NULL);
    finish(1);
    finish(0);
    finish(0); /* repeated until it is known */
    wait_quietly(60000, true);
    assert_phase(HUB_RUNNING);
    finish(2);
    assert_phase(HUB_FINISHED);
    assert_int_equal(count_events(HUB_EVENT_FINISHED), 1);
    assert_string_equal(w.peers[0].reason, "every worker exited with 0");
    stop();
}

static void test_hub_own_trainers__a_failure_after_a_finish_is_a_restart_of_all(void **state)
{
    (void)state;
    start_own(2, NULL);
    finish(0);
    exit_with(1, 5);
    assert_phase(HUB_GATHERING);
    assert_int_equal(w.peers[0].aborts, 1); /* it has to run again */
    finish(0);                              /* on its way when the abort came */
    go_down(1);
    assert_phase(HUB_GATHERING);
    go_down(0);
    assert_generation(2);
    assert_int_equal(hub_restarts_total(w.hub), 1);
    run(-1);
    finish(1);
    assert_phase(HUB_RUNNING); /* the finish of the first generation does not count */
    finish(0);
    assert_phase(HUB_FINISHED);
    stop();
}

static void test_hub_own_trainers__fails_when_restarts_are_used_up_after_a_finish(void **state)
{
    (void)state;
    start_own(2, NULL);
    for (int restart = 0; restart < 3; restart++) {
        finish(0);
        exit_with(1, 5);
        go_down(0);
        go_down(1);
        wait_quietly(60000, true);
        run(-1);
        assert_phase(HUB_RUNNING);
    }
    finish(0);
    exit_with(1, 5);
    assert_phase(HUB_FAILED);
    assert_int_equal(last_event(HUB_EVENT_FAILED)->exit_code, 5);
    assert_false(w.peers[0].done_succeeded);
    stop();
}

static void test_hub_own_trainers__a_pod_that_is_deleted_unfinished_is_a_restart(void **state)
{
    (void)state;
    start_own(2, NULL);
    finish(0);
    gone(1);
    assert_phase(HUB_GATHERING);
    go_down(0);
    w.peers[1].attempt = 1;
    w.peers[1].status = (struct message_status){.step = -1};
    ready(1);
    wait_quietly(1000, true);
    assert_generation(2);
    run(-1);
    finish(1);
    assert_phase(HUB_RUNNING);
    finish(0);
    assert_phase(HUB_FINISHED);
    stop();
}

static void test_hub_own_trainers__a_drained_unfinished_worker_is_not_done(void **state)
{
    (void)state;
    start_own(2, NULL);
    finish(0);
    w.peers[1].status.is_leaving = true;
    heartbeat(1);
    leave(1);
    assert_phase(HUB_GATHERING);
    assert_int_equal(w.peers[0].aborts, 1);
    stop();
}

static void test_hub_own_trainers__a_finished_rank_stays_finished_without_its_pod(void **state)
{
    (void)state;
    start_own(2, NULL);
    finish(0);
    gone(0);
    assert_phase(HUB_RUNNING);
    w.peers[0].attempt = 1; /* its replacement interrupts nothing */
    w.peers[0].status = (struct message_status){.step = -1};
    ready(0);
    wait_quietly(5000, true);
    assert_phase(HUB_RUNNING);
    assert_generation(1);
    finish(1);
    assert_phase(HUB_FINISHED);
    stop();
}

static void test_hub_own_trainers__a_lost_connection_is_not_a_finish(void **state)
{
    (void)state;
    start_own(2, NULL);
    finish(0);
    disconnect(1);
    assert_phase(HUB_RUNNING);
    wait_quietly(5000, true);
    assert_phase(HUB_GATHERING);
    stop();
}

/* The next hub knows nothing of who has finished; its members say so again. */
static void test_hub_own_trainers__the_next_hub_waits_for_all_as_well(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 1}, .job_uid = "job"};
    struct hub_policy p = policy(2, 2);
    struct hub_output out = {0};

    (void)state;
    start_own(2, NULL);
    finish(0);
    hub_free(w.hub);
    p.own_trainer = true;
    w.hub = hub_new(&s, &p, w.now_ms);
    w.peers[0].connection = w.peers[1].connection = 0;
    hello(0);
    finish(0);
    assert_phase(HUB_RUNNING);
    wait_quietly(60000, true); /* the other does not come */
    assert_phase(HUB_GATHERING);
    hub_tick(w.hub, w.now_ms, &out);
    carry_out(&out);
    assert_int_equal(count_events(HUB_EVENT_FINISHED), 0);
    stop();
}

#define TEST(name) cmocka_unit_test(test_hub_own_trainers__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(all_must_exit_with_0),
        TEST(a_failure_after_a_finish_is_a_restart_of_all),
        TEST(fails_when_restarts_are_used_up_after_a_finish),
        TEST(a_pod_that_is_deleted_unfinished_is_a_restart),
        TEST(a_drained_unfinished_worker_is_not_done),
        TEST(a_finished_rank_stays_finished_without_its_pod),
        TEST(a_lost_connection_is_not_a_finish),
        TEST(the_next_hub_waits_for_all_as_well),
    };
    return cmocka_run_group_tests_name("hub_own_trainers", tests, NULL, NULL);
}
