/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub when trainers or agents fail: restarts and their limits, causes that are fatal, and
 * broken invariants of the hub itself.
 */
#include "tests/unit/hub_fixture.h"

/* ---- failures -------------------------------------------------------------------------------- */

static void test_hub__aborts_survivors_at_once_and_goes_on_when_the_trainer_is_back(void **state)
{
    const struct hub_event *restart;

    (void)state;
    start(2, 3, NULL);
    form(3);
    progress(0, 2, 20);
    for (int i = 0; i < 3; i++)
        w.peers[i].status.step = 20;
    w.now_ms += 10;
    fail_trainer(1); /* 4 ms ago */
    assert_phase(HUB_GATHERING);
    for (int i = 0; i < 3; i++)
        assert_int_equal(w.peers[i].aborts, 1);
    left_generation(0);
    left_generation(2);
    assert_phase(HUB_GATHERING); /* the agent of 1 lives: its trainer may come back */
    w.now_ms += 100;
    ready(1);
    assert_generation(2);
    assert_int_equal(w.peers[1].place, 1);
    assert_int_equal(w.peers[2].place, 2);
    assert_int_equal(w.peers[0].last_assign.assign.step, 20);
    assert_int_equal(w.peers[0].last_assign.assign.members[1].step, -1);
    assert_int_equal(w.peers[0].last_assign.assign.lineage[1].first_step, 21);
    w.now_ms += 9;
    for (int i = 0; i < 3; i++)
        tell_phase(i, FLEET_PHASE_CONNECTED, 20, 2); /* two ms ago */
    w.now_ms += 50;
    for (int i = 0; i < 3; i++)
        tell_phase(i, FLEET_PHASE_RESTORED, 20, 0);
    w.now_ms += 40;
    tell_phase(2, FLEET_PHASE_FIRST_STEP, 21, 0);

    restart = last_event(HUB_EVENT_RESTART);
    assert_string_equal(restart->cause, "MemberLost");
    assert_int_equal(restart->member, 1);
    assert_int_equal(restart->exit_code, 137);
    assert_int_equal(restart->generation.counter, 2);
    assert_true(restart->counted);
    assert_int_equal(restart->restarts, 1);
    assert_int_equal(restart->lost_steps, 0);
    assert_true(fabs(restart->timeline.detect_ms - 4) < 1e-9);
    assert_true(fabs(restart->timeline.agree_ms - 100) < 1e-9);
    assert_true(fabs(restart->timeline.connect_ms - 7) < 1e-9);
    assert_true(fabs(restart->timeline.restore_ms - 52) < 1e-9);
    assert_true(fabs(restart->timeline.resume_ms - 163) < 1e-9);
    assert_true(fabs(restart->timeline.first_step_ms - 40) < 1e-9);
    stop();
}

static void test_hub__goes_on_without_a_trainer_that_takes_too_long(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    fail_trainer(0);
    left_generation(1);
    left_generation(2);
    wait_quietly(450, true);
    assert_generation(1);
    wait_quietly(100, true);
    assert_generation(2);
    assert_int_equal(w.peers[1].place, 1); /* survivors keep their place … */
    assert_int_equal(w.peers[2].place, 0); /* … unless it is a hole to be filled */
    run(1);
    ready(0); /* the newcomer joins in a generation of its own */
    assert_phase(HUB_GATHERING);
    left_generation(1);
    left_generation(2);
    assert_generation(3);
    run(2);
    assert_string_equal(last_event(HUB_EVENT_RESTART)->cause, "Resize");
    assert_false(last_event(HUB_EVENT_RESTART)->counted);
    assert_int_equal(hub_restarts(w.hub), 1);
    stop();
}

static void test_hub__goes_on_at_once_when_the_agent_is_gone(void **state)
{
    (void)state;
    start(2, 3, NULL);
    form(3);
    gone(2);
    left_generation(0);
    left_generation(1);
    assert_generation(2);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 2);
    assert_string_equal(last_event(HUB_EVENT_LOST)->cause, "MemberLost");
    stop();
}

static void test_hub__is_stalled_below_the_minimum_until_a_member_comes(void **state)
{
    (void)state;
    start(2, 2, NULL);
    form(2);
    gone(1);
    left_generation(0);
    wait_quietly(29500, true);
    assert_int_equal(count_events(HUB_EVENT_STALLED), 0);
    wait_quietly(5000, true);
    assert_int_equal(count_events(HUB_EVENT_STALLED), 1); /* once */
    assert_string_equal(last_event(HUB_EVENT_STALLED)->message,
                        "1 worker is ready, at least 2 are needed (0 have trainers that do not "
                        "start)");
    w.peers[1].attempt = 1;
    w.peers[1].status = (struct message_status){.step = -1};
    ready(1);
    assert_generation(2);
    assert_int_equal(w.peers[0].place, 0);
    stop();
}

