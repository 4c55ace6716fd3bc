/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What operators cost: operations, bytes that travel, and the memory of attention.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/program.h"
#include "tests/unit/op_fixture.h"

static void cost_of(const struct shape_case *c, struct op_cost *out)
{
    struct program program;

    read_case(c, &program);
    assert_int_equal(op_infer(&program, &program.ops[0], NULL), 0);
    op_cost(&program, &program.ops[0], out);
    program_release(&program);
}

static void test_op__costs(void **state)
{
    struct op_cost cost;

    (void)state;
    cost_of(&(struct shape_case){"x [6,4] w [4,5] y [?]", "linear x w - -> y - ;", ""}, &cost);
    assert_true(cost.flops == 2.0 * 6 * 4 * 5);
    assert_true(cost.bytes == 4.0 * (24 + 20 + 30));
    cost_of(&(struct shape_case){"d [6,5] x [6,4] w [4,5] dx [?] dw [?]",
                                 "linear_grad d x w - -> dx dw - ;", ""},
            &cost);
    assert_true(cost.flops == 4.0 * 6 * 4 * 5);
    cost_of(&(struct shape_case){"a [6,5] b [6,5] y [?]", "add a b -> y ;", ""}, &cost);
    assert_true(cost.flops == 30 && cost.bytes == 360 && cost.scratch_bytes == 0);
}

static void test_op__communication_says_what_travels(void **state)
{
    static const struct {
        struct shape_case c;
        int64_t payload;
        size_t size;
        double flops, bytes;
    } cases[] = {
        {{"x:bf16 [6,4] y:bf16 [?]", "all_reduce x -> y ; group=data", ""}, 24, 2, 24, 96},
        {{"x [6,4] y [?]", "all_gather x -> y ; group=data ranks=3 wire=fp16", ""}, 24, 2, 0, 384},
        {{"y:uint8 [6]", "receive -> y ; group=data shift=1", ""}, 6, 1, 0, 6},
        {{"y [1]", "tree_sum -> ; group=data space=gradients first=2 count=10", ""}, 10, 4, 10, 80},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct program program;
        struct op_cost cost;

        read_case(&cases[i].c, &program);
        assert_int_equal(op_infer(&program, &program.ops[0], NULL), 0);
        op_cost(&program, &program.ops[0], &cost);
        assert_int_equal(op_payload(&program, &program.ops[0]), cases[i].payload);
        assert_int_equal(op_wire_size(&program, &program.ops[0]), cases[i].size);
        assert_true(cost.flops == cases[i].flops && cost.bytes == cases[i].bytes);
        program_release(&program);
    }
}

/* Attention at four times the context needs four times the scratch at most: no [T,T] anywhere. */
static void test_op__attention_holds_no_square_of_the_context(void **state)
{
    struct op_cost near, far;

    (void)state;
    cost_of(&(struct shape_case){"d [1,1024,64] q [1,1024,192] y [1,1024,64] l [1,4,1024] dq [?]",
                                 "attention_grad d q y l -> dq ; heads=4 kv_heads=4 causal", ""},
            &near);
    cost_of(
        &(struct shape_case){"d [1,16384,64] q [1,16384,192] y [1,16384,64] l [1,4,16384] dq [?]",
                             "attention_grad d q y l -> dq ; heads=4 kv_heads=4 causal", ""},
        &far);
    assert_true(far.scratch_bytes <= 16 * near.scratch_bytes);
    assert_true(far.scratch_bytes < (size_t)16384 * 16384 * 4 / 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_op__costs),
        cmocka_unit_test(test_op__communication_says_what_travels),
        cmocka_unit_test(test_op__attention_holds_no_square_of_the_context),
    };
    return cmocka_run_group_tests_name("op_cost", tests, NULL, NULL);
}
