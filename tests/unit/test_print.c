/* SPDX-License-Identifier: Apache-2.0 */

/* Print, read back, print again: equal. And texts that are refused, with their line. */
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
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "libfleet/training/training.h"

/* A whole program, optimizer included, with every kind of attribute that its operators use. */
static void test_print__reads_back_what_it_wrote(void **state)
{
    static const char job[] =
        "{\"model\":{\"name\":\"gpt\",\"layers\":2,\"heads\":2,\"width\":8,\"context\":4,"
        "\"vocabulary\":256,\"dropout\":0.3},\"data\":{\"path\":\"t\"},\"optimizer\":{"
        "\"learningRate\":0.001,\"beta2\":0.95,\"weightDecay\":0.1,\"clip\":{\"norm\":0.7}},"
        "\"globalBatchSize\":4,\"microBatchSize\":2,\"steps\":1}";
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(job);
    FLEET_AUTO_STRBUF struct fleet_strbuf before = {0}, after = {0};
    struct training_config config;
    struct fleet_errors errors = {0};
    struct fleet_error err;
    struct program read;
    struct plan plan;

    (void)state;
    assert_int_equal(training_config_decode(json, "", &config, &errors), 0);
    assert_int_equal(
        plan_build(&(struct plan_request){.training = &config, .world = 1}, &plan, &errors), 0);
    print_program(&plan.program, &before);
    if (print_parse(before.text, before.length, &read, &err) < 0)
        fail_msg("%s", err.text);
    if (verify_program(&read, VERIFY_COMPLETE, &err) < 0)
        fail_msg("%s", err.text);
    print_program(&read, &after);
    assert_string_equal(before.text, after.text);
    program_release(&read);
    plan_release(&plan);
    training_config_release(&config);
}

static void test_print__every_attribute_survives(void **state)
{
    static const char text[] =
        "program t micro_batch_size=3 tokens_per_sample=5 merge_steps=2 merge_average=1 "
        "state_count=2 flat_count=64 buffer_count=16 loss=a\n"
        "var a fp32 scalar [1]\n"
        "var b uint8 input [?]\n"
        "var c int32 buffer [] initial=one layer=3\n"
        "var p fp32 parameter [3] trained initial=uniform deviation=0.25 flat=16\n"
        "var p@STATE1 fp32 state [3] of=p slot=1 flat=16\n"
        "forward linear a - b -> c - ; layer=7 epsilon=0.1 scale=-3 rate=0.5 base=10000 "
        "momentum=0.9 heads=3 kv_heads=2 head_dim=4 causal transposed inverse activation=relu "
        "ignore_index=-100 stream=9 kernel=3x5 stride=2x1 padding=1x0\n"
        "exchange all_reduce -> ; group=sharding+data space=gradients first=16 count=48 wire=fp16 "
        "reduction=avg root=2 shift=-1 ranks=4 owned training\n"
        "update lamb a -> a ; beta1=0.9 beta2=0.999 optimizer_epsilon=1e-08 "
        "optimizer_momentum=0.5 coefficient=0.001 decay=0.25 lambda=0.01 rescale=2 always_adapt "
        "nesterov decay_kind=l1 clip=value clip_limit=5 norm_index=4\n";
    FLEET_AUTO_STRBUF struct fleet_strbuf after = {0};
    struct fleet_error err;
    struct program read;

    (void)state;
    if (print_parse(text, strlen(text), &read, &err) < 0)
        fail_msg("%s", err.text);
    print_program(&read, &after);
    assert_string_equal(after.text, text);
    program_release(&read);
}

#define TWO "program t\nvar a fp32 input [2]\n"

static const struct {
    const char *text, *error;
} refused[] = {
    {"", "line 1: program is missing"},
    {"graph t\n", "line 1: does not begin with 'program'"},
    {"program t size=3\n", "line 1: size is not known"},
    {"program t merge_steps=x\n", "line 1: 'x' is not a number"},
    {"program t merge_steps=99999999999\n", "merge_steps=99999999999 is too large"},
    {"program t loss=a\n", "there is no variable a"},
    {TWO "var a fp32 input [2]\n", "line 3: a cannot be the name of another variable"},
    {TWO "var - fp32 input [2]\n", "- cannot be the name"},
    {TWO "var b fp64 input [2]\n", "type fp64 is not known"},
    {TWO "var b fp32 weight [2]\n", "role weight is not known"},
    {TWO "var b fp32 input 2\n", "'2' is not a shape"},
    {TWO "var b fp32 input [0]\n", "'0' is not a number from 1"},
    {TWO "var b fp32 input [1,2,3,4,5]\n", "more than 4 dimensions"},
    {TWO "var b fp32 input [1,]\n", "'' is not a number"},
    {TWO "var b fp32 input [1] of=c\n", "there is no variable c"},
    {TWO "var b fp32 input [1] colour=c\n", "attribute colour of a variable is not known"},
    {TWO "var b fp32 input [1] initial=two\n", "initial=two is not known"},
    {TWO "var b fp32 input [1] deviation=nan\n", "'nan' is not a number"},
    {TWO "sideways relu a -> a ;\n", "line 3: a line cannot begin with sideways"},
    {TWO "forward rulu a -> a ;\n", "there is no operator rulu"},
    {TWO "forward relu b -> a ;\n", "there is no variable b"},
    {TWO "forward relu a\n", "-> is missing"},
    {TWO "forward relu a a a a a a a a a -> a ;\n", "more than 8 operands before ->"},
    {TWO "forward relu a -> a ; causal=1\n", "causal takes no value"},
    {TWO "forward relu a -> a ; activation=tanh\n", "activation=tanh is not known"},
    {TWO "forward relu a -> a ; kernel=3\n", "'3' is not a pair"},
    {TWO "forward send a -> ; group=data+\n", "group= is not known"},
    {TWO "forward send a -> ; group=dat\n", "group=dat is not known"},
    {TWO "forward relu a -> a ; speed=3\n", "attribute speed is not known"},
    {TWO "update sgd a -> a ;\nforward relu a -> a ;\n",
     "line 4: section micro_batch follows a later one"},
    {TWO "forward relu \x01 -> a ;\n", "byte 0x01"},
};

static void test_print__refuses_what_it_cannot_read(void **state)
{
    char *long_word = malloc(1000);
    struct program read;
    struct fleet_error err;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(refused); i++) {
        const char *text = refused[i].text;
        int rc = print_parse(text, strlen(text), &read, &err);

        if (rc != -EINVAL || !strstr(err.text, refused[i].error))
            fail_msg("case %zu: %d \"%s\", expected \"%s\"", i, rc, rc < 0 ? err.text : "",
                     refused[i].error);
    }
    memset(long_word, 'x', 1000);
    assert_int_equal(print_parse(long_word, 1000, &read, &err), -EINVAL);
    assert_int_equal(print_parse(long_word, PRINT_SIZE_MAX + 1, &read, &err), -EFBIG);
    free(long_word);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print__reads_back_what_it_wrote),
        cmocka_unit_test(test_print__every_attribute_survives),
        cmocka_unit_test(test_print__refuses_what_it_cannot_read),
    };
    return cmocka_run_group_tests_name("print", tests, NULL, NULL);
}
