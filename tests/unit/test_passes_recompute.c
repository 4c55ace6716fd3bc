/* SPDX-License-Identifier: Apache-2.0 */

/* The passes for recomputation and offloading. */
#include "tests/unit/passes_fixture.h"

/* ---- recompute ------------------------------------------------------------------------------- */

/* Checkpoints after each of L layers: all operators but the tail run twice. Exceptions are
 * operators whose output is a checkpoint, and operators that only those read. */
static void test_passes__recompute_repeats_all_but_the_tail(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;

    (void)state;
    build(&job, GPT(4, ADAMW),
          "{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"h.0\",\"h.1\",\"h.2\"]}}");
    assert_int_equal(count_ops(p, OP_ATTENTION, false), 4);
    assert_int_equal(count_ops(p, OP_ATTENTION, true), 3);
    assert_int_equal(count_ops(p, OP_LINEAR, false), 4 * 4 + 1);
    assert_int_equal(count_ops(p, OP_LINEAR, true),
                     3 * 3); /* mlp.c_proj is read by the add alone */
    assert_int_equal(count_ops(p, OP_CROSS_ENTROPY, true), 0);
    job_release(&job);
}

static void test_passes__recompute_lowers_memory_as_sqrt(void **state)
{
    static const int layers[] = {4, 16, 36};
    size_t kept[3], repeated[3];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(layers); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct job job;

        fleet_strbuf_appendf(&text,
                             "{\"model\":{\"name\":\"gpt\",\"layers\":%d,\"heads\":4,\"width\":64,"
                             "\"context\":32},\"data\":{\"path\":\"t\"},\"globalBatchSize\":8,"
                             "\"microBatchSize\":2,\"steps\":8," ADAMW "}",
                             layers[i]);
        build(&job, text.text, "{}");
        kept[i] = job.plan.bytes[PLAN_BYTES_ACTIVATIONS];
        job_release(&job);
        build(&job, text.text, "{\"recompute\":true}");
        repeated[i] = job.plan.bytes[PLAN_BYTES_ACTIVATIONS];
        job_release(&job);
    }
    if (repeated[2] * 4 > kept[2] || repeated[1] * 2 > kept[1])
        fail_msg("16 layers: %zu of %zu, 36 layers: %zu of %zu", repeated[1], kept[1], repeated[2],
                 kept[2]);
    /* Nine times the layers, three times the memory (and what does not depend on layers). */
    if (repeated[2] > repeated[0] * 4)
        fail_msg("4 layers: %zu, 36 layers: %zu", repeated[0], repeated[2]);
}

/* Dropouts are repeated with their own stream: the same mask. */
static void test_passes__recompute_keeps_masks(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;
    int seen[64] = {0};

    (void)state;
    build(&job,
          "{\"model\":{\"name\":\"gpt\",\"layers\":4,\"heads\":4,\"width\":64,\"context\":32,"
          "\"dropout\":0.1},\"data\":{\"path\":\"t\"},\"globalBatchSize\":8,\"microBatchSize\":2,"
          "\"steps\":8," ADAMW "}",
          "{\"recompute\":true}");
    for (int i = 0; i < p->op_count; i++)
        if (p->ops[i].kind == OP_DROPOUT)
            seen[p->ops[i].attributes.stream]++;
    assert_int_equal(seen[8], 2); /* of the last block, kept: forward and gradient */
    assert_int_equal(seen[1], 3); /* of the first block, repeated in between */
    job_release(&job);
}

/* A batch_norm hands its statistics to the host once. */
static void test_passes__recompute_counts_statistics_once(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;
    int forward = 0, repeated = 0;

    (void)state;
    build(&job,
          "{\"model\":{\"preset\":\"resnet18\",\"baseWidth\":8},\"data\":{\"path\":\"t\","
          "\"tokenizer\":\"cifar10\"},\"globalBatchSize\":8,\"microBatchSize\":2,"
          "\"steps\":8," ADAMW "}",
          "{\"recompute\":true}");
    for (int i = 0; i < p->op_count; i++) {
        if (p->ops[i].kind != OP_BATCH_NORM)
            continue;
        assert_int_equal(p->ops[i].outputs[3] == PROGRAM_NONE, p->ops[i].backward);
        assert_int_equal(p->ops[i].outputs[4] == PROGRAM_NONE, p->ops[i].backward);
        forward += !p->ops[i].backward;
        repeated += p->ops[i].backward;
    }
    assert_int_equal(forward, 20);
    assert_in_range(repeated, 5, 19);
    job_release(&job);
}

