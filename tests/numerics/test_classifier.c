/* SPDX-License-Identifier: Apache-2.0 */

/*
 * LINEAR_CROSS_ENTROPY, which only the CUDA back end has, against the four operators that it stands
 * for, on the same back end: on the emulator to the bit, at sizes around its chunks, with other
 * orders of blocks. On a GPU cuBLASLt may add in another order.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/plan/gpu_scratch.h"
#include "tests/numerics/kernel_rig.h"

#if defined(RIG_CUDA)

#define ELEMENTS_MAX 210000 /* of an operand, at most */
#define IGNORED      (-100)

struct classifier_case {
    enum program_type type;
    int64_t rows, k, words;
    bool turned, is_scaled, has_ignored;
};

static float numbers[2][ELEMENTS_MAX];
static uint16_t halves[2][ELEMENTS_MAX];
static int32_t targets[ELEMENTS_MAX];
static const float d_loss = 512;

/* Operand i, of values between -1 and 1 that 16 bits of each type hold. */
static const void *operand(int i, enum program_type type)
{
    uint32_t random = 5 + (uint32_t)i;

    for (int e = 0; e < ELEMENTS_MAX; e++) {
        _Float16 half;
        uint32_t bits;
        random = random * 1664525u + 1013904223u;
        numbers[i][e] = (float)((int)(random >> 24) - 128) / 128.0f;
        half = (_Float16)numbers[i][e];
        memcpy(&bits, &numbers[i][e], sizeof(bits));
        if (type == PROGRAM_FP16)
            memcpy(&halves[i][e], &half, sizeof(half));
        else
            halves[i][e] = (uint16_t)(bits >> 16);
    }
    return type == PROGRAM_FP32 ? (const void *)numbers[i] : halves[i];
}

static void draw_targets(const struct classifier_case *c)
{
    uint32_t random = 99;

    for (int64_t i = 0; i < c->rows; i++) {
        random = random * 1664525u + 1013904223u;
        targets[i] =
            c->has_ignored && i % 3 == 1 ? IGNORED : (int32_t)((random >> 8) % (uint32_t)c->words);
    }
}

static void run(struct rig *rig, int seed)
{
    struct fleet_error err;

    if (op_infer(&rig->program, &rig->op, &err) < 0 ||
        rig_run_once(rig, rig_backend(FLEET_ISA_PLAIN, seed), 0, rig->out, &err) < 0)
        rig_fail("%s", err.text);
}

static void init(struct rig *rig, enum op_kind kind, const struct classifier_case *c)
{
    rig_init(rig, kind);
    rig->op.attributes.transposed = c->turned;
    rig->op.attributes.ignore_index = IGNORED;
}

struct shapes {
    int64_t x[2], w[2], logits[2], lse[2], one;
};

static struct shapes shapes_of(const struct classifier_case *c)
{
    return (struct shapes){{c->rows, c->k},
                           {c->turned ? c->words : c->k, c->turned ? c->k : c->words},
                           {c->rows, c->words},
                           {c->rows, 2},
                           1};
}

static void run_fused(struct rig *rig, const struct classifier_case *c, int seed)
{
    struct shapes s = shapes_of(c);

    init(rig, OP_LINEAR_CROSS_ENTROPY, c);
    rig_in(rig, c->type, 2, s.x, operand(0, c->type));
    rig_in(rig, c->type, 2, s.w, operand(1, c->type));
    rig_in(rig, PROGRAM_INT32, 1, &c->rows, targets);
    rig_in(rig, PROGRAM_FP32, 1, &s.one, c->is_scaled ? &d_loss : NULL);
    rig_out(rig, PROGRAM_FP32, 1, &s.one);
    rig_out(rig, c->type, 2, s.x);
    rig_out(rig, PROGRAM_FP32, 2, s.w);
    run(rig, seed);
}

static void run_apart(struct rig rigs[4], const struct classifier_case *c)
{
    struct shapes s = shapes_of(c);
    struct rig *y = &rigs[0], *loss = &rigs[1], *d = &rigs[2], *back = &rigs[3];

    init(y, OP_LINEAR, c);
    rig_in(y, c->type, 2, s.x, operand(0, c->type));
    rig_in(y, c->type, 2, s.w, operand(1, c->type));
    rig_out(y, c->type, 2, s.logits);
    run(y, 1);
    init(loss, OP_CROSS_ENTROPY, c);
    rig_in(loss, c->type, 2, s.logits, y->out[0]);
    rig_in(loss, PROGRAM_INT32, 1, &c->rows, targets);
    rig_out(loss, PROGRAM_FP32, 1, &s.one);
    rig_out(loss, PROGRAM_FP32, 2, s.lse);
    run(loss, 1);
    init(d, OP_CROSS_ENTROPY_GRAD, c);
    rig_in(d, c->type, 2, s.logits, y->out[0]);
    rig_in(d, PROGRAM_INT32, 1, &c->rows, targets);
    rig_in(d, PROGRAM_FP32, 2, s.lse, loss->out[1]);
    rig_in(d, PROGRAM_FP32, 1, &s.one, c->is_scaled ? &d_loss : NULL);
    rig_out(d, c->type, 2, s.logits);
    run(d, 1);
    init(back, OP_LINEAR_GRAD, c);
    rig_in(back, c->type, 2, s.logits, d->out[0]);
    rig_in(back, c->type, 2, s.x, operand(0, c->type));
    rig_in(back, c->type, 2, s.w, operand(1, c->type));
    rig_out(back, c->type, 2, s.x);
    rig_out(back, PROGRAM_FP32, 2, s.w);
    run(back, 1);
}

