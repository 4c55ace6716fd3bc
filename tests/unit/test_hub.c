/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub as a machine, situation by situation: generations that form, fail and resize; its
 * messages to each member, its events for its owner, and that it does nothing more. Steps and the
 * end of a job are in test_hub_steps.c, members in doubt in test_hub_members.c, hubs one after the
 * other in test_hub_leaders.c, random histories in tests/sim/test_rendezvous.c.
 */
#include "tests/unit/hub_fixture.h"

/* ---- the first generation -------------------------------------------------------------------- */

static void test_hub__waits_for_all_and_orders_ranks_by_index(void **state)
{
    (void)state;
    start(2, 3, NULL);
    ready(2);
    ready(0);
    hello(1); /* its trainer is not up yet */
    assert_phase(HUB_GATHERING);
    ready(1);
    assert_phase(HUB_FORMING);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(w.peers[i].assigns, 1);
        assert_int_equal(w.peers[i].place, i);
    }
    run(0);
    assert_phase(HUB_RUNNING);
    assert_int_equal(count_events(HUB_EVENT_RUNNING), 1);
    assert_int_equal(count_events(HUB_EVENT_RESTART), 0);
    stop();
}

static void test_hub__a_first_generation_follows_the_order_it_was_given(void **state)
{
    static const char *const order[] = {"pod-2-0", "pod-0-0", "pod-1-0"};

    (void)state;
    start(1, 3, NULL);
    hub_order(w.hub, order, 3);
    for (int i = 0; i < 3; i++)
        ready(i);
    assert_int_equal(w.peers[2].place, 0);
    assert_int_equal(w.peers[0].place, 1);
    assert_int_equal(w.peers[1].place, 2);
    run(0);
    fail_trainer(2);
    left_generation(0);
    left_generation(1);
    ready(2);
    assert_int_equal(w.peers[2].place, 0); /* and later ones keep it */
    stop();
}

static void test_hub__assigns_no_member_before_the_record(void **state)
{
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    w.confirms = false;
    ready(0);
    ready(1);
    assert_phase(HUB_RECORDING);
    assert_int_equal(w.records, 1);
    assert_int_equal(w.record.generation.epoch, 1);
    assert_int_equal(w.record.generation.counter, 1);
    assert_int_equal(w.record.first_step, 1);
    assert_int_equal(w.peers[0].assigns, 0);
    hub_record_done(w.hub, (struct fleet_generation){1, 7}, w.now_ms, &out); /* of something else */
    carry_out(&out);
    assert_int_equal(w.peers[0].assigns, 0);
    hub_record_done(w.hub, w.record.generation, w.now_ms, &out);
    carry_out(&out);
    assert_int_equal(w.peers[0].assigns, 1);
    assert_int_equal(w.peers[1].assigns, 1);
    stop();
}

static void test_hub__gives_up_a_proposal_whose_member_went(void **state)
{
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    w.confirms = false;
    ready(0);
    ready(1);
    gone(1);
    assert_phase(HUB_GATHERING);
    hub_record_done(w.hub, (struct fleet_generation){1, 1}, w.now_ms, &out);
    carry_out(&out);
    assert_int_equal(w.peers[0].assigns, 0);
    w.confirms = true;
    w.peers[1].attempt = 1;
    ready(1);
    assert_generation(2); /* the first was never told */
    stop();
}

static void test_hub__starts_with_fewer_after_the_timeout(void **state)
{
    (void)state;
    start(2, 4, NULL);
    ready(0);
    ready(1);
    wait_quietly(29000, true);
    assert_phase(HUB_GATHERING);
    ready(2); /* a change starts the wait again */
    wait_quietly(29000, true);
    assert_phase(HUB_GATHERING);
    wait_quietly(1500, true);
    assert_phase(HUB_FORMING);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 3);
    stop();
}

static void test_hub__processes_of_a_member_hold_ranks_in_a_row(void **state)
{
    const struct message_assign *assign;

    (void)state;
    start(1, 3, NULL);
    for (int i = 0; i < 3; i++)
        w.peers[i].processes = 2;
    w.peers[1].level = FLEET_ISA_AVX2;
    for (int i = 0; i < 3; i++)
        ready(i);
    assign = &w.peers[2].last_assign.assign;
    assert_int_equal(assign->world, 6);
    assert_int_equal(w.peers[0].first_rank, 0);
    assert_int_equal(w.peers[2].first_rank, 4);
    assert_int_equal(assign->members[2].ports[1], 7001);
    assert_int_equal(assign->level, FLEET_ISA_AVX2); /* the lowest */
    assert_int_equal(assign->lineage_count, 1);
    assert_int_equal(assign->step, -1);
    stop();
}

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

