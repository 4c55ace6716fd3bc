/* SPDX-License-Identifier: Apache-2.0 */

/* CAST of fp32 to bf16, rounded at random. With CUDA the bits are those of the CPU. */
#include "libfleet/base/assert.h"
#include "tests/numerics/kernel_data.h"

/* The rounded numbers; the caller frees them. */
static uint16_t *rounded(const float *x, int64_t count, uint64_t stream, int64_t step,
                         bool evaluation, enum fleet_isa level)
{
    struct rig rig;
    uint16_t *out;

    rig_init(&rig, OP_CAST);
    rig.op.attributes.stream = stream;
    rig.scalars.seed = 7;
    rig.scalars.step = step;
    rig.scalars.evaluation = evaluation;
    rig_in(&rig, PROGRAM_FP32, 1, &count, x);
    rig_out(&rig, PROGRAM_BF16, 1, &count);
    rig_run(&rig, level);
    out = rig.out[0];
    rig.out[0] = NULL;
    rig_release(&rig);
    return out;
}

static double value(uint16_t half)
{
    return (double)typed_of_bf16(half);
}

/* One of the two neighbours, by the random numbers of (key, step, element). */
static void test_rounding__a_number_becomes_a_neighbour(void **state)
{
    static const int64_t counts[] = {1, 7, 8, 9, 31, 2051, 4096};
    struct fleet_random_key key = fleet_random_key(7, "rounding", 3);

    (void)state;
    EACH_LEVEL(level)
    for (size_t c = 0; c < FLEET_COUNT(counts); c++) {
        float *x = normal("x", counts[c]);
        uint16_t *y = rounded(x, counts[c], 3, 11, false, level);

        for (int64_t i = 0; i < counts[c]; i++) {
            uint32_t bits = typed_bits_of_float(x[i]), words[4];
            fleet_random_block(key, 11, (uint64_t)i / 8, words);
            uint32_t random = words[i % 8 / 2] >> (i % 2 ? 16 : 0) & 0xffff;
            bool up = (bits & 0xffff) + random > 0xffff;
            assert_int_equal(y[i], (bits >> 16) + up);
        }
        free(x);
        free(y);
    }
}

/* 4096 times the same number: the mean is within five deviations. */
static void test_rounding__the_mean_is_the_number(void **state)
{
    static const float shares[] = {0.0f, 0.125f, 0.5f, 0.75f};
    float x[4096];

    (void)state;
    for (size_t s = 0; s < FLEET_COUNT(shares); s++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double p = (double)shares[s], ups = 0;
            uint16_t *y;
            for (int i = 0; i < 4096; i++)
                x[i] = (float)sign * (1.0f + 0x1p-7f * shares[s]);
            y = rounded(x, 4096, 5, (int64_t)s, false, FLEET_ISA_PLAIN);
            for (int i = 0; i < 4096; i++) {
                double size = fabs(value(y[i]));
                assert_true(size == 1 || size == 1 + 0x1p-7);
                ups += size > 1;
            }
            assert_true(fabs(ups / 4096 - p) <= 5 * sqrt(p * (1 - p) / 4096));
            free(y);
        }
}

static void test_rounding__stream_and_step_choose_the_numbers(void **state)
{
    static const struct {
        uint64_t stream;
        int64_t step;
        bool same;
    } cases[] = {{3, 11, true}, {3, 12, false}, {4, 11, false}, {UINT64_MAX >> 1, 11, false}};
    float *x = normal("x", 1000);
    uint16_t *first = rounded(x, 1000, 3, 11, false, FLEET_ISA_PLAIN);

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        uint16_t *y = rounded(x, 1000, cases[i].stream, cases[i].step, false, FLEET_ISA_PLAIN);
        assert_int_equal(memcmp(first, y, 2000) == 0, cases[i].same);
        free(y);
    }
    free(x);
    free(first);
}

static void test_rounding__an_evaluation_rounds_to_the_nearest(void **state)
{
    float *x = normal("x", 100);
    uint16_t *y = rounded(x, 100, 3, 11, true, FLEET_ISA_PLAIN);

    (void)state;
    for (int i = 0; i < 100; i++)
        assert_int_equal(y[i], typed_to_bf16(x[i]));
    free(x);
    free(y);
}

/* What bf16 has stays as it is, infinity and NaN, too. */
static void test_rounding__what_fits_stays(void **state)
{
    static const float values[] = {0, -0.0f, 1, -2.5f, 0x1p-133f, 0x1.fep127f, INFINITY, -INFINITY};
    float x[64];
    uint16_t *y;

    (void)state;
    for (int i = 0; i < 64; i++)
        x[i] = i < 56 ? values[i % 8] : NAN;
    EACH_LEVEL(level)
    {
        y = rounded(x, 64, 9, 1, false, level);
        for (int i = 0; i < 56; i++)
            assert_int_equal(y[i], typed_bits_of_float(x[i]) >> 16);
        for (int i = 56; i < 64; i++)
            assert_true(isnan(typed_of_bf16(y[i])));
        free(y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding__a_number_becomes_a_neighbour),
        cmocka_unit_test(test_rounding__the_mean_is_the_number),
        cmocka_unit_test(test_rounding__stream_and_step_choose_the_numbers),
        cmocka_unit_test(test_rounding__an_evaluation_rounds_to_the_nearest),
        cmocka_unit_test(test_rounding__what_fits_stays),
    };
    return cmocka_run_group_tests_name("rounding", tests, NULL, NULL);
}
