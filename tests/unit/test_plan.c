/* SPDX-License-Identifier: Apache-2.0 */

/* Plans of whole jobs: what runs, what it costs, that it is the same for the same request. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/plan/plan.h"
#include "libfleet/plan/tree.h"
#include "libfleet/program/print.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"
#include "tests/support/planned_job.h"

#define TINY                                                                                      \
    "{\"model\":{\"name\":\"gpt\",\"layers\":4,\"heads\":4,\"width\":128,\"context\":64,"         \
    "\"vocabulary\":256},\"data\":{\"path\":\"text.txt\"},\"optimizer\":{\"learningRate\":0.001," \
    "\"weightDecay\":0.1,\"clip\":{\"globalNorm\":1}},\"globalBatchSize\":16,"                    \
    "\"microBatchSize\":4,\"steps\":10}"

static void expect_built(const struct job *job)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_errors_print(&job->errors, &text);
    if (job->rc < 0)
        fail_msg("plan refused: %s", fleet_strbuf_text(&text));
}

/* Where the tokenizer's file cannot be read, everything but the program is planned, and said. */
static void test_plan__does_without_a_vocabulary_that_is_not_known(void **state)
{
    struct job job;
    FLEET_AUTO_JSON cJSON *json = NULL;

    (void)state;
    job_init_for(
        &job,
        "{\"model\":{\"name\":\"llama\",\"layers\":2,\"heads\":2,\"width\":16,"
        "\"context\":8},\"data\":{\"path\":\"t\",\"tokenizer\":\"bpe\",\"vocabulary\":\"v\","
        "\"merges\":\"m\"},\"optimizer\":{\"learningRate\":0.001},\"globalBatchSize\":8,"
        "\"microBatchSize\":2,\"steps\":10,\"checkpoint\":{\"path\":\"c\"}}",
        "{\"amp\":true,\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":2}}", 2);
    expect_built(&job);
    assert_false(job.plan.has_program);
    assert_int_equal(job.plan.leaves, 8);
    assert_int_equal(job.plan.snapshot_bytes, 0);
    json = plan_encode_whole(&job.plan);
    assert_null(fleet_json_at(json, "bytesPerRank"));
    assert_null(fleet_json_at(json, "digest"));
    assert_string_equal(fleet_json_at(json, "notes[0].setting")->valuestring, "model.vocabulary");
    assert_int_equal(fleet_json_at(json, "degrees.data")->valueint, 2);
    job_release(&job);
}

/* What needs no program is still refused: here more ranks than micro-batches. */
static void test_plan__checks_the_rest_without_a_vocabulary(void **state)
{
    struct job job;

    (void)state;
    job_init_for(
        &job,
        "{\"model\":{\"name\":\"gpt\",\"layers\":2,\"heads\":2,\"width\":16,"
        "\"context\":8},\"data\":{\"path\":\"t\",\"tokenizer\":\"bpe\",\"vocabulary\":\"v\","
        "\"merges\":\"m\"},\"optimizer\":{\"learningRate\":0.001},\"globalBatchSize\":4,"
        "\"microBatchSize\":2,\"steps\":10}",
        "{}", 3);
    assert_int_equal(job.rc, -EINVAL);
    assert_string_equal(job.errors.items[0].path, "spec.training");
    job_release(&job);
}

static int count_ops(const struct program *program, enum op_kind kind)
{
    int count = 0;

    for (int i = 0; i < program->op_count; i++)
        count += program->ops[i].kind == kind;
    return count;
}

