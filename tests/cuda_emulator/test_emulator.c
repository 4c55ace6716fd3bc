/* SPDX-License-Identifier: Apache-2.0 */

/* The emulator finds what it says it finds: each planted bug, and nothing in the same kernels
 * without it, for every interleaving. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/planted.h"

#define SEEDS 20

/* What the message of a bug says; NULL: no message, the result is wrong. */
static const struct {
    const char *name, *message;
} bugs[PLANTED_BUGS] = {
    [PLANTED_REVERSE] = {"missing barrier after a write", "planted.cu:"},
    [PLANTED_TREE] = {"missing barrier in a loop", "race on shared memory"},
    [PLANTED_TWICE] = {"<= in a bound", "write out of bounds"},
    [PLANTED_NEIGHBOUR] = {"a step beyond a shared array", "read out of bounds"},
    [PLANTED_HALF_SHUFFLE] = {"shuffle by half the lanes", "divergent"},
    [PLANTED_MASK] = {"shuffle from outside of the mask", "not in its mask"},
    [PLANTED_EARLY_RETURN] = {"barrier after a return", "divergent"},
    [PLANTED_BRANCHES] = {"barriers in branches", "divergent barrier"},
    [PLANTED_UNWRITTEN] = {"read of unwritten shared memory", "unwritten shared memory"},
    [PLANTED_COUNT] = {"no atomic function", "race on device memory"},
    [PLANTED_NAMED] = {"another named barrier", "divergent"},
    [PLANTED_SWAPPED_SCALE] = {"swapped scale", NULL},
    [PLANTED_LATE_COPY] = {"no wait for asynchronous copies", "an asynchronous copy fills"},
    [PLANTED_BLOCKS] = {"two blocks write an element", "race on device memory"},
    [PLANTED_PIPELINE] = {"wait for the copy before the last", "an asynchronous copy fills"},
    [PLANTED_REUSE] = {"copy into a buffer that others read", "shared memory"},
    [PLANTED_FRAGMENT] = {"wrong row of a fragment", NULL},
    [PLANTED_HALF_FRAGMENT] = {"fragment of half a warp", "divergent"},
    [PLANTED_MISALIGNED] = {"misaligned row of a matrix", "must be 16 bytes of shared memory"},
};

static float input[64];

struct outcome {
    cudaError_t status;
    float y[64];
    int total;
};

static struct outcome run(enum planted bug, bool is_wrong, uint64_t seed)
{
    static const int zero;
    size_t bytes = (bug == PLANTED_TWICE ? 50 : 64) * sizeof(float);
    float *x = emulator_allocate(sizeof(input)), *y = emulator_allocate(bytes);
    int *total = emulator_allocate(sizeof(*total));
    struct outcome r = {0};

    for (int i = 0; i < 64; i++)
        input[i] = (float)(i % 7) + 0.25f;
    emulator_clear_failure();
    emulator_seed(seed);
    emulator_write(x, input, sizeof(input));
    emulator_write(total, &zero, sizeof(zero));
    r.status = planted_run(bug, x, y, total, is_wrong);
    memcpy(r.y, y, bytes);
    r.total = *total;
    emulator_release_all();
    return r;
}

/* Row 8 + i / 8, column i % 8 of the product of the kernel `fragment`. */
static float fragment_of(int i)
{
    return input[(5 * (8 + i / 8) + i % 8 + 1) % 64];
}

static void test_emulator__right_kernels_pass(void **state)
{
    (void)state;
    for (int bug = 0; bug < PLANTED_BUGS; bug++)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct outcome r = run((enum planted)bug, false, seed);
            if (r.status != cudaSuccess)
                fail_msg("%s: %s", bugs[bug].name, emulator_failure());
        }
}