static void test_passes__recompute_names_what_it_does_not_find(void **state)
{
    (void)state;
    expect_refused(
        GPT(4, ADAMW),
        "{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"h.1\",\"h1\"]}}",
        "recompute_configs.checkpoints[1]: no tensor \"h1\", did you mean h.1? The outputs of "
        "this model's layers are h.0 … h.3");
    expect_refused(GPT(4, ADAMW),
                   "{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"h.1\"],"
                   "\"enable_offload\":true,\"checkpoint_shape\":[2,32,65]}}",
                   "checkpoint h.1 has another shape");
}

/* All but the last leave the device; the next is fetched before the one in use is used. */
static void test_passes__offload_fetches_one_ahead(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;
    char order[256] = "";

    (void)state;
    build(&job, GPT(8, ADAMW),
          "{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"h.1\",\"h.3\",\"h.5\"],"
          "\"enable_offload\":true,\"checkpoint_shape\":[2,32,64]}}");
    for (int i = 0; i < p->op_count; i++) {
        const struct program_op *op = &p->ops[i];
        const char *event = NULL;

        if (op->kind == OP_MEMCPY)
            event = p->vars[op->outputs[0]].name;
        else if (op->backward && op->kind == OP_LAYER_NORM)
            event = strstr(p->vars[op->inputs[0]].name, "@FETCH") ? "use" : NULL;
        if (event)
            (void)snprintf(order + strlen(order), sizeof(order) - strlen(order), "%s ", event);
    }
    assert_string_equal(order, "h.1@HOST h.3@HOST h.3@FETCH h.1@FETCH use use ");
    assert_int_equal(job.plan.bytes[PLAN_BYTES_HOST], 2 * 2 * 32 * 64 * 4);
    job_release(&job);
}

/* The last checkpoint stays, so one alone is not offloaded. */
static void test_passes__offload_of_one_checkpoint_is_reported(void **state)
{
    (void)state;
    expect_idle(GPT(4, ADAMW),
                "{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"h.1\",\"h.1\"],"
                "\"enable_offload\":true,\"checkpoint_shape\":[2,32,64]}}",
                "recompute_configs.enable_offload",
                "the last checkpoint is never moved, and there is only one");
    expect_idle(GPT(2, ADAMW), /* chosen: one */
                "{\"recompute\":true,\"recompute_configs\":{\"enable_offload\":true,"
                "\"checkpoint_shape\":[2,32,64]}}",
                "recompute_configs.enable_offload",
                "the last checkpoint is never moved, and there is only one");
    expect_idle(GPT(1, ADAMW),
                "{\"recompute\":true,\"recompute_configs\":{\"enable_offload\":true,"
                "\"checkpoint_shape\":[2,32,64]}}",
                "recompute_configs.enable_offload", "there is no checkpoint");
}

static void test_passes__recompute_of_nothing_is_reported(void **state)
{
    (void)state;
    expect_idle(GPT(1, ADAMW), "{\"recompute\":true}", "recompute",
                "a model of less than two layers has no place for a checkpoint");
    expect_idle(GPT(4, ADAMW),
                "{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"ln_f\",\"h.3\"]}}",
                "recompute", "nothing lies between these checkpoints");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes__recompute_repeats_all_but_the_tail),
        cmocka_unit_test(test_passes__recompute_lowers_memory_as_sqrt),
        cmocka_unit_test(test_passes__recompute_keeps_masks),
        cmocka_unit_test(test_passes__recompute_counts_statistics_once),
        cmocka_unit_test(test_passes__recompute_names_what_it_does_not_find),
        cmocka_unit_test(test_passes__offload_fetches_one_ahead),
        cmocka_unit_test(test_passes__offload_of_one_checkpoint_is_reported),
        cmocka_unit_test(test_passes__recompute_of_nothing_is_reported),
    };
    return cmocka_run_group_tests_name("passes_recompute", tests, NULL, NULL);
}
