/* SPDX-License-Identifier: Apache-2.0 */

/* Built-in trainers under the supervisor (tests/support/supervisor_world.h). Own trainers are in
 * test_supervisor_own.c. */
#include "tests/support/supervisor_world.h"

static void test_supervisor__brings_a_trainer_into_a_generation(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, false);
    supervisor_start(w.supervisor, w.now);
    expect(&w, "start 0\n");
    say_hello(&w);
    expect(&w, "member level 1\nhub hello\n");
    assert_int_equal(w.ranks[0], -1);
    hub_assigns(&w);
    expect(&w, "send 0 assign 1/2 127.0.0.1:4000\n");
    assert_int_equal(w.ranks[0], 1);
    say_ready(&w, FLEET_PHASE_CONNECTED, -1);
    expect(&w, "hub ready\n");
    close_world(&w);
}

static void test_supervisor__reports_a_killed_trainer_at_once_and_starts_it_again(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9: \nhub failed\n"); /* (1) */
    assert_true(supervisor_deadline(w.supervisor) <= w.now);
    supervisor_tick(w.supervisor, w.now);
    expect(&w, "start 0\n");
    say_hello(&w);
    expect(&w, "hub hello\n");
    close_world(&w);
}

/* One fails while the other, up already, waits for it: the member is made to tell of the
 * failure. */
static void test_supervisor__forgets_no_trainer_that_was_up_before_another_failed(void **state)
{
    struct link_message hello = {.kind = LINK_HELLO, .hello = {.port = 4001}};
    struct world w;

    (void)state;
    open_pod(&w, false, 2);
    supervisor_start(w.supervisor, w.now);
    supervisor_message(w.supervisor, 1, &hello, w.now);
    expect(&w, "start 0\nstart 1\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    supervisor_tick(w.supervisor, w.now);
    hello.hello.port = 4000;
    supervisor_message(w.supervisor, 0, &hello, w.now);
    assert_int_equal(member_state(w.member), MESSAGE_STATE_WAITING);
    close_world(&w);
}

/* Each trainer has its rank, and a failure has the log of the one that failed. */
static void test_supervisor__tells_two_trainers_apart(void **state)
{
    struct link_message hello = {.kind = LINK_HELLO, .hello = {.level = FLEET_ISA_AVX2}};
    struct world w;

    (void)state;
    open_pod(&w, false, 2);
    supervisor_start(w.supervisor, w.now);
    for (int i = 0; i < 2; i++) {
        hello.hello.port = 4000 + i;
        supervisor_message(w.supervisor, i, &hello, ++w.now);
    }
    expect(&w, "start 0\nstart 1\nmember level 1\nhub hello\n");
    hub_assigns_two(&w);
    expect(&w, "send 0 assign 0/2 127.0.0.1:4000\nsend 1 assign 1/2 127.0.0.1:4001\n");
    assert_int_equal(w.ranks[0], 0);
    assert_int_equal(w.ranks[1], 1);
    supervisor_exited(w.supervisor, 1, EXITED(1), w.now); /* expect_last_lines() looks at it */
    expect(&w, "failed 1 0: \nhub failed\nsend 0 abort\n");
    close_world(&w);
}

static void test_supervisor__says_that_memory_was_lacking(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    w.memory_kills = 1;
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9 OOMKilled: the kernel killed it for lack of memory\nhub failed\n");
    close_world(&w);
    train(&w);
    w.memory_kills = 1;
    supervisor_exited(w.supervisor, 0, EXITED(137), w.now); /* a shell, whose child it was */
    expect(&w, "failed 137 0 OOMKilled: the kernel killed it for lack of memory\nhub failed\n");
    close_world(&w);
    train(&w);
    w.memory_kills = 1;
    supervisor_exited(w.supervisor, 0, EXITED(1), w.now); /* some other reason */
    expect(&w, "failed 1 0: \nhub failed\n");
    close_world(&w);
}

static void test_supervisor__backs_off_from_a_trainer_that_keeps_failing(void **state)
{
    struct world w;
    double last_wait = 0;

    (void)state;
    open_world(&w, false);
    supervisor_start(w.supervisor, w.now);
    for (int failure = 1; failure <= 8; failure++) {
        double wait;
        supervisor_exited(w.supervisor, 0, EXITED(1), w.now);
        wait = supervisor_deadline(w.supervisor) - w.now;
        if (failure == 1)
            assert_true(wait == 0);
        if (failure > 2 && wait < last_wait * 1.1)
            fail_msg("failure %d waits %.0f ms after %.0f", failure, wait, last_wait);
        assert_true(wait <= 12500);
        last_wait = wait;
        supervisor_tick(w.supervisor, w.now + wait - 1e-3);
        assert_null(failure > 1 ? strstr(strrchr(w.log.text, 'f'), "start") : NULL);
        w.now += wait;
        supervisor_tick(w.supervisor, w.now);
        fleet_strbuf_clear(&w.log);
    }
    close_world(&w);
}

static void test_supervisor__does_not_restart_what_cannot_help(void **state)
{
    struct world w;
    struct link_message words = {.kind = LINK_FAILED, .failed = {.permanent = true}};

    (void)state;
    open_world(&w, false);
    supervisor_start(w.supervisor, w.now);
    fleet_strbuf_clear(&w.log);
    strcpy(words.failed.text, "data.path: no such file");
    say(&w, words);
    supervisor_exited(w.supervisor, 0, EXITED(1), w.now);
    expect(&w, "failed 1 0 for good: data.path: no such file\nmember level 0\nhub failed\n");
    assert_true(isinf(supervisor_deadline(w.supervisor)));
    hub_is_done(&w, false);
    expect_over(&w, 1);
    close_world(&w);
}

static void test_supervisor__reports_a_trainer_that_cannot_be_started(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, false);
    w.cannot_start = true;
    supervisor_start(w.supervisor, w.now);
    expect(&w, "failed 127 0 CannotStart for good: start \"nothing\": No such file or directory\n"
               "member level 0\nhub failed\n");
    close_world(&w);
}

