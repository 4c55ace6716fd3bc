/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The hub and a job with its own trainers (no spec.training): each exits for itself, and the job
 * has succeeded only when all ranks of one generation have exited with 0.
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

/* The next hub does not know which members have finished; they report it again. */
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
    wait_quietly(200000, true); /* the other does not come */
    assert_phase(HUB_GATHERING);
    hub_tick(w.hub, w.now_ms, &out);
    carry_out(&out);
    assert_int_equal(count_events(HUB_EVENT_FINISHED), 0);
    stop();
}

/* It was lost with its connection, after it had finished, and is back: one rank, not two. The other
 * is still unheard of. */
static void test_hub_own_trainers__a_member_that_comes_back_has_finished_once(void **state)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 1}, .job_uid = "job"};
    struct hub_policy p = policy(2, 2);

    (void)state;
    start_own(2, NULL);
    finish(0);
    hub_free(w.hub);
    p.own_trainer = true;
    w.hub = hub_new(&s, &p, w.now_ms);
    w.peers[0].connection = w.peers[1].connection = 0;
    hello(0);
    finish(0);
    gone(0);
    hello(0);
    finish(0);
    assert_phase(HUB_RUNNING);
    assert_int_equal(count_events(HUB_EVENT_FINISHED), 0);
    wait_quietly(60000, true);
    assert_phase(HUB_GATHERING); /* the other does not come */
    stop();
}

/* ---- back-off -------------------------------------------------------------------------------- */

/* All trainers end and wait again; how long, in ms, until the next generation is assigned. */
static double wait_for_generation(int count, int64_t counter)
{
    double begun_ms = w.now_ms;

    for (int i = 0; i < count; i++)
        go_down(i);
    for (int beats = 0; hub_generation(w.hub).counter < counter; beats++) {
        assert_true(beats < 10000);
        wait_quietly(100, true);
    }
    run(-1);
    return w.now_ms - begun_ms;
}

static struct hub_policy endless(int count)
{
    struct hub_policy p = policy(count, count);

    p.restarts_max = 1000;
    return p;
}

static void test_hub_own_trainers__back_off_from_what_keeps_failing(void **state)
{
    struct hub_policy p = endless(1);
    double waited_ms = 0, least_ms[] = {0, 900, 1800, 3600, 7200, 14400, 28800};

    (void)state;
    start_own(1, &p);
    for (size_t i = 0; i < sizeof(least_ms) / sizeof(least_ms[0]); i++) {
        exit_with(0, 3);
        waited_ms = wait_for_generation(1, (int64_t)i + 2);
        assert_true(waited_ms >= least_ms[i]);
        assert_true(waited_ms <= least_ms[i] / 0.9 + 200);
    }
    for (int i = 9; i < 20; i++) {
        exit_with(0, 3);
        waited_ms = wait_for_generation(1, i);
    }
    assert_true(waited_ms >= 270000 && waited_ms <= 300200); /* five minutes are the most */
    assert_true(hub_restarts(w.hub) >= 18);
    stop();
}

static void test_hub_own_trainers__progress_and_time_end_the_back_off(void **state)
{
    struct hub_policy p = endless(1);

    (void)state;
    start_own(1, &p);
    for (int i = 2; i < 6; i++) {
        exit_with(0, 3);
        (void)wait_for_generation(1, i);
    }
    progress(0, 1, 1);
    exit_with(0, 3);
    assert_true(wait_for_generation(1, 6) < 500); /* a new step */
    progress(0, 1, 1);
    exit_with(0, 3);
    assert_true(wait_for_generation(1, 7) >= 900); /* the same step again is no progress */
    wait_quietly(601000, true);
    exit_with(0, 3);
    assert_true(wait_for_generation(1, 8) < 500); /* ten minutes went well */
    stop();
}

/* The next hub goes on where the back-off was. */
static void test_hub_own_trainers__the_next_hub_backs_off_as_well(void **state)
{
    struct hub_start s = {
        .epoch = 2, .recorded = {1, 5}, .job_uid = "job", .restarts = 4, .failures = 4};
    struct hub_policy p = endless(1);

    (void)state;
    start_own(1, &p);
    hub_free(w.hub);
    p.own_trainer = true;
    w.hub = hub_new(&s, &p, w.now_ms);
    w.peers[0].connection = 0;
    w.peers[0].status.generation = (struct fleet_generation){1, 5};
    hello(0);
    exit_with(0, 3);
    assert_true(wait_for_generation(1, 6) >= 7200);
    stop();
}

