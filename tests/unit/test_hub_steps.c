/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub and what a job is about: steps, checkpoints, state that may be lost, the end. Its
 * answer to each message, the order of its events, and the members that it waits for.
 */
#include "tests/unit/hub_fixture.h"

/* ---- progress and checkpoints ---------------------------------------------------------------- */

/* An observer must not see steps of a generation that does not run yet. */
static void test_hub_steps__a_step_says_that_the_generation_runs(void **state)
{
    (void)state;
    start(1, 2, NULL);
    ready(0);
    ready(1);
    for (int i = 0; i < 2; i++) {
        tell_phase(i, FLEET_PHASE_CONNECTED, 0, 0);
        tell_phase(i, FLEET_PHASE_RESTORED, 0, 0);
    }
    assert_int_equal(hub_phase(w.hub), HUB_FORMING);
    progress(0, 1, 1); /* before anybody's "first step" */
    assert_int_equal(hub_phase(w.hub), HUB_RUNNING);
    assert_int_equal(count_events(HUB_EVENT_RUNNING), 1);
    run(0);
    assert_int_equal(count_events(HUB_EVENT_RUNNING), 1);
    stop();
}

static void test_hub_steps__tells_each_step_once_and_waits_for_missing_ones(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    progress(0, 2, 4);
    progress(1, 3, 5); /* another reporter, after a restart say */
    assert_int_equal(count_events(HUB_EVENT_STEP), 5);
    w.peers[0].status.steps_from = 6;
    heartbeat(0); /* member 0 has step 6 and will tell it */
    progress(1, 7, 7);
    assert_int_equal(count_events(HUB_EVENT_STEP), 5);
    wait_quietly(4000, true);
    progress(1, 7, 7);
    assert_int_equal(count_events(HUB_EVENT_STEP), 5);
    progress(0, 6, 6);
    progress(1, 7, 7);
    assert_int_equal(count_events(HUB_EVENT_STEP), 7);
    for (int i = 0, step = 1; i < w.event_count; i++)
        if (w.events[i].type == HUB_EVENT_STEP)
            assert_int_equal(w.events[i].step.step, step++);
    stop();
}

static void test_hub_steps__tells_a_checkpoint_after_its_steps(void **state)
{
    struct message message = {.type = MESSAGE_CHECKPOINT_DONE,
                              .checkpoint_done = {.step = 10, .path = "/c/10"}};

    (void)state;
    start(1, 2, NULL);
    form(2);
    message.checkpoint_done.generation = hub_generation(w.hub);
    send_to_hub(&w.peers[1], &message);
    assert_int_equal(count_events(HUB_EVENT_CHECKPOINT), 0);
    progress(0, 2, 10);
    assert_int_equal(count_events(HUB_EVENT_CHECKPOINT), 1);
    assert_int_equal(last_event(HUB_EVENT_CHECKPOINT)->step.step, 10);
    progress(0, 11, 12);
    gone(0); /* no member has the state any more: back to the checkpoint */
    gone(1);
    w.peers[0].attempt = w.peers[1].attempt = 1;
    w.peers[0].status = w.peers[1].status = (struct message_status){.step = -1};
    ready(0);
    ready(1);
    assert_int_equal(w.record.first_step, 11);
    run(10);
    assert_int_equal(last_event(HUB_EVENT_RESTART)->lost_steps, 2);
    stop();
}

/* The members of a suspended job save what they hold; the hub is to know before they go. */
static void test_hub_steps__hears_the_last_checkpoint_of_a_job_that_is_over(void **state)
{
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    form(2);
    progress(0, 2, 5);
    hub_end(w.hub, false, "Suspended", w.now_ms, &out);
    carry_out(&out);
    assert_int_equal(w.peers[0].dones, 1);
    leave(1);
    assert_int_equal(count_events(HUB_EVENT_LOST), 0);
    checkpoint(0, 1, 7); /* the steps follow, because they went another way */
    assert_int_equal(count_events(HUB_EVENT_CHECKPOINT), 0);
    progress(0, 6, 7);
    assert_int_equal(last_event(HUB_EVENT_STEP)->step.step, 7);
    assert_int_equal(last_event(HUB_EVENT_CHECKPOINT)->step.step, 7);
    disconnect(0); /* and again, over another connection, because no answer came */
    hello(0);
    checkpoint(0, 1, 7);
    assert_int_equal(w.peers[0].checkpoint_step, 7);
    assert_int_equal(count_events(HUB_EVENT_CHECKPOINT), 1);
    leave(0);
    assert_int_equal(hub_members(w.hub, NULL, 0), 0);
    stop();
}

