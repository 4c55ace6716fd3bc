/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the recordings and formulas do not cover: 16-bit operands, large matrix products, dropout,
 * norms of the whole gradient, in-place operands, and errors. At every level.
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

#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"
#include "tests/numerics/kernel_rig.h"

#define EACH_LEVEL(level) \
    for (enum fleet_isa level = FLEET_ISA_PLAIN; level <= backend_level_of_machine(); level++)

static float *normal(const char *name, int64_t count)
{
    float *out = malloc((size_t)count * sizeof(*out) + 1);

    fleet_random_normal(fleet_random_key(5, name, 0), 0, (size_t)count, 0, 1, out);
    return out;
}

/* `count` floats as `type`, and the floats they became. */
static uint16_t *narrowed(float *values, int64_t count, enum program_type type)
{
    uint16_t *out = malloc((size_t)count * sizeof(*out) + 1);

    for (int64_t i = 0; i < count; i++) {
        out[i] = type == PROGRAM_BF16 ? typed_to_bf16(values[i]) : typed_to_fp16(values[i]);
        values[i] = type == PROGRAM_BF16 ? typed_of_bf16(out[i]) : typed_of_fp16(out[i]);
    }
    return out;
}

/* ---- 16 bits --------------------------------------------------------------------------------- */

/* An operator on [6,37] tensors, first in fp32 on rounded inputs, then in 16 bits. */
struct half_case {
    enum op_kind kind;
    int inputs, vectors; /* vectors: fp32 inputs [37] after them */
    int statistics;      /* fp32 outputs [6] after the first */
};

static const struct half_case half_cases[] = {
    {OP_ADD, 2, 0, 0},       {OP_GELU, 1, 0, 0},    {OP_GELU_GRAD, 2, 0, 0},
    {OP_SILU, 1, 0, 0},      {OP_SWIGLU, 2, 0, 0},  {OP_RELU, 1, 0, 0},
    {OP_SOFTMAX, 1, 0, 0},   {OP_SCALE, 1, 0, 0},   {OP_LAYER_NORM, 1, 2, 2},
    {OP_RMS_NORM, 1, 1, 1},  {OP_RESHAPE, 1, 0, 0}, {OP_SOFTMAX_GRAD, 2, 0, 0},
    {OP_RELU_GRAD, 2, 0, 0},
};

static void run_half_case(const struct half_case *h, enum program_type type, enum fleet_isa level)
{
    static const int64_t shape[2] = {6, 37};
    double unit = type == PROGRAM_BF16 ? 0x1p-8 : 0x1p-11; /* half a step, relative */
    float *x[2] = {normal("a", 6 * 37), normal("b", 6 * 37)};
    float *v[2] = {normal("c", 37), normal("d", 37)};
    uint16_t *half[2] = {narrowed(x[0], 6 * 37, type), narrowed(x[1], 6 * 37, type)};
    struct rig wide, narrow, *const rigs[2] = {&wide, &narrow};

    for (int r = 0; r < 2; r++) {
        enum program_type t = r ? type : PROGRAM_FP32;
        rig_init(rigs[r], h->kind);
        rigs[r]->op.attributes.epsilon = 1e-5;
        rigs[r]->op.attributes.scale = 0.3;
        for (int i = 0; i < h->inputs; i++)
            rig_in(rigs[r], t, 2, shape, r ? (void *)half[i] : (void *)x[i]);
        for (int i = 0; i < h->vectors; i++)
            rig_in(rigs[r], PROGRAM_FP32, 1, &shape[1], v[i]);
        rig_out(rigs[r], t, 2, shape);
        for (int i = 0; i < h->statistics; i++)
            rig_out(rigs[r], PROGRAM_FP32, 1, &shape[0]);
        rig_run(rigs[r], level);
    }
    for (int i = 0; i < 6 * 37; i++) {
        uint16_t bits = ((uint16_t *)narrow.out[0])[i];
        double got = (double)(type == PROGRAM_BF16 ? typed_of_bf16(bits) : typed_of_fp16(bits));
        double expected = (double)((float *)wide.out[0])[i];
        if (!(fabs(got - expected) <= unit * fabs(expected) + 0x1p-25))
            fail_msg("%s in %s at level %s, [%d]: %.9g, expected %.9g",
                     op_definition(h->kind)->name, program_type_name(type), fleet_isa_names[level],
                     i, got, expected);
    }
    for (int i = 0; i < h->statistics; i++)
        assert_memory_equal(wide.out[1 + i], narrow.out[1 + i], 6 * sizeof(float));
    for (int i = 0; i < 2; i++) {
        rig_release(rigs[i]);
        free(x[i]);
        free(v[i]);
        free(half[i]);
    }
}

