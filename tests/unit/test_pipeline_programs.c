/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The programs of a pipeline's stages: messages, parameters, cuts, refusals. test_pipeline.c runs
 * them.
 */
#include "libfleet/program/print.h"
#include "tests/support/program_text.h"
#include "tests/unit/pipeline_fixture.h"

/* Printed and read again a stage is the same; neighbours send what the other receives. */
static void test_pipeline__stages_agree_on_their_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        struct training_config training;
        struct fleet_error err = {.text = ""};
        int64_t sent = 0, received = 0;
        int messages = 0;

        decode(jobs[i].training, &training);
        for (int stage = 0; stage < jobs[i].shape.stages; stage++) {
            struct program program;

            if (build_stage(&training, &jobs[i], cell_of(&jobs[i], stage), &program, &err) < 0)
                fail_msg("%s", err.text);
            program_text_reads_back(&program);
            for (int o = 0; o < program.op_count; o++) {
                const struct program_op *op = &program.ops[o];
                if (op->kind == OP_SEND)
                    sent += op_payload(&program, op);
                if (op->kind == OP_RECEIVE)
                    received += op_payload(&program, op);
                messages += op->kind == OP_SEND;
            }
            program_release(&program);
        }
        assert_true(sent > 0 && messages >= 2 * (jobs[i].shape.stages - 1));
        assert_int_equal(sent, received);
        training_config_release(&training);
    }
}

/* The program of every stage is that of one rank, and names the first stage of each parameter. */
static void test_pipeline__every_stage_knows_who_has_what(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, alone_text = {0};
        struct training_config training;
        struct fleet_error err = {.text = ""};
        struct program every, alone;

        decode(jobs[i].training, &training);
        if (build_stage(&training, &jobs[i], cell_of(&jobs[i], PROGRAM_EVERY_STAGE), &every, &err) <
                0 ||
            build_stage(&training, &jobs[i], (struct program_cell){0}, &alone, &err) < 0)
            fail_msg("%s", err.text);
        print_program(&every, &text);
        print_program(&alone, &alone_text);
        assert_string_equal(text.text, alone_text.text);
        for (int stage = 0; stage < jobs[i].shape.stages; stage++) {
            struct program mine;

            assert_int_equal(
                build_stage(&training, &jobs[i], cell_of(&jobs[i], stage), &mine, &err), 0);
            for (int v = 0; v < every.var_count; v++) {
                int own = program_find_var(&mine, every.vars[v].name);
                if (every.vars[v].role == PROGRAM_ROLE_PARAMETER)
                    assert_int_equal(own != PROGRAM_NONE && !mine.vars[own].is_copy,
                                     every.vars[v].stage == stage);
            }
            program_release(&mine);
        }
        program_release(&every);
        program_release(&alone);
        training_config_release(&training);
    }
}

/* What stages keep for themselves is not saved yet. */
static void test_pipeline__refuses_values_of_single_ranks(void **state)
{
    struct training_config training;
    struct fleet_error err = {.text = ""};
    struct job_case job = {.localsgd = true};
    struct program program;

    (void)state;
    decode(FP32(JOB("gpt", 4, "", CLIPPED)), &training);
    assert_int_equal(
        build_stage(&training, &job, (struct program_cell){.stages = 2}, &program, &err), -EINVAL);
    assert_non_null(strstr(err.text, "hybrid_configs.pp_degree: localsgd keeps values of its own"));
    assert_non_null(strstr(err.text, "with stages of a pipeline, switch it off"));
    training_config_release(&training);
}

static void test_pipeline__names_the_nearest_number_of_stages(void **state)
{
    static const struct {
        const char *training;
        int stages;
        struct strategy_ends layers;
        const char *message;
    } rows[] = {
        {FP32(JOB("gpt", 2, "", CLIPPED)),
         3,
         {{0}, 0},
         "3 pipeline stages are more than the 2 layers of gpt"},
        {FP32(JOB("gpt", 4, "", CLIPPED)),
         2,
         {{1, 2}, 2},
         "the stages have 3 layers, and gpt has 4: [1, 3] would do"},
        {FP32(JOB("gpt", 4, "", CLIPPED)),
         2,
         {{1, 2, 1}, 3},
         "has 3 numbers of layers for 2 stages: needs 2, such as [2, 2]"},
        {FP32(JOB("gpt", 4, "", CLIPPED)),
         2,
         {{9, 2}, 2},
         "stage 0 has 9 layers: 1 to 3 are possible"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job_case job = {.layers = rows[i].layers};
        struct training_config training;
        struct fleet_error err = {.text = ""};
        struct program program;

        decode(rows[i].training, &training);
        assert_int_equal(build_stage(&training, &job,
                                     (struct program_cell){.stages = rows[i].stages}, &program,
                                     &err),
                         -EINVAL);
        if (!strstr(err.text, rows[i].message))
            fail_msg("%s, not %s", err.text, rows[i].message);
        training_config_release(&training);
    }
}

/* The layer with the head's product is longer, so the last stage has fewer layers. */
static void test_pipeline__cuts_by_cost(void **state)
{
    struct training_config training;
    struct fleet_error err = {.text = ""};
    struct job_case job = {0};
    struct program program;
    struct stages stages;

    (void)state;
    decode(FP32(JOB("gpt", 6, "", CLIPPED)), &training);
    if (build_stage(&training, &job, (struct program_cell){0}, &program, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < program.op_count; i++) /* a head of four layers' cost */
        if (program.ops[i].kind == OP_LINEAR && program.ops[i].layer < 0)
            program.vars[program.ops[i].outputs[0]].shape[0] *= 24;
    assert_int_equal(stages_layers(&program), 6);
    assert_int_equal(stages_cut(&program, 2, &stages, &err), 0);
    assert_int_equal(stages.end_layers[0], 5);
    assert_int_equal(stages_of_layer(&stages, 4), 0);
    assert_int_equal(stages_of_layer(&stages, 5), 1);
    stages_release(&stages);
    program_release(&program);
    training_config_release(&training);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline__stages_agree_on_their_messages),
        cmocka_unit_test(test_pipeline__every_stage_knows_who_has_what),
        cmocka_unit_test(test_pipeline__refuses_values_of_single_ranks),
        cmocka_unit_test(test_pipeline__names_the_nearest_number_of_stages),
        cmocka_unit_test(test_pipeline__cuts_by_cost),
    };
    return cmocka_run_group_tests_name("programs of a pipeline", tests, NULL, NULL);
}
