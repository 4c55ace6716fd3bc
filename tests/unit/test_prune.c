/* SPDX-License-Identifier: Apache-2.0 */

/* What is left of a program when only some of its results are wanted. */
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
#include "libfleet/program/prune.h"

/* x → a → b → loss; c hangs on a; y is an input of the loss alone; a gradient and its update. */
#define TEXT                                                                                  \
    "program t micro_batch_size=2 tokens_per_sample=1 merge_steps=1 flat_count=32 "           \
    "state_count=0 loss=loss\n"                                                               \
    "var x fp32 input [2,3]\nvar y fp32 input [2,3]\n"                                        \
    "var p fp32 parameter [3] trained flat=0\nvar q fp32 parameter [3] trained flat=16\n"     \
    "var p@GRAD fp32 gradient [3] of=p flat=0\nvar q@GRAD fp32 gradient [3] of=q flat=16\n"   \
    "var a fp32 activation [2,3]\nvar b fp32 activation [2,3]\nvar c fp32 activation [2,3]\n" \
    "var d fp32 activation [2,3]\nvar loss fp32 activation [2,3]\n"                           \
    "forward add x p -> a ;\nforward relu a -> b ;\nforward add a q -> c ;\n"                 \
    "forward relu c -> d ; training\nforward add b y -> loss ;\n"                             \
    "backward add_grad_b b -> p@GRAD ;\nbackward add_grad_b b -> q@GRAD ;\n"                  \
    "update sgd p p@GRAD -> p ;\nupdate sgd q q@GRAD -> q ;\n"

static void parse(struct program *out)
{
    struct fleet_error err;

    if (print_parse(TEXT, strlen(TEXT), out, &err) < 0)
        fail_msg("%s", err.text);
}

/* Names with commas between them. */
static int find(const struct program *program, const char *names, int *out)
{
    char text[64], *rest = text, *name;
    int count = 0;

    (void)snprintf(text, sizeof(text), "%s", names);
    while ((name = strsep(&rest, ",")) != NULL)
        if (name[0]) {
            out[count] = program_find_var(program, name);
            assert_true(out[count++] != PROGRAM_NONE);
        }
    return count;
}

static int prune(const char *feeds, const char *fetches, struct program *out,
                 struct fleet_error *err)
{
    struct prune_request request;
    struct program program;
    int feed[8], fetch[8], rc;

    parse(&program);
    request.feeds = feed;
    request.feed_count = find(&program, feeds, feed);
    request.fetches = fetch;
    request.fetch_count = find(&program, fetches, fetch);
    rc = prune_forward(&program, &request, out, err);
    program_release(&program);
    return rc;
}

#define HEAD(flat)                                                                    \
    "program t micro_batch_size=2 tokens_per_sample=1 merge_steps=1 merge_average=0 " \
    "state_count=0 flat_count=" #flat " buffer_count=0 loss=-\n"

static const struct {
    const char *feeds, *fetches, *text;
} kept[] = {
    {"", "b",
     HEAD(16) "var x fp32 input [2,3]\nvar p fp32 parameter [3] flat=0\n"
              "var a fp32 activation [2,3]\nvar b fp32 scalar [2,3]\n"
              "forward add x p -> a ;\nforward relu a -> b ;\n"},
    {"", "b,a",
     HEAD(16) "var x fp32 input [2,3]\nvar p fp32 parameter [3] flat=0\n"
              "var a fp32 scalar [2,3]\nvar b fp32 scalar [2,3]\n"
              "forward add x p -> a ;\nforward relu a -> b ;\n"},
    {"a", "c",
     HEAD(16) "var q fp32 parameter [3] flat=0\nvar a fp32 input [2,3]\n"
              "var c fp32 scalar [2,3]\nforward add a q -> c ;\n"},
    {"a", "b", HEAD(0) "var a fp32 input [2,3]\nvar b fp32 scalar [2,3]\nforward relu a -> b ;\n"},
    {"b,y", "loss",
     HEAD(0) "var y fp32 input [2,3]\nvar b fp32 input [2,3]\nvar loss fp32 scalar [2,3]\n"
             "forward add b y -> loss ;\n"},
};

static void test_prune__keeps_what_the_fetches_need(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(kept); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct fleet_error err;
        struct program out;

        if (prune(kept[i].feeds, kept[i].fetches, &out, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        print_program(&out, &text);
        assert_string_equal(text.text, kept[i].text);
        program_release(&out);
    }
}

static const struct {
    const char *feeds, *fetches, *error;
} refused[] = {
    {"", "x", "x is no result of the forward program"},
    {"", "p", "p is no result of the forward program"},
    {"", "p@GRAD", "p@GRAD is no result of the forward program"},
    {"", "d", "d is no result of the forward program"}, /* an evaluation leaves it out */
    {"b", "b", "b is fed and fetched"},
    {"y", "b", "y is fed, but nothing that is fetched needs it"},
    {"c", "b", "c is fed, but nothing that is fetched needs it"},
    {"p,x", "a", "p cannot be fed: it is a parameter"},
    {"x", "loss", "what is fetched needs y, which is not fed"},
};

static void test_prune__names_what_does_not_fit(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(refused); i++) {
        struct fleet_error err;
        struct program out;

        assert_int_equal(prune(refused[i].feeds, refused[i].fetches, &out, &err), -EINVAL);
        assert_string_equal(err.text, refused[i].error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune__keeps_what_the_fetches_need),
        cmocka_unit_test(test_prune__names_what_does_not_fit),
    };
    return cmocka_run_group_tests_name("prune", tests, NULL, NULL);
}
