/* SPDX-License-Identifier: Apache-2.0 */

/* The pass for mixed precision, its lists, and what is fused with casts. */
#include "tests/unit/passes_fixture.h"

/* ---- amp ------------------------------------------------------------------------------------- */

static void test_passes__amp_follows_its_lists(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;

    (void)state;
    build(&job, GPT(1, ADAMW), "{\"amp\":true}");
    assert_int_equal(type_of(p, "h.0.attn.c_attn"), PROGRAM_FP16);   /* white */
    assert_int_equal(type_of(p, "h.0.attn"), PROGRAM_FP16);          /* white */
    assert_int_equal(type_of(p, "h.0.attn.lse"), PROGRAM_FP32);      /* a statistic */
    assert_int_equal(type_of(p, "h.0.ln_1"), PROGRAM_FP32);          /* black */
    assert_int_equal(type_of(p, "embedding"), PROGRAM_FP32);         /* black */
    assert_int_equal(type_of(p, "h.0.attn.residual"), PROGRAM_FP32); /* gray beside black */
    assert_int_equal(type_of(p, "loss"), PROGRAM_FP32);
    assert_int_equal(type_of(p, "wte.weight"), PROGRAM_FP32);
    assert_int_equal(type_of(p, "wte.weight.cast_fp16"), PROGRAM_FP16);
    assert_int_equal(type_of(p, "wte.weight@GRAD"), PROGRAM_FP32);
    assert_int_not_equal(p->loss_scaling, PROGRAM_NONE);
    job_release(&job);

    build(&job, GPT(1, ADAMW ",\"precision\":\"bf16\""),
          "{\"amp\":true,\"amp_configs\":{\"use_pure_fp16\":true}}");
    assert_int_equal(type_of(p, "h.0.attn.residual"), PROGRAM_BF16);
    assert_int_equal(type_of(p, "h.0.ln_1"), PROGRAM_BF16);
    assert_int_equal(type_of(p, "h.0.ln_1.mean"), PROGRAM_FP32);
    assert_int_equal(type_of(p, "embedding"), PROGRAM_BF16);
    job_release(&job);

    build(&job, GPT(1, ADAMW), "{\"amp\":true,\"amp_configs\":{\"use_pure_bf16\":true}}");
    assert_int_equal(type_of(p, "h.0.ln_1"), PROGRAM_BF16);
    assert_int_equal(type_of(p, "embedding"), PROGRAM_BF16);
    job_release(&job);
    expect_refused(GPT(1, ADAMW ",\"precision\":\"fp16\""),
                   "{\"amp\":true,\"amp_configs\":{\"use_pure_bf16\":true}}",
                   "use_pure_bf16: contradicts spec.training.precision fp16");
    expect_refused(GPT(1, ADAMW),
                   "{\"amp\":true,\"amp_configs\":{\"use_pure_bf16\":true,\"use_pure_fp16\":true}}",
                   "use_pure_fp16 and use_pure_bf16 contradict each other");
}

/* Sums and norms load and store 16 bits themselves: what is left are casts of weights, and of the
 * gradient of the residual stream where a weight's gradient reads it. */
static void test_passes__casts_beside_sums_and_norms_are_fused(void **state)
{
    struct job job;

    (void)state;
    build(&job, GPT(1, ADAMW ",\"precision\":\"bf16\""), "{}");
    assert_int_equal(count_ops(&job.plan.program, OP_CAST, false), 5);
    assert_int_equal(count_ops(&job.plan.program, OP_CAST, true), 2);
    job_release(&job);
}

#define RESNET(rest)                                                                         \
    "{\"model\":{\"name\":\"resnet\",\"preset\":\"resnet18\",\"stem\":\"cifar\"},\"data\":{" \
    "\"path\":\"t\",\"tokenizer\":\"cifar10\"},\"globalBatchSize\":8,\"microBatchSize\":4,"  \
    "\"steps\":"                                                                             \
    "1,\"optimizer\":{\"name\":\"sgd\",\"learningRate\":1}" rest "}"