static void test_kernels__sixteen_bits_are_fp32_rounded_once(void **state)
{
    (void)state;
    EACH_LEVEL(level)
    for (size_t i = 0; i < FLEET_COUNT(half_cases); i++) {
        run_half_case(&half_cases[i], PROGRAM_BF16, level);
        run_half_case(&half_cases[i], PROGRAM_FP16, level);
    }
}

static void test_kernels__cast_there_and_back(void **state)
{
    static const int64_t shape[1] = {101};
    float *x = normal("cast", 101);
    uint16_t *half = narrowed(x, 101, PROGRAM_BF16);

    (void)state;
    EACH_LEVEL(level)
    {
        struct rig down, up;
        rig_init(&down, OP_CAST);
        rig_in(&down, PROGRAM_FP32, 1, shape, x);
        rig_out(&down, PROGRAM_BF16, 1, shape);
        rig_run(&down, level);
        assert_memory_equal(down.out[0], half, 101 * sizeof(*half));
        rig_init(&up, OP_CAST);
        rig_in(&up, PROGRAM_BF16, 1, shape, half);
        rig_out(&up, PROGRAM_FP32, 1, shape);
        rig_run(&up, level);
        assert_memory_equal(up.out[0], x, 101 * sizeof(*x));
        rig_release(&down);
        rig_release(&up);
    }
    free(x);
    free(half);
}

/* ---- matrix products that are cut into blocks ------------------------------------------------ */

/* Under a sanitizer these take minutes: there they run once, and not with the slow plain loops,
 * whose blocks are those of the others. */
static bool is_brief(void)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, "release") != 0;
}

#define EACH_LARGE_LEVEL(level)                                                            \
    for (enum fleet_isa level = is_brief() ? backend_level_of_machine() : FLEET_ISA_PLAIN; \
         level <= backend_level_of_machine(); level++)

/* More than a packed block holds; with CUDA more than a tile does. */
#if defined(RIG_CUDA)
#define HEAD_MAX "128" /* columns of an attention head */
enum {
    LARGE_ROWS = 131,
    LARGE_DEPTH = 37,
    LARGE_COLUMNS = 70,
    LARGE_STEP = 1
};
#else
#define HEAD_MAX "256"
enum {
    LARGE_ROWS = 1930,
    LARGE_DEPTH = 790,
    LARGE_COLUMNS = 1045,
    LARGE_STEP = 613
};
#endif

/* y = x·W; some elements are checked. */
static void run_large_product(bool transposed, enum fleet_isa level)
{
    const int64_t rows = LARGE_ROWS, k = LARGE_DEPTH, m = LARGE_COLUMNS;
    int64_t x_shape[2] = {rows, k}, y_shape[2] = {rows, m};
    int64_t w_shape[2] = {transposed ? m : k, transposed ? k : m};
    float *x = normal("x", rows * k), *w = normal("w", k * m);
    uint16_t *x_half = narrowed(x, rows * k, PROGRAM_BF16),
             *w_half = narrowed(w, k * m, PROGRAM_BF16);
    struct rig rig;

    rig_init(&rig, OP_LINEAR);
    rig.once = is_brief();
    rig.op.attributes.transposed = transposed;
    rig_in(&rig, PROGRAM_BF16, 2, x_shape, x_half);
    rig_in(&rig, PROGRAM_BF16, 2, w_shape, w_half);
    rig_out(&rig, PROGRAM_BF16, 2, y_shape);
    rig_run(&rig, level);
    for (int64_t i = 0; i < rows * m; i += LARGE_STEP) {
        double sum = 0, got = (double)typed_of_bf16(((uint16_t *)rig.out[0])[i]);
        for (int64_t p = 0; p < k; p++)
            sum += (double)x[i / m * k + p] * (double)w[transposed ? i % m * k + p : p * m + i % m];
        /* 790 terms of size 1: fp32 is off by 1e-4 at most; bf16 by half of its last place. */
        if (!(fabs(got - sum) <= 1e-4 + fabs(sum) * 0x1p-8))
            fail_msg("bf16 product at level %s, [%ld]: %.9g, expected %.9g", fleet_isa_names[level],
                     (long)i, got, sum);
    }
    rig_release(&rig);
    free(x);
    free(w);
    free(x_half);
    free(w_half);
}

static void test_kernels__large_products_in_bf16(void **state)
{
    (void)state;
    EACH_LARGE_LEVEL(level)
    {
        run_large_product(false, level);
        run_large_product(true, level);
    }
}