/* The hub is new, and the job was suspended before one of its members had found it. */
static void test_hub_steps__hears_the_last_checkpoint_of_a_member_that_comes_late(void **state)
{
    struct hub_start s = {.epoch = 2,
                          .recorded = {1, 5},
                          .progress_step = 40,
                          .lineage = {.entries = {{{1, 5}, 1}}, .count = 1},
                          .has_trained = true};
    struct hub_output out = {0};

    (void)state;
    start(2, 2, &s);
    remember(0, 2);
    remember(1, 2);
    hello(1);
    hub_end(w.hub, false, "Suspended", w.now_ms, &out);
    carry_out(&out);
    hello(0);
    assert_int_equal(w.peers[0].dones, 1);
    progress(0, 41, 42);
    checkpoint(0, 5, 42);
    assert_int_equal(last_event(HUB_EVENT_CHECKPOINT)->step.step, 42);
    assert_int_equal(w.peers[0].checkpoint_step, 42);
    leave(0);
    stop();
}

/* A generation that has made no step may have saved the one it began with. */
static void test_hub_steps__takes_the_checkpoint_of_a_generation_without_steps(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    progress(0, 2, 5);
    for (int i = 0; i < 2; i++) /* the member is lost before the second one commits anything */
    {
        gone(1);
        left_generation(0);
        w.peers[1].attempt++;
        w.peers[1].status = (struct message_status){.step = -1};
        ready(1);
        left_generation(0);
    }
    assert_true(hub_generation(w.hub).counter >= 3);
    assert_true(hub_lineage(w.hub).count >= 3);
    checkpoint(0, 2, 5);
    assert_int_equal(last_event(HUB_EVENT_CHECKPOINT)->step.step, 5);
    stop();
}

static void finish(int index, int64_t steps, const char *sha256)
{
    struct message message = {.type = MESSAGE_FINISHED,
                              .finished = {.generation = hub_generation(w.hub),
                                           .steps = steps,
                                           .loss = 1.5,
                                           .weights_sha256 = sha256}};

    send_to_hub(&w.peers[index], &message);
}

/* The survivors hold the last step: the restarted generation finishes without a step of its own. */
static void test_hub_steps__tells_a_restart_that_finishes_at_once(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    progress(0, 2, 30);
    for (int i = 0; i < 3; i++)
        w.peers[i].status.step = 30;
    fail_trainer(2);
    left_generation(0);
    left_generation(1);
    wait_quietly(1000, true);
    assert_generation(2);
    finish(0, 30, "aa");
    finish(1, 30, "aa");
    assert_phase(HUB_FINISHED);
    assert_int_equal(count_events(HUB_EVENT_RESTART), 1);
    assert_true(last_event(HUB_EVENT_RESTART)->counted);
    assert_int_equal(last_event(HUB_EVENT_RESTART)->member, 2);
    stop();
}

static void test_hub_steps__finishes_when_all_have_and_restarts_no_more(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    progress(0, 2, 30);
    finish(0, 30, "aa");
    assert_phase(HUB_RUNNING); /* the others may still finish */
    fail_trainer(2);
    assert_phase(HUB_RUNNING); /* but the hub waits for no member to come back */
    finish(1, 30, "");
    assert_phase(HUB_FINISHED);
    assert_string_equal(last_event(HUB_EVENT_FINISHED)->weights_sha256, "aa");
    assert_false(last_event(HUB_EVENT_FINISHED)->weights_differ);
    assert_int_equal(last_event(HUB_EVENT_FINISHED)->step.step, 30);
    assert_true(w.peers[2].done_succeeded);
    heartbeat(1); /* its done was lost */
    assert_int_equal(w.peers[1].dones, 2);
    stop();
}

/* A job that is run again after its end: its members read the last checkpoint and have no step to
 * make. */