/* 17 relus: one of the stem, and of 8 blocks one inside and one at the end. */
static void test_passes__relus_go_into_what_is_in_front_of_them(void **state)
{
    static const struct {
        const char *knobs;
        int relus, sums;
    } cases[] = {
        {"{}", 9, 0}, /* fuse_bn_add_act_ops is on by default */
        {"{\"build_strategy\":{\"fuse_bn_act_ops\":true}}", 0, 0},
        {"{\"build_strategy\":{\"fuse_bn_add_act_ops\":false}}", 17, 8},
        {"{\"build_strategy\":{\"fuse_bn_add_act_ops\":false,\"fuse_elewise_add_act_ops\":true}}",
         9, 8},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job job;
        build(&job, RESNET(""), cases[i].knobs);
        assert_int_equal(count_ops(&job.plan.program, OP_RELU, false), cases[i].relus);
        assert_int_equal(count_ops(&job.plan.program, OP_ADD, false), cases[i].sums);
        assert_int_equal(count_ops(&job.plan.program, OP_RELU_GRAD, true), 17);
        assert_int_equal(count_ops(&job.plan.program, OP_BATCH_NORM, false), 20);
        job_release(&job);
    }
}

static void test_passes__precision_alone_needs_no_scale(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;

    (void)state;
    build(&job, GPT(1, ADAMW ",\"precision\":\"bf16\""), "{}");
    assert_int_equal(type_of(p, "h.0.mlp.c_fc"), PROGRAM_BF16);
    assert_int_equal(type_of(p, "h.0.attn.residual"), PROGRAM_FP32);
    assert_int_equal(p->loss_scaling, PROGRAM_NONE);
    assert_int_equal(job.plan.selection.applied.count, 0);
    job_release(&job);
}

static void test_passes__amp_obeys_custom_lists(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;

    (void)state;
    build(&job, GPT(1, ADAMW),
          "{\"amp\":true,\"amp_configs\":{\"custom_white_list\":[\"layer_norm\"],"
          "\"custom_black_list\":[\"fused_attention\"],"
          "\"custom_black_varnames\":[\"h.0.mlp.c_proj\"]}}");
    assert_int_equal(type_of(p, "h.0.ln_1"), PROGRAM_FP16);
    assert_int_equal(type_of(p, "h.0.attn"), PROGRAM_FP32);
    assert_int_equal(type_of(p, "h.0.attn.c_proj"), PROGRAM_FP16);
    assert_int_equal(type_of(p, "h.0.mlp.c_proj"), PROGRAM_FP32);
    assert_int_equal(type_of(p, "h.0.mlp.c_fc"), PROGRAM_FP16);
    job_release(&job);
    expect_refused(GPT(1, ADAMW),
                   "{\"amp\":true,\"amp_configs\":{\"custom_white_list\":[\"relu\"],"
                   "\"custom_black_list\":[\"gelu\",\"relu\"]}}",
                   "\"relu\" is in custom_white_list too");
    expect_refused(GPT(1, ADAMW),
                   "{\"amp\":true,\"amp_configs\":{\"custom_black_varnames\":[\"h.7\"]}}",
                   "custom_black_varnames[0]: no tensor \"h.7\"");
}

#define LISTS(lists) "{\"amp\":true,\"amp_configs\":{" lists "}}"

/* mul, matmul and matmul_v2 are one operator here, so they cannot be in both lists. */
static void test_passes__amp_lists_name_operators(void **state)
{
    (void)state;
    expect_refused(GPT(1, ADAMW), LISTS("\"custom_white_list\":[\"layer_nrom\"]"),
                   "amp_configs.custom_white_list[0]: no operator \"layer_nrom\" (did you mean "
                   "\"layer_norm\"?)");
    expect_refused(GPT(1, ADAMW), LISTS("\"custom_black_list\":[\"no_such_operator\"]"),
                   "amp_configs.custom_black_list[0]: no operator \"no_such_operator\"");
    expect_refused(GPT(1, ADAMW), LISTS("\"custom_black_list\":[\"foo\",\"exp\",\"softmx\"]"),
                   "amp_configs.custom_black_list: no operators \"foo\", \"softmx\" (did you mean "
                   "\"softmax\"?)");
    expect_refused(GPT(1, ADAMW),
                   LISTS("\"custom_white_list\":[\"mul\"],\"custom_black_list\":[\"matmul_v2\"]"),
                   "amp_configs.custom_black_list: \"matmul_v2\" and \"mul\" of custom_white_list "
                   "are one operator here, linear");
    expect_idle(GPT(1, ADAMW), LISTS("\"custom_white_list\":[\"exp\",\"layer_norm\",\"conv2d\"]"),
                "amp_configs.custom_white_list", "no operator of this model is called exp, conv2d");
    expect_idle(GPT(1, ADAMW), LISTS("\"custom_black_list\":[\"relu\"]"),
                "amp_configs.custom_black_list", "no operator of this model is called relu");
    expect_idle(GPT(1, ADAMW), LISTS("\"custom_white_list\":[\"softmax_with_cross_entropy\"]"),
                "amp_configs.custom_white_list",
                "cross_entropy reads 16 bits and computes in fp32 anyway");
}

