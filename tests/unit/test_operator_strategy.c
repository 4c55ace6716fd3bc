/* SPDX-License-Identifier: Apache-2.0 */

/* Strategies of operators: which there are, their layouts, the sums that follow, their cost. */
#include "libfleet/autoparallel/operator_strategy.h"
#include "libfleet/base/error.h"
#include "libfleet/program/op.h"
#include "tests/unit/passes_fixture.h"

#define BATCH4 "\"globalBatchSize\":8,\"microBatchSize\":4,\"steps\":8," ADAMW "}"
#define IMAGES "\"data\":{\"path\":\"t\",\"tokenizer\":\"cifar10\"}," BATCH4
#define LLAMA_JOB                                                                          \
    "{\"model\":{\"name\":\"llama\",\"layers\":2,\"heads\":8,\"width\":64,\"context\":32," \
    "\"hidden\":96},\"data\":{\"path\":\"t\"}," BATCH4
#define RESNET_JOB "{\"model\":{\"preset\":\"resnet18\",\"baseWidth\":8}," IMAGES
#define MLP_JOB    "{\"model\":{\"name\":\"mlp\",\"sizes\":[3072,64,10]}," IMAGES

/* ---- one operator ---------------------------------------------------------------------------- */

struct one {
    struct program program;
    struct program_op op;
    struct operator_axes axes;
};

static void add_input(struct one *one, const char *name, enum program_role role, int ndim,
                      const int64_t *shape)
{
    int var = program_add_var(&one->program, name, PROGRAM_FP32, role, ndim, shape);

    one->program.vars[var].trained = role == PROGRAM_ROLE_PARAMETER;
    one->op.inputs[one->op.input_count++] = var;
}

static void finish(struct one *one)
{
    struct fleet_error err;

    one->op.outputs[one->op.output_count++] = program_add_var(
        &one->program, "y", PROGRAM_FP32, PROGRAM_ROLE_ACTIVATION, PROGRAM_UNSHAPED, NULL);
    (void)program_add_op(&one->program, &one->op);
    if (op_infer(&one->program, &one->op, &err) < 0)
        fail_msg("%s", err.text);
    operator_axes_build(&one->program, &one->op, &one->axes);
}

/* x[rows,inner] · w[inner,columns] + bias. */
static void init_linear(struct one *one, int64_t rows, int64_t inner, int64_t columns)
{
    *one = (struct one){.op = {.kind = OP_LINEAR}};
    program_init(&one->program, "test");
    add_input(one, "x", PROGRAM_ROLE_ACTIVATION, 2, (int64_t[]){rows, inner});
    add_input(one, "w", PROGRAM_ROLE_PARAMETER, 2, (int64_t[]){inner, columns});
    add_input(one, "bias", PROGRAM_ROLE_PARAMETER, 1, (int64_t[]){columns});
    finish(one);
}

/* The strategy ((a,b),(b,c)) of a linear one. */
static struct operator_strategy product(const struct one *one, int64_t devices, int64_t a,
                                        int64_t b, int64_t c)
{
    struct operator_splits inputs[] = {{2, {a, b}}, {2, {b, c}}, {1, {c}}};
    struct operator_strategy strategy = {.repeated = 0};
    struct fleet_error err;

    if (operator_strategy_from_splits(&one->axes, devices, inputs, 3, NULL, 0, &strategy, &err) < 0)
        fail_msg("%s", err.text);
    return strategy;
}

static void expect_layout(const struct one *one, const struct operator_strategy *strategy,
                          const struct operator_operand *operand, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct layout layout;

    operator_strategy_layout(&one->axes, strategy, operand, &layout);
    layout_print(&layout, &text);
    assert_string_equal(text.text, wanted);
}