/* The hook of a container whose ENTRYPOINT cannot be a trainer: it starts nothing, and is over when
 * the hub knows. */
static void test_supervisor__refuses_for_good(void **state)
{
    struct world w;
    int exit_code;

    (void)state;
    open_world(&w, true);
    w.is_refused = true;
    supervisor_refuse(w.supervisor, FLEET_CAUSE_BAD_ENTRYPOINT, "it is static", w.now);
    expect(&w, "failed -1 0 BadEntrypoint for good: it is static\nmember level 4\n"
               "hub hello\nhub failed\n");
    assert_false(supervisor_is_over(w.supervisor, &exit_code));
    assert_true(isinf(supervisor_deadline(w.supervisor)));
    hub_is_done(&w, false);
    expect_over(&w, 1);
    close_world(&w);
}

static void test_supervisor__takes_a_survivor_through_an_abort(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    hub_aborts(&w);
    expect(&w, "send 0 abort\n");
    say_ready(&w, FLEET_PHASE_WAITING, 7);
    expect(&w, "hub ready\n");
    hub_assigns(&w);
    expect(&w, "send 0 assign 1/2 127.0.0.1:4000\n");
    close_world(&w);
}

static void test_supervisor__kills_a_trainer_that_does_not_leave_a_generation(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    hub_aborts(&w);
    fleet_strbuf_clear(&w.log);
    pass(&w, 59000);
    expect(&w, "");
    pass(&w, 2000);
    expect(&w, "signal 0 9\n"); /* (4) */
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9: it did not stop when ordered to\nhub failed\n");
    close_world(&w);
}

static void test_supervisor__ends_well_with_the_job(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    say(&w, (struct link_message){.kind = LINK_FINISHED, .finished = {.steps = 300, .loss = 2}});
    expect(&w, "hub finished\n");
    hub_is_done(&w, true);
    expect(&w, "send 0 done\n");
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "hub left\n");
    expect_over(&w, 0);
    close_world(&w);
}