/* fp32 apart: its operands are not rounded. */
static void test_kernels__large_products_in_fp32(void **state)
{
    const int64_t rows = LARGE_ROWS, k = LARGE_DEPTH, m = LARGE_COLUMNS;
    int64_t x_shape[2] = {rows, k}, y_shape[2] = {rows, m}, w_shape[2] = {k, m};
    float *x = normal("x", rows * k), *w = normal("w", k * m);

    (void)state;
    EACH_LARGE_LEVEL(level)
    {
        struct rig rig;
        rig_init(&rig, OP_LINEAR);
        rig.once = is_brief();
        rig_in(&rig, PROGRAM_FP32, 2, x_shape, x);
        rig_in(&rig, PROGRAM_FP32, 2, w_shape, w);
        rig_out(&rig, PROGRAM_FP32, 2, y_shape);
        rig_run(&rig, level);
        for (int64_t i = 0; i < rows * m; i += LARGE_STEP) {
            double sum = 0, got = (double)((float *)rig.out[0])[i];
            for (int64_t p = 0; p < k; p++)
                sum += (double)x[i / m * k + p] * (double)w[p * m + i % m];
            if (!(fabs(got - sum) <= 1e-4))
                fail_msg("product at level %s, [%ld]: %.9g, expected %.9g ± 1e-4",
                         fleet_isa_names[level], (long)i, got, sum);
        }
        rig_release(&rig);
    }
    free(x);
    free(w);
}

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
    float *gradients, scratch[64], norm[3], flag;
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
        for (int64_t i = 0; i < program.flat_count; i += 4999) {
            static const float values[] = {INFINITY, -INFINITY, NAN};
            float kept = gradients[i];
            call.out[0] = &flag;
            for (size_t v = 0; v < FLEET_COUNT(values); v++) {
                gradients[i] = values[v];
                assert_int_equal(
                    backend->vtable->kernel(backend, OP_CHECK_FINITE)(backend, &call, NULL), 0);
                assert_true(flag == 1.0f);
            }
            gradients[i] = kept;
            assert_int_equal(
                backend->vtable->kernel(backend, OP_CHECK_FINITE)(backend, &call, NULL), 0);
            assert_true(flag == 0.0f);
        }
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

/* ---- rows of many vectors -------------------------------------------------------------------- */

static const enum program_type float_types[] = {PROGRAM_FP32, PROGRAM_BF16, PROGRAM_FP16};

/* `values` as `type`, rounded in place; the caller frees `half`. */
static const void *as_type(float *values, int64_t count, enum program_type type, uint16_t **half)
{
    *half = type == PROGRAM_FP32 ? NULL : narrowed(values, count, type);
    return *half ? (const void *)*half : values;
}

/* Layer norm over whole vectors, the last run of rows not full; and its shift's slope in double. */
static void run_wide_norm(enum program_type type, enum fleet_isa level)
{
    static const int64_t shape[2] = {70, 328};
    float *x = normal("x", 70 * 328), *d = normal("d", 70 * 328), *v = normal("v", 328);
    uint16_t *half[2];
    const void *in[2] = {as_type(x, 70 * 328, type, &half[0]),
                         as_type(d, 70 * 328, type, &half[1])};
    struct rig y, g;

    rig_init(&y, OP_LAYER_NORM);
    y.op.attributes.epsilon = 1e-5;
    rig_in(&y, type, 2, shape, in[0]);
    rig_in(&y, PROGRAM_FP32, 1, &shape[1], v);
    rig_in(&y, PROGRAM_FP32, 1, &shape[1], v);
    rig_out(&y, type, 2, shape);
    rig_out(&y, PROGRAM_FP32, 1, &shape[0]);
    rig_out(&y, PROGRAM_FP32, 1, &shape[0]);
    rig_run(&y, level);
    rig_init(&g, OP_LAYER_NORM_GRAD);
    rig_in(&g, type, 2, shape, in[1]);
    rig_in(&g, type, 2, shape, in[0]);
    rig_in(&g, PROGRAM_FP32, 1, &shape[1], v);
    rig_in(&g, PROGRAM_FP32, 1, &shape[0], y.out[1]);
    rig_in(&g, PROGRAM_FP32, 1, &shape[0], y.out[2]);
    rig_out(&g, type, 2, shape);
    rig_out(&g, PROGRAM_FP32, 1, &shape[1]);
    rig_out(&g, PROGRAM_FP32, 1, &shape[1]);
    rig_run(&g, level);
    for (int j = 0; j < 328; j++) {
        double sum = 0;
        for (int r = 0; r < 70; r++)
            sum += (double)d[r * 328 + j];
        assert_true(fabs((double)((float *)g.out[2])[j] - sum) < 1e-4);
    }
    rig_release(&y);
    rig_release(&g);
    free(half[0]);
    free(half[1]);
    free(x);
    free(d);
    free(v);
}