static void test_plan__builds_the_small_gpt(void **state)
{
    struct job job;
    const struct program *p;

    (void)state;
    job_init_for(&job, TINY, "{}", 2);
    expect_built(&job);
    p = &job.plan.program;
    assert_int_equal(count_ops(p, OP_ATTENTION), 4);
    assert_int_equal(count_ops(p, OP_ATTENTION_GRAD), 4);
    assert_int_equal(count_ops(p, OP_LINEAR), 4 * 4 + 1);
    assert_int_equal(count_ops(p, OP_LINEAR_GRAD), 4 * 4 + 1);
    assert_int_equal(count_ops(p, OP_ADAMW), 12 * 4 + 4);
    assert_int_equal(count_ops(p, OP_GRAD_NORM), 1);
    assert_int_equal(p->state_count, 2);
    /* wte, wpe, ln_f and twelve tensors a block; no gaps: all sizes are multiples of 16 */
    assert_int_equal(p->flat_count, 256 * 128 + 64 * 128 + 2 * 128 +
                                        4 * (4 * 128 + 128 * 384 + 384 + 128 * 128 + 128 +
                                             2 * 128 * 512 + 512 + 128));
    assert_int_equal(job.plan.leaves, 4);
    assert_int_equal(job.plan.bytes[PLAN_BYTES_PARAMETERS], p->flat_count * 4);
    assert_int_equal(job.plan.bytes[PLAN_BYTES_OPTIMIZER], p->flat_count * 8);
    assert_int_equal(job.plan.bytes[PLAN_BYTES_GRADIENTS], job.plan.slots * p->flat_count * 4);
    job_release(&job);
}

static void test_plan__is_the_same_for_the_same_request(void **state)
{
    struct job a, b, c, d;

    (void)state;
    job_init_for(&a, TINY, "{}", 2);
    job_init_for(&b, TINY, "{}", 2);
    job_init_for(&c, TINY, "{}", 3); /* another world: same program, same arithmetic */
    job_init_for(&d, TINY, "{\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":4}}",
                 2);
    expect_built(&a);
    expect_built(&b);
    expect_built(&c);
    expect_built(&d);
    assert_string_equal(a.plan.digest, b.plan.digest);
    assert_string_equal(a.plan.digest, c.plan.digest);
    assert_string_not_equal(a.plan.digest, d.plan.digest);
    assert_int_equal(d.plan.leaves, 16);
    assert_int_equal(d.plan.program.merge_steps, 4);
    job_release(&a);
    job_release(&b);
    job_release(&c);
    job_release(&d);
}

static void test_plan__prints_status_plan(void **state)
{
    struct job job;
    cJSON *json;
    const char *applied;
    double total, parameters;

    (void)state;
    job_init_for(&job, TINY, "{\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":4}}",
                 2);
    expect_built(&job);
    json = plan_encode(&job.plan);
    assert_int_equal(fleet_json_get_string(json, "applied[0]", &applied, NULL), 0);
    assert_string_equal(applied, "gradient_merge");
    assert_int_equal(fleet_json_get_number(json, "bytesPerRank.total", &total, NULL), 0);
    assert_int_equal(fleet_json_get_number(json, "bytesPerRank.parameters", &parameters, NULL), 0);
    assert_true(total == (double)plan_bytes_total(&job.plan));
    assert_true(parameters == (double)job.plan.program.flat_count * 4);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "dependsOnWorkers")), 0);
    assert_non_null(fleet_json_at(json, "degrees.data"));
    cJSON_Delete(json);
    job_release(&job);
}

static void test_plan__refuses_more_ranks_than_leaves(void **state)
{
    struct job job;

    (void)state;
    job_init_for(&job, TINY, "{}", 5);
    assert_int_equal(job.rc, -EINVAL);
    assert_true(job.errors.count >= 1);
    job_release(&job);
}

/* A trainer plans before it knows the number of ranks, which is one here. */
static void test_plan__asks_no_number_of_leaves_of_a_number_that_is_not_known(void **state)
{
    static const char one_leaf[] =
        "{\"model\":{\"name\":\"gpt\",\"layers\":1,\"heads\":2,\"width\":16,\"context\":8,"
        "\"vocabulary\":256},\"data\":{\"path\":\"text.txt\"},\"optimizer\":{\"learningRate\":0.1},"
        "\"globalBatchSize\":3,"
        "\"microBatchSize\":3,\"steps\":3}";
    struct job job;

    (void)state;
    job_init_for(&job, one_leaf,
                 "{\"sharding\":true,\"sharding_configs\":{\"hybrid_dp\":true,"
                 "\"sharding_group_size\":1}}",
                 PLAN_ANY_WORLD);
    expect_built(&job);
    job_release(&job);
}

