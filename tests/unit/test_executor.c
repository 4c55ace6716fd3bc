/* SPDX-License-Identifier: Apache-2.0 */

/* The executor against a back end that writes down what it is asked to do. */
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/executor/executor.h"
#include "libfleet/base/error.h"

#define CALLS_MAX 32

static struct {
    int count;
    enum op_kind kinds[CALLS_MAX];
    struct kernel_call calls[CALLS_MAX];
    enum op_kind fails; /* this kind returns -EINVAL */
    atomic_bool *raise; /* set by the first call, if not NULL */
    bool knows_all;
} seen;

static int note(struct backend *backend, const struct kernel_call *call, struct fleet_error *err)
{
    (void)backend;
    seen.kinds[seen.count] = call->op->kind;
    seen.calls[seen.count++] = *call;
    if (seen.raise)
        atomic_store(seen.raise, true);
    if (call->op->kind == seen.fails)
        return fleet_error(err, -EINVAL, "it is broken");
    return 0;
}

static kernel_fn note_kernel(struct backend *backend, enum op_kind kind)
{
    (void)backend;
    return kind != OP_SOFTMAX || seen.knows_all ? note : NULL;
}

static const struct backend_vtable noting = {.name = "noting", .kernel = note_kernel};

/* scale, add | tree_sum | grad_norm | sgd */
struct fixture {
    struct program program;
    struct memory_plan plan;
    struct backend backend;
    struct executor_bases bases;
    char memory[MEMORY_SEGMENT_COUNT][4096];
};

static void add_op(struct program *p, enum op_kind kind, enum program_section section,
                   bool backward, int in0, int in1, int out)
{
    struct program_op op = {.kind = kind, .section = section, .backward = backward};

    op.inputs[0] = in0;
    op.inputs[1] = in1;
    op.input_count = in0 == PROGRAM_NONE ? 0 : 2;
    op.outputs[0] = out;
    op.output_count = out == PROGRAM_NONE ? 0 : 1;
    program_add_op(p, &op);
}

static void setup_fixture(struct fixture *f, bool with_softmax)
{
    int64_t shape[1] = {16};
    int x, w, d, y;

    memset(f, 0, sizeof(*f));
    memset(&seen, 0, sizeof(seen));
    seen.fails = OP_KIND_COUNT;
    program_init(&f->program, "test");
    w = program_add_var(&f->program, "w", PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1, shape);
    f->program.vars[w].trained = true;
    d = program_add_gradient(&f->program, w);
    x = program_add_var(&f->program, "x", PROGRAM_FP32, PROGRAM_ROLE_INPUT, 1, shape);
    y = program_add_var(&f->program, "y", PROGRAM_FP32, PROGRAM_ROLE_ACTIVATION, 1, shape);
    add_op(&f->program, OP_ADD, PROGRAM_SECTION_MICRO_BATCH, false, x, w, y);
    if (with_softmax)
        add_op(&f->program, OP_SOFTMAX, PROGRAM_SECTION_MICRO_BATCH, false, y, PROGRAM_NONE, y);
    add_op(&f->program, OP_SCALE, PROGRAM_SECTION_MICRO_BATCH, true, y, PROGRAM_NONE, d);
    add_op(&f->program, OP_TREE_SUM, PROGRAM_SECTION_EXCHANGE, false, PROGRAM_NONE, PROGRAM_NONE,
           PROGRAM_NONE);
    add_op(&f->program, OP_SGD, PROGRAM_SECTION_UPDATE, false, w, d, w);
    f->plan.places = calloc((size_t)f->program.var_count, sizeof(*f->plan.places));
    f->plan.places[w] = (struct memory_place){MEMORY_PARAMETERS, 64};
    f->plan.places[d] = (struct memory_place){MEMORY_GRADIENTS, 128};
    f->plan.places[x] = (struct memory_place){MEMORY_INPUTS, 0};
    f->plan.places[y] = (struct memory_place){MEMORY_ARENA, 192};
    for (int s = 0; s < MEMORY_SEGMENT_COUNT; s++)
        f->bases.segment[s] = f->memory[s];
    f->backend.vtable = &noting;
}

static void release_fixture(struct fixture *f)
{
    free(f->plan.places);
    program_release(&f->program);
}

static const struct run_scalars scalars = {.learning_rate = 0.5};

