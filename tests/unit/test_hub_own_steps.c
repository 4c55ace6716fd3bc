/* SPDX-License-Identifier: Apache-2.0 */

/* Steps, checkpoints and resumes of own trainers, as the hub learns of them. */
#include "tests/unit/hub_fixture.h"

/* ---- own trainers ---------------------------------------------------------------------------- */

/* What an own trainer reports: any steps, in ascending order. */
static void report_step(int index, int64_t step, int64_t steps)
{
    struct message_step one = {
        .step = step, .generation = hub_generation(w.hub).counter, .steps = steps, .loss = 2};
    struct message message = {
        .type = MESSAGE_PROGRESS,
        .progress = {
            .generation = hub_generation(w.hub), .is_sparse = true, .steps = &one, .count = 1}};

    send_to_hub(&w.peers[index], &message);
}

static void phases(int index, enum fleet_phase last, int64_t step)
{
    for (enum fleet_phase phase = FLEET_PHASE_CONNECTED; phase <= last; phase++)
        tell_phase(index, phase, step, 0);
}

/* Two members that have reached step 430, with a checkpoint of 400. */
static void own_job(void)
{
    start(1, 2, NULL);
    make_own();
    ready(0);
    ready(1);
    phases(0, FLEET_PHASE_FIRST_STEP, -1);
    phases(1, FLEET_PHASE_FIRST_STEP, -1);
    report_step(0, 400, 1000);
    checkpoint(0, 1, 400);
    report_step(0, 430, 1000);
}

/* The trainer of member 1 fails; both are started again. */
static void own_restart(void)
{
    fail_trainer(1);
    left_generation(0);
    ready(1);
}

static void test_hub_steps__an_own_trainer_reports_the_steps_it_likes(void **state)
{
    (void)state;
    own_job();
    assert_int_equal(count_events(HUB_EVENT_STEP), 2); /* at once: none in between is missing */
    assert_int_equal(last_event(HUB_EVENT_STEP)->step.step, 430);
    assert_int_equal(last_event(HUB_EVENT_STEP)->step.steps, 1000);
    assert_int_equal(count_events(HUB_EVENT_CHECKPOINT), 1);
    stop();
}

static void test_hub_steps__an_own_trainer_learns_where_to_resume(void **state)
{
    (void)state;
    own_job();
    assert_int_equal(w.peers[0].last_assign.assign.checkpoint_step, 0);
    own_restart();
    assert_generation(2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(w.peers[i].last_assign.assign.checkpoint_step, 400);
        assert_string_equal(w.peers[i].last_assign.assign.checkpoint_path, "/c");
        assert_int_equal(w.peers[i].last_assign.assign.progress_step, 430);
    }
    stop();
    start(1, 2,
          &(struct hub_start){.epoch = 2,
                              .recorded = {1, 2},
                              .is_alone = true,
                              .progress_step = 430,
                              .checkpoint_step = 400,
                              .checkpoint_path = "/status"}); /* the hub is another one */
    make_own();
    ready(0);
    ready(1);
    assert_string_equal(w.peers[0].last_assign.assign.checkpoint_path, "/status");
    stop();
}

static void test_hub_steps__steps_of_an_own_trainer_are_lost_where_it_says_so(void **state)
{
    (void)state;
    own_job();
    own_restart();
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    phases(1, FLEET_PHASE_RESTORED, -1);
    phases(0, FLEET_PHASE_RESTORED, 410); /* it has saved since, and has not reported it */
    assert_int_equal(w.peers[0].refused, 0);
    assert_phase(HUB_FORMING);
    tell_phase(0, FLEET_PHASE_FIRST_STEP, -1, 0);
    assert_phase(HUB_RUNNING);
    assert_int_equal(last_event(HUB_EVENT_RESTART)->lost_steps, 20);
    assert_true(last_event(HUB_EVENT_RESTART)->timeline.resume_ms >= 0);
    stop();
}

/* On a busy machine the agent of rank 0 reads its trainer's last lines when another trainer has
 * failed already. */
static void test_hub_steps__a_step_that_is_reported_after_the_failure_is_lost_too(void **state)
{
    (void)state;
    own_job();
    fail_trainer(1);
    progress(0, 431, 435);
    w.peers[0].status.step = -1;
    left_generation(0);
    ready(1);
    assert_generation(2);
    phases(1, FLEET_PHASE_RESTORED, -1);
    phases(0, FLEET_PHASE_RESTORED, 410);
    tell_phase(0, FLEET_PHASE_FIRST_STEP, -1, 0);
    assert_int_equal(last_event(HUB_EVENT_RESTART)->lost_steps, 25);
    stop();
}

static void test_hub_steps__nothing_is_claimed_of_an_own_trainer_that_does_not_say(void **state)
{
    (void)state;
    own_job();
    own_restart();
    phases(1, FLEET_PHASE_RESTORED, -1);
    phases(0, FLEET_PHASE_FIRST_STEP, -1); /* it makes a step, and does not say from where */
    assert_int_equal(last_event(HUB_EVENT_RESTART)->lost_steps, -1);
    stop();

    start(1, 2, NULL);
    make_own();
    ready(0);
    ready(1);
    phases(0, FLEET_PHASE_FIRST_STEP, -1);
    phases(1, FLEET_PHASE_FIRST_STEP, -1);
    own_restart();
    phases(0, FLEET_PHASE_FIRST_STEP, -1);
    phases(1, FLEET_PHASE_FIRST_STEP, -1);
    assert_int_equal(last_event(HUB_EVENT_RESTART)->lost_steps, -1);
    assert_true(last_event(HUB_EVENT_RESTART)->timeline.connect_ms >= 0); /* it was started */
    assert_true(last_event(HUB_EVENT_RESTART)->timeline.resume_ms < 0);   /* more is not known */
    stop();
}

/* It began again below its last checkpoint, and has saved over it. */
static void test_hub_steps__the_last_checkpoint_of_an_own_trainer_counts(void **state)
{
    (void)state;
    own_job();
    own_restart();
    checkpoint(0, 2, 100);
    assert_int_equal(last_event(HUB_EVENT_CHECKPOINT)->step.step, 100);
    checkpoint(0, 1, 400); /* late, of the generation before */
    assert_int_equal(last_event(HUB_EVENT_CHECKPOINT)->step.step, 100);
    checkpoint(0, 2, 200);
    assert_int_equal(last_event(HUB_EVENT_CHECKPOINT)->step.step, 200);
    stop();
}

/* The state of an own trainer ends with its generation: the hub does not wait for a member that is
 * out of reach. */
static void test_hub_steps__no_member_waits_for_the_state_of_an_own_trainer(void **state)
{
    (void)state;
    own_job();
    w.peers[1].status.step = 430; /* an agent that reports a step that no other member can use */
    heartbeat(1);
    disconnect(1);
    wait_quietly(3000, true);
    left_generation(0);
    assert_generation(2);
    assert_int_equal(count_events(HUB_EVENT_STALLED), 0);
    stop();
}

#define TEST(name) cmocka_unit_test(test_hub_steps__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_own_trainer_reports_the_steps_it_likes),
        TEST(an_own_trainer_learns_where_to_resume),
        TEST(steps_of_an_own_trainer_are_lost_where_it_says_so),
        TEST(a_step_that_is_reported_after_the_failure_is_lost_too),
        TEST(nothing_is_claimed_of_an_own_trainer_that_does_not_say),
        TEST(the_last_checkpoint_of_an_own_trainer_counts),
        TEST(no_member_waits_for_the_state_of_an_own_trainer),
    };
    return cmocka_run_group_tests_name("hub_own_steps", tests, NULL, NULL);
}
