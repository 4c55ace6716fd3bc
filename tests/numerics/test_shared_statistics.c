/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Batch normalization whose statistics are those of several ranks (sync_batch_norm), against that
 * of one rank which has all images; and the difference of two tensors (localsgd). At every level.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "tests/numerics/kernel_data.h"

enum {
    RANKS = 2,
    IMAGES = 3, /* of a rank */
    CHANNELS = 5,
    PLANE = 7 * 29,
    SUMS = 2 * CHANNELS + 1,
    OWN = IMAGES * CHANNELS * PLANE
};

static const int64_t own_shape[] = {IMAGES, CHANNELS, 7, 29};
static const int64_t whole_shape[] = {RANKS * IMAGES, CHANNELS, 7, 29};
static const int64_t channels = CHANNELS, sums_count = SUMS;

struct images {
    float *x, *d_y;
    uint16_t *x_narrow, *d_narrow; /* NULL: fp32 */
    enum program_type type;
    float scale[CHANNELS], shift[CHANNELS], mean[CHANNELS], var[CHANNELS];
};

static void images_init(struct images *images, enum program_type type)
{
    *images = (struct images){
        .x = normal("x", RANKS * OWN), .d_y = normal("d", RANKS * OWN), .type = type};
    for (int i = 0; i < RANKS * OWN; i++)
        images->x[i] += 3.0f;
    for (int c = 0; c < CHANNELS; c++) {
        images->scale[c] = 0.5f + (float)c;
        images->shift[c] = 1.0f - (float)c;
        images->mean[c] = 2.5f + 0.25f * (float)c;
        images->var[c] = 1.0f;
    }
    if (type == PROGRAM_FP32)
        return;
    images->x_narrow = narrowed(images->x, RANKS * OWN, type);
    images->d_narrow = narrowed(images->d_y, RANKS * OWN, type);
}

static void images_release(struct images *images)
{
    free(images->x);
    free(images->d_y);
    free(images->x_narrow);
    free(images->d_narrow);
}

/* The images of rank `rank`; -1: all. */
static void rig_images(struct rig *rig, const struct images *images, const float *values,
                       const uint16_t *narrow, int rank)
{
    size_t first = rank > 0 ? (size_t)rank * OWN : 0;

    rig_in(rig, images->type, 4, rank < 0 ? whole_shape : own_shape,
           narrow ? (const void *)(narrow + first) : values + first);
}

static void run_sums(const struct images *images, int rank, enum fleet_isa level, float out[SUMS])
{
    struct rig rig;

    rig_init(&rig, OP_BATCH_NORM_SUMS);
    rig_images(&rig, images, images->x, images->x_narrow, rank);
    rig_in(&rig, PROGRAM_FP32, 1, &channels, images->mean);
    rig_out(&rig, PROGRAM_FP32, 1, &sums_count);
    rig_run(&rig, level);
    memcpy(out, rig.out[0], SUMS * sizeof(*out));
    rig_release(&rig);
}

static void run_grad_sums(const struct images *images, int rank, const struct rig *forward,
                          enum fleet_isa level, float out[SUMS])
{
    struct rig rig;

    rig_init(&rig, OP_BATCH_NORM_GRAD_SUMS);
    rig_images(&rig, images, images->d_y, images->d_narrow, rank);
    rig_images(&rig, images, images->x, images->x_narrow, rank);
    rig_in(&rig, PROGRAM_FP32, 1, &channels, forward->out[1]);
    rig_in(&rig, PROGRAM_FP32, 1, &channels, forward->out[2]);
    rig_out(&rig, PROGRAM_FP32, 1, &sums_count);
    rig_run(&rig, level);
    memcpy(out, rig.out[0], SUMS * sizeof(*out));
    rig_release(&rig);
}

/* `total` NULL: of these images alone. */
static void run_forward(struct rig *rig, const struct images *images, int rank, const float *total,
                        enum fleet_isa level)
{
    rig_init(rig, OP_BATCH_NORM);
    rig->op.attributes.epsilon = 1e-5;
    rig_images(rig, images, images->x, images->x_narrow, rank);
    rig_in(rig, PROGRAM_FP32, 1, &channels, images->scale);
    rig_in(rig, PROGRAM_FP32, 1, &channels, images->shift);
    rig_in(rig, PROGRAM_FP32, 1, &channels, images->mean);
    rig_in(rig, PROGRAM_FP32, 1, &channels, images->var);
    rig_in(rig, images->type, 4, own_shape, NULL);
    rig_in(rig, PROGRAM_FP32, 1, &sums_count, total);
    rig_out(rig, PROGRAM_FP32, 4, rank < 0 ? whole_shape : own_shape);
    for (int o = 1; o < 5; o++)
        rig_out(rig, PROGRAM_FP32, 1, &channels);
    rig_run(rig, level);
}

