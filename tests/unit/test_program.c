/* SPDX-License-Identifier: Apache-2.0 */

/* Variables, operators, copies and the flat layout; then what verify_program() refuses. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/print.h"
#include "libfleet/program/program.h"
#include "libfleet/program/verify.h"

static int add(struct program *p, const char *name, enum program_role role, int64_t elements)
{
    int index = program_add_var(p, name, PROGRAM_FP32, role, 1, &elements);

    p->vars[index].trained = role == PROGRAM_ROLE_PARAMETER;
    return index;
}

static void test_program__lays_parameters_out_in_byte_order_of_their_names(void **state)
{
    struct program p;
    int b, a10, a2, upper, gradient, moment, buffer, *order;

    (void)state;
    program_init(&p, "test");
    b = add(&p, "b", PROGRAM_ROLE_PARAMETER, 17);
    a10 = add(&p, "a.10", PROGRAM_ROLE_PARAMETER, 16);
    a2 = add(&p, "a.2", PROGRAM_ROLE_PARAMETER, 1);
    upper = add(&p, "Z", PROGRAM_ROLE_PARAMETER, 5);
    buffer = add(&p, "stat", PROGRAM_ROLE_BUFFER, 3);
    gradient = program_add_gradient(&p, b);
    moment = program_add_state(&p, b, 1);
    assert_int_equal(p.vars[b].flat_offset, -1);
    program_layout(&p);

    assert_int_equal(p.vars[b].flat_offset, 0); /* as they are defined */
    assert_int_equal(p.vars[a10].flat_offset, 32);
    assert_int_equal(p.vars[a2].flat_offset, 48);
    assert_int_equal(p.vars[upper].flat_offset, 64);
    assert_int_equal(p.flat_count, 64 + 16);
    assert_int_equal(p.vars[gradient].flat_offset, 0);
    assert_int_equal(p.vars[moment].flat_offset, 0);
    assert_int_equal(p.vars[buffer].flat_offset, 0);
    assert_int_equal(p.buffer_count, 16);
    assert_int_equal(program_parameters(&p, true, &order), 4);
    assert_int_equal(order[0], upper); /* "Z" < "a.10" < "a.2" < "b" */
    assert_int_equal(order[1], a10);
    assert_int_equal(order[2], a2);
    assert_int_equal(order[3], b);
    free(order);
    program_release(&p);
}

static void test_program__finds_companions_by_name(void **state)
{
    struct program p;
    int w, gradient;

    (void)state;
    program_init(&p, "test");
    w = add(&p, "w", PROGRAM_ROLE_PARAMETER, 4);
    assert_int_equal(program_gradient_of(&p, w), PROGRAM_NONE);
    gradient = program_add_gradient(&p, w);
    assert_string_equal(p.vars[gradient].name, "w@GRAD");
    assert_int_equal(p.vars[gradient].of, w);
    assert_int_equal(program_gradient_of(&p, w), gradient);
    assert_int_equal(program_state_of(&p, w, 0), PROGRAM_NONE);
    assert_string_equal(p.vars[program_add_state(&p, w, 0)].name, "w@STATE0");
    assert_int_equal(program_find_var(&p, "w"), w);
    assert_int_equal(program_find_var(&p, "no"), PROGRAM_NONE);
    program_release(&p);
}

static void test_program__a_copy_is_equal_and_apart(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf before = {0}, after = {0};
    struct program p, copy;

    (void)state;
    program_init(&p, "test");
    (void)add(&p, "w", PROGRAM_ROLE_PARAMETER, 4);
    program_copy(&p, &copy);
    print_program(&p, &before);
    print_program(&copy, &after);
    assert_string_equal(before.text, after.text);
    (void)add(&copy, "v", PROGRAM_ROLE_PARAMETER, 4);
    assert_int_equal(program_find_var(&p, "v"), PROGRAM_NONE);
    assert_int_equal(program_find_var(&copy, "w"), 0);
    program_release(&p);
    program_release(&copy);
}

static void test_program__inserts_between_operators(void **state)
{
    struct program p;
    struct program_op op = {.kind = OP_ALL_REDUCE, .section = PROGRAM_SECTION_EXCHANGE};

    (void)state;
    program_init(&p, "test");
    for (int i = 0; i < 100; i++) {
        op.layer = i;
        (void)program_insert_op(&p, p.op_count / 2, &op);
    }
    assert_int_equal(p.op_count, 100);
    assert_int_equal(p.ops[99].layer, 0);
    assert_int_equal(p.ops[0].layer, 1);
    assert_int_equal(p.ops[49].layer, 99);
    program_release(&p);
}

