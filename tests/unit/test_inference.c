/* SPDX-License-Identifier: Apache-2.0 */

/* What is printed of a model's bytes, and which token is chosen from logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/inference/codec.h"
#include "agent/runtime/inference/generator.h"
#include "libfleet/base/strbuf.h"

#define REPLACED "\xef\xbf\xbd"

/* ---- printing -------------------------------------------------------------------------------- */

static void expect_printed(const char *bytes, size_t size, const char *expected)
{
    struct fleet_strbuf pending = {0}, whole = {0}, parts = {0};

    fleet_strbuf_append_bytes(&pending, bytes, size);
    codec_printable(&pending, true, &whole);
    assert_string_equal(fleet_strbuf_text(&whole), expected);
    assert_int_equal(pending.length, 0);
    for (size_t i = 0; i < size; i++) { /* the same byte by byte, as tokens come */
        fleet_strbuf_append_bytes(&pending, bytes + i, 1);
        codec_printable(&pending, i + 1 == size, &parts);
    }
    assert_string_equal(fleet_strbuf_text(&parts), expected);
    fleet_strbuf_release(&pending);
    fleet_strbuf_release(&whole);
    fleet_strbuf_release(&parts);
}

#define EXPECT_PRINTED(bytes, expected) expect_printed(bytes, sizeof(bytes) - 1, expected)

static void test_inference__text_is_printed_as_it_is(void **state)
{
    (void)state;
    EXPECT_PRINTED("", "");
    EXPECT_PRINTED("a\tb\r\nc", "a\tb\r\nc");
    EXPECT_PRINTED("\xc3\xb6 \xe4\xb8\xad \xf0\x9f\x99\x82",
                   "\xc3\xb6 \xe4\xb8\xad \xf0\x9f\x99\x82");
}

static void test_inference__what_is_not_utf8_is_replaced(void **state)
{
    (void)state;
    EXPECT_PRINTED("a\xff"
                   "b",
                   "a" REPLACED "b");
    EXPECT_PRINTED("\x80\x80", REPLACED REPLACED);
    EXPECT_PRINTED("\xc3", REPLACED);                           /* cut off at the end */
    EXPECT_PRINTED("\xc3(", REPLACED "(");                      /* goes on with something else */
    EXPECT_PRINTED("\xe4\xb8", REPLACED REPLACED);              /* two of three bytes */
    EXPECT_PRINTED("\xc0\x80", REPLACED REPLACED);              /* overlong */
    EXPECT_PRINTED("\xed\xa0\x80", REPLACED REPLACED REPLACED); /* a surrogate */
    EXPECT_PRINTED("\xf5\x80\x80\x80", REPLACED REPLACED REPLACED REPLACED);
}

static void test_inference__a_terminal_is_not_controlled(void **state)
{
    (void)state;
    EXPECT_PRINTED("\x1b[2J", REPLACED "[2J");
    EXPECT_PRINTED("a\0b", "a" REPLACED "b");
    EXPECT_PRINTED("\x7f\xc2\x9b", REPLACED REPLACED);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static void test_inference__greedy_takes_the_first_of_the_largest(void **state)
{
    const float logits[] = {-1, 3, 2, 3, -5};
    struct generator_options options = {0};

    (void)state;
    assert_int_equal(generator_choose(logits, 5, &options, 0), 1);
    options.seed = 7; /* nothing to choose */
    assert_int_equal(generator_choose(logits, 5, &options, 9), 1);
}

/* How often each of 4 tokens is chosen. */
static void count_choices(const struct generator_options *options, int counts[4])
{
    const float logits[] = {0, 1, 2, 3};

    memset(counts, 0, 4 * sizeof(counts[0]));
    for (int i = 0; i < 10000; i++)
        counts[generator_choose(logits, 4, options, i)]++;
}

static void test_inference__sampling_follows_the_softmax(void **state)
{
    /* e^x over their sum for 0, 1, 2, 3 */
    const double expected[] = {0.0321, 0.0871, 0.2369, 0.6439};
    struct generator_options options = {.temperature = 1, .seed = 3};
    int counts[4], again[4];

    (void)state;
    count_choices(&options, counts);
    for (int i = 0; i < 4; i++)
        if (counts[i] < 10000 * (expected[i] - 0.02) || counts[i] > 10000 * (expected[i] + 0.02))
            fail_msg("token %d: %d of 10000", i, counts[i]);
    count_choices(&options, again);
    assert_memory_equal(counts, again, sizeof(counts));
    options.seed = 4;
    count_choices(&options, again);
    assert_memory_not_equal(counts, again, sizeof(counts));
    options.temperature = 0.05; /* e^-20: never */
    count_choices(&options, counts);
    assert_int_equal(counts[3], 10000);
}

static void test_inference__top_k_leaves_the_others_out(void **state)
{
    struct generator_options options = {.temperature = 100, .top_k = 2};
    int counts[4];

    (void)state;
    count_choices(&options, counts);
    assert_int_equal(counts[0] + counts[1], 0);
    assert_true(counts[2] > 4000 && counts[3] > 4000);
    options.top_k = 1;
    count_choices(&options, counts);
    assert_int_equal(counts[3], 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inference__text_is_printed_as_it_is),
        cmocka_unit_test(test_inference__what_is_not_utf8_is_replaced),
        cmocka_unit_test(test_inference__a_terminal_is_not_controlled),
        cmocka_unit_test(test_inference__greedy_takes_the_first_of_the_largest),
        cmocka_unit_test(test_inference__sampling_follows_the_softmax),
        cmocka_unit_test(test_inference__top_k_leaves_the_others_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