static void test_operator_strategy__gives_a_product_its_layouts(void **state)
{
    struct operator_strategy strategy;
    struct one one;

    (void)state;
    init_linear(&one, 128, 512, 2048);
    strategy = product(&one, 8, 2, 1, 4);
    expect_layout(&one, &strategy, &one.axes.inputs[0], "D=[2,1,4] T=[2,1] S=[128,512]");
    expect_layout(&one, &strategy, &one.axes.inputs[1], "D=[2,1,4] T=[1,0] S=[512,2048]");
    expect_layout(&one, &strategy, &one.axes.inputs[2], "D=[2,1,4] T=[0] S=[2048]");
    expect_layout(&one, &strategy, &one.axes.outputs[0], "D=[2,1,4] T=[2,0] S=[128,2048]");
    strategy = product(&one, 8, 2, 2, 1);
    expect_layout(&one, &strategy, &one.axes.outputs[0], "D=[2,2,2,1] T=[2,0] S=[128,2048]");
    program_release(&one.program);
}

static void test_operator_strategy__lists_all_that_use_the_devices(void **state)
{
    struct operator_strategy *list;
    struct one one;
    size_t count;

    (void)state;
    init_linear(&one, 128, 512, 2048);
    count = operator_strategy_list(&one.axes, 8, true, &list);
    assert_int_equal(count, 10); /* 2^3 over three axes */
    assert_true(operator_strategy_is_data_parallel(&one.axes, &list[0], 8));
    for (size_t i = 0; i < count; i++)
        assert_int_equal(list[i].parts[0] * list[i].parts[1] * list[i].parts[2], 8);
    free(list);
    count = operator_strategy_list(&one.axes, 8, false, &list);
    assert_int_equal(count, 20); /* 1, 2, 4 and 8 */
    free(list);
    count = operator_strategy_list(&one.axes, 6, true, &list);
    assert_int_equal(count, 1); /* 3 divides none of the axes */
    assert_int_equal(list[0].repeated, 6);
    free(list);
    program_release(&one.program);
}

static void expect_refused_splits(const struct one *one, const struct operator_splits *inputs,
                                  int count, const char *wanted)
{
    struct operator_strategy strategy;
    struct fleet_error err = {0};

    assert_true(
        operator_strategy_from_splits(&one->axes, 8, inputs, count, NULL, 0, &strategy, &err) < 0);
    assert_string_equal(err.text, wanted);
}

static void test_operator_strategy__says_what_is_wrong_with_tuples(void **state)
{
    struct one one;

    (void)state;
    init_linear(&one, 128, 512, 2048);
    expect_refused_splits(&one, (struct operator_splits[]){{3, {2, 1, 1}}}, 1,
                          "input 0: 3 numbers, it has 2 dimensions");
    expect_refused_splits(&one, (struct operator_splits[]){{2, {2, 0}}}, 1,
                          "input 0: dimension 1: 0, must be at least 1");
    expect_refused_splits(&one, (struct operator_splits[]){{2, {3, 1}}}, 1,
                          "input 0: dimension 0: 3 does not divide 128");
    expect_refused_splits(&one, (struct operator_splits[]){{2, {2, 2}}, {2, {4, 1}}}, 2,
                          "input 1: dimension 0: 4, but 2 in another operand's dimension that is "
                          "the same");
    expect_refused_splits(&one, (struct operator_splits[]){{2, {16, 1}}}, 1,
                          "more parts than the 8 devices");
    expect_refused_splits(&one, (struct operator_splits[4]){{2, {1, 1}}}, 4,
                          "4 tuples of inputs, the operator has 3");
    program_release(&one.program);
}

static void expect_sums(const struct one *one, const struct operator_strategy *strategy,
                        const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct operator_sum sums[OPERATOR_SUMS_MAX];
    int count = operator_strategy_sums(&one->program, &one->axes, strategy, sums);

    for (int i = 0; i < count; i++)
        fleet_strbuf_appendf(&text, "%s%s %d: %d bytes, %d devices", i ? "; " : "",
                             sums[i].backward ? "gradient" : "output", sums[i].operand,
                             (int)sums[i].bytes, (int)sums[i].devices);
    assert_string_equal(fleet_strbuf_text(&text), wanted);
}

