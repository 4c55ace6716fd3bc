/* SPDX-License-Identifier: Apache-2.0 */

/* Own trainers under the supervisor (tests/support/supervisor_world.h): started for each
 * generation, they report by lines. */
#include "tests/support/supervisor_world.h"

/* A pod whose own trainers wait for their first generation. */
static void open_own(struct world *w, int processes)
{
    open_pod(w, true, processes);
    supervisor_start(w->supervisor, w->now);
    expect(w, "member level 4\nhub hello\n");
}

/* One whose trainer runs in the first generation, as one of two. */
static void open_running(struct world *w)
{
    open_own(w, 1);
    hub_assigns(w);
    assert_non_null(strstr(w->log.text, "start 0 placed\n"));
    fleet_strbuf_clear(&w->log);
}

static void test_supervisor__starts_an_own_trainer_for_each_generation(void **state)
{
    struct world w;

    (void)state;
    open_running(&w);
    hub_aborts(&w);
    expect(&w, "signal 0 15\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGTERM), w.now);
    expect(&w, "hub ready\n");
    hub_assigns(&w);
    assert_non_null(strstr(w.log.text, "start 0 placed\n"));
    fleet_strbuf_clear(&w.log);
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "hub finished\n");
    close_world(&w);
}

static void test_supervisor__a_failed_own_trainer_waits_for_the_next_generation(void **state)
{
    struct world w;

    (void)state;
    open_running(&w);
    supervisor_exited(w.supervisor, 0, EXITED(3), w.now);
    expect(&w, "failed 3 0: \nhub failed\nhub hello\n");
    assert_true(isinf(supervisor_deadline(w.supervisor)));
    close_world(&w);
}

/* Another rank has failed after it: all ranks run again, this one too. */
static void test_supervisor__starts_a_finished_own_trainer_again_with_the_others(void **state)
{
    struct world w;

    (void)state;
    open_running(&w);
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    fleet_strbuf_clear(&w.log);
    hub_aborts(&w);
    expect(&w, "hub ready\n");
    hub_assigns(&w);
    assert_non_null(strstr(w.log.text, "start 0 placed\n"));
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    hub_assigns(&w); /* the abort was lost */
    fleet_strbuf_clear(&w.log);
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "hub finished\n");
    hub_is_done(&w, true);
    expect_over(&w, 0);
    close_world(&w);
}

/* Of two trainers of one pod, the second fails after the first has finished. */
static void test_supervisor__a_finished_own_trainer_waits_with_its_pod(void **state)
{
    struct world w;

    (void)state;
    open_own(&w, 2);
    hub_assigns_two(&w);
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    fleet_strbuf_clear(&w.log);
    supervisor_exited(w.supervisor, 1, EXITED(5), w.now);
    expect(&w, "failed 5 0: \nhub failed\nhub hello\n");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_WAITING);
    close_world(&w);
}

/* ---- own trainers that report ---------------------------------------------------------------- */

/* The hub says that the job has reported `progress_step` steps, and where its checkpoint lies. */
static void hub_assigns_rank_0(struct world *w, int64_t progress_step)
{
    static const int ports[] = {4000};
    const struct message_member member = {
        .pod_uid = "pod", .address = "127.0.0.1", .ports = ports, .processes = 1, .step = -1};
    struct message m = {.type = MESSAGE_ASSIGN,
                        .assign = {.generation = {1, ++w->counter},
                                   .members = &member,
                                   .member_count = 1,
                                   .world = 1,
                                   .plan_digest = "",
                                   .level = FLEET_ISA_AVX2,
                                   .step = -1,
                                   .progress_step = progress_step,
                                   .checkpoint_step = 0,
                                   .checkpoint_path = ""}};

    hub_says(w, m);
    fleet_strbuf_clear(&w->log);
}

static struct progress_line line_of(const char *text)
{
    struct progress_line line;

    assert_int_equal(progress_line_parse(text, strlen(text), &line, NULL), 0);
    return line;
}

static void report(struct world *w, const char *text)
{
    struct progress_line line = line_of(text);

    supervisor_progress(w->supervisor, 0, &line, ++w->now);
    progress_line_release(&line);
}