static void test_executor__runs_a_section_in_order_with_resolved_operands(void **state)
{
    struct fixture *f = malloc(sizeof(*f));
    struct executor *executor = NULL;
    atomic_bool stop = false;

    (void)state;
    setup_fixture(f, false);
    assert_int_equal(executor_new(&f->program, &f->plan, &f->backend, &executor, NULL), 0);
    assert_int_equal(
        executor_run(executor, PROGRAM_SECTION_MICRO_BATCH, &f->bases, &scalars, &stop, NULL), 0);
    assert_int_equal(seen.count, 2);
    assert_int_equal(seen.kinds[0], OP_ADD);
    assert_ptr_equal(seen.calls[0].in[0], f->memory[MEMORY_INPUTS]);
    assert_ptr_equal(seen.calls[0].in[1], f->memory[MEMORY_PARAMETERS] + 64);
    assert_ptr_equal(seen.calls[0].out[0], f->memory[MEMORY_ARENA] + 192);
    assert_ptr_equal(seen.calls[0].scratch, f->memory[MEMORY_SCRATCH]);
    assert_ptr_equal(seen.calls[0].scalars, &scalars);
    assert_int_equal(seen.kinds[1], OP_SCALE);
    assert_null(seen.calls[1].in[1]);
    assert_ptr_equal(seen.calls[1].out[0], f->memory[MEMORY_GRADIENTS] + 128);

    f->bases.segment[MEMORY_GRADIENTS] = f->memory[MEMORY_STATE0]; /* another slot */
    assert_int_equal(
        executor_run(executor, PROGRAM_SECTION_UPDATE, &f->bases, &scalars, &stop, NULL), 0);
    assert_int_equal(seen.count, 3);
    assert_int_equal(seen.kinds[2], OP_SGD);
    assert_ptr_equal(seen.calls[2].in[1], f->memory[MEMORY_STATE0] + 128);
    assert_ptr_equal(seen.calls[2].out[0], seen.calls[2].in[0]);
    assert_int_equal(
        executor_run(executor, PROGRAM_SECTION_CHECK, &f->bases, &scalars, &stop, NULL), 0);
    assert_int_equal(seen.count, 3);
    executor_free(executor);
    release_fixture(f);
    free(f);
}

static void test_executor__stops_before_the_next_operator(void **state)
{
    struct fixture *f = malloc(sizeof(*f));
    struct executor *executor = NULL;
    struct fleet_error err;
    atomic_bool stop = false;

    (void)state;
    setup_fixture(f, false);
    seen.raise = &stop;
    assert_int_equal(executor_new(&f->program, &f->plan, &f->backend, &executor, NULL), 0);
    assert_int_equal(
        executor_run(executor, PROGRAM_SECTION_MICRO_BATCH, &f->bases, &scalars, &stop, &err),
        -ECANCELED);
    assert_int_equal(seen.count, 1);
    assert_string_equal(err.text, "stopped before scale");
    executor_free(executor);
    release_fixture(f);
    free(f);
}

static void test_executor__names_the_operator_that_failed(void **state)
{
    struct fixture *f = malloc(sizeof(*f));
    struct executor *executor = NULL;
    struct fleet_error err;
    atomic_bool stop = false;

    (void)state;
    setup_fixture(f, false);
    seen.fails = OP_SCALE;
    assert_int_equal(executor_new(&f->program, &f->plan, &f->backend, &executor, NULL), 0);
    assert_int_equal(
        executor_run(executor, PROGRAM_SECTION_MICRO_BATCH, &f->bases, &scalars, &stop, &err),
        -EINVAL);
    assert_string_equal(err.text, "scale: it is broken");
    executor_free(executor);
    release_fixture(f);
    free(f);
}

static void test_executor__refuses_what_the_back_end_cannot(void **state)
{
    struct fixture *f = malloc(sizeof(*f));
    struct executor *executor = NULL;
    struct fleet_error err;

    (void)state;
    setup_fixture(f, true);
    assert_int_equal(executor_new(&f->program, &f->plan, &f->backend, &executor, &err), -ENOTSUP);
    assert_string_equal(err.text, "back end noting has no kernel for softmax");
    assert_null(executor);
    release_fixture(f);
    free(f);
}

/* Bytes that the allocator has handed out do not grow while sections run. */
static void test_executor__allocates_nothing_while_it_runs(void **state)
{
    struct fixture *f = malloc(sizeof(*f));
    struct executor *executor = NULL;
    atomic_bool stop = false;
    size_t before;

    (void)state;
    setup_fixture(f, false);
    assert_int_equal(executor_new(&f->program, &f->plan, &f->backend, &executor, NULL), 0);
    before = mallinfo2().uordblks;
    for (int i = 0; i < 10; i++) {
        struct executor_times times;
        seen.count = 0;
        assert_int_equal(
            executor_run(executor, PROGRAM_SECTION_MICRO_BATCH, &f->bases, &scalars, &stop, NULL),
            0);
        executor_times(executor, &times);
        assert_true(times.forward_s >= 0 && times.backward_s >= 0 && times.update_s == 0);
    }
    assert_int_equal(mallinfo2().uordblks, before);
    executor_free(executor);
    release_fixture(f);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_executor__runs_a_section_in_order_with_resolved_operands),
        cmocka_unit_test(test_executor__stops_before_the_next_operator),
        cmocka_unit_test(test_executor__names_the_operator_that_failed),
        cmocka_unit_test(test_executor__refuses_what_the_back_end_cannot),
        cmocka_unit_test(test_executor__allocates_nothing_while_it_runs),
    };

    return cmocka_run_group_tests_name("executor", tests, NULL, NULL);
}