/* Operators 0 … 3; a and b go before 1, c before 3, d to the end. */
static void test_program__inserts_many_at_once(void **state)
{
    static const int wanted[] = {0, 10, 11, 1, 2, 12, 3, 13};
    static const int places[] = {1, 1, 3, 4};
    struct program_op op = {.kind = OP_ALL_REDUCE, .section = PROGRAM_SECTION_EXCHANGE};
    struct program_insertions list = {0};
    struct program p;

    (void)state;
    program_init(&p, "test");
    for (op.layer = 0; op.layer < 4; op.layer++)
        (void)program_add_op(&p, &op);
    for (int i = 0; i < 4; i++) {
        op.layer = 10 + i;
        program_insertions_add(&list, places[i], &op);
    }
    program_insert_ops(&p, &list);
    assert_int_equal(p.op_count, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(p.ops[i].layer, wanted[i]);
    program_insert_ops(&p, &list); /* it is empty now */
    assert_int_equal(p.op_count, 8);
    program_release(&p);
}

static void test_program__sizes(void **state)
{
    struct program_var var = {.type = PROGRAM_BF16, .ndim = 2, .shape = {3, 5}};

    (void)state;
    assert_int_equal(program_var_elements(&var), 15);
    assert_int_equal(program_var_bytes(&var), 30);
    var.ndim = 0;
    assert_int_equal(program_var_elements(&var), 1);
    var.ndim = PROGRAM_UNSHAPED;
    assert_int_equal(program_var_elements(&var), 0);
    var = (struct program_var){.ndim = 3, .shape = {INT64_MAX / 2, 3, 1}};
    assert_true(program_var_elements(&var) == INT64_MAX);
}

/* ---- verify ---------------------------------------------------------------------------------- */

#define HEAD "program t loss=y flat_count=16\nvar x fp32 input [2,3]\nvar y fp32 activation [?]\n"

static const struct {
    const char *text;
    enum verify_stage stage;
    const char *error; /* NULL: fine */
} verify_cases[] = {
    {HEAD "forward relu x -> y ;\n", VERIFY_FORWARD, NULL},
    {HEAD "forward relu y -> y ;\n", VERIFY_FORWARD, "input 0 (y) has no shape yet"},
    {HEAD "var z fp32 activation [2,3]\nforward relu z -> y ;\n", VERIFY_FORWARD,
     "operator 0: relu reads z before it is written"},
    {HEAD "forward relu x -> y ;\nforward relu y -> x ;\n", VERIFY_FORWARD,
     "operator 1: relu writes the input x"},
    {HEAD "backward relu x -> y ;\nforward relu y -> y ;\n", VERIFY_FORWARD,
     "relu, a forward operator, stands after a backward one"},
    {"program t\nvar x fp32 input [2]\n", VERIFY_FORWARD, "the program has no loss"},
    {HEAD "var p bf16 parameter [3] trained\nforward add x p -> y ;\n", VERIFY_FORWARD,
     "p (parameter) must be fp32"},
    {HEAD "var p fp32 parameter [3] trained\nforward add x p -> y ;\n", VERIFY_BACKWARD,
     "parameter p has no gradient"},
    {HEAD "var p fp32 parameter [3] trained\nvar p@GRAD fp32 gradient [3] of=p\n"
          "forward add x p -> y ;\n",
     VERIFY_BACKWARD, "parameter p has no gradient"},
    {HEAD "var p fp32 parameter [3] trained\nvar p@GRAD fp32 gradient [3] of=p\n"
          "forward add x p -> y ;\nbackward add_grad_b y -> p@GRAD ;\n",
     VERIFY_BACKWARD, NULL},
    {HEAD "var p fp32 parameter [3]\nvar g fp32 gradient [3] of=p\n"
          "forward add x p -> y ;\nbackward add_grad_b y -> g ;\n",
     VERIFY_BACKWARD, "g is not the gradient of p"},
    {HEAD "var g fp32 gradient [3] of=x\nforward relu x -> y ;\n", VERIFY_FORWARD,
     "g belongs to no parameter"},
    {HEAD "var p fp32 parameter [3] trained flat=0\nvar p@GRAD fp32 gradient [3] of=p flat=0\n"
          "forward add x p -> y ;\nbackward add_grad_b y -> p@GRAD ;\n",
     VERIFY_COMPLETE, "parameter p is updated 0 times"},
    {HEAD "var p fp32 parameter [3] trained flat=0\nvar p@GRAD fp32 gradient [3] of=p flat=0\n"
          "forward add x p -> y ;\nbackward add_grad_b y -> p@GRAD ;\n"
          "update sgd p p@GRAD -> p ;\n",
     VERIFY_COMPLETE, NULL},
    {HEAD "var p fp32 parameter [3] trained flat=0\nvar p@GRAD fp32 gradient [3] of=p flat=0\n"
          "forward add x p -> y ;\nbackward add_grad_b y -> p@GRAD ;\n"
          "update sgd p p@GRAD -> p ;\nupdate sgd p p@GRAD -> p ;\n",
     VERIFY_COMPLETE, "parameter p is updated 2 times"},
};

static void test_program__verify_names_the_first_breach(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(verify_cases); i++) {
        const char *text = verify_cases[i].text, *wanted = verify_cases[i].error;
        struct fleet_error err = {0};
        struct program p;
        int rc;

        if (print_parse(text, strlen(text), &p, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        rc = verify_program(&p, verify_cases[i].stage, &err);
        if (!wanted && rc < 0)
            fail_msg("case %zu: %s, expected success", i, err.text);
        if (wanted && (rc >= 0 || !strstr(err.text, wanted)))
            fail_msg("case %zu: %d \"%s\", expected \"%s\"", i, rc, err.text, wanted);
        program_release(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program__lays_parameters_out_in_byte_order_of_their_names),
        cmocka_unit_test(test_program__finds_companions_by_name),
        cmocka_unit_test(test_program__a_copy_is_equal_and_apart),
        cmocka_unit_test(test_program__inserts_between_operators),
        cmocka_unit_test(test_program__inserts_many_at_once),
        cmocka_unit_test(test_program__sizes),
        cmocka_unit_test(test_program__verify_names_the_first_breach),
    };
    return cmocka_run_group_tests_name("program", tests, NULL, NULL);
}