static void test_hub_steps__finishes_a_job_that_had_finished_before(void **state)
{
    (void)state;
    start(1, 1, NULL);
    ready(0);
    tell_phase(0, FLEET_PHASE_CONNECTED, -1, 0);
    tell_phase(0, FLEET_PHASE_RESTORED, 300, 0);
    finish(0, 300, "ab");
    assert_phase(HUB_FINISHED);
    assert_int_equal(last_event(HUB_EVENT_FINISHED)->step.step, 300);
    stop();
}

/* Steps 2 to 30 were reported to a hub that was lost before it recorded them: no one has them any
 * more. */
static void test_hub_steps__finishes_without_a_report_of_the_last_steps(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    heartbeat(0);
    w.peers[1].status.steps_from = 20; /* this member has them */
    heartbeat(1);
    finish(0, 30, "aa");
    assert_phase(HUB_RUNNING);
    w.peers[1].status.steps_from = 0;
    heartbeat(1);
    checkpoint(0, 1, 30);
    finish(0, 30, "aa");
    finish(1, 30, "aa");
    assert_phase(HUB_FINISHED);
    assert_int_equal(last_event(HUB_EVENT_STEP)->step.step, 30);
    assert_int_equal(last_event(HUB_EVENT_CHECKPOINT)->step.step, 30);
    stop();
}

static void test_hub_steps__says_when_weights_differ(void **state)
{
    (void)state;
    start(2, 2, NULL);
    form(2);
    finish(1, 1, "bb");
    finish(0, 1, "aa");
    assert_true(last_event(HUB_EVENT_FINISHED)->weights_differ);
    assert_string_equal(last_event(HUB_EVENT_FINISHED)->weights_sha256, "aa");
    stop();
}

static void test_hub_steps__says_when_a_step_takes_far_too_long(void **state)
{
    (void)state;
    start(1, 1, NULL);
    form(1);
    for (int step = 2; step < 12; step++) {
        wait_quietly(100, true);
        progress(0, step, step);
    }
    wait_quietly(29000, true);
    assert_int_equal(count_events(HUB_EVENT_STALLED), 0);
    wait_quietly(2000, true);
    assert_int_equal(count_events(HUB_EVENT_STALLED), 1);
    assert_string_equal(last_event(HUB_EVENT_STALLED)->cause, "StepTooLong");
    stop();
}

static void ask_for_checkpoint(void)
{
    struct hub_output out = {0};

    hub_checkpoint(w.hub, w.now_ms, &out);
    carry_out(&out);
}

static void test_hub_steps__ranks_are_asked_for_a_checkpoint_while_they_run(void **state)
{
    (void)state;
    start(1, 2, NULL);
    ready(0);
    ask_for_checkpoint(); /* nothing runs yet */
    assert_int_equal(w.peers[0].checkpoints, 0);
    ready(1);
    run(0);
    progress(0, 1, 1);
    ready(2);
    assert_int_equal(w.peers[2].place, -1); /* a spare */
    ask_for_checkpoint();
    for (int i = 0; i < 3; i++)
        assert_int_equal(w.peers[i].checkpoints, i < 2);
    stop();
}

static void test_hub_steps__can_be_ended_from_outside(void **state)
{
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    form(2);
    hub_end(w.hub, false, "deleted", w.now_ms, &out);
    carry_out(&out);
    assert_phase(HUB_FAILED);
    assert_int_equal(w.peers[1].dones, 1);
    assert_string_equal(w.peers[1].reason, "deleted");
    assert_int_equal(count_events(HUB_EVENT_FAILED), 0);
    disconnect(1);
    hello(1); /* a member that comes later hears it too */
    assert_int_equal(w.peers[1].dones, 2);
    stop();
}

static void test_hub_steps__the_store_is_the_generations(void **state)
{
    struct message put = {.type = MESSAGE_PUT, .put = {{1, 1}, "id", "x", 1}};
    struct message get = {.type = MESSAGE_GET, .get = {{1, 1}, "id"}};

    (void)state;
    start(1, 2, NULL);
    form(2);
    send_to_hub(&w.peers[1], &get);
    assert_int_equal(w.peers[1].values, 0);
    send_to_hub(&w.peers[0], &put);
    assert_int_equal(w.peers[1].values, 1);
    gone(0);
    left_generation(1);
    run(1);
    get.get.generation.counter = 2;
    send_to_hub(&w.peers[1], &get);
    send_to_hub(&w.peers[1], &put); /* a straggler of generation 1 */
    assert_int_equal(w.peers[1].values, 1);
    assert_int_equal(w.peers[1].closed, 0);
    stop();
}

