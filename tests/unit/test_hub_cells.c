/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Members whose ranks share a model: how many train, where they sit, and whether the ready ones
 * hold a whole state. Two cells; members of one rank, unless a test says otherwise.
 */
#include "tests/unit/hub_fixture.h"

static struct hub_policy cell_policy(int min, int desired, int shards)
{
    struct hub_policy p = policy(min, desired);

    p.ranks_of_member = 1;
    p.grid = (struct topology){.world = 2 * shards,
                               .degree = {2, 1, shards, 1, 1},
                               .order = {TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE, TOPOLOGY_SHARDING,
                                         TOPOLOGY_PIPELINE, TOPOLOGY_DATA}};
    return p;
}

static void configure(const struct hub_policy *p)
{
    struct hub_output out = {0};

    hub_configure(w.hub, p, w.now_ms, &out);
    carry_out(&out);
}

static void start_cells(int min, int desired, int shards, const struct hub_start *change)
{
    struct hub_policy p = cell_policy(min, desired, shards);

    start(min, desired, change);
    configure(&p);
}

/* What a member of one rank holds by the map of the newest generation. */
static struct fleet_part part_of(int place, int world, int shards)
{
    struct fleet_part part = {.rank = place, .world = world};

    if (shards > 1) {
        part.division = (struct fleet_division){world / 2, shards, false};
        part.first = place / 2;
        part.count = 1;
    }
    return part;
}

/* `count` members train, and all hold step 5. */
static void train(int count, int shards)
{
    form(count);
    for (int i = 0; i < count; i++)
        w.peers[i].status.part = part_of(w.peers[i].place, count, shards);
    progress(0, 2, 5);
    for (int i = 0; i < count; i++) {
        w.peers[i].status.step = 5;
        heartbeat(i);
    }
}

static void come_back_empty(int index)
{
    w.peers[index].status = (struct message_status){
        .state = MESSAGE_STATE_WAITING, .step = -1, .generation = hub_generation(w.hub)};
    hello(index);
}

static int members_of(int index)
{
    return (int)w.peers[index].last_assign.assign.member_count;
}

static int64_t step_of(int index)
{
    return w.peers[index].last_assign.assign.step;
}

/* As `validate` says it: of five workers four train, and minReplicas counts the spare, too. */
static void test_hub_cells__a_number_that_is_no_multiple_has_a_spare(void **state)
{
    (void)state;
    start_cells(5, 5, 1, NULL);
    for (int i = 0; i < 4; i++)
        ready(i);
    tick(0);
    assert_int_equal(w.peers[0].assigns, 0);
    ready(4);
    assert_int_equal(members_of(0), 4);
    assert_int_equal(w.peers[4].assigns, 0);
    stop();
}

static void test_hub_cells__the_spare_is_used_first(void **state)
{
    (void)state;
    start_cells(1, 5, 1, NULL);
    train(4, 1);
    ready(4);
    assert_int_equal(hub_spares(w.hub), 1);
    fail_trainer(1);
    for (int i = 0; i < 4; i++)
        if (i != 1)
            left_generation(i);
    tick(1000);
    assert_int_equal(hub_spares(w.hub), 0);
    assert_int_equal(members_of(0), 4);
    assert_int_equal(w.peers[4].place, 1); /* the seat of the one that is gone */
    assert_int_equal(step_of(0), 5);
    stop();
}

/* Members 1 and 3 of four have cell 1. */
static void test_hub_cells__names_the_cell_that_went_with_its_holders(void **state)
{
    (void)state;
    start_cells(1, 4, 1, &(struct hub_start){.checkpoint_step = 3});
    train(4, 1);
    fail_trainer(1);
    fail_trainer(3);
    left_generation(0);
    left_generation(2);
    come_back_empty(1);
    come_back_empty(3);
    tick(0);
    assert_int_equal(step_of(0), -1);
    assert_non_null(strstr(last_event(HUB_EVENT_STATE_LOST)->message,
                           "cell 1 of the model of step 5 is lost with the workers that held it: "
                           "training goes on from the checkpoint of step 3"));
    stop();
}