/* gelu lies inside a linear; a list that names it takes it out where the two are to run apart. */
static void test_passes__amp_lists_reach_into_a_linear(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;

    (void)state;
    build(&job, GPT(1, ADAMW), LISTS("\"custom_black_list\":[\"gelu\"]"));
    assert_int_equal(count_kind(p, OP_GELU), 1);
    assert_int_equal(count_kind(p, OP_GELU_GRAD), 1);
    assert_int_equal(type_of(p, "h.0.mlp.c_fc.pre"), PROGRAM_FP16);
    assert_int_equal(type_of(p, "h.0.mlp.c_fc"), PROGRAM_FP32);
    assert_int_equal(type_of(p, "h.0.mlp.c_proj"), PROGRAM_FP16);
    job_release(&job);

    build(&job, GPT(1, ADAMW),
          LISTS("\"custom_black_list\":[\"linear\"],\"custom_white_list\":[\"gelu\"]"));
    assert_int_equal(count_kind(p, OP_GELU), 1);
    assert_int_equal(type_of(p, "h.0.mlp.c_fc.pre"), PROGRAM_FP32);
    assert_int_equal(type_of(p, "h.0.mlp.c_fc"), PROGRAM_FP16);
    job_release(&job);

    build(&job, GPT(1, ADAMW), LISTS("\"custom_white_list\":[\"gelu\"]")); /* already there */
    assert_int_equal(count_kind(p, OP_GELU), 0);
    job_release(&job);
}

/* As Paddle's pure fp16, which keeps what custom_black_list names in fp32. */
static void test_passes__pure_16_bits_obey_the_black_list(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;

    (void)state;
    build(&job, GPT(1, ADAMW),
          LISTS("\"use_pure_fp16\":true,\"custom_black_list\":[\"layer_norm\",\"gelu\"]"));
    assert_int_equal(type_of(p, "h.0.ln_1"), PROGRAM_FP32);
    assert_int_equal(type_of(p, "h.0.attn"), PROGRAM_FP16);
    assert_int_equal(type_of(p, "h.0.mlp.c_fc"), PROGRAM_FP32);
    job_release(&job);
    expect_idle(
        GPT(1, ADAMW), LISTS("\"use_pure_fp16\":true,\"custom_white_list\":[\"layer_norm\"]"),
        "amp_configs.custom_white_list", "in pure 16 bits every operator is in 16 bits already");
}

static int count_fp8(const struct program *p, enum op_kind kind)
{
    int count = 0;

    for (int i = 0; i < p->op_count; i++)
        count += p->ops[i].kind == kind && p->ops[i].attributes.fp8;
    return count;
}

/* Everything else is that of bf16. */
static void test_passes__fp8_multiplies_in_linear_layers(void **state)
{
    struct job job, bf16;

    (void)state;
    build(&job, GPT(2, ADAMW ",\"precision\":\"fp8\""), "{}");
    build(&bf16, GPT(2, ADAMW ",\"precision\":\"bf16\""), "{}");
    assert_int_equal(count_fp8(&job.plan.program, OP_LINEAR), 8); /* four a layer, no logits */
    assert_int_equal(count_fp8(&job.plan.program, OP_LINEAR_GRAD), 8);
    assert_int_equal(job.plan.program.op_count, bf16.plan.program.op_count);
    for (int i = 0; i < job.plan.program.var_count; i++)
        assert_int_equal(job.plan.program.vars[i].type, bf16.plan.program.vars[i].type);
    job_release(&bf16);
    job_release(&job);

    /* what the lists leave in fp32 is not multiplied in fp8 */
    build(&job, GPT(2, ADAMW ",\"precision\":\"fp8\""),
          "{\"amp\":true,\"amp_configs\":{\"custom_black_varnames\":[\"h.0.mlp.c_fc.weight\"]}}");
    assert_int_equal(count_fp8(&job.plan.program, OP_LINEAR), 7);
    assert_int_equal(type_of(&job.plan.program, "h.0.mlp.c_fc"), PROGRAM_FP32);
    job_release(&job);
    expect_refused(GPT(1, ADAMW ",\"precision\":\"fp8\""),
                   "{\"amp\":true,\"amp_configs\":{\"use_pure_bf16\":true}}",
                   "use_pure_bf16: contradicts spec.training.precision fp8");
}

