/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Programs of ranks that share sequences: each has all parameters and its tokens, and all tokens of
 * its heads in attention alone. A degree that a model cannot have is refused with the nearest one.
 */
#include <errno.h>
#include <math.h>

#include "agent/runtime/state.h"
#include "libfleet/plan/memory_plan.h"
#include "libfleet/program/models/model.h"
#include "libfleet/program/print.h"
#include "tests/unit/passes_fixture.h"
#include "tests/unit/tensor_parallel_fixture.h"

/* ---- programs -------------------------------------------------------------------------------- */

static void make_program(const char *text, struct knobs knobs, const struct program_cell *cell,
                         struct program *out)
{
    struct training_config training;
    struct fleet_error err = {.text = ""};

    decode(text, &training);
    if (build_cell(&training, knobs, *cell, out, &err) < 0)
        fail_msg("%s", err.text);
    training_config_release(&training);
}

static int count_of(const struct program *program, enum op_kind kind, unsigned int group,
                    bool backward)
{
    int count = 0;

    for (int i = 0; i < program->op_count; i++)
        count += program->ops[i].kind == kind && program->ops[i].attributes.group == group &&
                 program->ops[i].backward == backward;
    return count;
}

static void expect_shape(const struct program *program, const char *name, int64_t a, int64_t b,
                         int64_t c)
{
    int v = program_find_var(program, name);

    assert_int_not_equal(v, PROGRAM_NONE);
    assert_int_equal(program->vars[v].ndim, 3);
    assert_int_equal(program->vars[v].shape[0], a);
    assert_int_equal(program->vars[v].shape[1], b);
    assert_int_equal(program->vars[v].shape[2], c);
}

/* Two samples of 16 tokens, 4 heads of 8, 4 ranks. Printed and read again the program is the same.
 * Only the gradients of both tables of the embedding are whole at once; that of the words is also
 * the head's, so the ranks sum all but that of the positions. */
static void test_sep_degree__divides_what_it_says(void **state)
{
    (void)state;
    for (int rank = 0; rank < 4; rank++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, again = {0};
        struct fleet_error err = {.text = ""};
        struct program program, read;
        int *parameters, count;

        make_program(MODEL("gpt", ""), (struct knobs){0},
                     &(struct program_cell){.sequence_ranks = 4, .sequence_rank = rank}, &program);
        print_program(&program, &text);
        if (print_parse(text.text, text.length, &read, &err) < 0)
            fail_msg("%s", err.text);
        print_program(&read, &again);
        assert_string_equal(text.text, again.text);
        expect_shape(&program, "h.1.attn.c_attn", 1, 8, 96);
        expect_shape(&program, "h.1.attn", 2, 16, 8);
        expect_shape(&program, "h.1", 1, 8, 32);
        expect_shape(&program, "lm_head", 1, 8, WORDS);
        assert_int_equal(count_of(&program, OP_ALL_TO_ALL, OP_GROUP_SEQUENCE, false), 2 * 2);
        assert_int_equal(count_of(&program, OP_ALL_TO_ALL, OP_GROUP_SEQUENCE, true), 2 * 2);
        assert_int_equal(count_of(&program, OP_ALL_REDUCE, OP_GROUP_SEQUENCE, false), 1);
        count = program_parameters(&program, true, &parameters);
        free(parameters);
        assert_int_equal(count_of(&program, OP_ALL_REDUCE, OP_GROUP_SEQUENCE, true), count - 1);
        assert_int_equal(count_of(&program, OP_ALL_GATHER, OP_GROUP_SEQUENCE, true), 1);
        program_release(&read);
        program_release(&program);
    }
}

/* Rotary positions are those of the sequence: they turn all tokens. */
static void test_sep_degree__turns_all_tokens_of_its_heads(void **state)
{
    struct program program;

    (void)state;
    make_program(MODEL("llama", ""), (struct knobs){0},
                 &(struct program_cell){.sequence_ranks = 2, .sequence_rank = 1}, &program);
    expect_shape(&program, "model.layers.0.self_attn.rope", 2, 16, 48);
    for (int i = 0; i < program.op_count; i++)
        if (program.ops[i].kind == OP_ROPE)
            assert_int_equal(program.ops[i].attributes.heads, 2 * 2);
    program_release(&program);
}