/* ---- what is waited for ---------------------------------------------------------------------- */

/* Its trainer was stopped, the agents of the two others are gone: only it can go on from where they
 * were. */
static void test_hub_steps__says_that_a_stopped_trainer_holds_the_state(void **state)
{
    const struct hub_event *event;

    (void)state;
    start(3, 3, NULL);
    form(3);
    progress(0, 2, 12);
    gone(1);
    gone(2);
    w.peers[0].status = (struct message_status){.state = MESSAGE_STATE_STARTING,
                                                .generation = hub_generation(w.hub),
                                                .step = 12,
                                                .state_generation = hub_generation(w.hub)};
    heartbeat(0);
    wait_quietly(3000, true);
    event = last_event(HUB_EVENT_WAITING);
    assert_string_equal(
        event->message,
        "waits for workers: at least 3 are needed; the trainer of worker 0 holds the "
        "state of step 12 and does not answer: its agent ends it unless it comes back");
    assert_true(event->until_ms > w.now_ms + 50000 && event->until_ms <= w.now_ms + 60000);
    for (int i = 1; i < 3; i++) { /* their pods are made again: now it is only the stopped one */
        w.peers[i].attempt = 1;
        w.peers[i].status = (struct message_status){.step = -1};
        ready(i);
    }
    wait_quietly(3000, true);
    assert_int_equal(hub_phase(w.hub), HUB_GATHERING);
    stop();
}

/* With fewer than `replicas` the start waits for the others: until when? */
static void test_hub_steps__says_until_when_the_start_waits_for_all(void **state)
{
    const struct hub_event *event;

    (void)state;
    start(1, 3, NULL);
    ready(0);
    ready(1);
    assert_int_equal(count_events(HUB_EVENT_WAITING), 0); /* they may come at once */
    wait_quietly(3000, true);
    event = last_event(HUB_EVENT_WAITING);
    assert_non_null(strstr(event->message, "waits for the other workers"));
    assert_true(event->until_ms == w.now_ms + 27000);
    ready(2);
    assert_string_equal(last_event(HUB_EVENT_WAITING)->message, "");
    assert_int_equal(hub_phase(w.hub), HUB_FORMING);
    stop();
}

/* A wait that is over soon is not told, however it ends. */
static void test_hub_steps__says_nothing_of_a_short_wait(void **state)
{
    (void)state;
    start(1, 3, NULL);
    form(3);
    fail_trainer(1);
    restart_all(3, 1);
    assert_int_equal(count_events(HUB_EVENT_WAITING), 0);
    stop();
}

#define TEST(name) cmocka_unit_test(test_hub_steps__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_step_says_that_the_generation_runs),
        TEST(tells_each_step_once_and_waits_for_missing_ones),
        TEST(tells_a_checkpoint_after_its_steps),
        TEST(hears_the_last_checkpoint_of_a_job_that_is_over),
        TEST(hears_the_last_checkpoint_of_a_member_that_comes_late),
        TEST(takes_the_checkpoint_of_a_generation_without_steps),
        TEST(tells_a_restart_that_finishes_at_once),
        TEST(finishes_when_all_have_and_restarts_no_more),
        TEST(finishes_a_job_that_had_finished_before),
        TEST(finishes_without_a_report_of_the_last_steps),
        TEST(says_when_weights_differ),
        TEST(says_when_a_step_takes_far_too_long),
        TEST(ranks_are_asked_for_a_checkpoint_while_they_run),
        TEST(can_be_ended_from_outside),
        TEST(the_store_is_the_generations),
        TEST(says_that_a_stopped_trainer_holds_the_state),
        TEST(says_until_when_the_start_waits_for_all),
        TEST(says_nothing_of_a_short_wait),
    };
    return cmocka_run_group_tests_name("hub_steps", tests, NULL, NULL);
}