static void test_supervisor__leaves_on_a_signal_and_kills_on_the_second(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    expect(&w, "send 0 leave\n");
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    expect(&w, "signal 0 9\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "hub left\n"); /* (3): it had the order to end */
    expect_over(&w, 128 + SIGTERM);
    close_world(&w);
}

/* A checkpoint that a trainer saves as it leaves is reported before the pod says goodbye. */
static void test_supervisor__tells_of_the_last_checkpoint_before_it_leaves(void **state)
{
    struct message known = {.type = MESSAGE_HEARTBEAT,
                            .heartbeat = {.checkpoint_step = 12, .interval_ms = 500}};
    struct link_message saved = {.kind = LINK_CHECKPOINT_DONE, .checkpoint_done = {12, "/c/12"}};
    struct member_output out = {0};
    struct world w;

    (void)state;
    train(&w);
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    expect(&w, "send 0 leave\n");
    say(&w, saved);
    expect(&w, "hub checkpointDone\n");
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "");
    assert_true(member_owes_checkpoint(w.member));
    member_receive(w.member, &known, w.now, &out);
    host_apply(&w, &out);
    expect(&w, "hub left\n");
    assert_true(member_has_left(w.member));
    close_world(&w);
}

/* The hub is lost with its leader while the pod is drained. */
static void test_supervisor__waits_for_a_hub_to_say_goodbye_to(void **state)
{
    struct member_output out = {0};
    struct world w;

    (void)state;
    for (int local = 0; local < 2; local++) {
        is_local = local;
        train(&w);
        member_disconnected(w.member, w.now, &out);
        member_output_release(&out);
        supervisor_signal(w.supervisor, SIGTERM, w.now);
        supervisor_exited(w.supervisor, 0, EXITED(0), w.now += 1000);
        expect_over(&w, 128 + SIGTERM);
        assert_true(supervisor_patience_ms(w.supervisor, w.now) == (local ? 0 : 27000));
        assert_true(supervisor_patience_ms(w.supervisor, w.now + 27500) == 0); /* SIGKILL is near */
        close_world(&w);
    }
    is_local = false;
}

/* The agent must report its leave to a hub that receives it; else no hub knows of it. */
static void test_supervisor__waits_for_no_hub_that_has_heard_it(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    assert_true(member_has_left(w.member));
    assert_true(supervisor_patience_ms(w.supervisor, w.now) == 0);
    close_world(&w);
}

static void test_supervisor__gives_a_leaving_trainer_its_grace_and_no_more(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    fleet_strbuf_clear(&w.log);
    pass(&w, 29900);
    expect(&w, "");
    pass(&w, 200);
    expect(&w, "signal 0 9\n"); /* (2) */
    close_world(&w);
}

static void tick_for(struct world *w, double ms)
{
    for (double end = w->now + ms; w->now < end;)
        supervisor_tick(w->supervisor, w->now += LINK_HEARTBEAT_MS);
}

static void hub_has_gone_on(struct world *w)
{
    struct message m = {
        .type = MESSAGE_HEARTBEAT,
        .heartbeat = {.status = {.generation = {1, w->counter + 1}}, .interval_ms = 500}};
    struct member_output out = {0};

    member_receive(w->member, &m, w->now, &out);
    host_apply(w, &out);
}

/* It may be the last that holds the state: it is killed only once others have gone on. */
static void test_supervisor__kills_a_stopped_trainer_that_is_not_needed(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    tick_for(&w, 2500);
    expect(&w, "");
    tick_for(&w, 1000);
    expect(&w, "send 0 abort\n");
    tick_for(&w, 1000);
    expect(&w, "");
    hub_has_gone_on(&w);
    tick_for(&w, 500);
    expect(&w, "signal 0 9\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9: it was silent for too long: stopped or stuck\nhub failed\n");
    close_world(&w);
}