/* Cross-entropy of rows that begin at each place within 16 bytes; and its loss in double. */
static void run_wide_cross_entropy(enum program_type type, enum fleet_isa level)
{
    static const int64_t shape[2] = {9, 2309}, lse_shape[2] = {9, 2}, one = 1;
    static const int32_t classes[9] = {0, 2308, 7, 8, 1200, -100, 3, 2304, 2047};
    static const float d_loss = 3;
    float *x = normal("logits", 9 * 2309);
    uint16_t *half;
    const void *logits = as_type(x, 9 * 2309, type, &half);
    struct rig y, d;
    double loss = 0;

    rig_init(&y, OP_CROSS_ENTROPY);
    y.op.attributes.ignore_index = -100;
    rig_in(&y, type, 2, shape, logits);
    rig_in(&y, PROGRAM_INT32, 1, &shape[0], classes);
    rig_out(&y, PROGRAM_FP32, 1, &one);
    rig_out(&y, PROGRAM_FP32, 2, lse_shape);
    rig_run(&y, level);
    for (int r = 0; r < 9; r++) {
        double sum = 0;
        for (int j = 0; j < 2309; j++)
            sum += exp((double)x[r * 2309 + j]);
        loss += classes[r] < 0 ? 0 : (log(sum) - (double)x[r * 2309 + classes[r]]) / 8;
    }
    assert_true(fabs((double)*(float *)y.out[0] - loss) < 1e-5);
    rig_init(&d, OP_CROSS_ENTROPY_GRAD);
    d.op.attributes.ignore_index = -100;
    rig_in(&d, type, 2, shape, logits);
    rig_in(&d, PROGRAM_INT32, 1, &shape[0], classes);
    rig_in(&d, PROGRAM_FP32, 2, lse_shape, y.out[1]);
    rig_in(&d, PROGRAM_FP32, 1, &one, &d_loss);
    rig_out(&d, type, 2, shape);
    rig_run(&d, level);
    rig_release(&y);
    rig_release(&d);
    free(half);
    free(x);
}

static void run_wide_sum(enum program_type type, enum fleet_isa level)
{
    static const int64_t shape[2] = {4200, 24};
    float *x = normal("rows", 4200 * 24);
    uint16_t *half;
    const void *in = as_type(x, 4200 * 24, type, &half);
    struct rig sum;

    rig_init(&sum, OP_ADD_GRAD_B);
    rig_in(&sum, type, 2, shape, in);
    rig_out(&sum, PROGRAM_FP32, 1, &shape[1]);
    rig_run(&sum, level);
    for (int j = 0; j < 24; j++) {
        double expected = 0;
        for (int r = 0; r < 4200; r++)
            expected += (double)x[r * 24 + j];
        assert_true(fabs((double)((float *)sum.out[0])[j] - expected) < 1e-3);
    }
    rig_release(&sum);
    free(half);
    free(x);
}

static void test_kernels__rows_of_many_vectors(void **state)
{
    (void)state;
    EACH_LEVEL(level)
    for (int t = 0; t < 3; t++) {
        run_wide_norm(float_types[t], level);
        run_wide_cross_entropy(float_types[t], level);
        run_wide_sum(float_types[t], level);
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
        cmocka_unit_test(test_kernels__sixteen_bits_are_fp32_rounded_once),
        cmocka_unit_test(test_kernels__cast_there_and_back),
        cmocka_unit_test(test_kernels__large_products_in_bf16),
        cmocka_unit_test(test_kernels__large_products_in_fp32),
        cmocka_unit_test(test_kernels__dropout_depends_on_the_sample_not_on_the_micro_batch),
        cmocka_unit_test(test_kernels__grad_norm_and_check_finite),
        cmocka_unit_test(test_kernels__add_rows_and_sum_them),
        cmocka_unit_test(test_kernels__concat_is_undone_by_split),
        cmocka_unit_test(test_kernels__embedding_with_positions),
        cmocka_unit_test(test_kernels__name_what_is_out_of_range),
        cmocka_unit_test(test_kernels__a_micro_batch_without_targets_counts_nothing),
        cmocka_unit_test(test_kernels__large_logits_keep_the_digits_of_the_gradient),
        cmocka_unit_test(test_kernels__nan_is_not_lost),
        cmocka_unit_test(test_kernels__rows_of_many_vectors),
        cmocka_unit_test(test_kernels__clip_by_value_and_rescale),
    };

    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
