/* SPDX-License-Identifier: Apache-2.0 */

/* The backward part that autodiff appends, as text: what is there, in which order, and no more. */
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
#include "libfleet/program/autodiff.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"

#define INPUTS                             \
    "program t loss=loss\n"                \
    "var x fp32 input [2,3]\n"             \
    "var targets int32 input [2]\n"        \
    "var w fp32 parameter [4,3] trained\n" \
    "var loss fp32 scalar [1]\n"           \
    "var lse fp32 activation [?]\n"        \
    "var a fp32 activation [?]\n"          \
    "var b fp32 activation [?]\n"          \
    "var c fp32 activation [?]\n"          \
    "var d fp32 activation [?]\n"          \
    "var w16 bf16 activation [?]\n"        \
    "var x16 bf16 activation [?]\n"        \
    "var a16 bf16 activation [?]\n"

static const struct {
    const char *what, *forward, *backward;
} cases[] = {
    {"a chain; the input needs no gradient",
     "forward linear x w - -> a - ; transposed\n"
     "forward relu a -> b ;\n"
     "forward cross_entropy b targets -> loss lse ;\n",
     "backward cross_entropy_grad b targets lse - -> b@GRAD ;\n"
     "backward relu_grad b@GRAD b -> a@GRAD ;\n"
     "backward linear_grad a@GRAD x w - -> - w@GRAD - ; transposed\n"},
    {"two readers: contributions are added in the order in which they arise",
     "forward linear x w - -> a - ; transposed\n"
     "forward relu a -> b ;\n"
     "forward add b a -> c ;\n"
     "forward cross_entropy c targets -> loss lse ;\n",
     "backward cross_entropy_grad c targets lse - -> c@GRAD ;\n"
     "backward relu_grad c@GRAD b -> a@GRAD ;\n"
     "backward add c@GRAD a@GRAD -> a@GRAD.1 ;\n"
     "backward linear_grad a@GRAD.1 x w - -> - w@GRAD - ; transposed\n"},
    {"a weight used twice: the second contribution is added to its gradient in place",
     "forward linear x w - -> a - ; transposed\n"
     "forward linear a w - -> b - ;\n"
     "forward linear b w - -> c - ; transposed\n"
     "forward cross_entropy c targets -> loss lse ;\n",
     "backward cross_entropy_grad c targets lse - -> c@GRAD ;\n"
     "backward linear_grad c@GRAD b w - -> b@GRAD w@GRAD - ; transposed\n"
     "backward linear_grad b@GRAD a w - -> a@GRAD w@GRAD.1 - ;\n"
     "backward add w@GRAD w@GRAD.1 -> w@GRAD ;\n"
     "backward linear_grad a@GRAD x w - -> - w@GRAD.2 - ; transposed\n"
     "backward add w@GRAD w@GRAD.2 -> w@GRAD ;\n"},
    {"an operator nobody's loss depends on gets no backward part",
     "forward linear x w - -> a - ; transposed\n"
     "forward relu a -> b ;\n"
     "forward cross_entropy a targets -> loss lse ;\n",
     "backward cross_entropy_grad a targets lse - -> a@GRAD ;\n"
     "backward linear_grad a@GRAD x w - -> - w@GRAD - ; transposed\n"},
    {"a sum of a variable with itself",
     "forward linear x w - -> a - ; transposed\n"
     "forward add a a -> b ;\n"
     "forward cross_entropy b targets -> loss lse ;\n",
     "backward cross_entropy_grad b targets lse - -> b@GRAD ;\n"
     "backward add b@GRAD b@GRAD -> a@GRAD ;\n"
     "backward linear_grad a@GRAD x w - -> - w@GRAD - ; transposed\n"},
    {"a cast of a weight is looked through: its gradient is fp32 at once",
     "forward cast w -> w16 ;\n"
     "forward cast x -> x16 ;\n"
     "forward linear x16 w16 - -> a16 - ; transposed\n"
     "forward cast a16 -> b ;\n"
     "forward cross_entropy b targets -> loss lse ;\n",
     "backward cross_entropy_grad b targets lse - -> b@GRAD ;\n"
     "backward cast b@GRAD -> a16@GRAD ;\n"
     "backward linear_grad a16@GRAD x16 w16 - -> - w@GRAD - ; transposed\n"},
    {"a loss behind other operators starts from one",
     "forward linear x w - -> a - ; transposed\n"
     "forward cross_entropy a targets -> c lse ;\n"
     "forward scale c -> loss ; scale=0.5\n",
     "backward fill -> loss@GRAD ; scale=1\n"
     "backward scale loss@GRAD -> c@GRAD ; scale=0.5\n"
     "backward cross_entropy_grad a targets lse c@GRAD -> a@GRAD ;\n"
     "backward linear_grad a@GRAD x w - -> - w@GRAD - ; transposed\n"},
    {"what is exchanged forward is exchanged the other way backward",
     "forward linear x w - -> a - ; transposed\n"
     "forward all_reduce a -> b ; group=model reduction=avg\n"
     "forward all_gather b -> c ; group=data ranks=3\n"
     "forward reduce_scatter c -> d ; group=data ranks=3\n"
     "forward cross_entropy d targets -> loss lse ;\n",
     "backward cross_entropy_grad d targets lse - -> d@GRAD ;\n"
     "backward all_gather d@GRAD -> c@GRAD ; group=data ranks=3\n"
     "backward reduce_scatter c@GRAD -> b@GRAD ; group=data ranks=3\n"
     "backward all_reduce b@GRAD -> a@GRAD ; group=model reduction=avg\n"
     "backward linear_grad a@GRAD x w - -> - w@GRAD - ; transposed\n"},
    {"the same with a root, and of all to all",
     "forward linear x w - -> a - ; transposed\n"
     "forward reduce_to a -> b ; group=model root=1\n"
     "forward broadcast b -> c ; group=model root=1\n"
     "forward all_to_all c -> d ; group=data ranks=2\n"
     "forward cross_entropy d targets -> loss lse ;\n",
     "backward cross_entropy_grad d targets lse - -> d@GRAD ;\n"
     "backward all_to_all d@GRAD -> c@GRAD ; group=data ranks=2\n"
     "backward reduce_to c@GRAD -> b@GRAD ; group=model root=1\n"
     "backward broadcast b@GRAD -> a@GRAD ; group=model root=1\n"
     "backward linear_grad a@GRAD x w - -> - w@GRAD - ; transposed\n"},
};

