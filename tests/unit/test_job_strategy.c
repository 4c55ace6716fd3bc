/* SPDX-License-Identifier: Apache-2.0 */

/* MindSpore's strategy and group files of a job: what a plan gives, and what a job takes back. */
#include <stdio.h>
#include <string.h>

#include "libfleet/autoparallel/context_files.h"
#include "libfleet/autoparallel/job_strategy.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/planned_job.h"

#define GPT                                                                             \
    "\"model\":{\"name\":\"gpt\",\"layers\":2,\"heads\":4,\"width\":32,\"context\":32," \
    "\"vocabulary\":%d}"
#define REST                                                                                \
    "\"data\":{\"tokenizer\":\"bytes\",\"path\":\"/d\"},\"optimizer\":{\"name\":\"adamw\"," \
    "\"learningRate\":0.1},\"globalBatchSize\":8,\"microBatchSize\":1,\"steps\":4"
#define TWO "{\"hybrid_configs\":{\"mp_degree\":2}}"

static void plan_gpt(struct job *job, int words, const char *strategy, int world)
{
    char text[600];

    (void)snprintf(text, sizeof(text), "{" GPT "," REST "}", words);
    job_init_for(job, text, strategy, world);
    assert_int_equal(job->rc, 0);
}

static void describe(const struct job *job, struct strategy_file *out)
{
    struct fleet_error err;

    assert_int_equal(job_strategy_describe(&job->plan, &job->training, true, out, &err), 0);
}

static void print_numbers(const struct numbers *list, struct fleet_strbuf *out)
{
    fleet_strbuf_append_char(out, '[');
    for (size_t i = 0; i < list->count; i++)
        fleet_strbuf_appendf(out, "%s%d", i ? "," : "", (int)list->items[i]);
    fleet_strbuf_append_char(out, ']');
}

static void expect_layout(const struct strategy_file *file, const char *name, const char *expected)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf found = {0};

    for (size_t i = 0; i < file->layout_count; i++) {
        const struct strategy_file_layout *layout = &file->layouts[i];

        if (strcmp(layout->name, name) != 0)
            continue;
        print_numbers(&layout->device_matrix, &found);
        print_numbers(&layout->tensor_map, &found);
        print_numbers(&layout->shape, &found);
        print_numbers(&layout->param_split_shape, &found);
        print_numbers(&layout->indices_offset, &found);
    }
    assert_string_equal(fleet_strbuf_text(&found), expected);
}

static void expect_operator(const struct strategy_file *file, const char *name,
                            const char *expected)
{
    const struct strategy_file_operator *found = strategy_file_find(file, name);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    assert_non_null(found);
    fleet_strbuf_appendf(&text, "%d ", (int)found->stage);
    for (size_t i = 0; i < found->tuple_count; i++)
        print_numbers(&found->tuples[i], &text);
    assert_string_equal(text.text, expected);
}

static void test_job_strategy__describes_what_ranks_run(void **state)
{
    struct strategy_file file;
    struct job job;

    (void)state;
    plan_gpt(&job, 256, TWO, 8);
    describe(&job, &file);
    expect_operator(&file, "h.0.mlp.c_fc", "0 [4,1,1][1,2][2]");
    expect_operator(&file, "h.1.attn.c_proj", "0 [4,1,2][2,1][1]");
    expect_operator(&file, "loss", "0 [4,1,2][4,1]");
    expect_layout(&file, "h.0.mlp.c_fc.weight", "[4,2][-1,0][32,128][][]");
    expect_layout(&file, "h.0.mlp.c_proj.weight", "[4,2][0,-1][128,32][][]");
    expect_layout(&file, "h.0.ln_1.bias", "[4,2][-1][32][][]");
    strategy_file_release(&file);
    job_release(&job);
}

static void test_job_strategy__says_what_is_uneven_and_which_stage(void **state)
{
    struct strategy_file file;
    struct job job;

    (void)state;
    plan_gpt(&job, 257, TWO, 2);
    describe(&job, &file);
    expect_layout(&file, "wte.weight", "[1,2][0,-1][257,32][129,128][0,129]");
    strategy_file_release(&file);
    job_release(&job);

    plan_gpt(&job, 256, "{\"pipeline\":true,\"hybrid_configs\":{\"pp_degree\":2}}", 4);
    describe(&job, &file);
    expect_operator(&file, "embedding", "0 [2,1][1,1][1,1]");
    expect_operator(&file, "h.0.mlp.c_fc", "0 [2,1,1][1,1][1]");
    expect_operator(&file, "h.1.mlp.c_fc", "1 [2,1,1][1,1][1]");
    expect_operator(&file, "lm_head", "1 [2,1,1][1,1]");
    expect_layout(&file, "wte.weight", "[2,1][-1,-1][256,32][][]");
    strategy_file_release(&file);
    job_release(&job);
}

static void expect_result(const struct strategy_file *file, const struct job *job,
                          const char *expected)
{
    struct fleet_error err = {0};
    size_t unknown = 99;

    if (job_strategy_check(file, &job->plan, &job->training, &unknown, &err) == 0)
        (void)snprintf(err.text, sizeof(err.text), "%zu unknown", unknown);
    assert_string_equal(err.text, expected);
}