/* M = 64 on 3 ranks holds 3, 5 and 3 partial sums. */
static void test_plan__counts_partial_sums(void **state)
{
    static const int nodes[] = {3, 5, 3};
    int64_t total;
    struct tree_slots max;

    (void)state;
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(tree_slots_of(64, 3, rank).nodes, nodes[rank]);
    max = tree_slots_max(64, 3, &total);
    assert_int_equal(max.nodes, 5);
    assert_int_equal(total, 11);
    assert_int_equal(tree_slots_of(1, 1, 0).slots, 1);
    assert_int_equal(tree_slots_of(2, 1, 0).slots, 2);
    assert_int_equal(tree_slots_of(8, 1, 0).slots, 4);
    for (int leaves = 1; leaves < 200; leaves++)
        for (int world = 1; world <= leaves && world < 9; world++) {
            int log2 = leaves > 1 ? 32 - __builtin_clz((unsigned int)leaves - 1) : 0;
            max = tree_slots_max(leaves, world, &total);
            if (max.slots < max.nodes || max.slots > 2 * log2 + 1)
                fail_msg("%d leaves on %d ranks: %d nodes, %d slots, at most %d expected", leaves,
                         world, max.nodes, max.slots, 2 * log2 + 1);
        }
}

/* 124M: within a few per cent of the largest need, known before anything runs. */
static void test_plan__knows_the_size_of_gpt2_124m(void **state)
{
    struct job job;

    (void)state;
    job_init_for(&job,
                 "{\"model\":{\"preset\":\"gpt2-124m\"},\"data\":{\"path\":\"t\",\"tokenizer\":"
                 "\"tokens-u16\"},\"optimizer\":{\"learningRate\":0.001},\"globalBatchSize\":8,"
                 "\"microBatchSize\":2,\"steps\":10}",
                 "{}", 1);
    expect_built(&job);
    assert_int_equal(job.plan.program.flat_count / 1000000, 124);
    /* 6 flops a weight and token, and attention beside them */
    assert_true(job.plan.flops > 6.0 * 123e6 * 2048 && job.plan.flops < 7.5 * 124e6 * 2048);
    job_release(&job);
}

static void expect_note(const struct select_notes *notes, const char *knob, const char *words)
{
    for (size_t i = 0; i < notes->count; i++)
        if (strcmp(notes->items[i].knob, knob) == 0 && strstr(notes->items[i].because, words))
            return;
    fail_msg("no note says of %s: %s", knob, words);
}

/* Comparing programs costs a program a knob, and a controller plans between other work. */
static void test_plan__compares_so_many_operators_and_no_more(void **state)
{
    struct job job;

    (void)state;
    job_init_for(
        &job,
        "{\"model\":{\"name\":\"gpt\",\"layers\":700,\"heads\":2,\"width\":16,\"context\":8},"
        "\"data\":{\"path\":\"t\"},\"optimizer\":{\"learningRate\":0.001},"
        "\"globalBatchSize\":8,\"microBatchSize\":2,\"steps\":10}",
        "{\"fuse_grad_size_in_MB\":64,\"hybrid_configs\":{\"dp_degree\":2},"
        "\"build_strategy\":{\"fuse_bn_act_ops\":true}}",
        2);
    expect_built(&job);
    expect_note(&job.plan.selection.without_effect, "fuse_grad_size_in_MB", "is the same without");
    expect_note(&job.plan.selection.notes, "build_strategy.fuse_bn_act_ops", "too many operators");
    job_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan__does_without_a_vocabulary_that_is_not_known),
        cmocka_unit_test(test_plan__checks_the_rest_without_a_vocabulary),
        cmocka_unit_test(test_plan__builds_the_small_gpt),
        cmocka_unit_test(test_plan__is_the_same_for_the_same_request),
        cmocka_unit_test(test_plan__prints_status_plan),
        cmocka_unit_test(test_plan__refuses_more_ranks_than_leaves),
        cmocka_unit_test(test_plan__asks_no_number_of_leaves_of_a_number_that_is_not_known),
        cmocka_unit_test(test_plan__counts_partial_sums),
        cmocka_unit_test(test_plan__knows_the_size_of_gpt2_124m),
        cmocka_unit_test(test_plan__compares_so_many_operators_and_no_more),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
