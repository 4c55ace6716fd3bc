/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Members that hold parts of a divided state. Training goes on from it if each shard has a living
 * holder, else from the last checkpoint, and the event names the shard.
 */
#include "tests/unit/hub_fixture.h"

/* `count` members of one rank each, which divide the state of `count` ranks into `shards`. */
static void form_divided(int count, int shards, bool has_buddies)
{
    form(count);
    for (int i = 0; i < count; i++) {
        w.peers[i].status.part = (struct fleet_part){
            .division = {count, shards, has_buddies}, .first = w.peers[i].first_rank, .count = 1};
        heartbeat(i);
    }
    progress(0, 2, 5);
    for (int i = 1; i < count; i++)
        w.peers[i].status.step = 5;
    for (int i = 1; i < count; i++)
        heartbeat(i);
}

/* The trainer of the member is gone, and comes back with nothing. */
static void lose(int index)
{
    fail_trainer_with(index, 137, 9, "", false);
}

static void come_back(int index)
{
    w.peers[index].status = (struct message_status){
        .state = MESSAGE_STATE_WAITING, .step = -1, .generation = hub_generation(w.hub)};
    hello(index);
}

/* All but `lost` leave the generation, and the lost ones come back empty. */
static void gather(int count, const int *lost, int lost_count)
{
    for (int i = 0; i < lost_count; i++)
        lose(lost[i]);
    for (int i = 0; i < count; i++) {
        bool is_lost = false;
        for (int l = 0; l < lost_count; l++)
            is_lost |= lost[l] == i;
        if (!is_lost)
            left_generation(i);
    }
    for (int i = 0; i < lost_count; i++)
        come_back(lost[i]);
    tick(0);
}

static void expect_goes_on(int count, const int *lost, int lost_count)
{
    gather(count, lost, lost_count);
    assert_int_equal(w.peers[0].assigns, 2);
    assert_int_equal(w.peers[0].last_assign.assign.step, 5);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
}

static void expect_lost(int count, const int *lost, int lost_count, const char *words)
{
    const struct hub_event *event;

    gather(count, lost, lost_count);
    assert_int_equal(w.peers[0].assigns, 2);
    assert_int_equal(w.peers[0].last_assign.assign.step, -1);
    for (size_t i = 0; i < w.peers[0].last_assign.assign.member_count; i++)
        assert_int_equal(w.peers[0].last_assign.assign.members[i].step, -1);
    event = last_event(HUB_EVENT_STATE_LOST);
    assert_string_equal(event->cause, "StateLost");
    if (!strstr(event->message, words))
        fail_msg("\"%s\" lacks \"%s\"", event->message, words);
}

static void test_hub_shards__a_buddy_keeps_what_one_member_had(void **state)
{
    (void)state;
    for (int member = 0; member < 4; member++) {
        start(1, 4, NULL);
        form_divided(4, 4, true);
        expect_goes_on(4, &member, 1);
        stop();
    }
}

static void test_hub_shards__the_other_group_keeps_what_a_whole_group_had(void **state)
{
    static const int group[] = {0, 1}, crossed[] = {1, 2};

    (void)state;
    start(1, 4, NULL);
    form_divided(4, 2, true);
    expect_goes_on(4, group, 2);
    stop();
    start(1, 4, NULL);
    form_divided(4, 2, true);
    expect_goes_on(4, crossed, 2);
    stop();
}

static void test_hub_shards__names_the_shard_that_went_with_its_holders(void **state)
{
    static const int neighbours[] = {2, 3}, one[] = {2}, of_both_groups[] = {1, 3};

    (void)state;
    start(1, 4, &(struct hub_start){.checkpoint_step = 3});
    form_divided(4, 4, true);
    expect_lost(4, neighbours, 2,
                "shard 2 of the optimizer state of step 5 is lost with the workers that held it: "
                "training goes on from the checkpoint of step 3; 2 steps are computed again");
    stop();
    start(1, 4, NULL);
    form_divided(4, 4, false);
    expect_lost(4, one, 1, "shard 2 of the optimizer state of step 5 is lost");
    stop();
    start(1, 4, NULL);
    form_divided(4, 2, true);
    expect_lost(4, of_both_groups, 2, "shard 1 of the optimizer state of step 5 is lost");
    stop();
}

/* Its connection is gone, its process perhaps not: the others wait for the shard that it has. */
static void test_hub_shards__waits_for_a_member_that_alone_has_a_shard(void **state)
{
    struct hub_output out = {0};

    (void)state;
    start(2, 3, NULL);
    form_divided(3, 3, false);
    hub_disconnected(w.hub, w.peers[1].connection, w.now_ms, &out);
    carry_out(&out);
    w.peers[1].connection = 0;
    wait_quietly(8000, true); /* until it counts as lost */
    left_generation(0);
    left_generation(2);
    wait_quietly(3000, true);
    assert_int_equal(w.peers[0].assigns, 1);
    assert_int_equal(count_events(HUB_EVENT_STALLED), 1);
    w.peers[1].status.state = MESSAGE_STATE_WAITING;
    hello(1);
    tick(300);
    assert_true(w.peers[0].assigns >= 2);
    assert_int_equal(w.peers[0].last_assign.assign.step, 5);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/* Two of four are to go at once; one of these two alone has shard 2, so it passes that on first. */
static void test_hub_shards__a_holder_that_is_to_go_passes_its_shard_on(void **state)
{
    struct hub_policy two = policy(1, 2);
    struct hub_output out = {0};

    (void)state;
    start(1, 4, NULL);
    form_divided(4, 4, true);
    hub_configure(w.hub, &two, w.now_ms, &out);
    carry_out(&out);
    for (int i = 0; i < 4; i++)
        left_generation(i);
    tick(1000);
    assert_int_equal(w.peers[0].assigns, 2);
    assert_int_equal(w.peers[0].last_assign.assign.step, 5);
    assert_int_equal(w.peers[0].last_assign.assign.member_count, 3);
    assert_int_equal(count_events(HUB_EVENT_STATE_LOST), 0);
    stop();
}

/* Ranks of two divisions have found it out among themselves. */
static void test_hub_shards__believes_the_ranks_that_found_a_loss(void **state)
{
    (void)state;
    start(1, 3, NULL);
    form_divided(3, 3, true);
    for (int i = 0; i < 3; i++) {
        w.peers[i].status = (struct message_status){
            .generation = w.peers[i].status.generation, .step = -1, .part = {.lost = 2}};
        left_generation(i);
    }
    tick(0);
    assert_int_equal(w.peers[0].last_assign.assign.step, -1);
    assert_non_null(strstr(last_event(HUB_EVENT_STATE_LOST)->message,
                           "shard 1 of the optimizer state of step 5 is lost"));
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_shards__a_buddy_keeps_what_one_member_had),
        cmocka_unit_test(test_hub_shards__the_other_group_keeps_what_a_whole_group_had),
        cmocka_unit_test(test_hub_shards__names_the_shard_that_went_with_its_holders),
        cmocka_unit_test(test_hub_shards__waits_for_a_member_that_alone_has_a_shard),
        cmocka_unit_test(test_hub_shards__a_holder_that_is_to_go_passes_its_shard_on),
        cmocka_unit_test(test_hub_shards__believes_the_ranks_that_found_a_loss),
    };
    return cmocka_run_group_tests_name("hub_shards", tests, NULL, NULL);
}