static void test_supervisor__takes_a_stopped_trainer_back_that_wakes_up(void **state)
{
    struct link_message waits = {.kind = LINK_READY,
                                 .ready = {.phase = FLEET_PHASE_WAITING, .step = 1}};
    struct world w;

    (void)state;
    train(&w);
    tick_for(&w, 10000);
    expect(&w, "send 0 abort\n");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_STARTING);
    say(&w, waits);
    assert_int_equal(member_state(w.member), MESSAGE_STATE_WAITING);
    expect(&w, "hub hello\n");
    tick_for(&w, 2000);
    expect(&w, "");
    close_world(&w);
}

static void test_supervisor__gives_up_a_stopped_trainer_at_last(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    tick_for(&w, 59000);
    expect(&w, "send 0 abort\n");
    tick_for(&w, 2000);
    expect(&w, "signal 0 9\n");
    close_world(&w);
}

static void test_supervisor__blames_no_trainer_for_its_own_sleep(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    w.now += 60000; /* the agent was stopped, not the trainer */
    supervisor_tick(w.supervisor, w.now);
    pass(&w, 5000);
    expect(&w, "");
    close_world(&w);
}

static void test_supervisor__one_signal_after_the_hubs_word_kills_nobody(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    hub_is_done(&w, false); /* the job is suspended, and its pods are deleted as well */
    expect(&w, "send 0 leave\n");
    supervisor_signal(w.supervisor, SIGTERM, w.now);
    expect(&w, "");
    close_world(&w);
}

static void test_supervisor__ends_a_trainer_that_breaks_the_protocol(void **state)
{
    struct world w;

    (void)state;
    train(&w);
    say_hello(&w); /* a second time */
    expect(&w, "signal 0 9\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    expect(&w, "failed -1 9: the trainer was ended: it spoke out of turn\nhub failed\n");
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_supervisor__brings_a_trainer_into_a_generation),
        cmocka_unit_test(test_supervisor__reports_a_killed_trainer_at_once_and_starts_it_again),
        cmocka_unit_test(test_supervisor__forgets_no_trainer_that_was_up_before_another_failed),
        cmocka_unit_test(test_supervisor__tells_two_trainers_apart),
        cmocka_unit_test(test_supervisor__says_that_memory_was_lacking),
        cmocka_unit_test(test_supervisor__backs_off_from_a_trainer_that_keeps_failing),
        cmocka_unit_test(test_supervisor__does_not_restart_what_cannot_help),
        cmocka_unit_test(test_supervisor__reports_a_trainer_that_cannot_be_started),
        cmocka_unit_test(test_supervisor__refuses_for_good),
        cmocka_unit_test(test_supervisor__takes_a_survivor_through_an_abort),
        cmocka_unit_test(test_supervisor__kills_a_trainer_that_does_not_leave_a_generation),
        cmocka_unit_test(test_supervisor__ends_well_with_the_job),
        cmocka_unit_test(test_supervisor__leaves_on_a_signal_and_kills_on_the_second),
        cmocka_unit_test(test_supervisor__waits_for_a_hub_to_say_goodbye_to),
        cmocka_unit_test(test_supervisor__waits_for_no_hub_that_has_heard_it),
        cmocka_unit_test(test_supervisor__gives_a_leaving_trainer_its_grace_and_no_more),
        cmocka_unit_test(test_supervisor__tells_of_the_last_checkpoint_before_it_leaves),
        cmocka_unit_test(test_supervisor__kills_a_stopped_trainer_that_is_not_needed),
        cmocka_unit_test(test_supervisor__takes_a_stopped_trainer_back_that_wakes_up),
        cmocka_unit_test(test_supervisor__gives_up_a_stopped_trainer_at_last),
        cmocka_unit_test(test_supervisor__blames_no_trainer_for_its_own_sleep),
        cmocka_unit_test(test_supervisor__one_signal_after_the_hubs_word_kills_nobody),
        cmocka_unit_test(test_supervisor__ends_a_trainer_that_breaks_the_protocol),
    };
    return cmocka_run_group_tests_name("supervisor", tests, NULL, NULL);
}