static void test_hub__counts_failures_that_come_together_once(void **state)
{
    (void)state;
    start(1, 3, NULL);
    form(3);
    fail_trainer(0);
    fail_trainer(1);
    left_generation(2);
    wait_quietly(600, true);
    assert_generation(2);
    assert_int_equal(hub_restarts(w.hub), 1);
    run(1);
    assert_int_equal(count_events(HUB_EVENT_RESTART), 1);
    assert_int_equal(last_event(HUB_EVENT_RESTART)->member, 0); /* the first cause */
    stop();
}

static void test_hub__survives_a_failure_while_forming(void **state)
{
    (void)state;
    start(1, 3, NULL);
    form(3);
    gone(0);
    left_generation(1);
    left_generation(2);
    assert_generation(2);
    tell_phase(1, FLEET_PHASE_CONNECTED, 1, 0);
    fail_trainer(2); /* in the new generation, before it connected */
    left_generation(1);
    wait_quietly(600, true);
    assert_generation(3);
    assert_int_equal(w.peers[1].last_assign.assign.member_count, 1);
    run(1);
    assert_phase(HUB_RUNNING);
    assert_int_equal(hub_restarts(w.hub), 2);
    assert_int_equal(count_events(HUB_EVENT_RESTART), 2); /* the first as far as it came */
    stop();
}

static void test_hub__fails_when_restarts_are_used_up(void **state)
{
    (void)state;
    start(1, 1, NULL);
    form(1);
    for (int i = 0; i < 3; i++) {
        fail_trainer(0);
        ready(0);
        assert_generation(2 + i);
        run(1);
    }
    assert_int_equal(hub_restarts(w.hub), 3);
    fail_trainer_with(0, 3, 0, "OutOfMemory", false);
    assert_phase(HUB_FAILED);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "OutOfMemory");
    assert_string_equal(last_event(HUB_EVENT_FAILED)->message,
                        "3 restarts are used up; the last cause was OutOfMemory");
    assert_int_equal(last_event(HUB_EVENT_FAILED)->exit_code, 3);
    assert_int_equal(w.peers[0].dones, 1);
    assert_false(w.peers[0].done_succeeded);
    for (int i = 0; i < PEERS_MAX; i++)
        if (w.peers[i].connection)
            leave(i);
    assert_true(isinf(hub_deadline(w.hub)));
    stop();
}

/* Lost members count like failed trainers; that one more was lost is no cause of its own. */
static void test_hub__fails_when_members_are_lost_too_often(void **state)
{
    (void)state;
    start(1, 1, NULL);
    form(1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(hub_restarts(w.hub), i);
        gone(0);
        w.peers[0].attempt++;
        w.peers[0].status = (struct message_status){.step = -1};
        if (i < 3) {
            ready(0);
            assert_generation(2 + i);
            run(1);
        }
    }
    assert_phase(HUB_FAILED);
    assert_true(last_event(HUB_EVENT_FAILED)->restarts_used_up);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->message,
                        "3 restarts are used up; the last cause was MemberLost");
    stop();
}

static void test_hub__forgets_restarts_after_enough_steps(void **state)
{
    (void)state;
    start(1, 1, NULL);
    form(1);
    fail_trainer(0);
    ready(0);
    run(1);
    assert_int_equal(hub_restarts(w.hub), 1);
    progress(0, 2, 100);
    assert_int_equal(hub_restarts(w.hub), 1);
    progress(0, 101, 101); /* the hundredth since */
    assert_int_equal(hub_restarts(w.hub), 0);
    stop();
}

static void test_hub__fails_at_once_of_a_fatal_cause(void **state)
{
    (void)state;
    start(1, 2, NULL);
    ready(0);
    ready(1);
    fail_trainer_with(1, 1, 0, "DataNotFound", true);
    assert_phase(HUB_FAILED);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "DataNotFound");
    assert_string_equal(last_event(HUB_EVENT_FAILED)->message,
                        "the trainer of worker 1 exited with code 1");
    assert_int_equal(w.peers[0].dones, 1);
    stop();
}

/* Nothing was started, so nothing has exited. */
static void test_hub__fails_at_once_of_what_was_never_started(void **state)
{
    (void)state;
    start(1, 2, NULL);
    hello(1);
    fail_trainer_with(1, -1, 0, "BadEntrypoint", true);
    assert_phase(HUB_FAILED);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "BadEntrypoint");
    assert_string_equal(last_event(HUB_EVENT_FAILED)->message,
                        "the trainer of worker 1 cannot be started");
    stop();
}

/* A generation has ended for another cause, and a fatal report then is final. */
static void test_hub__a_fatal_cause_is_reported_by_its_own_name(void **state)
{
    (void)state;
    start(1, 2, NULL);
    form(2);
    accuse(0, 1);
    assert_phase(HUB_GATHERING);
    fail_trainer_with(1, 1, 0, "DataNotFound", true);
    assert_phase(HUB_FAILED);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "DataNotFound");
    stop();
}