/* Data, column and row parallelism, and both at once. */
static void test_operator_strategy__sums_what_is_partial(void **state)
{
    struct operator_strategy strategy;
    struct one one;

    (void)state;
    init_linear(&one, 16, 32, 64);
    strategy = product(&one, 8, 8, 1, 1);
    expect_sums(&one, &strategy,
                "gradient 1: 8192 bytes, 8 devices; gradient 2: 256 bytes, 8 devices");
    strategy = product(&one, 8, 1, 1, 8);
    expect_sums(&one, &strategy, "gradient 0: 2048 bytes, 8 devices");
    strategy = product(&one, 8, 1, 8, 1);
    expect_sums(&one, &strategy, "output 0: 4096 bytes, 8 devices");
    strategy = product(&one, 8, 2, 1, 4);
    expect_sums(&one, &strategy,
                "gradient 0: 1024 bytes, 4 devices; gradient 1: 2048 bytes, 2 devices; "
                "gradient 2: 64 bytes, 2 devices");
    strategy = product(&one, 8, 1, 1, 1);
    expect_sums(&one, &strategy, "");
    program_release(&one.program);
}

static void test_operator_strategy__costs_what_the_table_says(void **state)
{
    struct operator_strategy strategy;
    struct operator_cost cost;
    struct one one;

    (void)state;
    init_linear(&one, 16, 32, 64);
    strategy = product(&one, 8, 2, 4, 1); /* x 256 bytes, w 2048, bias 256, y 2048 of 4096 */
    operator_strategy_cost(&one.program, &one.op, &one.axes, &strategy, &cost);
    assert_true(cost.forward_communication == 2048);
    assert_true(cost.backward_communication == 2048 + 256);
    assert_true(cost.forward_computation == 256 + 2048 + 256 + 2048);
    assert_true(cost.backward_computation == 2048 + 256);
    assert_true(cost.parameters == 2048 + 256);
    assert_true(cost.outputs == 2048);
    strategy = product(&one, 8, 1, 1, 8); /* each device has its own part of the parameters */
    operator_strategy_cost(&one.program, &one.op, &one.axes, &strategy, &cost);
    assert_true(cost.forward_communication == 0 && cost.backward_communication == 0);
    assert_true(cost.backward_computation == 0);
    program_release(&one.program);
}

static void test_operator_strategy__divides_rows_of_a_table_or_indices(void **state)
{
    struct operator_strategy *list;
    struct one one = {.op = {.kind = OP_EMBEDDING}};
    size_t count;

    (void)state;
    program_init(&one.program, "test");
    one.op.inputs[one.op.input_count++] = program_add_var(&one.program, "ids", PROGRAM_INT32,
                                                          PROGRAM_ROLE_INPUT, 2, (int64_t[]){4, 8});
    add_input(&one, "table", PROGRAM_ROLE_PARAMETER, 2, (int64_t[]){256, 64});
    finish(&one);
    count = operator_strategy_list(&one.axes, 4, true, &list);
    assert_true(count > 3);
    for (size_t i = 0; i < count; i++)
        assert_true(list[i].parts[2] == 1 || (list[i].parts[0] == 1 && list[i].parts[1] == 1));
    free(list);
    expect_refused_splits(&one, (struct operator_splits[]){{2, {2, 1}}, {2, {2, 1}}}, 2,
                          "rows of the table and indices cannot both be divided");
    program_release(&one.program);
}

/* ---- every operator of every model ----------------------------------------------------------- */

