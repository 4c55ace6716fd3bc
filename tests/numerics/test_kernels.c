/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the recordings and formulas do not cover: dropout, norms of the whole gradient, shapes of
 * operands, and errors. At every level. test_kernels_sizes.c has types and large operands.
 */
#include <errno.h>
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

/* ---- dropout --------------------------------------------------------------------------------- */

#define SAMPLES  4
#define ELEMENTS 1001 /* of a sample */

static void drop(float *out, const float *x, int64_t first, int64_t samples, int64_t step,
                 double rate, bool evaluation, enum fleet_isa level)
{
    int64_t shape[2] = {samples, ELEMENTS};
    struct rig rig;

    rig_init(&rig, OP_DROPOUT);
    rig.program.micro_batch_size = (int)samples;
    rig.op.attributes.rate = rate;
    rig.op.attributes.stream = 3;
    rig.scalars = (struct run_scalars){
        .seed = 9, .step = step, .first_sample = first, .evaluation = evaluation};
    rig_in(&rig, PROGRAM_FP32, 2, shape, x);
    rig_out(&rig, PROGRAM_FP32, 2, shape);
    rig_run(&rig, level);
    memcpy(out, rig.out[0], (size_t)(samples * ELEMENTS) * sizeof(float));
    rig_release(&rig);
}

static void test_kernels__dropout_depends_on_the_sample_not_on_the_micro_batch(void **state)
{
    static float x[SAMPLES * ELEMENTS], whole[SAMPLES * ELEMENTS], parts[SAMPLES * ELEMENTS];

    (void)state;
    for (int i = 0; i < SAMPLES * ELEMENTS; i++)
        x[i] = 1 + (float)i;
    EACH_LEVEL(level)
    {
        int dropped = 0;
        drop(whole, x, 0, SAMPLES, 7, 0.25, false, level);
        for (int64_t s = 0; s < SAMPLES; s++)
            drop(parts + s * ELEMENTS, x + s * ELEMENTS, s, 1, 7, 0.25, false, level);
        assert_memory_equal(whole, parts, sizeof(whole));
        for (int i = 0; i < SAMPLES * ELEMENTS; i++) {
            dropped += whole[i] == 0;
            if (whole[i] != 0)
                assert_true(whole[i] == x[i] * (float)(1 / 0.75));
        }
        /* 4004 draws at 1/4: 1001 ± 4.7 deviations of 27. */
        if (abs(dropped - 1001) > 128)
            fail_msg("%d of 4004 elements were dropped, expected about 1001", dropped);
        drop(parts, x, 0, SAMPLES, 8, 0.25, false, level); /* another step, other elements */
        assert_memory_not_equal(whole, parts, sizeof(whole));
        drop(parts, x, 0, SAMPLES, 7, 0.25, true, level);
        assert_memory_equal(x, parts, sizeof(x));
        drop(parts, x, 0, SAMPLES, 7, 0, false, level);
        assert_memory_equal(x, parts, sizeof(x));
    }
}

/* ---- the whole gradient ---------------------------------------------------------------------- */

