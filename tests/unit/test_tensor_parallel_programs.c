/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Programs of tensor parallelism: each rank has its part of each tensor, and a degree that a
 * model cannot have is refused with the nearest one.
 */
#include <errno.h>
#include <math.h>

#include "agent/runtime/state.h"
#include "libfleet/plan/memory_plan.h"
#include "libfleet/program/models/model.h"
#include "libfleet/program/print.h"
#include "libfleet/strategy/strategy.h"
#include "tests/support/program_text.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/passes_fixture.h"
#include "tests/unit/tensor_parallel_fixture.h"

/* ---- programs -------------------------------------------------------------------------------- */

/* Printed and read again a program keeps its slices; no rank has logits of all words. */
static void test_tensor_parallel__divides_what_it_says(void **state)
{
    struct training_config training;
    struct fleet_error err = {.text = ""};
    int64_t words = 0;

    (void)state;
    decode(MODEL("gpt", ""), &training);
    for (int rank = 0; rank < 4; rank++) {
        struct program program;
        int reduced = 0, v;

        if (build_cell(&training, (struct knobs){0},
                       (struct program_cell){.model_ranks = 4, .model_rank = rank}, &program,
                       &err) < 0)
            fail_msg("%s", err.text);
        program_text_reads_back(&program);
        v = program_find_var(&program, "h.1.attn.c_attn.weight");
        assert_int_equal(program.vars[v].shape[0], 32);
        assert_int_equal(program.vars[v].shape[1], 24);
        assert_int_equal(program.vars[v].slice.parts, 3);
        assert_int_equal(program.vars[v].slice.first[2], 64 + 8 * rank);
        v = program_find_var(&program, "lm_head");
        words += program.vars[v].shape[2];
        assert_in_range(program.vars[v].shape[2], WORDS / 4, WORDS / 4 + 1);
        for (int i = 0; i < program.op_count; i++)
            reduced += program.ops[i].kind == OP_ALL_REDUCE &&
                       program.ops[i].section == PROGRAM_SECTION_MICRO_BATCH;
        assert_int_equal(reduced, 1 + 2 * 2 + 1 + 2 * 2); /* embedding, layers; head, layers */
        program_release(&program);
    }
    assert_int_equal(words, WORDS);
    training_config_release(&training);
}

static void test_tensor_parallel__refuses_ranks_that_do_not_divide(void **state)
{
    static const struct {
        const char *training;
        int ranks;
        const char *message;
    } rows[] = {
        {MODEL("gpt", ""), 3, "3 ranks do not divide the 4 heads and 128 hidden features of gpt"},
        {MODEL("gpt", ""), 8, "8 ranks do not divide the 4 heads and 128 hidden features of gpt"},
        {"{\"model\":{\"name\":\"mlp\",\"sizes\":[4,2]},\"data\":{\"path\":\"t\"},"
         "\"globalBatchSize\":2,\"microBatchSize\":2,\"steps\":8,"
         "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1}}",
         2, "tensor parallelism divides gpt and llama, not mlp"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct training_config training;
        struct fleet_error err = {.text = ""};
        struct program program;

        decode(rows[i].training, &training);
        assert_int_equal(model_check_ranks(&training, rows[i].ranks, &err), -EINVAL);
        assert_string_equal(err.text, rows[i].message);
        assert_int_equal(build_cell(&training, (struct knobs){0},
                                    (struct program_cell){.model_ranks = rows[i].ranks}, &program,
                                    &err),
                         -EINVAL);
        training_config_release(&training);
    }
}

/* Bytes of activations that a model of `layers` layers has at once. */
static double arena_of(int layers, bool rows)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct training_config training;
    struct fleet_error err = {.text = ""};
    struct memory_plan memory;
    struct program program;
    double bytes;

    fleet_strbuf_appendf(&text,
                         "{\"model\":{\"name\":\"gpt\",\"layers\":%d,\"heads\":4,\"width\":64,"
                         "\"context\":64},\"data\":{\"path\":\"t\"},\"globalBatchSize\":2,"
                         "\"microBatchSize\":2,\"steps\":8,"
                         "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1}}",
                         layers);
    decode(text.text, &training);
    if (build_cell(&training, (struct knobs){.rows = rows},
                   (struct program_cell){.model_ranks = 4, .model_rank = 3}, &program, &err) < 0 ||
        memory_plan_build(&program, NULL, 0, &memory, &err) < 0)
        fail_msg("%s", err.text);
    bytes = (double)memory.bytes[MEMORY_ARENA];
    memory_plan_release(&memory);
    program_release(&program);
    training_config_release(&training);
    return bytes;
}

