/* SPDX-License-Identifier: Apache-2.0 */

/* What is known of a hub, from its events alone: how much of it is kept, and that it is let go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/fleetjob/hub_view.h"

#define MEMBERS 1000

static void tell(struct hub_view *view, enum hub_event_type type, int member, const char *cause)
{
    struct hub_event event = {.type = type, .member = member, .attempt = 0, .exit_code = -1};

    (void)snprintf(event.pod_uid, sizeof(event.pod_uid), "uid-%d", member);
    (void)snprintf(event.cause, sizeof(event.cause), "%s", cause);
    hub_view_event(view, &event, 1767225600000 + member);
}

/* A rack that is cut off: each of its workers has to be replaced, not only the last ones that were
 * told. */
static void test_hub_view__all_members_that_do_not_answer_are_remembered(void **state)
{
    struct hub_view view = {0};

    (void)state;
    for (int i = 0; i < MEMBERS; i++)
        tell(&view, HUB_EVENT_LOST, i, "MemberLost");
    tell(&view, HUB_EVENT_LOST, 7, "MemberLost"); /* once each */
    assert_int_equal(view.silent_count, MEMBERS);
    assert_string_equal(view.silent[0].pod_uid, "uid-0");
    assert_int_equal(view.failure_count, HUB_VIEW_FAILURES_MAX); /* of those the last are enough */
    for (int i = 0; i < MEMBERS; i += 2)
        tell(&view, HUB_EVENT_JOINED, i, "");
    assert_int_equal(view.silent_count, MEMBERS / 2);
    assert_string_equal(view.silent[0].pod_uid, "uid-1");
    assert_false(view.silent[0].is_awaited);
    hub_view_release(&view);
    assert_int_equal(view.silent_count, 0);
}

static void test_hub_view__of_restarts_the_last_are_kept(void **state)
{
    struct hub_view view = {0};

    (void)state;
    for (int i = 0; i < 3 * FLEETJOB_HISTORY_MAX; i++)
        tell(&view, HUB_EVENT_RESTART, i, "MemberLost");
    assert_int_equal(view.history_count, FLEETJOB_HISTORY_MAX);
    assert_int_equal(view.history[0].member, 2 * FLEETJOB_HISTORY_MAX);
    assert_int_equal(view.history[FLEETJOB_HISTORY_MAX - 1].member, 3 * FLEETJOB_HISTORY_MAX - 1);
    hub_view_release(&view);
}

/* An evaluation is not a step; a later step leaves what it said. */
static void test_hub_view__the_held_out_loss_stays(void **state)
{
    struct hub_view view = {0};
    struct hub_event event = {.type = HUB_EVENT_EVALUATION, .step = {.step = 40, .loss = 1.5}};

    (void)state;
    hub_view_event(&view, &event, 1000);
    assert_false(view.has_progress);
    event = (struct hub_event){.type = HUB_EVENT_STEP, .step = {.step = 41, .loss = 2.5}};
    hub_view_event(&view, &event, 1001);
    assert_true(view.has_progress);
    assert_int_equal(view.progress.held_out_step, 40);
    assert_true(view.progress.held_out_loss == 1.5 && view.progress.loss == 2.5);
    hub_view_release(&view);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_view__all_members_that_do_not_answer_are_remembered),
        cmocka_unit_test(test_hub_view__of_restarts_the_last_are_kept),
        cmocka_unit_test(test_hub_view__the_held_out_loss_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
