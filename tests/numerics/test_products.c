/* SPDX-License-Identifier: Apache-2.0 */

/*
 * matmul, transpose, reduce and gelu by erf, which no built-in model uses: a small program of them,
 *
 *     loss = mean over rows of the sum over columns of gelu(transpose(op(a)·op(b)))
 *
 * read from text, differentiated and run, against the same in double and its central differences,
 * element by element. In all forms of the product, at every level, with 1 and 3 threads to the bit.
 * Tolerance 2e-5 of the largest element: sums of up to 40 terms in fp32.
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

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/state.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"

#define B         2 /* matrices */
#define M         5
#define K         7
#define N         9
#define TOLERANCE 2e-5

struct form {
    bool a_turned, b_turned, mean;
    int order[3]; /* of the transposition */
};

static const struct form forms[] = {
    {false, false, true, {0, 2, 1}},
    {true, false, false, {2, 0, 1}},
    {false, true, true, {1, 0, 2}},
    {true, true, false, {2, 1, 0}},
};

/* ---- in double ------------------------------------------------------------------------------- */

static double gelu(double x)
{
    return 0.5 * x * (1 + erf(x / sqrt(2)));
}

/* The sum of everything, over the number of rows (of the transposed product) if that is a mean. */
static double loss_of(const struct form *f, const double *a, const double *b)
{
    const int64_t shape[3] = {B, M, N};
    double sum = 0;

    for (int i = 0; i < B; i++)
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) {
                double y = 0;
                for (int k = 0; k < K; k++)
                    y += a[i * M * K + (f->a_turned ? k * M + m : m * K + k)] *
                         b[i * K * N + (f->b_turned ? n * K + k : k * N + n)];
                sum += gelu(y);
            }
    return f->mean ? sum / (double)(shape[f->order[0]] * shape[f->order[1]]) : sum;
}

/* ---- the program ----------------------------------------------------------------------------- */

struct bench {
    struct program program;
    struct memory_plan memory;
    struct backend *backend;
    struct state state;
    struct executor *executor;
};

static void build(const struct form *f, struct program *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;

    fleet_strbuf_appendf(&text,
                         "program products micro_batch_size=1 tokens_per_sample=1 merge_steps=1 "
                         "loss=loss\n"
                         "var a fp32 parameter [%d,%d,%d] trained\n"
                         "var b fp32 parameter [%d,%d,%d] trained\n"
                         "var y fp32 activation [?]\nvar z fp32 activation [?]\n"
                         "var g fp32 activation [?]\nvar s fp32 activation [?]\n"
                         "var loss fp32 scalar [1]\n"
                         "forward matmul a b -> y ;%s%s\n"
                         "forward transpose y -> z ; order=%d,%d,%d,0\n"
                         "forward gelu z -> g ; exact\n"
                         "forward reduce g -> s ; kept=2\n"
                         "forward reduce s -> loss ;%s\n",
                         B, f->a_turned ? K : M, f->a_turned ? M : K, B, f->b_turned ? N : K,
                         f->b_turned ? K : N, f->a_turned ? " transposed_a" : "",
                         f->b_turned ? " transposed" : "", f->order[0], f->order[1], f->order[2],
                         f->mean ? " mean" : "");
    if (print_parse(text.text, text.length, out, &err) < 0 ||
        verify_program(out, VERIFY_FORWARD, &err) < 0 || autodiff_run(out, &err) < 0 ||
        verify_program(out, VERIFY_BACKWARD, &err) < 0)
        fail_msg("%s\n%s", err.text, text.text);
    program_layout(out);
}

/* What is printed reads back to the same. */
static void check_text(const struct program *program)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, again = {0};
    struct program copy;
    struct fleet_error err;

    print_program(program, &text);
    if (print_parse(text.text, text.length, &copy, &err) < 0)
        fail_msg("%s\n%s", err.text, text.text);
    print_program(&copy, &again);
    assert_string_equal(again.text, text.text);
    program_release(&copy);
}

static void bench_init(struct bench *b, const struct form *f, enum fleet_isa level, int threads)
{
    struct fleet_error err;

    build(f, &b->program);
    check_text(&b->program);
    if (memory_plan_build(&b->program, NULL, 0, &b->memory, &err) < 0 ||
        backend_cpu_new(level, threads, &b->backend, &err) < 0 ||
        state_init(&b->state, &b->program, &b->memory, b->backend, &err) < 0 ||
        state_reserve_slots(&b->state, 1, &err) < 0 ||
        executor_new(&b->program, &b->memory, b->backend, &b->executor, &err) < 0)
        fail_msg("%s", err.text);
}

