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

/* ---- what the user asked for ----------------------------------------------------------------- */

/* Field by field into memory that held something else, so that the bytes between them differ. */
static void fill_policy(struct hub_policy *to, const struct hub_policy *from, int rest)
{
    memset(to, rest, sizeof(*to));
    to->min = from->min;
    to->max = from->max;
    to->desired = from->desired;
    to->rejoin_grace_ms = from->rejoin_grace_ms;
    to->timeout_ms = from->timeout_ms;
    to->replacement_ms = from->replacement_ms;
    to->restarts_max = from->restarts_max;
    to->rules.items = from->rules.items;
    to->rules.count = from->rules.count;
    to->reset_after_steps = from->reset_after_steps;
    to->progress_interval_ms = from->progress_interval_ms;
    to->own_trainer = from->own_trainer;
    to->grid = from->grid;
    to->ranks_of_member = from->ranks_of_member;
}

/* The same rule at another place in memory. */
static struct failure_rule copied_rule(int rest, int64_t *code, const char *const *causes)
{
    struct failure_rule rule;

    memset(&rule, rest, sizeof(rule));
    rule.name = "disk";
    rule.action = FAILURE_IGNORE;
    rule.exit_codes = code;
    rule.exit_code_count = 1;
    rule.causes = causes;
    rule.cause_count = 1;
    return rule;
}

static void test_hub__compares_what_a_policy_says_not_its_bytes(void **state)
{
    char words[2][8] = {"NoSpace", "NoSpace"};
    const char *causes[2][1] = {{words[0]}, {words[1]}};
    int64_t codes[2] = {28, 28};
    struct failure_rule rules[2] = {copied_rule(0, &codes[0], causes[0]),
                                    copied_rule(0xff, &codes[1], causes[1])};
    struct hub_policy base = policy(1, 2), own, same;
    struct hub_start s = {.job_uid = "job"};
    struct hub *hub;

    (void)state;
    base.rules = (struct failure_rules){.items = &rules[0], .count = 1};
    fill_policy(&own, &base, 0);
    hub = hub_new(&s, &own, 0);
    base.rules.items = &rules[1];
    fill_policy(&same, &base, 0xff);
    /* As bytes they differ. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
    assert_int_not_equal(memcmp(&own, &same, sizeof(own)), 0);
    assert_true(hub_has_policy(hub, &same));
#define EXPECT_CHANGE(change)                       \
    do {                                            \
        struct hub_policy p = same;                 \
        p.change;                                   \
        if (hub_has_policy(hub, &p))                \
            fail_msg("%s is not noticed", #change); \
    } while (0)
    EXPECT_CHANGE(min = 2);
    EXPECT_CHANGE(max = 3);
    EXPECT_CHANGE(desired = 3);
    EXPECT_CHANGE(rejoin_grace_ms = 501);
    EXPECT_CHANGE(timeout_ms = 1);
    EXPECT_CHANGE(replacement_ms = 1);
    EXPECT_CHANGE(restarts_max = 4);
    EXPECT_CHANGE(rules.count = 0);
    EXPECT_CHANGE(reset_after_steps = 101);
    EXPECT_CHANGE(progress_interval_ms = 1);
    EXPECT_CHANGE(own_trainer = true);
    EXPECT_CHANGE(grid.world = 2);
    EXPECT_CHANGE(grid.degree[0] = 2);
    EXPECT_CHANGE(ranks_of_member = 2);
    codes[1] = 29;
    assert_false(hub_has_policy(hub, &same));
    codes[1] = 28;
    words[1][0] = 'n';
    assert_false(hub_has_policy(hub, &same));
    hub_free(hub);
}

#define TEST(name) cmocka_unit_test(test_hub__##name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(waits_for_all_and_orders_ranks_by_index),
        TEST(a_first_generation_follows_the_order_it_was_given),
        TEST(assigns_no_member_before_the_record),
        TEST(gives_up_a_proposal_whose_member_went),
        TEST(starts_with_fewer_after_the_timeout),
        TEST(processes_of_a_member_hold_ranks_in_a_row),
        TEST(refuses_a_job_of_mixed_back_ends),
        TEST(compares_back_ends_of_other_workers_that_say_theirs),
        TEST(grows_and_shrinks_without_counting),
        TEST(a_smaller_size_keeps_the_only_holder_of_the_state),
        TEST(newcomers_that_come_together_join_together),
        TEST(compares_what_a_policy_says_not_its_bytes),
    };
    return cmocka_run_group_tests_name("hub", tests, NULL, NULL);
}
