/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Places of tensors: no two that live at once overlap (checked pair by pair against lives worked
 * out here), everything is aligned, the arena is hardly larger than the largest sum of live bytes.
 */
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
#include "libfleet/plan/memory_plan.h"
#include "libfleet/plan/plan.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "libfleet/training/training.h"

struct life {
    int first, last; /* -1: never used */
};

static struct life *find_lives(const struct program *p)
{
    struct life *lives = calloc((size_t)p->var_count, sizeof(*lives));

    for (int i = 0; i < p->var_count; i++)
        lives[i] = (struct life){-1, -1};
    for (int i = 0; i < p->op_count; i++)
        for (int j = 0; j < OP_INPUTS_MAX + OP_OUTPUTS_MAX; j++) {
            const struct program_op *op = &p->ops[i];
            int var = j < OP_INPUTS_MAX ? (j < op->input_count ? op->inputs[j] : -1)
                      : j - OP_INPUTS_MAX < op->output_count ? op->outputs[j - OP_INPUTS_MAX]
                                                             : -1;
            if (var < 0 || p->vars[var].role != PROGRAM_ROLE_ACTIVATION)
                continue;
            if (lives[var].first < 0)
                lives[var].first = i;
            lives[var].last = i;
        }
    return lives;
}

/* b takes the place of a: written, elementwise, by the operator that reads a last. */
static bool moves_in(const struct program *p, const struct life *lives, int a, int b)
{
    const struct program_op *op = &p->ops[lives[a].last];

    return lives[a].last == lives[b].first && op_definition(op->kind)->in_place &&
           op->inputs[0] == a && op->outputs[0] == b;
}

static void expect_apart(const struct program *p, const struct memory_plan *plan)
{
    struct life *lives = find_lives(p);

    for (int a = 0; a < p->var_count; a++)
        for (int b = 0; b < p->var_count && lives[a].first >= 0; b++) {
            size_t from_a = plan->places[a].offset, from_b = plan->places[b].offset;
            bool at_once = lives[b].first >= 0 && lives[a].first <= lives[b].last &&
                           lives[b].first <= lives[a].last;
            bool overlap = from_a < from_b + program_var_bytes(&p->vars[b]) &&
                           from_b < from_a + program_var_bytes(&p->vars[a]);
            if (a != b && at_once && overlap && !moves_in(p, lives, a, b) &&
                !moves_in(p, lives, b, a))
                fail_msg("%s (operators %d to %d) and %s (%d to %d) overlap at %zu and %zu",
                         p->vars[a].name, lives[a].first, lives[a].last, p->vars[b].name,
                         lives[b].first, lives[b].last, from_a, from_b);
        }
    free(lives);
}

static void expect_in_bounds(const struct program *p, const struct memory_plan *plan)
{
    for (int i = 0; i < p->var_count; i++) {
        const struct memory_place *place = &plan->places[i];
        if (place->offset % PROGRAM_ALIGNMENT ||
            place->offset + program_var_bytes(&p->vars[i]) > plan->bytes[place->segment])
            fail_msg("%s: offset %zu, %zu bytes in a segment of %zu", p->vars[i].name,
                     place->offset, program_var_bytes(&p->vars[i]), plan->bytes[place->segment]);
    }
}

/* The largest sum of bytes that live during one operator. */
static size_t most_live_bytes(const struct program *p)
{
    struct life *lives = find_lives(p);
    size_t most = 0;

    for (int i = 0; i < p->op_count; i++) {
        size_t bytes = 0;
        for (int var = 0; var < p->var_count; var++)
            if (lives[var].first >= 0 && lives[var].first <= i && lives[var].last >= i)
                bytes += (program_var_bytes(&p->vars[var]) + PROGRAM_ALIGNMENT - 1) /
                         PROGRAM_ALIGNMENT * PROGRAM_ALIGNMENT;
        most = bytes > most ? bytes : most;
    }
    free(lives);
    return most;
}

static void build_gpt(int layers, int width, struct plan *out)
{
    char text[512];
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct training_config config;
    struct fleet_errors errors = {0};

    (void)snprintf(text, sizeof(text),
                   "{\"model\":{\"name\":\"gpt\",\"layers\":%d,\"heads\":4,\"width\":%d,"
                   "\"context\":64,\"vocabulary\":256,\"dropout\":0.1},\"data\":{\"path\":\"t\"},"
                   "\"optimizer\":{\"learningRate\":0.001},\"globalBatchSize\":8,"
                   "\"microBatchSize\":2,\"steps\":1}",
                   layers, width);
    json = cJSON_Parse(text);
    assert_int_equal(training_config_decode(json, "", &config, &errors), 0);
    assert_int_equal(
        plan_build(&(struct plan_request){.training = &config, .world = 1}, out, &errors), 0);
    training_config_release(&config);
}

