/* SPDX-License-Identifier: Apache-2.0 */

/* The order of samples: every epoch shows each once, in an order of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/runtime/data/sampler.h"

static void test_sampler__every_epoch_shows_every_sample_once(void **state)
{
    (void)state;
    for (int64_t count = 1; count < 300; count += 7) {
        const struct sampler sampler = {.seed = 5, .count = count, .shuffle = true};
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            bool seen[300] = {false};
            for (int64_t i = 0; i < count; i++) {
                int64_t index = sampler_index(&sampler, epoch * count + i);
                assert_in_range(index, 0, count - 1);
                assert_false(seen[index]);
                seen[index] = true;
            }
        }
    }
}

/* How many of 1000 positions hold the same sample; 1 is expected of independent orders. */
static int same_places(const struct sampler *a, int64_t from_a, const struct sampler *b,
                       int64_t from_b)
{
    int same = 0;

    for (int64_t i = 0; i < 1000; i++)
        same += sampler_index(a, from_a + i) == sampler_index(b, from_b + i);
    return same;
}

static void test_sampler__epochs_and_seeds_have_orders_of_their_own(void **state)
{
    const struct sampler one = {.seed = 1, .count = 1000, .shuffle = true};
    const struct sampler two = {.seed = 2, .count = 1000, .shuffle = true};
    const struct sampler plain = {.seed = 1, .count = 1000};

    (void)state;
    assert_int_equal(same_places(&one, 0, &one, 0), 1000);
    assert_in_range(same_places(&one, 0, &one, 1000), 0, 10);
    assert_in_range(same_places(&one, 0, &two, 0), 0, 10);
    assert_in_range(same_places(&one, 0, &plain, 0), 0, 10);
}

static void test_sampler__without_shuffle_samples_come_by_index(void **state)
{
    const struct sampler sampler = {.seed = 1, .count = 7};

    (void)state;
    for (int64_t k = 0; k < 30; k++)
        assert_int_equal(sampler_index(&sampler, k), k % 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler__every_epoch_shows_every_sample_once),
        cmocka_unit_test(test_sampler__epochs_and_seeds_have_orders_of_their_own),
        cmocka_unit_test(test_sampler__without_shuffle_samples_come_by_index),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