static void bench_release(struct bench *b)
{
    executor_free(b->executor);
    state_release(&b->state);
    backend_free(b->backend);
    memory_plan_release(&b->memory);
    program_release(&b->program);
}

/* Parameters from random numbers; *out: the same in double. */
static void fill(const struct bench *b, const char *name, double *out)
{
    int var = program_find_var(&b->program, name);
    int64_t count = program_var_elements(&b->program.vars[var]);
    float *to = state_address(&b->state, var);

    fleet_random_normal(fleet_random_key(6, name, 0), 0, (size_t)count, 0, 1, to);
    for (int64_t i = 0; i < count; i++)
        out[i] = (double)to[i];
}

static void run(struct bench *b)
{
    static const atomic_bool never;
    struct run_scalars scalars = {.gradient_scale = 1};
    struct executor_bases bases = b->state.bases;
    struct fleet_error err;

    bases.segment[MEMORY_GRADIENTS] = b->state.slots[0];
    if (executor_run(b->executor, PROGRAM_SECTION_MICRO_BATCH, &bases, &scalars, &never, &err) < 0)
        fail_msg("%s", err.text);
}

static void check_gradient(const struct bench *b, const struct form *f, const char *name,
                           double *values, const double *other_a, const double *other_b)
{
    const struct program_var *var = &b->program.vars[program_find_var(&b->program, name)];
    const float *gradient = b->state.slots[0] + var->flat_offset;
    int64_t count = program_var_elements(var);
    FLEET_AUTO_FREE double *slopes = calloc((size_t)count, sizeof(*slopes));
    double largest = 0;

    for (int64_t i = 0; i < count; i++) {
        double x = values[i];
        values[i] = x + 1e-4;
        slopes[i] = loss_of(f, other_a, other_b);
        values[i] = x - 1e-4;
        slopes[i] = (slopes[i] - loss_of(f, other_a, other_b)) / 2e-4;
        values[i] = x;
        largest = fmax(largest, fabs(slopes[i]));
    }
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)gradient[i] - slopes[i]) <= TOLERANCE * largest))
            fail_msg("d_%s[%ld]: %.9g, expected %.9g", name, (long)i, (double)gradient[i],
                     slopes[i]);
}

static void check_form(const struct form *f, enum fleet_isa level)
{
    double a[B * M * K], c[B * K * N], expected;
    struct bench one, three;
    float loss;

    bench_init(&one, f, level, 1);
    bench_init(&three, f, level, 3);
    fill(&one, "a", a);
    fill(&one, "b", c);
    fill(&three, "a", a);
    fill(&three, "b", c);
    run(&one);
    run(&three);
    loss = *(float *)state_address(&one.state, one.program.loss);
    expected = loss_of(f, a, c);
    if (!(fabs((double)loss - expected) <= TOLERANCE * fabs(expected)))
        fail_msg("level %s: loss %.9g, expected %.9g", fleet_isa_names[level], (double)loss,
                 expected);
    check_gradient(&one, f, "a", a, a, c);
    check_gradient(&one, f, "b", c, a, c);
    assert_memory_equal(one.state.slots[0], three.state.slots[0],
                        (size_t)one.program.flat_count * sizeof(float));
    bench_release(&one);
    bench_release(&three);
}

static void test_products__have_their_values_and_slopes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        for (int level = 0; level <= (int)backend_level_of_machine(); level++)
            check_form(&forms[i], (enum fleet_isa)level);
}

/* Shapes that do not fit are refused by name. */
static void test_products__refuse_what_does_not_fit(void **state)
{
    static const char *const texts[][2] = {
        {"forward matmul a b -> y ; transposed_a\n", "matmul: input 1 (b)"},
        {"forward transpose a -> y ; order=0,0,1,0\n", "order is no permutation"},
        {"forward reduce a -> y ; kept=3\n", "kept is 3, must be 0 to 2"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct program program;
        struct fleet_error err = {0};

        fleet_strbuf_appendf(&text,
                             "program p loss=-\nvar a fp32 input [2,3,4]\n"
                             "var b fp32 input [2,4,5]\nvar y fp32 activation [?]\n%s",
                             texts[i][0]);
        assert_int_equal(print_parse(text.text, text.length, &program, &err), 0);
        assert_true(op_infer(&program, &program.ops[0], &err) < 0);
        if (!strstr(err.text, texts[i][1]))
            fail_msg("expected \"%s\" in \"%s\"", texts[i][1], err.text);
        program_release(&program);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products__have_their_values_and_slopes),
        cmocka_unit_test(test_products__refuse_what_does_not_fit),
    };

    return cmocka_run_group_tests_name("products", tests, NULL, NULL);
}
