/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_HUB_TAKEOVER_FIXTURE_H
#define TESTS_UNIT_HUB_TAKEOVER_FIXTURE_H

/*
 * Two hubs of one job, one after the other: what the second one takes over from the first.
 */

#include "tests/unit/hub_fixture.h"

/* Both have left generation (1, 5) when the hub that ended it is gone. */
static inline void take_over(const char *left_for)
{
    struct hub_start s = {.epoch = 2, .recorded = {1, 5}, .progress_step = 40, .has_trained = true};

    start(2, 2, &s);
    for (int i = 0; i < 2; i++) {
        remember(i, 2);
        w.peers[i].status.state = MESSAGE_STATE_WAITING;
        w.peers[i].left_for = left_for;
        hello(i);
    }
    assert_generation(6);
    run(40);
}

/* Two trainers in each pod. Worker 0 was left behind with step 20. Worker 1 went on alone in
 * generation 5; one of its trainers dies before it has come to the new hub, the other holds step
 * 40. */
static inline void left_behind(void)
{
    static const struct hub_start s = {
        .epoch = 2,
        .recorded = {1, 5},
        .progress_step = 40,
        .lineage = {.entries = {{{1, 4}, 1}, {{1, 5}, 21}}, .count = 2}};

    start(1, 2, &s);
    w.peers[0].processes = w.peers[1].processes = 2;
    w.peers[0].status = (struct message_status){.state = MESSAGE_STATE_WAITING,
                                                .generation = {1, 4},
                                                .step = 20,
                                                .state_generation = {1, 4}};
    hello(0);
    remember(1, 1);
    w.peers[1].place = 0;
    w.peers[1].left_for = "MemberLost";
    w.peers[1].status.state = MESSAGE_STATE_STARTING;
}

#endif