static void test_supervisor__passes_on_what_an_own_trainer_reports(void **state)
{
    struct world w;

    (void)state;
    open_own(&w, 1);
    hub_assigns_rank_0(&w, 0);
    report(&w, "{\"resumed\": 0}"); /* it counts as training already */
    expect(&w, "");
    report(&w, "{\"step\": 10, \"loss\": 2}");
    expect(&w, "hub progress\n");
    report(&w, "{\"step\": 10, \"checkpoint\": 12, \"path\": \"/c\"}"); /* so 12 was reached */
    expect(&w, "hub progress\nhub checkpointDone\n");
    report(&w, "{\"step\": 11}");
    expect(&w, "");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_RUNNING);
    close_world(&w);
}

/* The hub hears that the generation trains when rank 0 has made a step, since it has done so
 * before. */
static void test_supervisor__a_restarted_own_trainer_trains_when_it_reports(void **state)
{
    struct world w;

    (void)state;
    open_own(&w, 1);
    hub_assigns_rank_0(&w, 430);
    report(&w, "{\"resumed\": 400}");
    expect(&w, "hub ready\n"); /* restored */
    report(&w, "{\"step\": 401}");
    expect(&w, "hub ready\n"); /* first step; the step itself is known already */
    report(&w, "{\"step\": 431}");
    expect(&w, "hub progress\n");
    close_world(&w);
}

/* It saves on the order to end, and reports it: the report must not be lost. */
static void
test_supervisor__takes_the_checkpoint_of_an_own_trainer_that_is_ordered_to_end(void **state)
{
    struct world w;

    (void)state;
    open_own(&w, 1);
    hub_assigns_rank_0(&w, 0);
    report(&w, "{\"step\": 7}");
    hub_aborts(&w);
    fleet_strbuf_clear(&w.log);
    report(&w, "{\"checkpoint\": 7, \"path\": \"/c/7\"}");
    expect(&w, "hub checkpointDone\n");
    assert_true(member_owes_checkpoint(w.member));
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "hub ready\n");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_WAITING);
    close_world(&w);
}

/* Ranks other than 0 have losses of their own. */
static void test_supervisor__drops_what_other_ranks_report(void **state)
{
    struct world w;

    (void)state;
    open_running(&w);
    report(&w, "{\"step\": 10, \"checkpoint\": 10}");
    expect(&w, "");
    close_world(&w);
}

/* SIGTERM to the group, its grace, then SIGKILL. */
static void
test_supervisor__an_own_trainer_that_does_not_end_is_killed_after_its_grace(void **state)
{
    struct world w;

    (void)state;
    open_running(&w);
    hub_aborts(&w);
    expect(&w, "signal 0 15\n");
    assert_true(supervisor_deadline(w.supervisor) > w.now + 29000);
    w.now += 31000;
    supervisor_tick(w.supervisor, w.now);
    expect(&w, "signal 0 9\n");
    close_world(&w);
}

/* ---- own trainers that stay ------------------------------------------------------------------ */

static void open_staying(struct world *w)
{
    open_running(w);
    report(w, "{\"stays\": true}");
    expect(w, "");
}

/* It gets no signal, and the same process goes on in the next generation. */
static void test_supervisor__an_own_trainer_that_stays_joins_the_next_generation(void **state)
{
    struct world w;

    (void)state;
    open_staying(&w);
    hub_aborts(&w);
    expect(&w, "renew 0\n");
    report(&w, "{\"waiting\": 1}");
    expect(&w, "hub ready\n");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_WAITING);
    assert_true(isinf(supervisor_deadline(w.supervisor)));
    hub_assigns(&w);
    assert_non_null(strstr(w.log.text, "renew 0 placed\n"));
    assert_null(strstr(w.log.text, "start"));
    fleet_strbuf_clear(&w.log);
    assert_true(isinf(supervisor_deadline(w.supervisor)));
    supervisor_exited(w.supervisor, 0, EXITED(0), w.now);
    expect(&w, "hub finished\n");
    close_world(&w);
}