static void test_emulator__right_kernels_compute(void **state)
{
    float sum = 0;

    (void)state;
    for (int i = 0; i < 64; i++)
        sum += (float)(i % 7) + 0.25f;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct outcome reverse = run(PLANTED_REVERSE, false, seed);
        struct outcome shuffle = run(PLANTED_HALF_SHUFFLE, false, seed);
        struct outcome scale = run(PLANTED_SWAPPED_SCALE, false, seed);
        struct outcome named = run(PLANTED_NAMED, false, seed);
        struct outcome pipeline = run(PLANTED_PIPELINE, false, seed);
        struct outcome reuse = run(PLANTED_REUSE, false, seed);
        struct outcome fragment = run(PLANTED_FRAGMENT, false, seed);
        for (int i = 0; i < 64; i++) {
            assert_true(reverse.y[i] == input[63 - i]);
            assert_true(shuffle.y[i] == input[i] + input[i ^ 8]);
            assert_true(fabsf(scale.y[i] - input[i]) <= 0.125f * input[i]);
            assert_true(i >= 32 || named.y[i] == input[(i + 1) % 32]);
        }
        for (int i = 0; i < 64; i++) {
            float four =
                input[i % 16] + input[i % 16 + 16] + input[i % 16 + 32] + input[i % 16 + 48];
            assert_true(pipeline.y[i] == four);
            assert_true(reuse.y[i] == four);
            assert_true(fragment.y[i] == fragment_of(i));
        }
        assert_true(run(PLANTED_TREE, false, seed).y[0] == sum);
        assert_int_equal(run(PLANTED_COUNT, false, seed).total, 128);
    }
}

/* Found by every interleaving, not by a lucky one. */
static void test_emulator__planted_bugs_are_found(void **state)
{
    (void)state;
    if (!emulator_sees_accesses()) /* the asan build sees no races, and ends at a step beyond */
        skip();
    for (int bug = 0; bug < PLANTED_BUGS; bug++)
        for (uint64_t seed = 0; bugs[bug].message && seed < SEEDS; seed++) {
            struct outcome r = run((enum planted)bug, true, seed);
            if (r.status != cudaErrorLaunchFailure)
                fail_msg("%s, seed %d: not found", bugs[bug].name, (int)seed);
            if (!strstr(emulator_failure(), bugs[bug].message))
                fail_msg("%s, seed %d: the message is: %s", bugs[bug].name, (int)seed,
                         emulator_failure());
        }
}

/* A wrong number is not against CUDA's rules: comparing the results finds it. */
static void test_emulator__a_swapped_scale_gives_other_numbers(void **state)
{
    struct outcome r = run(PLANTED_SWAPPED_SCALE, true, 1);
    int wrong = 0;

    (void)state;
    assert_int_equal(r.status, cudaSuccess);
    for (int i = 0; i < 64; i++)
        wrong += fabsf(r.y[i] - input[i]) > 0.125f * input[i];
    assert_int_equal(wrong, 64);
}

static void test_emulator__a_wrong_row_of_a_fragment_gives_other_numbers(void **state)
{
    struct outcome r = run(PLANTED_FRAGMENT, true, 1);
    int wrong = 0;

    (void)state;
    assert_int_equal(r.status, cudaSuccess);
    for (int i = 0; i < 64; i++)
        wrong += r.y[i] != fragment_of(i);
    assert_true(wrong > 32);
}

/* What the asan build, which sees no accesses, would find by the result: a tile that has not come
 * is NaN. */
static void test_emulator__memory_that_a_copy_fills_is_nan(void **state)
{
    (void)state;
    if (emulator_sees_accesses()) /* it ends the launch */
        skip();
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct outcome r = run(PLANTED_PIPELINE, true, seed);
        assert_int_equal(r.status, cudaSuccess);
        for (int i = 0; i < 64; i++)
            assert_true(isnan(r.y[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_emulator__right_kernels_pass),
        cmocka_unit_test(test_emulator__right_kernels_compute),
        cmocka_unit_test(test_emulator__planted_bugs_are_found),
        cmocka_unit_test(test_emulator__a_swapped_scale_gives_other_numbers),
        cmocka_unit_test(test_emulator__a_wrong_row_of_a_fragment_gives_other_numbers),
        cmocka_unit_test(test_emulator__memory_that_a_copy_fills_is_nan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
