/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operators of ranks that have a part of a model each: norms of stages, of parts of tensors and of
 * shards. At every level.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"
#include "tests/numerics/kernel_rig.h"

#define EACH_LEVEL(level) \
    for (enum fleet_isa level = FLEET_ISA_PLAIN; (level) <= backend_level_of_machine(); (level)++)

enum {
    TENSORS = 700, /* more than travel with one launch */
    RANKS = 3
};

static float *positive(const char *name, int64_t count)
{
    float *x = malloc((size_t)count * sizeof(*x));

    for (int64_t i = 0; i < count; i++)
        x[i] = 3.0f * fleet_random_uniform(fleet_random_key(5, name, 0), (uint64_t)i);
    return x;
}

/* Parameters of one element. Parameter v has place TENSORS - 1 - v in the order of the names. */
static void add_parameters(struct rig *rig)
{
    for (int v = 0; v < TENSORS; v++) {
        char name[16];
        int64_t one = 1;
        int param;

        (void)snprintf(name, sizeof(name), "p%04d", TENSORS - 1 - v);
        param = program_add_var(&rig->program, name, PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1, &one);
        rig->program.vars[param].trained = true;
        rig->program.vars[param].number = 2 * (TENSORS - 1 - v) + 1;
        rig->program.vars[param].is_copy = v % 5 == 2;
        rig->program.vars[param].slice.parts = v % 3 == 0;
        program_add_gradient(&rig->program, param);
    }
    program_layout(&rig->program);
    rig->program.whole_trained = 2 * TENSORS + 3;
}

/* The root of the sum of `count` squares, in their order. */
static float root_of(const float *squares, int64_t count)
{
    double total = 0;

    for (int64_t i = 0; i < count; i++)
        total += (double)squares[i];
    return (float)sqrt(total);
}

/* ---- norms ----------------------------------------------------------------------------------- */

static void test_parts__norms_of_a_stage_get_their_numbers(void **state)
{
    static const int64_t own_count = TENSORS + 1, whole_count = 2 * TENSORS + 4;
    float *own = positive("own", own_count);

    (void)state;
    EACH_LEVEL(level)
    {
        struct rig spread;
        float *expected = calloc((size_t)whole_count, sizeof(*expected));

        for (int i = 0; i < TENSORS; i++)
            if ((TENSORS - 1 - i) % 5 != 2)
                expected[2 * i + 1] = own[i];
        rig_init(&spread, OP_SPREAD_NORMS);
        rig_in(&spread, PROGRAM_FP32, 1, &own_count, own);
        rig_out(&spread, PROGRAM_FP32, 1, &whole_count);
        add_parameters(&spread);
        rig_run(&spread, level);
        assert_memory_equal(spread.out[0], expected, (size_t)whole_count * sizeof(float));
        rig_release(&spread);
        free(expected);
    }
    free(own);
}

static void test_parts__the_root_of_norms_is_behind_them(void **state)
{
    static const int64_t counts[] = {1, 2, 256, 257, 1000};

    (void)state;
    EACH_LEVEL(level)
    for (size_t c = 0; c < FLEET_COUNT(counts); c++) {
        float *x = positive("norms", counts[c]), root = root_of(x, counts[c] - 1);
        struct rig total;

        rig_init(&total, OP_TOTAL_NORM);
        rig_in(&total, PROGRAM_FP32, 1, &counts[c], x);
        rig_out(&total, PROGRAM_FP32, 1, &counts[c]);
        rig_run(&total, level);
        assert_memory_equal(total.out[0], x, (size_t)(counts[c] - 1) * sizeof(float));
        assert_true(((float *)total.out[0])[counts[c] - 1] == root);
        rig_release(&total);
        free(x);
    }
}

/* Ranks hold parts of some tensors, and all of the others. */
static void test_parts__norms_of_parts_are_joined(void **state)
{
    static const int64_t count = TENSORS + 1, all_count = RANKS * (TENSORS + 1);
    float *all = positive("all", all_count), expected[TENSORS + 1];

    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        double sum = (double)all[i];
        for (int r = 1; r < RANKS && (TENSORS - 1 - i) % 3 == 0; r++)
            sum += (double)all[r * count + i];
        expected[i] = (float)sum;
    }
    expected[TENSORS] = root_of(expected, TENSORS);
    EACH_LEVEL(level)
    {
        struct rig join;

        rig_init(&join, OP_JOIN_NORMS);
        rig_in(&join, PROGRAM_FP32, 1, &all_count, all);
        rig_out(&join, PROGRAM_FP32, 1, &count);
        add_parameters(&join);
        rig_run(&join, level);
        assert_memory_equal(join.out[0], expected, sizeof(expected));
        rig_release(&join);
    }
    free(all);
}

static void test_parts__norms_come_from_bytes_of_doubles(void **state)
{
    static const int64_t count = TENSORS + 1, bytes = TENSORS * (int64_t)sizeof(double);
    float *x = positive("squares", TENSORS), expected[TENSORS + 1];
    double squares[TENSORS];

    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        squares[i] = (double)x[i] * (1 + 0x1p-30);
        expected[i] = (float)squares[i];
    }
    expected[TENSORS] = root_of(expected, TENSORS);
    EACH_LEVEL(level)
    {
        struct rig join;

        rig_init(&join, OP_JOIN_NORMS);
        rig_in(&join, PROGRAM_UINT8, 1, &bytes, squares);
        rig_out(&join, PROGRAM_FP32, 1, &count);
        add_parameters(&join);
        rig_run(&join, level);
        assert_memory_equal(join.out[0], expected, sizeof(expected));
        rig_release(&join);
    }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts__norms_of_a_stage_get_their_numbers),
        cmocka_unit_test(test_parts__the_root_of_norms_is_behind_them),
        cmocka_unit_test(test_parts__norms_of_parts_are_joined),
        cmocka_unit_test(test_parts__norms_come_from_bytes_of_doubles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