static void test_memory_plan__keeps_what_lives_at_once_apart(void **state)
{
    (void)state;
    for (int layers = 1; layers <= 8; layers += 3) {
        struct plan plan;
        double ratio;

        build_gpt(layers, 32 * layers, &plan);
        expect_in_bounds(&plan.program, &plan.memory);
        expect_apart(&plan.program, &plan.memory);
        ratio = (double)plan.memory.bytes[MEMORY_ARENA] / (double)most_live_bytes(&plan.program);
        if (ratio > 1.03)
            fail_msg("%d layers: the arena is %.3f times the most that lives at once", layers,
                     ratio);
        assert_true(plan.memory.live_bytes <= plan.memory.bytes[MEMORY_ARENA]);
        assert_true(plan.memory.live_bytes <= most_live_bytes(&plan.program));
        assert_true(1.03 * (double)plan.memory.live_bytes >=
                    (double)plan.memory.bytes[MEMORY_ARENA]);
        plan_release(&plan);
    }
}

static void test_memory_plan__is_the_same_every_time(void **state)
{
    struct plan a, b;

    (void)state;
    build_gpt(3, 64, &a);
    build_gpt(3, 64, &b);
    assert_memory_equal(a.memory.bytes, b.memory.bytes, sizeof(a.memory.bytes));
    for (int i = 0; i < a.program.var_count; i++) {
        assert_int_equal(a.memory.places[i].segment, b.memory.places[i].segment);
        assert_int_equal(a.memory.places[i].offset, b.memory.places[i].offset);
    }
    plan_release(&a);
    plan_release(&b);
}

/* A chain of elementwise operators needs one place; where the input is read again, two. */
static void test_memory_plan__elementwise_results_move_in(void **state)
{
    static const char chain[] = "program t loss=c\nvar x fp32 input [16]\n"
                                "var a fp32 activation [?]\nvar b fp32 activation [?]\n"
                                "var c fp32 activation [?]\n"
                                "forward relu x -> a ;\nforward gelu a -> b ;\n";
    struct program p;
    struct memory_plan plan;

    (void)state;
    for (int again = 0; again < 2; again++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

        fleet_strbuf_appendf(&text, "%sforward add b %s -> c ;\n", chain, again ? "a" : "b");
        assert_int_equal(print_parse(text.text, text.length, &p, NULL), 0);
        assert_int_equal(verify_program(&p, VERIFY_FORWARD, NULL), 0);
        assert_int_equal(memory_plan_build(&p, NULL, 0, &plan, NULL), 0);
        assert_int_equal(plan.bytes[MEMORY_ARENA], again ? 128 : 64);
        memory_plan_release(&plan);
        program_release(&p);
    }
}

static void test_memory_plan__segments(void **state)
{
    struct plan plan;
    const struct program *p = &plan.program;
    size_t flat;
    int wte;

    (void)state;
    build_gpt(2, 32, &plan);
    flat = (size_t)p->flat_count * 4;
    assert_int_equal(plan.memory.bytes[MEMORY_PARAMETERS], flat);
    assert_int_equal(plan.memory.bytes[MEMORY_GRADIENTS], flat);
    assert_int_equal(plan.memory.bytes[MEMORY_STATE0], flat);
    assert_int_equal(plan.memory.bytes[MEMORY_STATE1], flat);
    assert_int_equal(plan.memory.bytes[MEMORY_INPUTS], 2 * 2 * 64 * 4);
    assert_int_equal(plan.memory.bytes[MEMORY_BUFFERS], 0);
    wte = program_find_var(p, "wte.weight");
    assert_int_equal(plan.memory.places[wte].segment, MEMORY_PARAMETERS);
    assert_int_equal(plan.memory.places[wte].offset, p->vars[wte].flat_offset * 4);
    assert_int_equal(plan.memory.places[program_state_of(p, wte, 1)].segment, MEMORY_STATE1);
    assert_int_equal(plan.memory.places[program_state_of(p, wte, 1)].offset,
                     p->vars[wte].flat_offset * 4);
    assert_int_equal(plan.memory.places[p->loss].segment, MEMORY_SCALARS);
    plan_release(&plan);
}

static void test_memory_plan__refuses_a_variable_without_shape(void **state)
{
    static const char text[] = "program t\nvar a fp32 activation [?]\n";
    struct program p;
    struct memory_plan plan;
    struct fleet_error err;

    (void)state;
    assert_int_equal(print_parse(text, strlen(text), &p, NULL), 0);
    assert_int_equal(memory_plan_build(&p, NULL, 0, &plan, &err), -EINVAL);
    assert_string_equal(err.text, "plan memory: a has no shape");
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_plan__keeps_what_lives_at_once_apart),
        cmocka_unit_test(test_memory_plan__is_the_same_every_time),
        cmocka_unit_test(test_memory_plan__elementwise_results_move_in),
        cmocka_unit_test(test_memory_plan__segments),
        cmocka_unit_test(test_memory_plan__refuses_a_variable_without_shape),
    };
    return cmocka_run_group_tests_name("memory_plan", tests, NULL, NULL);
}