/* Two gradients, one of several blocks; norms of S/4 by name, then the global one. */
static void test_kernels__grad_norm_and_check_finite(void **state)
{
    enum {
        LARGE = 10001,
        SMALL = 3
    };
    struct program program;
    int64_t shapes[2] = {LARGE, SMALL}, norms = 3, one = 1;
    const char *const names[2] = {"b", "a"}; /* "a" comes first */
    int params[2], norm_var, flag_var;
    float *gradients, scratch[64], norm[3];
    struct run_scalars scalars = {.gradient_scale = 0.25};
    double squares[2] = {0, 0};

    (void)state;
    program_init(&program, "norms");
    for (int i = 0; i < 2; i++) {
        params[i] = program_add_var(&program, names[i], PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1,
                                    &shapes[i]);
        program.vars[params[i]].trained = true;
        program_add_gradient(&program, params[i]);
    }
    norm_var = program_add_var(&program, "norms", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &norms);
    flag_var = program_add_var(&program, "flag", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &one);
    program_layout(&program);
    gradients = calloc((size_t)program.flat_count, sizeof(*gradients));
    for (int i = 0; i < 2; i++) {
        float *g = gradients + program.vars[params[i]].flat_offset;
        fleet_random_normal(fleet_random_key(6, names[i], 0), 0, (size_t)shapes[i], 0, 1, g);
        for (int64_t e = 0; e < shapes[i]; e++)
            squares[1 - i] += (double)(g[e] / 4) * (double)(g[e] / 4);
    }
    EACH_LEVEL(level)
    {
        struct backend *backend = rig_backend(level, 3);
        struct program_op op = {.kind = OP_GRAD_NORM, .outputs = {norm_var}, .output_count = 1};
        struct kernel_call call = {.program = &program,
                                   .op = &op,
                                   .in = {gradients},
                                   .out = {norm},
                                   .scratch = scratch,
                                   .scalars = &scalars};
        assert_int_equal(backend->vtable->kernel(backend, OP_GRAD_NORM)(backend, &call, NULL), 0);
        for (int i = 0; i < 2; i++)
            if (fabs((double)norm[i] - squares[i]) > 1e-6 * squares[i])
                fail_msg("square %d: %.9g, expected %.9g", i, (double)norm[i], squares[i]);
        assert_true(fabs((double)norm[2] - sqrt(squares[0] + squares[1])) < 1e-4);

        op = (struct program_op){.kind = OP_CHECK_FINITE, .outputs = {flag_var}, .output_count = 1};
        for (int64_t i = 0; i < program.flat_count; i += 4999)
            kernel_finds_values(backend, &call, &gradients[i]);
    }
    free(gradients);
    program_release(&program);
}

/* ---- shapes of operands ---------------------------------------------------------------------- */

static void test_kernels__add_rows_and_sum_them(void **state)
{
    static const int64_t shape[3] = {5, 13, 21}, columns[1] = {21};
    float *a = normal("a", 5 * 13 * 21), *b = normal("b", 21);

    (void)state;
    EACH_LEVEL(level)
    {
        struct rig add, sum;
        rig_init(&add, OP_ADD);
        rig_in(&add, PROGRAM_FP32, 3, shape, a);
        rig_in(&add, PROGRAM_FP32, 1, columns, b);
        rig_out(&add, PROGRAM_FP32, 3, shape);
        rig_run(&add, level);
        for (int i = 0; i < 5 * 13 * 21; i++)
            assert_true(((float *)add.out[0])[i] == a[i] + b[i % 21]);
        rig_init(&sum, OP_ADD_GRAD_B);
        rig_in(&sum, PROGRAM_FP32, 3, shape, a);
        rig_out(&sum, PROGRAM_FP32, 1, columns);
        rig_run(&sum, level);
        for (int j = 0; j < 21; j++) {
            double expected = 0;
            for (int r = 0; r < 65; r++)
                expected += (double)a[r * 21 + j];
            assert_true(fabs((double)((float *)sum.out[0])[j] - expected) < 1e-5);
        }
        rig_release(&add);
        rig_release(&sum);
    }
    free(a);
    free(b);
}

