/* SPDX-License-Identifier: Apache-2.0 */

/* Causes and their words (libfleet/base/cause.h): one word each, and words of others are kept
 * apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/cause.h"

static void test_cause__each_has_a_word_of_its_own(void **state)
{
    (void)state;
    for (int c = FLEET_CAUSE_OTHER + 1; c < FLEET_CAUSES; c++) {
        const char *word = fleet_cause_word((enum fleet_cause)c);
        if (!word || !word[0] || fleet_cause_find(word) != (enum fleet_cause)c)
            fail_msg("cause %d has the word \"%s\", which is cause %d", c, word ? word : "NULL",
                     fleet_cause_find(word));
    }
}

static void test_cause__a_foreign_word_is_none_of_ours(void **state)
{
    (void)state;
    assert_int_equal(fleet_cause_find("NodeLost"), FLEET_CAUSE_OTHER);
    assert_int_equal(fleet_cause_find("memberlost"), FLEET_CAUSE_OTHER);
    assert_int_equal(fleet_cause_find(""), FLEET_CAUSE_NONE);
    assert_int_equal(fleet_cause_find(NULL), FLEET_CAUSE_NONE);
    assert_string_equal(fleet_cause_word(FLEET_CAUSE_NONE), "");
    assert_string_equal(fleet_cause_word(FLEET_CAUSE_OTHER), "");
}

static void test_cause__only_what_was_asked_for_is_wanted(void **state)
{
    static const enum fleet_cause wanted[] = {FLEET_CAUSE_RESIZE, FLEET_CAUSE_MEMBER_LEFT,
                                              FLEET_CAUSE_PREEMPTED, FLEET_CAUSE_EVICTED};
    int count = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        assert_true(fleet_cause_is_wanted(wanted[i]));
    for (int c = 0; c < FLEET_CAUSES; c++)
        count += fleet_cause_is_wanted((enum fleet_cause)c);
    assert_int_equal(count, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cause__each_has_a_word_of_its_own),
        cmocka_unit_test(test_cause__a_foreign_word_is_none_of_ours),
        cmocka_unit_test(test_cause__only_what_was_asked_for_is_wanted),
    };

    return cmocka_run_group_tests_name("cause", tests, NULL, NULL);
}
