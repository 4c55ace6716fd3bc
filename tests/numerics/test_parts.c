/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operators of ranks that have a part of a model each: norms of stages, of parts of tensors and of
 * shards; a vocabulary that ranks divide. At every level.
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
#include "tests/numerics/kernel_data.h"

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

/* A rank has the squares of its own tensors, and zeros for the others. */
static void test_parts__squares_of_a_shard(void **state)
{
    static const int64_t sizes[3] = {5000, 40, 9000}, bytes = 3 * (int64_t)sizeof(double), one = 1;
    static const char *const names[3] = {"c", "a", "b"};
    struct program program;
    struct run_scalars scalars = {.gradient_scale = 0.5};
    int64_t places[16];
    struct kernel_held held = {.count = 14000, .places = places};
    float *gradients = positive("shard", 14000);
    double scratch[8], squares[3], expected[3] = {0, 0, 0};
    int out, flag_var;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(places); i++)
        places[i] = -1;
    program_init(&program, "shard");
    for (int i = 0; i < 3; i++) {
        int param =
            program_add_var(&program, names[i], PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1, &sizes[i]);
        int gradient;

        program.vars[param].trained = true;
        gradient = program_add_gradient(&program, param);
        if (i != 1) /* "c" lies behind "b", which is second by name */
            places[gradient] = i == 2 ? 0 : 9000;
    }
    for (int64_t i = 0; i < 14000; i++)
        expected[i < 9000 ? 1 : 2] += (double)gradients[i] * (double)gradients[i] / 4;
    out = program_add_var(&program, "out", PROGRAM_UINT8, PROGRAM_ROLE_SCALAR, 1, &bytes);
    flag_var = program_add_var(&program, "flag", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &one);
    program_layout(&program);
    EACH_LEVEL(level)
    {
        struct backend *backend = rig_backend(level, 2);
        struct program_op norm = {.kind = OP_GRAD_NORM,
                                  .outputs = {out},
                                  .output_count = 1,
                                  .attributes = {.owned = true}};
        struct program_op check = {.kind = OP_CHECK_FINITE,
                                   .outputs = {flag_var},
                                   .output_count = 1,
                                   .attributes = {.owned = true}};
        struct kernel_call call = {.program = &program,
                                   .op = &norm,
                                   .in = {gradients},
                                   .out = {squares},
                                   .scratch = scratch,
                                   .scalars = &scalars,
                                   .held = &held};

        assert_int_equal(backend->vtable->kernel(backend, OP_GRAD_NORM)(backend, &call, NULL), 0);
        for (int i = 0; i < 3; i++)
            assert_true(fabs(squares[i] - expected[i]) <= 1e-12 * expected[i]);
        call.op = &check;
        kernel_finds_values(backend, &call, &gradients[13999]);
    }
    free(gradients);
    program_release(&program);
}

/* ---- a divided vocabulary -------------------------------------------------------------------- */

enum {
    WORDS = 53,
    ROWS = 6,
    WIDTH = 19
};

/* The first word of each rank, and the end. */
static const int64_t first_words[RANKS + 1] = {0, 17, 20, WORDS};
static const int32_t words[ROWS] = {18, 0, 52, 18, 20, 19};
static const int64_t words_shape[2] = {2, 3};

static void test_parts__an_embedding_has_the_words_of_a_rank(void **state)
{
    static const int64_t out_shape[3] = {2, 3, WIDTH};
    float *table = positive("table", WORDS * WIDTH), *d_out = positive("d_out", ROWS * WIDTH);

    (void)state;
    EACH_LEVEL(level)
    for (int r = 0; r < RANKS; r++) {
        int64_t first = first_words[r], end = first_words[r + 1];
        int64_t table_shape[2] = {end - first, WIDTH};
        struct rig y, d;

        rig_init(&y, OP_EMBEDDING);
        y.op.attributes.divided = true;
        y.op.attributes.first_word = first;
        rig_in(&y, PROGRAM_INT32, 2, words_shape, words);
        rig_in(&y, PROGRAM_FP32, 2, table_shape, table + first * WIDTH);
        rig_out(&y, PROGRAM_FP32, 3, out_shape);
        rig_run(&y, level);
        rig_init(&d, OP_EMBEDDING_GRAD);
        d.op.attributes = y.op.attributes;
        rig_in(&d, PROGRAM_INT32, 2, words_shape, words);
        rig_in(&d, PROGRAM_FP32, 3, out_shape, d_out);
        rig_out(&d, PROGRAM_FP32, 2, table_shape);
        rig_run(&d, level);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < WIDTH; j++) {
                bool here = words[i] >= first && words[i] < end;
                assert_true(((float *)y.out[0])[i * WIDTH + j] ==
                            (here ? table[words[i] * WIDTH + j] : 0.0f));
            }
        for (int64_t w = first; w < end; w++)
            for (int j = 0; j < WIDTH; j++) {
                float sum = 0; /* in the order of the tokens */
                for (int i = 0; i < ROWS; i++)
                    sum += words[i] == w ? d_out[i * WIDTH + j] : 0.0f;
                assert_true(((float *)d.out[0])[(w - first) * WIDTH + j] == sum);
            }
        rig_release(&y);
        rig_release(&d);
    }
    free(table);
    free(d_out);
}