/* The same bits; on a GPU within some roundings of the greatest element. */
static void expect_same(const struct rig *rig, int o, const void *expected, const char *what)
{
    const struct program_var *var = &rig->program.vars[rig->op.outputs[o]];
    int64_t count = program_var_elements(var);

#if defined(RIG_EMULATED)
    for (int64_t i = 0; i < count; i++) {
        size_t size = program_type_size(var->type);
        if (memcmp((const char *)rig->out[o] + (size_t)i * size,
                   (const char *)expected + (size_t)i * size, size) != 0)
            rig_fail("%s, element %lld: %.9g in chunks, %.9g apart", what, (long long)i,
                     rig_element(rig->out[o], var->type, i), rig_element(expected, var->type, i));
    }
#else
    rig_compare(rig, o, expected);
    (void)count;
    (void)what;
#endif
}

static void check(const struct classifier_case *c)
{
    struct rig apart[4], fused;

    draw_targets(c);
    run_apart(apart, c);
    for (int seed = 1; seed <= 2; seed++) {
        run_fused(&fused, c, seed);
        expect_same(&fused, 0, apart[1].out[0], "the loss");
        expect_same(&fused, 1, apart[3].out[0], "x's gradient");
        expect_same(&fused, 2, apart[3].out[1], "the weight's gradient");
        rig_release(&fused);
    }
    for (int i = 0; i < 4; i++)
        rig_release(&apart[i]);
}

static void test_classifier__in_chunks_is_that_of_four_operators(void **state)
{
    static const struct classifier_case cases[] = {
        {PROGRAM_FP32, 7, 3, 5, true, false, true},
        {PROGRAM_FP32, GPU_CLASSIFIER_ROWS + 1, 3, 131, true, true, true},
        {PROGRAM_FP32, 3 * GPU_CLASSIFIER_ROWS + 9, 33, 17, false, false, true},
        {PROGRAM_BF16, 2 * GPU_CLASSIFIER_ROWS, 2, 67, false, true, false},
        {PROGRAM_FP16, 2 * GPU_CLASSIFIER_ROWS + 37, 5, 67, true, true, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check(&cases[i]);
}

/* As in an evaluation: without gradients. A target out of range is reported by its row. */
static void test_classifier__gives_the_loss_alone_and_finds_bad_targets(void **state)
{
    static const struct classifier_case c = {
        PROGRAM_FP32, GPU_CLASSIFIER_ROWS + 9, 2, 3, true, false, true};
    struct shapes s = shapes_of(&c);
    struct rig whole, alone;
    void *out[OP_OUTPUTS_MAX] = {0};
    struct fleet_error err;
    char row[32];

    (void)state;
    draw_targets(&c);
    run_fused(&whole, &c, 1);
    init(&alone, OP_LINEAR_CROSS_ENTROPY, &c);
    rig_in(&alone, c.type, 2, s.x, operand(0, c.type));
    rig_in(&alone, c.type, 2, s.w, operand(1, c.type));
    rig_in(&alone, PROGRAM_INT32, 1, &c.rows, targets);
    rig_out(&alone, PROGRAM_FP32, 1, &s.one);
    run(&alone, 1);
    assert_memory_equal(alone.out[0], whole.out[0], sizeof(float));
    targets[GPU_CLASSIFIER_ROWS + 2] = 3;
    assert_int_equal(rig_run_once(&alone, rig_backend(FLEET_ISA_PLAIN, 1), 0, out, &err), -EINVAL);
    (void)snprintf(row, sizeof(row), "of row %d", GPU_CLASSIFIER_ROWS + 2);
    if (!strstr(err.text, row) || !strstr(err.text, "must be 0 to 2"))
        fail_msg("%s", err.text);
    free(out[0]);
    rig_release(&whole);
    rig_release(&alone);
}

#else

static void test_classifier__has_no_kernel_on_the_cpu(void **state)
{
    struct backend *backend = rig_backend(FLEET_ISA_PLAIN, 1);

    (void)state;
    assert_null(backend->vtable->kernel(backend, OP_LINEAR_CROSS_ENTROPY));
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#if defined(RIG_CUDA)
        cmocka_unit_test(test_classifier__in_chunks_is_that_of_four_operators),
        cmocka_unit_test(test_classifier__gives_the_loss_alone_and_finds_bad_targets),
#else
        cmocka_unit_test(test_classifier__has_no_kernel_on_the_cpu),
#endif
    };

    return cmocka_run_group_tests_name("classifier", tests, NULL, NULL);
}