/* It has noticed the loss of a rank before the hub has, or has not noticed it when the next
 * generation begins. */
static void test_supervisor__an_own_trainer_that_stays_may_leave_early_or_late(void **state)
{
    struct world w;

    (void)state;
    open_staying(&w);
    report(&w, "{\"waiting\": 1}");
    expect(&w, "");
    assert_int_equal(member_state(w.member), MESSAGE_STATE_RUNNING);
    hub_aborts(&w);
    expect(&w, "hub ready\n");
    hub_assigns(&w);
    fleet_strbuf_clear(&w.log);
    hub_assigns(&w); /* the abort was lost, so the member orders it */
    expect(&w, "renew 0\n");
    assert_false(isinf(supervisor_deadline(w.supervisor)));
    report(&w, "{\"waiting\": 2}");
    assert_non_null(strstr(w.log.text, "renew 0 placed\n"));
    assert_null(strstr(w.log.text, "signal"));
    assert_true(isinf(supervisor_deadline(w.supervisor)));
    close_world(&w);
}

/* A generation that goes on without it, and one that it does not leave. */
static void test_supervisor__an_own_trainer_that_stays_alone_is_killed(void **state)
{
    struct world w;

    (void)state;
    open_staying(&w);
    report(&w, "{\"waiting\": 1}");
    w.now += 61000;
    supervisor_tick(w.supervisor, w.now);
    expect(&w, "signal 0 9\n");
    supervisor_exited(w.supervisor, 0, SIGNALED(SIGKILL), w.now);
    assert_non_null(strstr(w.log.text, "hub failed\n"));
    close_world(&w);
    open_staying(&w);
    hub_aborts(&w);
    fleet_strbuf_clear(&w.log);
    w.now += 61000;
    supervisor_tick(w.supervisor, w.now);
    expect(&w, "signal 0 9\n");
    close_world(&w);
}

/* While it waits it is killed, or ends: the next generation starts it again. */
static void test_supervisor__an_own_trainer_that_stays_is_started_again_after_its_end(void **state)
{
    static const int ends[] = {SIGNALED(SIGKILL), EXITED(0)};
    struct world w;

    (void)state;
    for (int i = 0; i < 2; i++) {
        open_staying(&w);
        hub_aborts(&w);
        report(&w, "{\"waiting\": 1}");
        supervisor_exited(w.supervisor, 0, ends[i], w.now);
        hub_assigns(&w);
        assert_non_null(strstr(w.log.text, "start 0 placed\n"));
        fleet_strbuf_clear(&w.log);
        hub_aborts(&w); /* the new process has not said that it stays */
        expect(&w, "signal 0 15\n");
        close_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_supervisor__starts_an_own_trainer_for_each_generation),
        cmocka_unit_test(test_supervisor__a_failed_own_trainer_waits_for_the_next_generation),
        cmocka_unit_test(test_supervisor__starts_a_finished_own_trainer_again_with_the_others),
        cmocka_unit_test(test_supervisor__a_finished_own_trainer_waits_with_its_pod),
        cmocka_unit_test(test_supervisor__passes_on_what_an_own_trainer_reports),
        cmocka_unit_test(test_supervisor__a_restarted_own_trainer_trains_when_it_reports),
        cmocka_unit_test(
            test_supervisor__takes_the_checkpoint_of_an_own_trainer_that_is_ordered_to_end),
        cmocka_unit_test(test_supervisor__drops_what_other_ranks_report),
        cmocka_unit_test(
            test_supervisor__an_own_trainer_that_does_not_end_is_killed_after_its_grace),
        cmocka_unit_test(test_supervisor__an_own_trainer_that_stays_joins_the_next_generation),
        cmocka_unit_test(test_supervisor__an_own_trainer_that_stays_may_leave_early_or_late),
        cmocka_unit_test(test_supervisor__an_own_trainer_that_stays_alone_is_killed),
        cmocka_unit_test(test_supervisor__an_own_trainer_that_stays_is_started_again_after_its_end),
    };
    return cmocka_run_group_tests_name("supervisor_own", tests, NULL, NULL);
}