static const int64_t rows_shape[1] = {ROWS}, one_shape[1] = {1}, lse_shape[2] = {ROWS, 2};
static const int32_t targets[ROWS] = {18, 0, -100, 52, 20, 16};

static void init_loss(struct rig *rig, enum op_kind kind, int64_t first, int64_t count,
                      const float *logits)
{
    int64_t shape[2] = {ROWS, count};

    rig_init(rig, kind);
    rig->op.attributes.ignore_index = -100;
    rig->op.attributes.divided = count < WORDS;
    rig->op.attributes.first_word = first;
    rig_in(rig, PROGRAM_FP32, 2, shape, logits);
    rig_in(rig, PROGRAM_INT32, 1, rows_shape, targets);
}

static void run_gradient(struct rig *rig, int64_t first, int64_t count, const float *logits,
                         const void *lse, enum fleet_isa level)
{
    static const float d_loss = 2;

    init_loss(rig, OP_CROSS_ENTROPY_GRAD, first, count, logits);
    rig_in(rig, PROGRAM_FP32, 2, lse_shape, lse);
    rig_in(rig, PROGRAM_FP32, 1, one_shape, &d_loss);
    rig_out(rig, PROGRAM_FP32, 2, (int64_t[]){ROWS, count});
    rig_run(rig, level);
}

/* The columns of a rank, dense. */
static float *columns_of(const float *logits, int r)
{
    int64_t first = first_words[r], count = first_words[r + 1] - first;
    float *part = malloc((size_t)(ROWS * count) * sizeof(*part));

    for (int64_t i = 0; i < ROWS; i++)
        memcpy(part + i * count, logits + i * WORDS + first, (size_t)count * sizeof(*part));
    return part;
}

/* Statistics of a rank's columns go to `sums`. */
static void run_sums(const float *part, int r, float *sums, enum fleet_isa level)
{
    int64_t first = first_words[r], count = first_words[r + 1] - first;
    struct rig rig;

    init_loss(&rig, OP_CROSS_ENTROPY_SUMS, first, count, part);
    rig_out(&rig, PROGRAM_FP32, 2, (int64_t[]){ROWS, 3});
    rig_run(&rig, level);
    memcpy(sums, rig.out[0], ROWS * 3 * sizeof(*sums));
    for (int i = 0; i < ROWS; i++) {
        bool here = targets[i] >= first && targets[i] < first + count;
        assert_true(sums[3 * i + 2] == (here ? part[i * count + targets[i] - first] : 0.0f));
    }
    rig_release(&rig);
}

static void expect_gradient(const struct rig *part, int r, const struct rig *whole)
{
    int64_t first = first_words[r], count = first_words[r + 1] - first;

    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < count; j++)
            assert_true(fabsf(((float *)part->out[0])[i * count + j] -
                              ((float *)whole->out[0])[i * WORDS + first + j]) < 1e-6f);
}

/* Loss and gradient are those of the whole vocabulary, on each rank. */
static void test_parts__cross_entropy_of_divided_logits(void **state)
{
    static const int64_t all_shape[2] = {RANKS * ROWS, 3};
    float *logits = positive("logits", ROWS * WORDS), all[RANKS][3 * ROWS];

    (void)state;
    EACH_LEVEL(level)
    {
        struct rig whole, whole_grad;

        init_loss(&whole, OP_CROSS_ENTROPY, 0, WORDS, logits);
        rig_out(&whole, PROGRAM_FP32, 1, one_shape);
        rig_out(&whole, PROGRAM_FP32, 2, lse_shape);
        rig_run(&whole, level);
        run_gradient(&whole_grad, 0, WORDS, logits, whole.out[1], level);
        for (int r = 0; r < RANKS; r++) {
            float *part = columns_of(logits, r);
            run_sums(part, r, all[r], level);
            free(part);
        }
        for (int r = 0; r < RANKS; r++) {
            int64_t first = first_words[r], count = first_words[r + 1] - first;
            float *part = columns_of(logits, r);
            struct rig loss, grad;

            init_loss(&loss, OP_CROSS_ENTROPY, first, count, part);
            rig_in(&loss, PROGRAM_FP32, 2, all_shape, all);
            rig_out(&loss, PROGRAM_FP32, 1, one_shape);
            rig_out(&loss, PROGRAM_FP32, 2, lse_shape);
            rig_run(&loss, level);
            assert_true(fabsf(*(float *)loss.out[0] - *(float *)whole.out[0]) < 2e-6f);
            run_gradient(&grad, first, count, part, loss.out[1], level);
            expect_gradient(&grad, r, &whole_grad);
            rig_release(&loss);
            rig_release(&grad);
            free(part);
        }
        rig_release(&whole);
        rig_release(&whole_grad);
    }
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts__norms_of_a_stage_get_their_numbers),
        cmocka_unit_test(test_parts__the_root_of_norms_is_behind_them),
        cmocka_unit_test(test_parts__norms_of_parts_are_joined),
        cmocka_unit_test(test_parts__norms_come_from_bytes_of_doubles),
        cmocka_unit_test(test_parts__squares_of_a_shard),
        cmocka_unit_test(test_parts__an_embedding_has_the_words_of_a_rank),
        cmocka_unit_test(test_parts__cross_entropy_of_divided_logits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