static void test_hub_own_trainers__say_when_the_restart_comes(void **state)
{
    struct hub_policy p = endless(1);

    (void)state;
    start_own(1, &p);
    for (int i = 2; i < 6; i++) {
        exit_with(0, 3);
        (void)wait_for_generation(1, i);
    }
    w.event_count = 0;
    exit_with(0, 3);
    assert_int_equal(count_events(HUB_EVENT_WAITING), 1); /* and not again while it lasts */
    assert_non_null(strstr(last_event(HUB_EVENT_WAITING)->message, "restart 5 in "));
    assert_non_null(
        strstr(last_event(HUB_EVENT_WAITING)->message, " s, after worker 0 exited with code 3"));
    assert_true(last_event(HUB_EVENT_WAITING)->until_ms > w.now_ms + 7000);
    (void)wait_for_generation(1, 6);
    assert_int_equal(count_events(HUB_EVENT_WAITING), 2);
    assert_string_equal(last_event(HUB_EVENT_WAITING)->message, "");
    stop();
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void start_with_rule(enum failure_action action, int64_t exit_code, int restarts_max)
{
    struct failure_rule rule = {
        .name = "known", .action = action, .exit_codes = &exit_code, .exit_code_count = 1};
    struct hub_policy p = policy(1, 1);

    p.restarts_max = restarts_max;
    p.rules = (struct failure_rules){&rule, 1}; /* copied */
    start_own(1, &p);
}

static void test_hub_own_trainers__what_a_rule_ignores_is_never_counted(void **state)
{
    (void)state;
    start_with_rule(FAILURE_IGNORE, 3, 0);
    for (int i = 2; i < 32; i++) {
        exit_with(0, 3);
        (void)wait_for_generation(1, i);
        w.event_count = 0;
    }
    assert_int_equal(hub_restarts_total(w.hub), 0);
    assert_int_equal(hub_restarts_ignored(w.hub), 30);
    assert_int_equal(w.record.restarts_ignored, 30);
    exit_with(0, 4); /* another code counts, and there is no restart left */
    assert_phase(HUB_FAILED);
    stop();
}

static void test_hub_own_trainers__what_a_rule_calls_final_is_no_restart(void **state)
{
    int records;

    (void)state;
    start_with_rule(FAILURE_FAIL, 3, 10);
    records = w.records;
    exit_with(0, 3);
    assert_phase(HUB_FAILED);
    assert_string_equal(last_event(HUB_EVENT_FAILED)->cause, "FailurePolicy");
    assert_non_null(strstr(last_event(HUB_EVENT_FAILED)->message, "which rule known calls final"));
    assert_int_equal(w.records, records);
    assert_int_equal(hub_restarts_total(w.hub), 0);
    assert_int_equal(count_events(HUB_EVENT_RESTART), 0);
    stop();
}

static void test_hub_own_trainers__a_missing_command_is_final(void **state)
{
    (void)state;
    start_own(1, NULL);
    exit_with(0, 127);
    assert_phase(HUB_FAILED);
    assert_non_null(strstr(last_event(HUB_EVENT_FAILED)->message, "command not found"));
    stop();
    start_with_rule(FAILURE_RESTART, 127, 3); /* the user knows better */
    exit_with(0, 127);
    assert_phase(HUB_GATHERING);
    stop();
}

/* ---- others come and go ---------------------------------------------------------------------- */

static struct hub_policy elastic(double replacement_ms)
{
    struct hub_policy p = policy(1, 3);

    p.replacement_ms = replacement_ms;
    return p;
}

static void replace(int index)
{
    w.peers[index].attempt++;
    w.peers[index].place = -1;
    w.peers[index].status = (struct message_status){.step = -1};
    ready(index);
}

static void test_hub_own_trainers__a_drain_costs_one_restart(void **state)
{
    struct hub_policy p = elastic(60000);

    (void)state;
    start_own(3, &p);
    w.peers[1].status.is_leaving = true;
    heartbeat(1);
    assert_int_equal(w.peers[0].aborts, 1); /* the others can save with it */
    exit_with(2, 1);                        /* it met the end of the drained one */
    go_down(0);
    go_down(2);
    leave(1);
    wait_quietly(20000, true);
    assert_generation(1);
    assert_non_null(strstr(last_event(HUB_EVENT_WAITING)->message, "replacement"));
    replace(1);
    assert_generation(2);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 3);
    run(-1);
    wait_quietly(120000, true);
    assert_generation(2);
    assert_int_equal(hub_restarts_total(w.hub), 0);
    stop();
}

static void test_hub_own_trainers__go_on_with_fewer_after_the_wait(void **state)
{
    struct hub_policy p = elastic(60000);

    (void)state;
    start_own(3, &p);
    gone(1);
    go_down(0);
    go_down(2);
    wait_quietly(59000, true);
    assert_generation(1);
    wait_quietly(2000, true);
    assert_generation(2);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 2);
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
        TEST(a_member_that_comes_back_has_finished_once),
        TEST(a_lost_connection_is_not_a_finish),
        TEST(the_next_hub_waits_for_all_as_well),
        TEST(back_off_from_what_keeps_failing),
        TEST(progress_and_time_end_the_back_off),
        TEST(the_next_hub_backs_off_as_well),
        TEST(say_when_the_restart_comes),
        TEST(what_a_rule_ignores_is_never_counted),
        TEST(what_a_rule_calls_final_is_no_restart),
        TEST(a_missing_command_is_final),
        TEST(a_drain_costs_one_restart),
        TEST(go_on_with_fewer_after_the_wait),
    };
    return cmocka_run_group_tests_name("hub_own_trainers", tests, NULL, NULL);
}
