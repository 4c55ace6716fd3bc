/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Words of the strategy as enums. Each word that knobs.def allows gives a value of its own, so a
 * word that is added there and not here fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/memory.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/strategy.h"

static unsigned int scale_of(const struct strategy *s)
{
    return choices_scale(s);
}

static unsigned int segments_of(const struct strategy *s)
{
    return choices_segments(s);
}

static unsigned int schedule_of(const struct strategy *s)
{
    return choices_schedule(s);
}

/* Set the knob at `path` to each of its words: their values are 0, 1, …. */
static void expect_all_known(const char *path, unsigned int (*value_of)(const struct strategy *))
{
    struct strategy s;
    void *message;
    const struct knob_field *field;
    char word[64];
    unsigned int number = 0;

    strategy_init(&s);
    field = knobs_at(&s, path, (const void **)&message);
    assert_non_null(field);
    for (; knob_word_name(field, (int)number, word); number++) {
        fleet_set_text((char **)knob_value(field, message), word);
        assert_int_equal(value_of(&s), number);
    }
    assert_true(number >= 2);
    strategy_release(&s);
}

static void test_choices__every_word_has_a_value(void **state)
{
    (void)state;
    expect_all_known("gradient_scale_configs.scale_strategy", scale_of);
    expect_all_known("sharding_configs.sharding_segment_strategy", segments_of);
    expect_all_known("pipeline_configs.schedule_mode", schedule_of);
}

static void test_choices__a_text_is_its_word(void **state)
{
    (void)state;
    assert_string_equal(choices_scale_text(CHOICES_SCALE_AVERAGE), "avg");
    assert_string_equal(choices_scale_text(CHOICES_SCALE_SUM), "sum");
    assert_string_equal(choices_scale_text(CHOICES_SCALE_CUSTOMIZED), "customized");
    assert_string_equal(choices_schedule_text(CHOICES_SCHEDULE_1F1B), "1F1B");
    assert_string_equal(choices_schedule_text(CHOICES_SCHEDULE_F_THEN_B), "F-then-B");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices__every_word_has_a_value),
        cmocka_unit_test(test_choices__a_text_is_its_word),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