static void read_program(const char *forward, struct program *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;

    fleet_strbuf_appendf(&text, "%s%s", INPUTS, forward);
    if (print_parse(text.text, text.length, out, &err) < 0 ||
        verify_program(out, VERIFY_FORWARD, &err) < 0)
        fail_msg("%s\n%s", err.text, forward);
}

static void test_autodiff__appends_what_is_needed(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct program program;
        struct fleet_error err;
        int forward;

        read_program(cases[i].forward, &program);
        forward = program.op_count;
        if (autodiff_run(&program, &err) < 0 || verify_program(&program, VERIFY_BACKWARD, &err) < 0)
            fail_msg("%s: %s", cases[i].what, err.text);
        for (int op = forward; op < program.op_count; op++) {
            print_operator(&program, &program.ops[op], &text);
            fleet_strbuf_append_char(&text, '\n');
        }
        if (strcmp(fleet_strbuf_text(&text), cases[i].backward) != 0)
            fail_msg("%s:\n%s\nexpected:\n%s", cases[i].what, text.text, cases[i].backward);
        program_release(&program);
    }
}

static void expect_refused(const char *forward, const char *error)
{
    struct program program;
    struct fleet_error err;

    read_program(forward, &program);
    assert_int_equal(autodiff_run(&program, &err), -EINVAL);
    if (!strstr(err.text, error))
        fail_msg("\"%s\", expected \"%s\"", err.text, error);
    program_release(&program);
}

static void test_autodiff__refuses_what_has_no_gradient(void **state)
{
    (void)state;
    expect_refused("forward relu x -> a ;\n"
                   "forward cross_entropy a targets -> loss lse ;\n",
                   "parameter w has no way to the loss");
    expect_refused("forward linear x w - -> a - ; transposed\n"
                   "forward gelu_grad a a -> b ;\n"
                   "forward cross_entropy b targets -> loss lse ;\n",
                   "gelu_grad (b) has no gradient");
    expect_refused("forward linear x w - -> a - ; transposed activation=relu\n"
                   "forward cross_entropy a targets -> loss lse ;\n",
                   "gradient of linear (a): a: the value before the activation is not kept");
    expect_refused("forward linear x w - -> a - ; transposed\n"
                   "forward all_reduce a -> b ; group=data reduction=max\n"
                   "forward cross_entropy b targets -> loss lse ;\n",
                   "gradient of all_reduce (b): this reduction has no gradient");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_autodiff__appends_what_is_needed),
        cmocka_unit_test(test_autodiff__refuses_what_has_no_gradient),
    };
    return cmocka_run_group_tests_name("autodiff", tests, NULL, NULL);
}