/* Both cells have a holder, but shard 1 of cell 1 has none: the ranks would give the state up. */
static void test_hub_cells__names_the_shard_of_the_cell(void **state)
{
    (void)state;
    start_cells(1, 4, 2, &(struct hub_start){.checkpoint_step = 3});
    train(4, 2);
    fail_trainer(3);
    for (int i = 0; i < 3; i++)
        left_generation(i);
    come_back_empty(3);
    tick(0);
    assert_int_equal(step_of(0), -1);
    assert_non_null(strstr(last_event(HUB_EVENT_STATE_LOST)->message,
                           "shard 1 of cell 1 of the model of step 5 is lost"));
    stop();
}

/* Of eight, both holders of shard 0 of cell 0 and the first of its shard 1 are left: the one seat
 * that remains for it is not for the second holder of shard 0. */
static void test_hub_cells__keeps_a_holder_of_each_shard_at_a_smaller_size(void **state)
{
    struct hub_policy four = cell_policy(1, 4, 2);

    (void)state;
    start_cells(1, 8, 2, NULL);
    train(8, 2);
    fail_trainer(2); /* shard 1 of cell 0; member 6 has it, too */
    configure(&four);
    for (int i = 0; i < 8; i++)
        if (i != 2)
            left_generation(i);
    tick(1000);
    assert_int_equal(members_of(0), 4);
    assert_int_equal(step_of(0), 5);
    assert_true(w.peers[6].place >= 0);
    assert_int_equal(w.peers[4].last_assign.assign.generation.counter, 1);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/*
 * Member 2 was about to go from cell 0 to cell 1 when that generation ended, and has not begun to:
 * it still holds the state of cell 0. The place that it was to have does not say what it holds.
 */
static void test_hub_cells__believes_members_and_not_their_places(void **state)
{
    (void)state;
    start_cells(1, 6, 1, &(struct hub_start){.checkpoint_step = 3});
    train(6, 1);
    fail_trainer(1);
    fail_trainer(3);
    for (int i = 0; i < 6; i++)
        if (i != 1 && i != 3)
            left_generation(i);
    tick(1000);
    assert_int_equal(members_of(0), 4); /* 0, 2, 4 of cell 0, and 5 */
    assert_generation(2);
    fail_trainer(5);
    for (int i = 0; i < 5; i += 2)
        left_generation(i);
    for (int i = 1; i < 6; i += 2)
        come_back_empty(i);
    tick(1000);
    assert_generation(3);
    assert_int_equal(step_of(0), -1);
    stop();
}

/* One process of each of two pods has died, not of the same rank: together they hold all. */
static void test_hub_cells__counts_the_processes_of_a_member(void **state)
{
    for (int crossed = 0; crossed < 2; crossed++) {
        struct hub_policy p = cell_policy(1, 2, 1);

        (void)state;
        start(1, 2, &(struct hub_start){.checkpoint_step = 3});
        p.ranks_of_member = 2;
        configure(&p);
        w.peers[0].processes = w.peers[1].processes = 2;
        form(2);
        progress(0, 2, 5);
        for (int i = 0; i < 2; i++) {
            w.peers[i].status.step = 5;
            w.peers[i].status.part =
                (struct fleet_part){.rank = 2 * i, .world = 4, .lacking = crossed ? 1 + i : 2};
            left_generation(i);
        }
        tick(1000);
        assert_int_equal(w.peers[0].assigns, 2);
        assert_int_equal(step_of(0), crossed ? 5 : -1);
        stop();
    }
}

/* One of two trainers of member 0 has died: member 1, of the same cells, gets the only seat. */
static void test_hub_cells__prefers_a_member_that_holds_all(void **state)
{
    struct hub_policy p = cell_policy(1, 1, 1);

    (void)state;
    start(1, 2, &(struct hub_start){.checkpoint_step = 3});
    p.desired = p.ranks_of_member = 2;
    configure(&p);
    w.peers[0].processes = w.peers[1].processes = 2;
    form(2);
    progress(0, 2, 5);
    p.desired = 1;
    configure(&p);
    for (int i = 0; i < 2; i++) {
        w.peers[i].status.step = 5;
        w.peers[i].status.part =
            (struct fleet_part){.rank = 2 * i, .world = 4, .lacking = i == 0 ? 1 : 0};
        left_generation(i);
    }
    tick(1000);
    assert_int_equal(w.peers[1].assigns, 2);
    assert_int_equal(w.peers[0].assigns, 1);
    assert_int_equal(step_of(1), 5);
    stop();
}

/*
 * Five members of two trainers each may stay in cells 0 and 1, and four seats are theirs. Shard 0
 * is held by member 0 for cell 0 and by member 2 for cell 1, since a trainer of each has died; the
 * others hold shard 1, one of them in the place where it was a generation before
 * (SEED=4000701925).
 */
static void test_hub_cells__keeps_members_that_hold_a_shard_for_one_process_each(void **state)
{
    struct hub_policy p = cell_policy(1, 4, 2);
    static const int places[] = {0, 1, 2, 3, 3}, lacking[] = {2, 0, 1, 0, 0};

    (void)state;
    start(1, 5, NULL);
    p.ranks_of_member = 2;
    configure(&p);
    for (int i = 0; i < 5; i++)
        w.peers[i].processes = 2;
    form(4);
    progress(0, 2, 5);
    ready(4);
    for (int i = 0; i < 5; i++) {
        w.peers[i].status.step = 5;
        w.peers[i].status.state_generation = hub_generation(w.hub);
        w.peers[i].status.part = (struct fleet_part){.division = {4, 2, true},
                                                     .first = places[i],
                                                     .count = 1,
                                                     .rank = 2 * places[i],
                                                     .world = 8,
                                                     .lacking = lacking[i]};
    }
    heartbeat(4);
    for (int i = 0; i < 4; i++)
        left_generation(i);
    tick(1000);
    assert_int_equal(members_of(0), 4);
    assert_int_equal(step_of(0), 5);
    assert_true(w.peers[2].place >= 0);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/* Member `index` was in generation `made` last, and holds its step. */
static void holds(int index, int64_t made, int64_t step)
{
    w.peers[index].status.step = step;
    w.peers[index].status.state_generation = (struct fleet_generation){1, made};
}

/*
 * Member 0 was left behind with step 5 of generation 5. Generation 6 made step 6 without it, and
 * member 1 holds that step, of another cell. Together they hold no state (SEED=4003007882). If
 * member 0 was in generation 6, it has voted for the step and can make it.
 */
static void test_hub_cells__mixes_no_states_of_two_steps(void **state)
{
    static const struct hub_start s = {
        .epoch = 2,
        .recorded = {1, 7},
        .progress_step = 6,
        .lineage = {.entries = {{{1, 5}, 1}, {{1, 6}, 6}, {{1, 7}, 7}}, .count = 3}};

    (void)state;
    for (int made = 5; made <= 6; made++) {
        start_cells(1, 2, 1, &s);
        for (int i = 0; i < 2; i++) {
            remember(i, 2);
            w.peers[i].status.state = MESSAGE_STATE_WAITING;
            w.peers[i].status.generation = (struct fleet_generation){1, 7};
            w.peers[i].status.part = part_of(i, 2, 1);
            w.peers[i].left_for = "MemberLost";
        }
        holds(0, made, 5);
        holds(1, 7, 6);
        hello(0);
        hello(1);
        wait_quietly(31000, true);
        assert_true(hub_generation(w.hub).counter >= 8);
        assert_int_equal(step_of(0), made == 6 ? 6 : -1);
        stop();
    }
}

/*
 * Generation 6 began again, and could not be recorded. Member 1 comes from it with step 1, member 0
 * with step 40 of generation 5: neither has the other's state.
 */
static void test_hub_cells__mixes_no_states_of_two_beginnings(void **state)
{
    static const struct hub_start s = {.epoch = 2,
                                       .recorded = {1, 5},
                                       .progress_step = 40,
                                       .lineage = {.entries = {{{1, 5}, 1}}, .count = 1}};

    (void)state;
    start_cells(1, 2, 1, &s);
    for (int i = 0; i < 2; i++) {
        remember(i, 2);
        w.peers[i].status.state = MESSAGE_STATE_WAITING;
        w.peers[i].status.part = part_of(i, 2, 1);
        w.peers[i].left_for = "MemberLost";
    }
    w.peers[1].status.generation = (struct fleet_generation){1, 6};
    holds(1, 6, 1);
    hello(0);
    hello(1);
    wait_quietly(31000, true);
    assert_true(hub_generation(w.hub).counter >= 7);
    assert_int_equal(step_of(0), -1);
    stop();
}

/* The connection of the only holder of cell 1 is gone: it is waited for. If cell 0 were lost, too,
 * there would be nothing to wait for. */
static void test_hub_cells__waits_for_a_holder_only_if_it_completes_the_state(void **state)
{
    for (int both = 0; both < 2; both++) {
        (void)state;
        start_cells(1, 2, 1, &(struct hub_start){.checkpoint_step = 3});
        train(2, 1);
        disconnect(1);
        wait_quietly(8000, true);
        if (both) {
            fail_trainer(0);
            come_back_empty(0);
        } else {
            left_generation(0);
        }
        ready(2);
        wait_quietly(3000, true);
        assert_int_equal(w.peers[0].assigns > 1, both);
        stop();
    }
}

/*
 * The leader before has recorded generation 6, and was lost before it could assign it. Its members
 * never heard of that one, so they have no place in it. What they hold they say themselves.
 */
static void test_hub_cells__a_leader_is_lost_between_record_and_assignment(void **state)
{
    static const struct hub_start s = {
        .epoch = 2,
        .recorded = {1, 6},
        .progress_step = 40,
        .checkpoint_step = 20,
        .lineage = {.entries = {{{1, 5}, 1}, {{1, 6}, 41}}, .count = 2}};

    (void)state;
    start_cells(1, 4, 1, &s);
    for (int i = 0; i < 4; i++) {
        remember(i, 4);
        w.peers[i].status.state = MESSAGE_STATE_WAITING;
        w.peers[i].status.part = part_of(i, 4, 1);
        w.peers[i].left_for = "MemberLost";
        hello(i);
    }
    wait_quietly(31000, true);
    assert_true(hub_generation(w.hub).counter >= 7);
    assert_int_equal(members_of(0), 4);
    assert_int_equal(step_of(0), 40);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_cells__a_number_that_is_no_multiple_has_a_spare),
        cmocka_unit_test(test_hub_cells__the_spare_is_used_first),
        cmocka_unit_test(test_hub_cells__names_the_cell_that_went_with_its_holders),
        cmocka_unit_test(test_hub_cells__names_the_shard_of_the_cell),
        cmocka_unit_test(test_hub_cells__keeps_a_holder_of_each_shard_at_a_smaller_size),
        cmocka_unit_test(test_hub_cells__believes_members_and_not_their_places),
        cmocka_unit_test(test_hub_cells__counts_the_processes_of_a_member),
        cmocka_unit_test(test_hub_cells__prefers_a_member_that_holds_all),
        cmocka_unit_test(test_hub_cells__keeps_members_that_hold_a_shard_for_one_process_each),
        cmocka_unit_test(test_hub_cells__mixes_no_states_of_two_steps),
        cmocka_unit_test(test_hub_cells__mixes_no_states_of_two_beginnings),
        cmocka_unit_test(test_hub_cells__a_leader_is_lost_between_record_and_assignment),
        cmocka_unit_test(test_hub_cells__waits_for_a_holder_only_if_it_completes_the_state),
    };
    return cmocka_run_group_tests_name("hub_cells", tests, NULL, NULL);
}