static void test_kernels__concat_is_undone_by_split(void **state)
{
    static const int64_t shapes[3][2] = {{7, 5}, {7, 33}, {7, 16}}, whole[2] = {7, 54};
    float *parts[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        parts[i] = normal("part", shapes[i][0] * shapes[i][1]);
    EACH_LEVEL(level)
    {
        struct rig concat, split;
        rig_init(&concat, OP_CONCAT);
        rig_init(&split, OP_SPLIT);
        for (int i = 0; i < 3; i++)
            rig_in(&concat, PROGRAM_FP32, 2, shapes[i], parts[i]);
        rig_out(&concat, PROGRAM_FP32, 2, whole);
        rig_run(&concat, level);
        assert_true(((float *)concat.out[0])[54 + 5] == parts[1][33]);
        rig_in(&split, PROGRAM_FP32, 2, whole, concat.out[0]);
        for (int i = 0; i < 3; i++)
            rig_out(&split, PROGRAM_FP32, 2, shapes[i]);
        rig_run(&split, level);
        for (int i = 0; i < 3; i++)
            assert_memory_equal(split.out[i], parts[i],
                                (size_t)(shapes[i][0] * shapes[i][1]) * sizeof(float));
        rig_release(&concat);
        rig_release(&split);
    }
    for (int i = 0; i < 3; i++)
        free(parts[i]);
}

/* Positions are added forward and summed over the batch backward; those past the context get 0. */
static void test_kernels__embedding_with_positions(void **state)
{
    static const int32_t ids[6] = {2, 0, 2, 1, 2, 2};
    static const int64_t ids_shape[2] = {2, 3}, table_shape[2] = {4, 19},
                         position_shape[2] = {5, 19};
    static const int64_t out_shape[3] = {2, 3, 19};
    float *table = normal("table", 4 * 19), *position = normal("position", 5 * 19);
    float *d_out = normal("d_out", 6 * 19);

    (void)state;
    EACH_LEVEL(level)
    {
        struct rig y, d;
        rig_init(&y, OP_EMBEDDING);
        rig_in(&y, PROGRAM_INT32, 2, ids_shape, ids);
        rig_in(&y, PROGRAM_FP32, 2, table_shape, table);
        rig_in(&y, PROGRAM_FP32, 2, position_shape, position);
        rig_out(&y, PROGRAM_FP32, 3, out_shape);
        rig_run(&y, level);
        rig_init(&d, OP_EMBEDDING_GRAD);
        rig_in(&d, PROGRAM_INT32, 2, ids_shape, ids);
        rig_in(&d, PROGRAM_FP32, 3, out_shape, d_out);
        rig_out(&d, PROGRAM_FP32, 2, table_shape);
        rig_out(&d, PROGRAM_FP32, 2, position_shape);
        rig_run(&d, level);
        for (int j = 0; j < 19; j++) {
            float twos = 0; /* in the order of the tokens */
            for (int i = 0; i < 6; i++) {
                assert_true(((float *)y.out[0])[i * 19 + j] ==
                            table[ids[i] * 19 + j] + position[i % 3 * 19 + j]);
                twos += ids[i] == 2 ? d_out[i * 19 + j] : 0;
            }
            assert_true(((float *)d.out[0])[2 * 19 + j] == twos);
            assert_true(((float *)d.out[0])[3 * 19 + j] == 0.0f);
            assert_true(((float *)d.out[1])[1 * 19 + j] == d_out[1 * 19 + j] + d_out[4 * 19 + j]);
            assert_true(((float *)d.out[1])[3 * 19 + j] == 0.0f);
        }
        rig_release(&y);
        rig_release(&d);
    }
    free(table);
    free(position);
    free(d_out);
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* columns of an attention head */
#if defined(RIG_CUDA)
#define HEAD_MAX "128"
#else
#define HEAD_MAX "256"
#endif

static void refuse(struct rig *rig, int code, const char *text)
{
    struct fleet_error err = {0};
    void *out[OP_OUTPUTS_MAX];

    assert_int_equal(op_infer(&rig->program, &rig->op, &err), 0);
    assert_int_equal(rig_run_once(rig, rig_backend(FLEET_ISA_PLAIN, 1), 0, out, &err), code);
#if defined(RIG_DEVICE) /* the back end has words of its own: it sees only the place */
    assert_true(text[0] && err.text[0]);
#else
    assert_string_equal(err.text, text);
#endif
    for (int i = 0; i < rig->op.output_count; i++)
        free(out[i]);
    rig_release(rig);
}

static void test_kernels__name_what_is_out_of_range(void **state)
{
    static const int32_t ids[4] = {0, 1, 2, 5}, classes[2] = {1, -1};
    static const int64_t ids_shape[2] = {2, 2}, table_shape[2] = {5, 3}, out_shape[3] = {2, 2, 3};
    static const int64_t logits_shape[2] = {2, 3}, rows = 2, one = 1;
    static const int64_t qkv[3] = {1, 1, 3 * 257}, out[3] = {1, 1, 257}, lse[3] = {1, 1, 1};
    static const float zeros[3 * 257];
    struct rig rig;

    (void)state;
    rig_init(&rig, OP_EMBEDDING);
    rig_in(&rig, PROGRAM_INT32, 2, ids_shape, ids);
    rig_in(&rig, PROGRAM_FP32, 2, table_shape, zeros);
    rig_out(&rig, PROGRAM_FP32, 3, out_shape);
    refuse(&rig, -EINVAL, "id 5 at position 1 of sample 1, must be 0 to 4");

    rig_init(&rig, OP_CROSS_ENTROPY);
    rig.op.attributes.ignore_index = -100;
    rig_in(&rig, PROGRAM_FP32, 2, logits_shape, zeros);
    rig_in(&rig, PROGRAM_INT32, 1, &rows, classes);
    rig_out(&rig, PROGRAM_FP32, 1, &one);
    rig_out(&rig, PROGRAM_FP32, 2, (int64_t[]){rows, 2});
    refuse(&rig, -EINVAL, "target -1 of row 1, must be 0 to 2 or -100 to ignore the row");

    rig_init(&rig, OP_ATTENTION);
    rig.op.attributes.heads = rig.op.attributes.kv_heads = 1;
    rig_in(&rig, PROGRAM_FP32, 3, qkv, zeros);
    rig_out(&rig, PROGRAM_FP32, 3, out);
    rig_out(&rig, PROGRAM_FP32, 3, lse);
    refuse(&rig, -ENOTSUP, "i0: heads of 257 columns, at most " HEAD_MAX);
}

/* Loss and gradient 0, not 0/0. */
static void test_kernels__a_micro_batch_without_targets_counts_nothing(void **state)
{
    static const int32_t classes[2] = {-100, -100};
    static const int64_t logits_shape[2] = {2, 3}, lse_shape[2] = {2, 2}, rows = 2, one = 1;
    static const float logits[6] = {1, 2, 3, 4, 5, 6}, zeros[6];

    (void)state;
    EACH_LEVEL(level)
    {
        struct rig y, d;
        rig_init(&y, OP_CROSS_ENTROPY);
        y.op.attributes.ignore_index = -100;
        rig_in(&y, PROGRAM_FP32, 2, logits_shape, logits);
        rig_in(&y, PROGRAM_INT32, 1, &rows, classes);
        rig_out(&y, PROGRAM_FP32, 1, &one);
        rig_out(&y, PROGRAM_FP32, 2, lse_shape);
        rig_run(&y, level);
        assert_true(*(float *)y.out[0] == 0.0f);
        rig_init(&d, OP_CROSS_ENTROPY_GRAD);
        d.op.attributes.ignore_index = -100;
        rig_in(&d, PROGRAM_FP32, 2, logits_shape, logits);
        rig_in(&d, PROGRAM_INT32, 1, &rows, classes);
        rig_in(&d, PROGRAM_FP32, 2, lse_shape, y.out[1]);
        rig_out(&d, PROGRAM_FP32, 2, logits_shape);
        rig_run(&d, level);
        assert_memory_equal(d.out[0], zeros, sizeof(zeros));
        rig_release(&y);
        rig_release(&d);
    }
}

/* The greatest of large logits takes none of the gradient's digits: p of {x, x - 1} is that of {0,
 * -1}. */
static void test_kernels__large_logits_keep_the_digits_of_the_gradient(void **state)
{
    static const int32_t classes[1] = {2};
    static const int64_t shape[2] = {1, 3}, lse_shape[2] = {1, 2}, one = 1;
    static const float logits[3] = {4000, 3999, 3000}, d_loss = 1;
    double p = 1 / (1 + exp(-1));

    (void)state;
    EACH_LEVEL(level)
    {
        struct rig y, d;
        rig_init(&y, OP_CROSS_ENTROPY);
        rig_in(&y, PROGRAM_FP32, 2, shape, logits);
        rig_in(&y, PROGRAM_INT32, 1, &one, classes);
        rig_out(&y, PROGRAM_FP32, 1, &one);
        rig_out(&y, PROGRAM_FP32, 2, lse_shape);
        rig_run(&y, level);
        assert_true(fabs(*(float *)y.out[0] - 1000 - log(1 + exp(-1))) < 1e-4);
        rig_init(&d, OP_CROSS_ENTROPY_GRAD);
        rig_in(&d, PROGRAM_FP32, 2, shape, logits);
        rig_in(&d, PROGRAM_INT32, 1, &one, classes);
        rig_in(&d, PROGRAM_FP32, 2, lse_shape, y.out[1]);
        rig_in(&d, PROGRAM_FP32, 1, &one, &d_loss);
        rig_out(&d, PROGRAM_FP32, 2, shape);
        rig_run(&d, level);
        assert_true(fabs(((float *)d.out[0])[0] - p) < 2e-7);
        assert_true(fabs(((float *)d.out[0])[1] - (1 - p)) < 2e-7);
        assert_true(fabs(((float *)d.out[0])[2] + 1) < 2e-7);
        rig_release(&y);
        rig_release(&d);
    }
}

/* NaN anywhere reaches the loss: the trainer must see it. */
static void test_kernels__nan_is_not_lost(void **state)
{
    static const int32_t classes[1] = {0};
    static const int64_t shape[2] = {1, 21}, lse_shape[2] = {1, 2}, one = 1;

    (void)state;
    EACH_LEVEL(level)
    for (int at = 0; at < 21; at += 5) {
        float logits[21] = {0};
        struct rig y;
        logits[at] = NAN;
        rig_init(&y, OP_CROSS_ENTROPY);
        y.op.attributes.ignore_index = -100;
        rig_in(&y, PROGRAM_FP32, 2, shape, logits);
        rig_in(&y, PROGRAM_INT32, 1, &one, classes);
        rig_out(&y, PROGRAM_FP32, 1, &one);
        rig_out(&y, PROGRAM_FP32, 2, lse_shape);
        rig_run(&y, level);
        assert_true(isnan(*(float *)y.out[0]));
        rig_release(&y);
    }
}

/* ---- updates --------------------------------------------------------------------------------- */

/* What the recordings lack, by hand from the formulas. */
static void test_kernels__clip_by_value_and_rescale(void **state)
{
    static const float p0[4] = {1, -2, 3, 0}, g0[4] = {10, -10, 0.2f, 0};
    int64_t shape[1] = {4};
    struct rig rig;

    (void)state;
    EACH_LEVEL(level)
    {
        rig_init(&rig, OP_SGD);
        rig_in(&rig, PROGRAM_FP32, 1, shape, p0);
        rig_in(&rig, PROGRAM_FP32, 1, shape, g0);
        rig_out_in_place(&rig, 0);
        rig.program.vars[0].role = PROGRAM_ROLE_PARAMETER;
        rig.program.vars[0].trained = true;
        rig.program.vars[1].of = 0;
        rig.op.attributes.optimizer.clip = OP_CLIP_VALUE;
        rig.op.attributes.optimizer.clip_limit = 0.5;
        rig.op.attributes.optimizer.rescale = 0.25;
        rig.scalars.learning_rate = 2;
        rig_run(&rig, level);
        for (int i = 0; i < 4; i++) { /* exact: powers of two except for the third */
            float clipped = fminf(0.5f, fmaxf(-0.5f, g0[i]));
            assert_true(((float *)rig.out[0])[i] == p0[i] - 2 * (clipped * 0.25f));
        }
        rig_release(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels__dropout_depends_on_the_sample_not_on_the_micro_batch),
        cmocka_unit_test(test_kernels__grad_norm_and_check_finite),
        cmocka_unit_test(test_kernels__add_rows_and_sum_them),
        cmocka_unit_test(test_kernels__concat_is_undone_by_split),
        cmocka_unit_test(test_kernels__embedding_with_positions),
        cmocka_unit_test(test_kernels__name_what_is_out_of_range),
        cmocka_unit_test(test_kernels__a_micro_batch_without_targets_counts_nothing),
        cmocka_unit_test(test_kernels__large_logits_keep_the_digits_of_the_gradient),
        cmocka_unit_test(test_kernels__nan_is_not_lost),
        cmocka_unit_test(test_kernels__clip_by_value_and_rescale),
    };

    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