/* Of a layer the backward part needs four tensors that all ranks have without divided rows: the
 * inputs of both norms, and what they give; and two numbers of each row and norm. */
static void test_tensor_parallel__divided_rows_divide_what_a_layer_keeps(void **state)
{
    double tokens = 2 * 64, ranks = 4, whole = tokens * (4 * 64 + 2 * 2) * sizeof(float);
    double without = (arena_of(10, false) - arena_of(6, false)) / 4;
    double with = (arena_of(10, true) - arena_of(6, true)) / 4;

    (void)state;
    print_message("a layer keeps %.0f bytes, with divided rows %.0f\n", without, with);
    assert_true(fabs(without - with - whole * (1 - 1 / ranks)) < 0.01 * whole);
}

static void test_tensor_parallel__refuses_tokens_that_ranks_do_not_divide(void **state)
{
    static const struct {
        const char *training;
        int ranks;
        const char *message;
    } rows[] = {
        {MODEL("gpt", ""), 4, NULL},
        {MODEL("gpt", ""), 3, "3 ranks do not divide the 32 tokens of a micro-batch"},
        {"{\"model\":{\"name\":\"gpt\",\"layers\":1,\"heads\":6,\"width\":12,\"hidden\":12,"
         "\"context\":8},\"data\":{\"path\":\"t\"},\"globalBatchSize\":4,\"microBatchSize\":4,"
         "\"steps\":8,\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1}}",
         6, "6 ranks do not divide the 32 tokens of a micro-batch"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct training_config training;
        struct fleet_error err = {.text = ""};

        decode(rows[i].training, &training);
        assert_int_equal(model_check_rows(&training, rows[i].ranks, &err),
                         rows[i].message ? -EINVAL : 0);
        assert_string_equal(err.text, rows[i].message ? rows[i].message : "");
        training_config_release(&training);
    }
}

/* Each update by LAMB or LARS reads what all ranks computed before the vote. */
static void test_tensor_parallel__gathers_what_lamb_and_lars_need(void **state)
{
    static const struct {
        const char *optimizer;
        enum op_kind kind;
        int states;
    } rows[] = {
        {"{\"name\":\"lamb\",\"learningRate\":0.1}", OP_LAMB, 2},
        {"{\"name\":\"lars\",\"learningRate\":0.1,\"clip\":{\"norm\":1}}", OP_LARS, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct training_config training;
        struct fleet_error err = {.text = ""};
        struct program program;
        int all;

        fleet_strbuf_appendf(&text,
                             "{\"model\":{\"name\":\"gpt\",\"layers\":1,\"heads\":2,\"width\":8,"
                             "\"context\":4},\"data\":{\"path\":\"t\"},\"globalBatchSize\":2,"
                             "\"microBatchSize\":2,\"steps\":8,\"optimizer\":%s}",
                             rows[i].optimizer);
        decode(text.text, &training);
        assert_int_equal(build_cell(&training, (struct knobs){0},
                                    (struct program_cell){.model_ranks = 2, .model_rank = 1},
                                    &program, &err),
                         0);
        assert_true(count_ops(&program, rows[i].kind, false) > 0);
        assert_int_equal(count_ops(&program, OP_TRUST_SQUARES, false),
                         count_ops(&program, rows[i].kind, false));
        all = program_find_var(&program, "trust.all");
        for (int j = 0; j < program.op_count; j++)
            if (program.ops[j].kind == rows[i].kind) {
                assert_int_equal(program.ops[j].inputs[3 + rows[i].states], all);
                assert_int_equal(program.ops[j].attributes.ranks, 2);
            }
        program_release(&program);
        training_config_release(&training);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_parallel__divides_what_it_says),
        cmocka_unit_test(test_tensor_parallel__refuses_ranks_that_do_not_divide),
        cmocka_unit_test(test_tensor_parallel__divided_rows_divide_what_a_layer_keeps),
        cmocka_unit_test(test_tensor_parallel__refuses_tokens_that_ranks_do_not_divide),
        cmocka_unit_test(test_tensor_parallel__gathers_what_lamb_and_lars_need),
    };
    return cmocka_run_group_tests_name("tensor_parallel_programs", tests, NULL, NULL);
}