/* Both forms come back as the same job, and not as another one. */
static void test_job_strategy__comes_back(void **state)
{
    struct job two, four, fewer;

    (void)state;
    plan_gpt(&two, 256, TWO, 4);
    plan_gpt(&four, 256, "{\"hybrid_configs\":{\"mp_degree\":4}}", 4);
    plan_gpt(&fewer, 256, TWO, 2);
    for (int is_json = 0; is_json <= 1; is_json++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct strategy_file made, read;
        struct fleet_error err;

        describe(&two, &made);
        strategy_file_encode(&made, is_json, &text);
        assert_int_equal(strategy_file_decode(text.text, text.length, is_json, &read, &err), 0);
        expect_result(&read, &two, "0 unknown");
        expect_result(&read, &four,
                      "the ranks of this job divide embedding otherwise: in [[1, 1], [4, 1], [1, "
                      "1]], out [[1, 1, 1]]");
        expect_result(&read, &fewer,
                      "parallel_strategy_item.h.0.attn: input 0 has more parts than the 2 devices "
                      "of the stage");
        strategy_file_release(&made);
        strategy_file_release(&read);
    }
    job_release(&two);
    job_release(&four);
    job_release(&fewer);
}

static void test_job_strategy__needs_operators_of_the_model(void **state)
{
    static const char none[] =
        "{\"current_stage\":1,\"parallel_strategy_item\":{\"MatMul-op0\":{\"stage\":0,"
        "\"parallel_strategy\":[[2,1],[1,1]]},\"ReLU-op1\":{\"stage\":0,\"parallel_strategy\":"
        "[[2,1]]}},\"parallel_layout_item\":{}}";
    static const char some[] =
        "{\"current_stage\":1,\"parallel_strategy_item\":{\"MatMul-op0\":{\"stage\":0,"
        "\"parallel_strategy\":[[2,1],[1,1]]},\"h.0\":{\"stage\":0,\"parallel_strategy\":"
        "[[2,1,1]]}},\"parallel_layout_item\":{}}";
    struct strategy_file file;
    struct fleet_error err;
    struct job job;

    (void)state;
    plan_gpt(&job, 256, "{}", 2);
    assert_int_equal(strategy_file_decode(none, sizeof(none) - 1, true, &file, &err), 0);
    expect_result(&file, &job,
                  "none of its 2 operators (MatMul-op0, ReLU-op1) is one of gpt, which has "
                  "embedding, …");
    strategy_file_release(&file);
    assert_int_equal(strategy_file_decode(some, sizeof(some) - 1, true, &file, &err), 0);
    expect_result(&file, &job, "1 unknown");
    strategy_file_release(&file);
    job_release(&job);
}

static void test_job_strategy__lists_the_groups_of_a_rank(void **state)
{
    struct group_file file;
    struct job job;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    (void)state;
    plan_gpt(&job, 256, "{\"pipeline\":true,\"hybrid_configs\":{\"mp_degree\":2,\"pp_degree\":2}}",
             8);
    job_strategy_groups(&job.plan, 5, &file);
    for (size_t i = 0; i < file.count; i++) {
        fleet_strbuf_appendf(&text, "%s ", file.groups[i].name);
        print_numbers(&file.groups[i].ranks, &text);
    }
    print_numbers(&file.restore, &text);
    assert_string_equal(text.text, "model [4,5]pipeline [5,7]data [1,5][1,5]");
    group_file_release(&file);
    job_release(&job);
}

static void test_job_strategy__finds_files_of_the_context(void **state)
{
    FLEET_AUTO_JSON cJSON *both =
        cJSON_Parse("{\"parallel_mode\":\"semi_auto_parallel\",\"strategy_ckpt_save_file\":\"a\","
                    "\"strategy_ckpt_config\":{\"load_file\":\"b\",\"save_file\":\"\","
                    "\"only_trainable_params\":false},\"group_ckpt_save_file\":\"c\"}");
    FLEET_AUTO_JSON cJSON *other =
        cJSON_Parse("{\"parallel_mode\":\"data_parallel\",\"strategy_ckpt_save_file\":\"a\"}");
    struct context_files files;

    (void)state;
    context_files_of(both, &files);
    assert_string_equal(files.load.key, "strategy_ckpt_config.load_file");
    assert_string_equal(files.load.path, "b");
    assert_string_equal(files.save.path, "a");
    assert_string_equal(files.groups.path, "c");
    assert_false(files.only_trainable);
    context_files_of(other, &files);
    assert_null(files.save.path);
    context_files_of(NULL, &files);
    assert_null(files.load.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_strategy__describes_what_ranks_run),
        cmocka_unit_test(test_job_strategy__says_what_is_uneven_and_which_stage),
        cmocka_unit_test(test_job_strategy__comes_back),
        cmocka_unit_test(test_job_strategy__needs_operators_of_the_model),
        cmocka_unit_test(test_job_strategy__lists_the_groups_of_a_rank),
        cmocka_unit_test(test_job_strategy__finds_files_of_the_context),
    };
    return cmocka_run_group_tests_name("job_strategy", tests, NULL, NULL);
}