static void check_operand(const struct operator_axes *axes,
                          const struct operator_strategy *strategy,
                          const struct operator_operand *operand, int64_t elements, int64_t devices,
                          const char *kind)
{
    struct fleet_error err;
    struct layout layout;

    operator_strategy_layout(axes, strategy, operand, &layout);
    if (layout_check(&layout, &err) < 0)
        fail_msg("%s: %s", kind, err.text);
    assert_int_equal(layout_devices(&layout), devices);
    assert_int_equal(layout_elements(&layout), elements);
    assert_int_equal(layout_slice_elements(&layout), operator_strategy_slice(strategy, operand));
}

static void check_op(const struct program *program, const struct program_op *op, int64_t devices)
{
    struct operator_strategy *list;
    struct operator_axes axes;
    size_t count;

    operator_axes_build(program, op, &axes);
    count = operator_strategy_list(&axes, devices, false, &list);
    for (size_t s = 0; s < count; s++) {
        for (int i = 0; i < axes.input_count; i++)
            if (axes.inputs[i].var != PROGRAM_NONE)
                check_operand(&axes, &list[s], &axes.inputs[i],
                              program_var_elements(&program->vars[axes.inputs[i].var]), devices,
                              op_definition(op->kind)->name);
        for (int i = 0; i < axes.output_count; i++)
            if (axes.outputs[i].var != PROGRAM_NONE)
                check_operand(&axes, &list[s], &axes.outputs[i],
                              program_var_elements(&program->vars[axes.outputs[i].var]), devices,
                              op_definition(op->kind)->name);
    }
    free(list);
}

static void check_model(const char *training)
{
    struct job job;

    build(&job, training, "{}");
    for (int i = 0; i < job.plan.program.op_count; i++)
        check_op(&job.plan.program, &job.plan.program.ops[i], 8);
    job_release(&job);
}

static void test_operator_strategy__has_layouts_for_every_operator_of_every_model(void **state)
{
    (void)state;
    check_model(GPT(2, ADAMW));
    check_model(LLAMA_JOB);
    check_model(RESNET_JOB);
    check_model(MLP_JOB);
}

/*
 * A new kind needs axes. Without are: communication; two that read the flat spaces; and what the
 * passes of sync_batch_norm, localsgd and dgc, divided models, stages and GPUs add for ranks that
 * are placed already.
 */
static void test_operator_strategy__knows_every_kind(void **state)
{
    (void)state;
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        bool added = kind == OP_BATCH_NORM_SUMS || kind == OP_BATCH_NORM_GRAD_SUMS ||
                     kind == OP_SUBTRACT || kind == OP_DGC_SELECT || kind == OP_DGC ||
                     kind == OP_CROSS_ENTROPY_SUMS || kind == OP_JOIN_NORMS ||
                     kind == OP_SPREAD_NORMS || kind == OP_TOTAL_NORM || kind == OP_TRUST_SQUARES ||
                     kind == OP_OWN_ROWS || kind == OP_LINEAR_CROSS_ENTROPY;
        bool alone = op_definition((enum op_kind)kind)->is_communication || kind == OP_GRAD_NORM ||
                     kind == OP_CHECK_FINITE || added;
        if (alone != (operator_axes_class((enum op_kind)kind) == OPERATOR_ALONE))
            fail_msg("%s", op_definition((enum op_kind)kind)->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operator_strategy__gives_a_product_its_layouts),
        cmocka_unit_test(test_operator_strategy__lists_all_that_use_the_devices),
        cmocka_unit_test(test_operator_strategy__says_what_is_wrong_with_tuples),
        cmocka_unit_test(test_operator_strategy__sums_what_is_partial),
        cmocka_unit_test(test_operator_strategy__costs_what_the_table_says),
        cmocka_unit_test(test_operator_strategy__divides_rows_of_a_table_or_indices),
        cmocka_unit_test(test_operator_strategy__knows_every_kind),
        cmocka_unit_test(test_operator_strategy__has_layouts_for_every_operator_of_every_model),
    };

    return cmocka_run_group_tests_name("operator_strategy", tests, NULL, NULL);
}