/* cuBLASLt has only products of sizes that are multiples of 16. */
static void test_passes__odd_sizes_stay_in_16_bits(void **state)
{
    static const char mlp[] = "{\"model\":{\"name\":\"mlp\",\"sizes\":[3072,%s,10]},\"data\":{"
                              "\"path\":\"t\",\"tokenizer\":\"cifar10\"},\"globalBatchSize\":%d,"
                              "\"microBatchSize\":%d,\"steps\":1,\"optimizer\":{\"name\":\"sgd\","
                              "\"learningRate\":1},\"precision\":\"fp8\"}";
    static const struct {
        const char *width;
        int batch, products;
    } cases[] = {{"32", 16, 1}, {"33", 16, 0}, {"24", 16, 0}, {"32", 8, 0}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct job job;

        fleet_strbuf_appendf(&text, mlp, cases[i].width, 2 * cases[i].batch, cases[i].batch);
        build(&job, text.text, "{}");
        assert_int_equal(count_fp8(&job.plan.program, OP_LINEAR), cases[i].products);
        job_release(&job);
    }
}

/* Each weight has random numbers of its own; nothing else is rounded at random. */
static void test_passes__weights_are_rounded_at_random(void **state)
{
    struct job job;
    const struct program *p = &job.plan.program;
    uint64_t streams[16];
    int count = 0;

    (void)state;
    build(&job, GPT(1, ADAMW ",\"precision\":\"bf16\",\"stochasticRounding\":true"), "{}");
    for (int i = 0; i < p->op_count; i++) {
        if (p->ops[i].kind != OP_CAST)
            continue;
        assert_int_equal(p->ops[i].attributes.stream != 0,
                         p->vars[p->ops[i].inputs[0]].role == PROGRAM_ROLE_PARAMETER);
        if (p->ops[i].attributes.stream == 0)
            continue;
        for (int j = 0; j < count; j++)
            assert_true(streams[j] != p->ops[i].attributes.stream);
        streams[count++] = p->ops[i].attributes.stream;
    }
    assert_int_equal(count, 5);
    job_release(&job);
}

/* With amp off its lists are off. */
static void test_passes__precision_alone_has_no_custom_lists(void **state)
{
    struct job job;

    (void)state;
    build(&job, GPT(1, ADAMW ",\"precision\":\"bf16\""),
          "{\"amp_configs\":{\"custom_black_list\":[\"linear\"],"
          "\"custom_black_varnames\":[\"h.7\"]}}");
    assert_int_equal(type_of(&job.plan.program, "h.0.mlp.c_fc"), PROGRAM_BF16);
    assert_true(select_has_note(&job.plan.selection.without_effect, "amp_configs"));
    job_release(&job);
}

static void test_passes__amp_scales_only_if_asked(void **state)
{
    static const struct {
        const char *configs;
        bool scaled;
    } cases[] = {
        {"{}", true},
        {"{\"use_dynamic_loss_scaling\":false}", true},
        {"{\"use_dynamic_loss_scaling\":false,\"init_loss_scaling\":1.0}", false},
        {"{\"init_loss_scaling\":1.0}", true},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        struct job job;

        fleet_strbuf_appendf(&text, "{\"amp\":true,\"amp_configs\":%s}", cases[i].configs);
        build(&job, GPT(1, ADAMW), text.text);
        if ((job.plan.program.loss_scaling != PROGRAM_NONE) != cases[i].scaled)
            fail_msg("%s: expected %s", cases[i].configs, cases[i].scaled ? "a scale" : "none");
        job_release(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes__amp_follows_its_lists),
        cmocka_unit_test(test_passes__casts_beside_sums_and_norms_are_fused),
        cmocka_unit_test(test_passes__relus_go_into_what_is_in_front_of_them),
        cmocka_unit_test(test_passes__precision_alone_needs_no_scale),
        cmocka_unit_test(test_passes__amp_obeys_custom_lists),
        cmocka_unit_test(test_passes__amp_lists_name_operators),
        cmocka_unit_test(test_passes__amp_lists_reach_into_a_linear),
        cmocka_unit_test(test_passes__pure_16_bits_obey_the_black_list),
        cmocka_unit_test(test_passes__precision_alone_has_no_custom_lists),
        cmocka_unit_test(test_passes__fp8_multiplies_in_linear_layers),
        cmocka_unit_test(test_passes__weights_are_rounded_at_random),
        cmocka_unit_test(test_passes__odd_sizes_stay_in_16_bits),
        cmocka_unit_test(test_passes__amp_scales_only_if_asked),
    };
    return cmocka_run_group_tests_name("passes_amp", tests, NULL, NULL);
}