static void run_gradient(struct rig *rig, const struct images *images, int rank,
                         const struct rig *forward, const float *total, const float *own,
                         enum fleet_isa level)
{
    rig_init(rig, OP_BATCH_NORM_GRAD);
    rig_images(rig, images, images->d_y, images->d_narrow, rank);
    rig_images(rig, images, images->x, images->x_narrow, rank);
    rig_in(rig, PROGRAM_FP32, 1, &channels, images->scale);
    rig_in(rig, PROGRAM_FP32, 1, &channels, forward->out[1]);
    rig_in(rig, PROGRAM_FP32, 1, &channels, forward->out[2]);
    rig_in(rig, PROGRAM_FP32, 1, &sums_count, total);
    rig_in(rig, PROGRAM_FP32, 1, &sums_count, own);
    rig_out(rig, PROGRAM_FP32, 4, rank < 0 ? whole_shape : own_shape);
    rig_out(rig, PROGRAM_FP32, 1, &channels);
    rig_out(rig, PROGRAM_FP32, 1, &channels);
    rig_run(rig, level);
}

static void expect_close(const float *a, const float *b, int count, float tolerance)
{
    for (int i = 0; i < count; i++)
        if (!(fabsf(a[i] - b[i]) <= tolerance * (1 + fabsf(b[i]))))
            fail_msg("element %d: %.9g, with all images %.9g", i, (double)a[i], (double)b[i]);
}

static void check_ranks(enum program_type type, enum fleet_isa level)
{
    float own[RANKS][SUMS], own_grad[RANKS][SUMS], total[SUMS] = {0}, total_grad[SUMS] = {0};
    struct rig whole, whole_grad, forward[RANKS];
    struct images images;

    images_init(&images, type);
    run_forward(&whole, &images, -1, NULL, level);
    run_gradient(&whole_grad, &images, -1, &whole, NULL, NULL, level);
    for (int r = 0; r < RANKS; r++) {
        run_sums(&images, r, level, own[r]);
        for (int i = 0; i < SUMS; i++)
            total[i] += own[r][i];
    }
    assert_true(total[2 * CHANNELS] == (float)(RANKS * IMAGES * PLANE));
    for (int r = 0; r < RANKS; r++) {
        run_forward(&forward[r], &images, r, total, level);
        expect_close(forward[r].out[0], (float *)whole.out[0] + r * OWN, OWN, 2e-5f);
        for (int o = 1; o < 5; o++)
            expect_close(forward[r].out[o], whole.out[o], CHANNELS, 2e-5f);
        run_grad_sums(&images, r, &forward[r], level, own_grad[r]);
        for (int i = 0; i < SUMS; i++)
            total_grad[i] += own_grad[r][i];
    }
    expect_close(total_grad, whole_grad.out[2], CHANNELS, 1e-3f);
    expect_close(total_grad + CHANNELS, whole_grad.out[1], CHANNELS, 1e-3f);
    for (int r = 0; r < RANKS; r++) {
        struct rig grad;
        run_gradient(&grad, &images, r, &forward[r], total_grad, own_grad[r], level);
        expect_close(grad.out[0], (float *)whole_grad.out[0] + r * OWN, OWN, 1e-4f);
        assert_memory_equal(grad.out[1], own_grad[r] + CHANNELS, CHANNELS * sizeof(float));
        assert_memory_equal(grad.out[2], own_grad[r], CHANNELS * sizeof(float));
        rig_release(&grad);
        rig_release(&forward[r]);
    }
    rig_release(&whole);
    rig_release(&whole_grad);
    images_release(&images);
}

static void test_shared_statistics__ranks_normalize_as_one_with_all_images(void **state)
{
    (void)state;
    EACH_LEVEL(level)
    {
        check_ranks(PROGRAM_FP32, level);
        check_ranks(PROGRAM_BF16, level);
    }
}

/* A channel with a NaN has no statistics, and the others have theirs. */
static void test_shared_statistics__a_nan_stays_in_its_channel(void **state)
{
    float total[SUMS];
    struct images images;
    struct rig forward;

    (void)state;
    EACH_LEVEL(level)
    {
        images_init(&images, PROGRAM_FP32);
        images.x[PLANE + 11] = NAN;
        run_sums(&images, 0, level, total);
        assert_true(isnan(total[1]) && isnan(total[CHANNELS + 1]));
        run_forward(&forward, &images, 0, total, level);
        for (int c = 0; c < CHANNELS; c++)
            assert_true(isnan(((float *)forward.out[2])[c]) == (c == 1));
        rig_release(&forward);
        images_release(&images);
    }
}

static void test_shared_statistics__differences(void **state)
{
    static const int64_t counts[] = {1, 3, 4, 63, 1025, 4096};

    (void)state;
    EACH_LEVEL(level)
    for (size_t c = 0; c < FLEET_COUNT(counts); c++) {
        float *a = normal("a", counts[c]), *b = normal("b", counts[c]);
        struct rig rig;

        rig_init(&rig, OP_SUBTRACT);
        rig_in(&rig, PROGRAM_FP32, 1, &counts[c], a);
        rig_in(&rig, PROGRAM_FP32, 1, &counts[c], b);
        rig_out(&rig, PROGRAM_FP32, 1, &counts[c]);
        rig_run(&rig, level);
        for (int64_t i = 0; i < counts[c]; i++)
            assert_true(((float *)rig.out[0])[i] == a[i] - b[i]);
        rig_release(&rig);
        free(a);
        free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_statistics__ranks_normalize_as_one_with_all_images),
        cmocka_unit_test(test_shared_statistics__a_nan_stays_in_its_channel),
        cmocka_unit_test(test_shared_statistics__differences),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
