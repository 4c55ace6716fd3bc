/* SPDX-License-Identifier: Apache-2.0 */

/* The table itself: numbers, names and defaults are consistent, and what is asked of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/strategy/knobs.h"

/* Call `visit` for the root and each message below it. */
static void walk(const struct knob_message *message, void (*visit)(const struct knob_message *))
{
    visit(message);
    for (size_t i = 0; i < message->count; i++)
        if (message->fields[i].message)
            walk(message->fields[i].message(), visit);
}

static void visit_numbers(const struct knob_message *message)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *a = &message->fields[i];

        if ((a->since == KNOB_OWN) != (a->number_in_2_0 == 0 && a->number_in_2_1 == 0))
            fail_msg("%s.%s: a field without numbers is FleetJob's own", message->name, a->name);
        if ((a->since == KNOB_RC0 || a->since == KNOB_V20) != (a->number_in_2_0 != 0))
            fail_msg("%s.%s: number of 2.0 and first version disagree", message->name, a->name);
        for (size_t j = 0; j < i; j++) {
            const struct knob_field *b = &message->fields[j];
            bool same = strcmp(a->name, b->name) == 0 ||
                        (a->alias && strcmp(a->alias, b->name) == 0) ||
                        (a->number_in_2_0 && a->number_in_2_0 == b->number_in_2_0) ||
                        (a->number_in_2_1 && a->number_in_2_1 == b->number_in_2_1);
            if (same)
                fail_msg("%s: %s and %s share a name or number", message->name, a->name, b->name);
        }
    }
}

static void visit_defaults(const struct knob_message *message)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *f = &message->fields[i];
        const struct knob_range *r = &f->range;
        bool legal = true;

        assert_true((f->message != NULL) == (f->kind == KNOB_MESSAGE || f->kind == KNOB_MESSAGES));
        assert_true((f->text != NULL) == (f->kind == KNOB_STRING || f->kind == KNOB_WORD));
        if (f->kind == KNOB_INT || f->kind == KNOB_FLOAT)
            legal = (r->kind != KNOB_AT_LEAST || f->number >= r->low) &&
                    (r->kind != KNOB_ABOVE || f->number > r->low) &&
                    (r->kind != KNOB_FROM_TO || (f->number >= r->low && f->number <= r->high)) &&
                    (r->kind != KNOB_BETWEEN || (f->number > r->low && f->number < r->high));
        if (!legal)
            fail_msg("%s.%s: the default is out of range", message->name, f->name);
        if (strlen(f->help) < 5 || f->help[strlen(f->help) - 1] == '.')
            fail_msg("%s.%s: help is one sentence without full stop", message->name, f->name);
    }
}

static void test_knobs__numbers_and_names_are_unique(void **state)
{
    (void)state;
    walk(knobs_root(), visit_numbers);
}

static void test_knobs__defaults_are_legal(void **state)
{
    (void)state;
    walk(knobs_root(), visit_defaults);
}

static void test_knobs__finds_both_spellings(void **state)
{
    const struct knob_field *field = knobs_find(knobs_root(), "sharding_configs", NULL);
    enum knob_spelling spelling = 0;

    (void)state;
    assert_non_null(field);
    assert_string_equal(field->message()->name, "ShardingConfig");
    assert_ptr_equal(knobs_find(field->message(), "sharding_degree", &spelling),
                     knobs_find(field->message(), "sharding_group_size", NULL));
    assert_int_equal(spelling, KNOB_BY_ALIAS);
    assert_null(knobs_find(knobs_root(), "Amp", NULL));
    assert_string_equal(knobs_closest(knobs_root(), "lars_config"), "lars_configs");
}

static void test_knobs__prints_ranges_and_floats(void **state)
{
    static const struct {
        float number;
        const char *text;
    } rows[] = {
        {0.8F, "0.8"},
        {32768, "32768"},
        {1e-6F, "1e-06"},
        {3.40282347e38F, "3.4028235e+38"},
        {1.00000012F, "1.0000001"},
    };
    const struct knob_field *field = knobs_find(knobs_root(), "nccl_comm_num", NULL);
    char text[128];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        knob_print_float(rows[i].number, text);
        assert_string_equal(text, rows[i].text);
    }
    knob_print_range(field, text, sizeof(text));
    assert_string_equal(text, "from 1 to 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_knobs__numbers_and_names_are_unique),
        cmocka_unit_test(test_knobs__defaults_are_legal),
        cmocka_unit_test(test_knobs__finds_both_spellings),
        cmocka_unit_test(test_knobs__prints_ranges_and_floats),
    };
    return cmocka_run_group_tests_name("knobs", tests, NULL, NULL);
}