static void test_hub__refuses_a_job_of_mixed_back_ends(void **state)
{
    (void)state;
    start(2, 2, NULL);
    w.peers[0].backend = "cuda";
    w.peers[1].backend = "cpu";
    hello(0);
    hello(1);
    assert_phase(HUB_FAILED);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "MixedBackends");
    assert_string_equal(last_event(HUB_EVENT_FAILED)->message,
                        "worker 0 computes with cuda and worker 1 with cpu: all workers of a job "
                        "need the same FLEET_BACKEND");
    stop();
}

/* Own trainers do not say; and a pod may come back with another one. */
static void test_hub__compares_back_ends_of_other_workers_that_say_theirs(void **state)
{
    (void)state;
    start(2, 2, NULL);
    w.peers[0].backend = "cuda";
    hello(0);
    hello(1);
    w.peers[1].backend = "cuda";
    hello(1);
    assert_phase(HUB_GATHERING);
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

/* ---- other sizes ----------------------------------------------------------------------------- */

static void test_hub__grows_and_shrinks_without_counting(void **state)
{
    struct hub_policy p = policy(1, 4);
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    form(2);
    ready(2); /* more than desired: a spare */
    wait_quietly(1000, true);
    assert_generation(1);
    hub_configure(w.hub, &p, w.now_ms, &out);
    carry_out(&out);
    ready(3);
    assert_phase(HUB_GATHERING);
    left_generation(0);
    left_generation(1);
    assert_generation(2);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 4);
    run(1);
    p = policy(1, 3);
    hub_configure(w.hub, &p, w.now_ms, &out);
    carry_out(&out);
    for (int i = 0; i < 4; i++)
        left_generation(i);
    assert_generation(3);
    assert_int_equal(w.peers[3].leaves, 1); /* the highest index goes */
    assert_int_equal(w.peers[2].place, 2);
    run(2);
    assert_int_equal(hub_restarts(w.hub), 0);
    assert_int_equal(count_events(HUB_EVENT_RESTART), 2);
    stop();
}

/* The lowest index is kept; the state is with the other. */
static void test_hub__a_smaller_size_keeps_the_only_holder_of_the_state(void **state)
{
    struct hub_policy p = policy(1, 1);
    struct hub_output out = {0};

    (void)state;
    start(1, 2, NULL);
    form(2);
    fail_trainer(0);
    hub_configure(w.hub, &p, w.now_ms, &out);
    carry_out(&out);
    ready(0);
    left_generation(1);
    assert_generation(2);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 2);
    assert_int_equal(w.peers[0].last_assign.assign.step, 1);
    run(1); /* now both have it */
    left_generation(0);
    left_generation(1);
    assert_generation(3);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 1);
    assert_int_equal(w.peers[0].last_assign.assign.step, 2);
    assert_int_equal(w.peers[1].leaves, 1);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

static void test_hub__newcomers_that_come_together_join_together(void **state)
{
    struct hub_policy p = policy(1, 4);
    struct hub_output out = {0};

    (void)state;
    start(1, 1, NULL);
    form(1);
    hub_configure(w.hub, &p, w.now_ms, &out);
    carry_out(&out);
    ready(1);
    tick(100);
    ready(2);
    assert_phase(HUB_RUNNING);
    tick(150);
    assert_phase(HUB_RUNNING);
    tick(60);
    assert_phase(HUB_GATHERING);
    left_generation(0);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 3);
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
        TEST(waits_for_all_and_orders_ranks_by_index),
        TEST(a_first_generation_follows_the_order_it_was_given),
        TEST(assigns_no_member_before_the_record),
        TEST(gives_up_a_proposal_whose_member_went),
        TEST(starts_with_fewer_after_the_timeout),
        TEST(processes_of_a_member_hold_ranks_in_a_row),
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
        TEST(refuses_a_job_of_mixed_back_ends),
        TEST(compares_back_ends_of_other_workers_that_say_theirs),
        TEST(a_fatal_cause_is_reported_by_its_own_name),
        TEST(fails_of_a_trainer_that_never_starts),
        TEST(grows_and_shrinks_without_counting),
        TEST(a_smaller_size_keeps_the_only_holder_of_the_state),
        TEST(newcomers_that_come_together_join_together),
    };
    return cmocka_run_group_tests_name("hub", tests, NULL, NULL);
}
