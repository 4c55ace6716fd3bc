/* SPDX-License-Identifier: Apache-2.0 */

/* Programs of jobs, rewritten for a GPU: which of them get a classifier in chunks, and the memory
 * that is planned for them. */
#include "libfleet/base/error.h"
#include "libfleet/plan/gpu_memory.h"
#include "libfleet/plan/gpu_program.h"
#include "libfleet/plan/gpu_scratch.h"
#include "libfleet/program/verify.h"
#include "tests/support/planned_job.h"

/* Rows of a micro-batch: 32 times the micro-batch. */
#define GPT(micro, more)                                                            \
    "{\"model\": {\"name\": \"gpt\", \"layers\": 2, \"heads\": 2, \"width\": 16, "  \
    "\"context\": 32, \"vocabulary\": 257}, \"data\": {\"path\": \"/data/text\"}, " \
    "\"optimizer\": {\"name\": \"sgd\", \"learningRate\": 0.1}, " more              \
    "\"globalBatchSize\": 1040, \"microBatchSize\": " #micro ", \"steps\": 3}"
#define ROWS (65 * 32)

static int count_of(const struct program *program, enum op_kind kind)
{
    int count = 0;

    for (int i = 0; i < program->op_count; i++)
        count += program->ops[i].kind == kind;
    return count;
}

static void plan_job(struct job *job, const char *training, const char *strategy, int world)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    job_init_for(job, training, strategy, world);
    fleet_errors_print(&job->errors, &text);
    if (job->rc < 0)
        fail_msg("%s %s: %s", training, strategy, fleet_strbuf_text(&text));
}

static void test_gpu_program__has_a_classifier_in_chunks(void **state)
{
    static const char *const trainings[] = {
        GPT(65, ""),
        GPT(65, "\"precision\": \"bf16\", "),
    };

    (void)state;
    for (size_t i = 0; i < sizeof(trainings) / sizeof(trainings[0]); i++) {
        struct fleet_error err;
        struct job job;
        int linears;

        plan_job(&job, trainings[i], "{}", 2);
        linears = count_of(&job.plan.program, OP_LINEAR);
        assert_true(gpu_program_apply(&job.plan.program));
        assert_int_equal(count_of(&job.plan.program, OP_LINEAR_CROSS_ENTROPY), 1);
        assert_int_equal(count_of(&job.plan.program, OP_LINEAR), linears - 1);
        assert_int_equal(count_of(&job.plan.program, OP_LINEAR_GRAD), linears - 1);
        assert_int_equal(count_of(&job.plan.program, OP_CROSS_ENTROPY), 0);
        assert_int_equal(count_of(&job.plan.program, OP_CROSS_ENTROPY_GRAD), 0);
        if (verify_program(&job.plan.program, VERIFY_COMPLETE, &err) < 0)
            fail_msg("%s", err.text);
        assert_false(gpu_program_apply(&job.plan.program));
        job_release(&job);
    }
}

/* Targets still have their limit: what reads them has changed. */
static void test_gpu_program__knows_the_words(void **state)
{
    struct job job;
    int targets;

    (void)state;
    plan_job(&job, GPT(65, ""), "{}", 1);
    targets = program_find_var(&job.plan.program, "targets");
    assert_int_equal(program_value_limit(&job.plan.program, targets), 257);
    assert_true(gpu_program_apply(&job.plan.program));
    assert_int_equal(program_value_limit(&job.plan.program, targets), 257);
    job_release(&job);
}

static void test_gpu_program__keeps_the_logits_elsewhere(void **state)
{
    static const struct {
        const char *training, *strategy;
        int world;
    } rows[] = {
        {GPT(40, ""), "{}", 1}, /* few rows */
        {GPT(65, ""), "{\"hybrid_configs\": {\"mp_degree\": 2}}", 2},
        {GPT(65, ""), "{\"hybrid_configs\": {\"sep_degree\": 2}}", 2},
        {GPT(65, ""), "{\"hybrid_configs\": {\"pp_degree\": 2}}", 2},
        {GPT(65, ""), "{\"sharding\": true, \"sharding_configs\": {\"stage\": 2}}", 2},
        {GPT(65, ""), "{\"sharding\": true, \"sharding_configs\": {\"stage\": 3}}", 2},
        {"{\"model\": {\"name\": \"mlp\", \"sizes\": [3072, 8, 10]}, \"data\": {\"path\": \"/d\", "
         "\"tokenizer\": \"cifar10\"}, \"optimizer\": {\"name\": \"sgd\", \"learningRate\": 0.1}, "
         "\"globalBatchSize\": 2080, \"microBatchSize\": 2080, \"steps\": 3}",
         "{}", 1}, /* a bias */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job job;

        plan_job(&job, rows[i].training, rows[i].strategy, rows[i].world);
        if (gpu_program_apply(&job.plan.program))
            fail_msg("%s", rows[i].strategy);
        job_release(&job);
    }
}

/* Beside the arena: the logits of a chunk, and no longer their gradient. */
static void test_gpu_program__needs_less_memory(void **state)
{
    struct gpu_memory whole, chunks;
    struct job before, after;

    (void)state;
    plan_job(&after, GPT(65, ""), "{}", 1);
    plan_job(&before, GPT(40, ""), "{}", 1);
    gpu_memory_plan(&after.plan, &chunks);
    gpu_memory_plan(&before.plan, &whole);
    assert_true(chunks.bytes[PLAN_BYTES_ACTIVATIONS] <
                after.plan.bytes[PLAN_BYTES_ACTIVATIONS] - (size_t)ROWS * 257 * sizeof(float) / 2);
    assert_int_equal(whole.bytes[PLAN_BYTES_ACTIVATIONS],
                     before.plan.bytes[PLAN_BYTES_ACTIVATIONS]);
    assert_true(chunks.bytes[PLAN_BYTES_SCRATCH] >=
                GPU_SCRATCH_PRODUCTS + (size_t)GPU_CLASSIFIER_ROWS * 257 * sizeof(float));
    job_release(&before);
    job_release(&after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_program__has_a_classifier_in_chunks),
        cmocka_unit_test(test_gpu_program__knows_the_words),
        cmocka_unit_test(test_gpu_program__keeps_the_logits_elsewhere),
        cmocka_unit_test(test_gpu_program__needs_less_memory),
    };

    return cmocka_run_group_tests_name("gpu_program", tests, NULL, NULL);
}
