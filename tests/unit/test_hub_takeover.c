/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A hub that takes over from another: what it learns from members and from the record, and how
 * long it waits for those that it has not heard.
 */
#include "tests/unit/hub_fixture.h"
#include "tests/unit/hub_takeover_fixture.h"

/* ---- restarts are counted once, across leaders ----------------------------------------------- */

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

static void test_hub_members__a_new_hub_waits_for_a_pod_of_which_one_trainer_died(void **state)
{
    (void)state;
    left_behind();
    wait_quietly(3000, true);
    hello(1);
    wait_quietly(15000, true);
    assert_phase(HUB_GATHERING); /* worker 0 alone would go on from step 20 */
    w.peers[1].status.state = MESSAGE_STATE_WAITING;
    hello(1);
    assert_generation(6);
    assert_int_equal(w.peers[0].last_assign.assign.step, 40);
    stop();
    left_behind();
    hello(1);
    wait_quietly(31000, true); /* it may never start again */
    assert_generation(6);
    assert_int_equal(w.peers[0].last_assign.assign.step, 20);
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

/* It may have done all steps of its generation, and waits until a later one is named (seed
 * 3117004088). A generation that the status lacks must not be spread by a member that was not in
 * it. */
static void test_hub_members__a_new_hub_names_the_later_generation(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 6}, .progress_step = 40};

    (void)state;
    for (int is_recorded = 0; is_recorded < 2; is_recorded++) {
        s.recorded.counter = is_recorded ? 6 : 4;
        start(1, 2, &s);
        remember(0, 1);
        w.peers[0].status.generation.counter = is_recorded ? 5 : 3;
        w.confirms = is_recorded;
        if (!is_recorded) { /* a member of generation 5 comes before the late one of 3 */
            remember(1, 1);
            hello(1);
        }
        hello(0);
        assert_int_equal(w.peers[0].aborts, 1);
        assert_int_equal(w.peers[0].aborted.counter, is_recorded ? 6 : 3);
        stop();
    }
}

/* Its steps were reported to the hub before, which is gone with them. Without an answer the member
 * that leaves would not say goodbye (seed 3108004570). While it runs, the steps come. */
static void test_hub_members__a_new_hub_takes_a_checkpoint_whose_steps_nobody_tells(void **state)
{
    struct hub_start s = {.epoch = 2,
                          .recorded = {1, 5},
                          .progress_step = 40,
                          .checkpoint_step = 40,
                          .lineage = {.entries = {{{1, 5}, 1}}, .count = 1},
                          .has_trained = true};

    (void)state;
    for (int is_running = 0; is_running < 2; is_running++) {
        start(2, 2, &s);
        remember(0, 2);
        w.peers[0].status.state = is_running ? MESSAGE_STATE_RUNNING : MESSAGE_STATE_WAITING;
        w.peers[0].status.step = 49;
        hello(0);
        checkpoint(0, 5, 49);
        assert_int_equal(count_events(HUB_EVENT_CHECKPOINT), is_running ? 0 : 1);
        assert_int_equal(w.peers[0].checkpoint_step, is_running ? 40 : 49);
        stop();
    }
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
    wait_quietly(19500, true); /* the other two count no member as lost */
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

static void test_hub_members__a_new_hub_loses_no_member_while_steps_are_made(void **state)
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

#define TEST(name) cmocka_unit_test(test_hub_members__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_new_hub_hears_why_a_generation_was_ended),
        TEST(a_new_hub_learns_restarts_that_were_not_recorded),
        TEST(a_new_hub_waits_for_a_pod_of_which_one_trainer_died),
        TEST(a_new_hub_learns_what_runs_and_leaves_it_alone),
        TEST(a_new_hub_names_the_later_generation),
        TEST(a_new_hub_takes_a_checkpoint_whose_steps_nobody_tells),
        TEST(a_new_hub_waits_for_members_that_it_has_not_heard_of),
        TEST(a_hub_that_has_moved_waits_longer),
        TEST(a_new_hub_believes_a_member_that_misses_another),
        TEST(a_new_hub_loses_no_member_while_steps_are_made),
    };
    return cmocka_run_group_tests_name("hub_takeover", tests, NULL, NULL);
}
