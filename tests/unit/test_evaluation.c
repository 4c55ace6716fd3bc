/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How the samples of an evaluation are cut into micro-batches: each sample is in exactly one, and
 * counts as much as every other one in the mean.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/runtime/evaluation.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"

static void expect_parts(const struct evaluation_cut *cut, const int64_t *parts, size_t count)
{
    int64_t at = 0, first;

    assert_int_equal(evaluation_micro_batches(cut), count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(evaluation_part(cut, (int64_t)i, &first), parts[i]);
        assert_int_equal(first, at);
        at += parts[i];
    }
    assert_int_equal(at, cut->samples);
}

static void test_evaluation__the_last_micro_batch_may_lack_samples(void **state)
{
    (void)state;
    expect_parts(&(struct evaluation_cut){.samples = 8, .micro_batch_size = 4}, (int64_t[]){4, 4},
                 2);
    expect_parts(&(struct evaluation_cut){.samples = 11, .micro_batch_size = 4},
                 (int64_t[]){4, 4, 3}, 3);
    expect_parts(&(struct evaluation_cut){.samples = 1, .micro_batch_size = 4}, (int64_t[]){1}, 1);
}

static void test_evaluation__repeated_samples_are_there_equally_often(void **state)
{
    static const struct {
        struct evaluation_cut cut;
        int64_t parts[6];
        size_t count;
    } rows[] = {
        {{8, 4, true}, {4, 4}, 2},
        {{7, 4, true}, {4, 2, 1}, 3},
        {{11, 6, true}, {6, 3, 2}, 3},
        {{4, 5, true}, {1, 1, 1, 1}, 4},
        {{63, 64, true}, {32, 16, 8, 4, 2, 1}, 6},
        {{5, 1, true}, {1, 1, 1, 1, 1}, 5},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        expect_parts(&rows[i].cut, rows[i].parts, rows[i].count);
        for (size_t j = 0; j < rows[i].count; j++)
            assert_int_equal(rows[i].cut.micro_batch_size % rows[i].parts[j], 0);
    }
}

static void test_evaluation__every_sample_counts_as_much(void **state)
{
    (void)state;
    for (int64_t size = 1; size <= 12; size++)
        for (int64_t samples = 1; samples <= 40; samples++)
            for (int repeats = 0; repeats < 2; repeats++) {
                struct evaluation_cut cut = {samples, size, repeats == 1};
                int64_t count = evaluation_micro_batches(&cut), first;
                FLEET_AUTO_FREE float *losses = calloc((size_t)count, sizeof(*losses));

                fleet_assert(losses);
                for (int64_t i = 0; i < count; i++) { /* the mean of the samples' numbers */
                    int64_t part = evaluation_part(&cut, i, &first);
                    losses[i] = (float)first + (float)(part - 1) / 2;
                }
                assert_true(evaluation_mean(losses, &cut) == (double)(samples - 1) / 2);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evaluation__the_last_micro_batch_may_lack_samples),
        cmocka_unit_test(test_evaluation__repeated_samples_are_there_equally_often),
        cmocka_unit_test(test_evaluation__every_sample_counts_as_much),
    };

    return cmocka_run_group_tests_name("evaluation", tests, NULL, NULL);
}