#define WIDE_LLAMA(heads, kv_heads, width)                                                    \
    "{\"model\":{\"name\":\"llama\",\"layers\":1,\"heads\":" #heads ",\"kvHeads\":" #kv_heads \
    ",\"width\":" #width ",\"hidden\":" #heads "0,\"context\":" #heads                        \
    "},\"data\":{\"path\":\"t\"},"                                                            \
    "\"globalBatchSize\":2,\"microBatchSize\":2,\"steps\":8,"                                 \
    "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1}}"

/* Heads of keys and values: divided, one to a rank, or repeated until each rank has one. */
static void test_sep_degree__repeats_heads_that_groups_share(void **state)
{
    static const struct {
        const char *training;
        int sequence_ranks, model_ranks, context, width; /* of packed q, k and v; a head has 8 */
    } rows[] = {
        {MODEL("llama", ",\"kvHeads\":2"), 2, 1, 16, (2 + 1 + 1) * 8},
        {MODEL("llama", ",\"kvHeads\":2"), 4, 1, 16, (1 + 1 + 1) * 8},
        {MODEL("llama", ",\"kvHeads\":1"), 4, 1, 16, (1 + 1 + 1) * 8},
        {MODEL("llama", ",\"kvHeads\":1"), 2, 2, 16, (1 + 1 + 1) * 8},
        /* more copies than a concatenation takes, of a number without small factors */
        {WIDE_LLAMA(14, 2, 112), 14, 1, 14, (1 + 1 + 1) * 8},
        {WIDE_LLAMA(13, 1, 104), 13, 1, 13, (1 + 1 + 1) * 8},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct program_cell cell = {.sequence_ranks = rows[i].sequence_ranks,
                                    .model_ranks = rows[i].model_ranks};
        struct program program;

        make_program(rows[i].training, (struct knobs){0}, &cell, &program);
        expect_shape(&program, "model.layers.0.self_attn.rope", 2, rows[i].context, rows[i].width);
        program_release(&program);
    }
}

/* Two ranks to a tensor, two to a sequence: a rank has one head, and a dropout of divided rows has
 * its place among the four. */
static void test_sep_degree__goes_with_ranks_to_a_tensor(void **state)
{
    for (int rows = 0; rows < 2; rows++) {
        struct program_cell cell = {
            .model_ranks = 2, .model_rank = 1, .sequence_ranks = 2, .sequence_rank = 1};
        struct program program;
        int dropouts = 0;

        (void)state;
        make_program(MODEL("gpt", ",\"dropout\":0.1"), (struct knobs){.rows = rows != 0}, &cell,
                     &program);
        expect_shape(&program, "h.1.attn.c_attn", 1, 16, 48);
        expect_shape(&program, "h.1.attn", 2, 16, 8);
        for (int i = 0; i < program.op_count; i++)
            if (program.ops[i].kind == OP_DROPOUT) {
                assert_int_equal(program.ops[i].attributes.ranks, rows ? 4 : 2);
                assert_int_equal(program.ops[i].attributes.place, rows ? 3 : 1);
                dropouts++;
            }
        assert_true(dropouts > 0);
        program_release(&program);
    }
}

/* In pure 16 bits the tokens travel in 16 bits, and the loss stays in fp32. */
static void test_sep_degree__exchanges_the_type_of_the_layers(void **state)
{
    struct program program;

    (void)state;
    make_program(MODEL("gpt", ""), (struct knobs){.amp = true, .pure = true},
                 &(struct program_cell){.sequence_ranks = 2}, &program);
    for (int i = 0; i < program.op_count; i++) {
        const struct program_op *op = &program.ops[i];
        if (op->kind == OP_ALL_TO_ALL)
            assert_int_equal(program.vars[op->inputs[0]].type, PROGRAM_BF16);
        if (op->kind == OP_ALL_REDUCE)
            assert_int_equal(program.vars[op->inputs[0]].type, PROGRAM_FP32);
    }
    assert_int_equal(program.vars[program.loss].type, PROGRAM_FP32);
    program_release(&program);
}

