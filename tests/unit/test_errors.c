/* SPDX-License-Identifier: Apache-2.0 */

/* A list of errors that checks ask what is known, and that two finders of the same fill. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/training/step_line.h"

static void test_errors__touch_what_they_are_about(void **state)
{
    struct fleet_errors errors = {0};

    (void)state;
    fleet_errors_add(&errors, "spec.model", "required");
    fleet_errors_add(&errors, "spec.sizes[1]", "must be an integer");
    fleet_errors_add_unknown(&errors, "spec.data.colour", "unknown field");
    assert_true(fleet_errors_touch(&errors, "spec.model"));
    assert_true(fleet_errors_touch(&errors, "spec.model.width")); /* lies in what is not there */
    assert_true(fleet_errors_touch(&errors, "spec"));             /* is not whole */
    assert_true(fleet_errors_touch(&errors, "spec.sizes"));
    assert_false(fleet_errors_touch(&errors, "spec.sizes[0]"));
    assert_false(fleet_errors_touch(&errors, "spec.models"));
    assert_false(fleet_errors_touch(&errors, "spec.data"));
    assert_false(fleet_errors_touch(&errors, "spec.data.colour"));
    fleet_errors_add(&errors, "", "no YAML");
    assert_true(fleet_errors_touch(&errors, "spec.data"));
    fleet_errors_release(&errors);
}

static void test_errors__are_merged_without_repetition(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors all = {0}, more = {0};

    (void)state;
    fleet_errors_add(&all, "a", "one");
    fleet_errors_add(&more, "a", "one");
    fleet_errors_add(&more, "a", "two");
    fleet_errors_add_unknown(&more, "b", "one");
    fleet_errors_merge(&all, &more);
    fleet_errors_print(&all, &text);
    assert_string_equal(text.text, "a: one\na: two\nb: one\n");
    assert_false(fleet_errors_touch(&all, "b"));
    fleet_errors_release(&all);
    fleet_errors_release(&more);
}

static void test_errors__are_taken_back_by_path_and_words(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};

    (void)state;
    fleet_errors_add(&errors, "a", "needs b");
    fleet_errors_add(&errors, "a", "is wrong");
    fleet_errors_add(&errors, "ab", "needs c");
    fleet_errors_drop(&errors, "a", "needs ");
    fleet_errors_print(&errors, &text);
    assert_string_equal(text.text, "a: is wrong\nab: needs c\n");
    fleet_errors_drop(&errors, "a", "");
    fleet_errors_drop(&errors, "ab", "");
    assert_int_equal(errors.count, 0);
    fleet_errors_add(&errors, "c", "again");
    assert_int_equal(errors.count, 1);
    fleet_errors_release(&errors);
}

/* A full list only counts, also when errors are merged or taken back. */
static void test_errors__same_words_differ_in_case_and_separators(void **state)
{
    char longer[66];

    (void)state;
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_true(fleet_same_word("warmupSteps", "warmup_steps"));
    assert_true(fleet_same_word("K-STEPS", "kSteps"));
    assert_false(fleet_same_word("steps", "step"));
    assert_false(fleet_same_word("", "a"));
    assert_false(fleet_same_word(longer, longer));
}

static void test_errors__invisible_characters_are_escaped(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf printed = {0};
    struct fleet_errors errors = {0};

    (void)state;
    fleet_errors_add(&errors, "a\u200bb", "not \"\u00a0\u2029\ufeffé€\n\"");
    fleet_errors_print(&errors, &printed);
    assert_string_equal(printed.text, "a\\u200bb: not \"\\u00a0\\u2029\\ufeffé€\\n\"\n");
    fleet_errors_release(&errors);
}

static void test_errors__beyond_the_limit_are_counted(void **state)
{
    struct fleet_errors errors = {0}, more = {0};

    (void)state;
    for (int i = 0; i < FLEET_ERRORS_MAX + 5; i++)
        fleet_errors_add(&errors, "a", "number %d", i);
    fleet_errors_drop(&errors, "a", "");
    assert_int_equal(errors.count, FLEET_ERRORS_MAX + 5);
    fleet_errors_merge(&more, &errors);
    assert_int_equal(more.count, FLEET_ERRORS_MAX + 5);
    fleet_errors_release(&errors);
    fleet_errors_release(&more);
}

static void test_errors__huge_losses_have_exponents(void **state)
{
    static const struct {
        double loss;
        const char *text;
    } rows[] = {
        {3.21042, "3.2104"}, {99999.5, "99999.5000"}, {3.1720e31, "3.17e+31"}, {-2e7, "-2.00e+07"}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

        step_line_append_loss(rows[i].loss, &out);
        assert_string_equal(out.text, rows[i].text);
    }
}

/* One insertion, deletion, replacement or exchange of neighbours for each three letters of the
 * word, at least one; the first of the closest. */
static void test_errors__suggest_the_closest_word(void **state)
{
    static const char *const words[] = {"ab",   "steps",        "seed",
                                        "step", "learningRate", "everySteps"};
    static const struct {
        const char *word, *closest;
    } rows[] = {
        {"steps", "steps"},
        {"stpes", "steps"}, /* an exchange of neighbours costs one */
        {"stepz", "steps"}, /* as far from `step`, which comes later */
        {"stpp", "step"},
        {"seedx", "seed"},
        {"xseed", "seed"},
        {"see", "seed"},
        {"eed", "seed"},
        {"sxxd", NULL}, /* two from `seed`, but one is the limit */
        {"stpxx", NULL},
        {"learning_rate", "learningRate"},
        {"lerningrtae", "learningRate"}, /* a deletion and an exchange; three is the limit */
        {"xxxxxingrate", NULL},          /* five; four are the limit */
        {"xxxxningrate", "learningRate"},
        {"xearningratxx", "learningRate"},
        {"ba", "ab"},
        {"a", "ab"},
        {"", NULL},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        const char *closest = fleet_closest_word(rows[i].word, words, FLEET_COUNT(words));
        if (!rows[i].closest ? closest != NULL : !closest || strcmp(closest, rows[i].closest) != 0)
            fail_msg("\"%s\" is closest to %s, expected %s", rows[i].word,
                     closest ? closest : "nothing", rows[i].closest ? rows[i].closest : "nothing");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors__touch_what_they_are_about),
        cmocka_unit_test(test_errors__are_merged_without_repetition),
        cmocka_unit_test(test_errors__are_taken_back_by_path_and_words),
        cmocka_unit_test(test_errors__same_words_differ_in_case_and_separators),
        cmocka_unit_test(test_errors__invisible_characters_are_escaped),
        cmocka_unit_test(test_errors__beyond_the_limit_are_counted),
        cmocka_unit_test(test_errors__huge_losses_have_exponents),
        cmocka_unit_test(test_errors__suggest_the_closest_word),
    };

    return cmocka_run_group_tests_name("errors", tests, NULL, NULL);
}