static void test_hub__fails_of_a_trainer_that_never_starts(void **state)
{
    (void)state;
    start(1, 2, NULL);
    ready(0);
    hello(1);
    for (int i = 0; i < 3; i++) {
        fail_trainer_with(1, 1, 0, "", false);
        assert_phase(HUB_GATHERING);
    }
    fail_trainer_with(1, 1, 0, "", false);
    assert_phase(HUB_FAILED);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "TrainerFailed");
    stop();
}

#define TEST(name) cmocka_unit_test(test_hub__##name)

/* ---- broken invariants ----------------------------------------------------------------------- */

/* Each call begins with the assertion that time has not gone back. */
static void test_defect__ends_the_hub_and_is_reported_once(void **state)
{
    size_t defects = hub_defects();
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    ready(0);
    ready(1);
    tick(300);
    assert_int_equal(w.peers[0].assigns, 1);
    w.now_ms -= 100;
    hub_tick(w.hub, w.now_ms, &out);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.items[0].type, HUB_EVENT);
    assert_int_equal(out.items[0].event->type, HUB_EVENT_DEFECT);
    assert_non_null(strstr(out.items[0].event->message, "hub.c:"));
    assert_string_equal(hub_defect(w.hub), out.items[0].event->message);
    hub_output_release(&out);
    w.now_ms += 5000;
    hub_member_gone(w.hub, "pod-0-0", FLEET_CAUSE_POD_GONE, w.now_ms, &out);
    hub_end(w.hub, true, "", w.now_ms, &out);
    hub_configure(w.hub, &(struct hub_policy){.min = 1, .max = 1, .desired = 1}, w.now_ms, &out);
    hub_order(w.hub, NULL, 0);
    assert_int_equal(out.count, 0);
    assert_true(isinf(hub_deadline(w.hub)));
    assert_int_equal(hub_members(w.hub, NULL, 0), 0);
    assert_int_equal(hub_defects(), defects + 1);
    stop();
}

/* What a call that fails has decided goes nowhere, what others decided before does. */
static void test_defect__drops_what_the_call_wanted(void **state)
{
    struct hub_policy wrong = {.min = 2, .max = 1, .desired = 1};
    struct hub_output out = {0};
    size_t before;

    (void)state;
    start(1, 1, NULL);
    ready(0);
    hub_tick(w.hub, w.now_ms + 300, &out);
    before = out.count;
    assert_true(before > 0);
    hub_configure(w.hub, &wrong, w.now_ms + 300, &out);
    assert_int_equal(out.count, before + 1);
    assert_int_equal(out.items[before].event->type, HUB_EVENT_DEFECT);
    hub_output_release(&out);
    stop();
}

/* A call without an answer cannot tell: the deadline asks for one that can. */
static void test_defect__of_the_start_is_reported_by_the_first_call(void **state)
{
    struct hub_policy wrong = {.min = 2, .max = 1, .desired = 1};
    struct hub_start s = {.job_uid = "job"};
    struct hub *hub = hub_new(&s, &wrong, 1000);
    struct hub_output out = {0};

    (void)state;
    assert_non_null(hub_defect(hub));
    assert_true(hub_deadline(hub) <= 1000);
    hub_tick(hub, 1000, &out);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.items[0].event->type, HUB_EVENT_DEFECT);
    hub_output_release(&out);
    assert_true(isinf(hub_deadline(hub)));
    hub_free(hub);
}

/* A hub that takes another's place in the same epoch uses no number again. */
static void test_defect__numbers_go_on_after_those_that_were_given(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {2, 3}, .counter = 5, .is_alone = true};

    (void)state;
    start(1, 1, &s);
    ready(0);
    tick(300);
    assert_int_equal(w.record.generation.epoch, 2);
    assert_int_equal(w.record.generation.counter, 6);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defect__ends_the_hub_and_is_reported_once),
        cmocka_unit_test(test_defect__drops_what_the_call_wanted),
        cmocka_unit_test(test_defect__of_the_start_is_reported_by_the_first_call),
        cmocka_unit_test(test_defect__numbers_go_on_after_those_that_were_given),
        TEST(aborts_survivors_at_once_and_goes_on_when_the_trainer_is_back),
        TEST(goes_on_without_a_trainer_that_takes_too_long),
        TEST(goes_on_at_once_when_the_agent_is_gone),
        TEST(is_stalled_below_the_minimum_until_a_member_comes),
        TEST(counts_failures_that_come_together_once),
        TEST(survives_a_failure_while_forming),
        TEST(fails_when_restarts_are_used_up),
        TEST(fails_when_members_are_lost_too_often),
        TEST(forgets_restarts_after_enough_steps),
        TEST(fails_at_once_of_a_fatal_cause),
        TEST(fails_at_once_of_what_was_never_started),
        TEST(a_fatal_cause_is_reported_by_its_own_name),
        TEST(fails_of_a_trainer_that_never_starts),
    };
    return cmocka_run_group_tests_name("hub_failures", tests, NULL, NULL);
}