/* The part of zero-bubble for weights has the sums of their gradients, too. */
static void test_sep_degree__sums_weights_in_their_own_part(void **state)
{
    struct program_cell cell = {
        .sequence_ranks = 2, .stages = 2, .stage = 1, .splits_weights = true};
    struct program program;
    int products = 0, sums = 0;

    (void)state;
    make_program(MODEL("gpt", ""), (struct knobs){0}, &cell, &program);
    for (int i = 0; i < program.op_count; i++) {
        products += program.ops[i].weights && program.ops[i].kind == OP_LINEAR_GRAD;
        sums += program.ops[i].weights && program.ops[i].kind == OP_ALL_REDUCE;
    }
    assert_int_equal(products, 4); /* of its block */
    assert_int_equal(sums, 14);    /* and those of ln_f; the head's goes to the first stage */
    program_release(&program);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Bytes of activations that a model of `layers` layers has at once. */
static double arena_of(int layers, int ranks)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
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
    make_program(text.text, (struct knobs){0}, &(struct program_cell){.sequence_ranks = ranks},
                 &program);
    if (memory_plan_build(&program, NULL, 0, &memory, &err) < 0)
        fail_msg("%s", err.text);
    bytes = (double)memory.bytes[MEMORY_ARENA];
    memory_plan_release(&memory);
    program_release(&program);
    return bytes;
}

static void test_sep_degree__divides_what_a_layer_keeps(void **state)
{
    double one = (arena_of(10, 1) - arena_of(6, 1)) / 4;
    double four = (arena_of(10, 4) - arena_of(6, 4)) / 4;

    (void)state;
    print_message("a layer keeps %.0f bytes, on one of four ranks %.0f\n", one, four);
    assert_true(four < 0.3 * one && four > 0.25 * one - 1);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_sep_degree__refuses_ranks_that_do_not_divide(void **state)
{
    static const struct {
        const char *training;
        struct program_cell cell;
        const char *message;
    } rows[] = {
        {MODEL("gpt", ""), {.sequence_ranks = 4}, NULL},
        {MODEL("gpt", ""), {.model_ranks = 2, .sequence_ranks = 2, .divides_rows = true}, NULL},
        {MODEL("gpt", ""),
         {.sequence_ranks = 3},
         "3 ranks do not divide the 4 heads of gpt that a rank has"},
        {MODEL("llama", ""),
         {.sequence_ranks = 8},
         "8 ranks do not divide the 4 heads of llama that a rank has"},
        {"{\"model\":{\"name\":\"llama\",\"layers\":1,\"heads\":12,\"kvHeads\":4,\"width\":24,"
         "\"context\":12},\"data\":{\"path\":\"t\"},\"globalBatchSize\":4,\"microBatchSize\":4,"
         "\"steps\":8,\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1}}",
         {.sequence_ranks = 6},
         "6 ranks do not divide the 12 heads (4 of keys and values) of llama that a rank has"},
        {MODEL("gpt", ""),
         {.model_ranks = 2, .sequence_ranks = 4},
         "4 ranks do not divide the 2 heads of gpt that a rank has"},
        {"{\"model\":{\"name\":\"gpt\",\"layers\":1,\"heads\":6,\"width\":12,\"hidden\":12,"
         "\"context\":8},\"data\":{\"path\":\"t\"},\"globalBatchSize\":4,\"microBatchSize\":4,"
         "\"steps\":8,\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1}}",
         {.sequence_ranks = 3},
         "3 ranks do not divide the 32 tokens of a micro-batch"},
        {"{\"model\":{\"name\":\"mlp\",\"sizes\":[4,2]},\"data\":{\"path\":\"t\"},"
         "\"globalBatchSize\":2,\"microBatchSize\":2,\"steps\":8,"
         "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1}}",
         {.sequence_ranks = 2},
         "ranks share sequences of gpt and llama, not of mlp"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct training_config training;
        struct fleet_error err = {.text = ""};
        struct program program;

        decode(rows[i].training, &training);
        assert_int_equal(build_cell(&training, (struct knobs){0}, rows[i].cell, &program, &err),
                         rows[i].message ? -EINVAL : 0);
        if (rows[i].message && !strstr(err.text, rows[i].message))
            fail_msg("%s, not %s", err.text, rows[i].message);
        if (!rows[i].message)
            program_release(&program);
        training_config_release(&training);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sep_degree__divides_what_it_says),
        cmocka_unit_test(test_sep_degree__turns_all_tokens_of_its_heads),
        cmocka_unit_test(test_sep_degree__repeats_heads_that_groups_share),
        cmocka_unit_test(test_sep_degree__goes_with_ranks_to_a_tensor),
        cmocka_unit_test(test_sep_degree__exchanges_the_type_of_the_layers),
        cmocka_unit_test(test_sep_degree__sums_weights_in_their_own_part),
        cmocka_unit_test(test_sep_degree__divides_what_a_layer_keeps),
        cmocka_unit_test(test_sep_degree__refuses_ranks_that_do_not_divide),
    };
    return cmocka_run_group_tests_name("sep_degree", tests, NULL, NULL);
}
