/* SPDX-License-Identifier: Apache-2.0 */

/* What each pass does to a program, on models as users ask for them. */
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
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"
#include "libfleet/program/print.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"

#define GPT(layers, rest)                                                                        \
    "{\"model\":{\"name\":\"gpt\",\"layers\":" #layers                                           \
    ",\"heads\":4,\"width\":64,\"context\":32},\"data\":{\"path\":\"t\"},\"globalBatchSize\":8," \
    "\"microBatchSize\":2,\"steps\":8," rest "}"
#define ADAMW "\"optimizer\":{\"learningRate\":0.1}"

struct job {
    struct training_config training;
    struct strategy strategy;
    struct plan plan;
    struct fleet_errors errors;
    int rc;
};

static void job_init(struct job *job, const char *training, const char *strategy)
{
    FLEET_AUTO_JSON cJSON *t = cJSON_Parse(training), *s = cJSON_Parse(strategy);
    struct plan_request request = {
        .training = &job->training, .strategy = &job->strategy, .world = 2};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    *job = (struct job){0};
    if (!t || !s)
        fail_msg("not JSON: %s %s", training, strategy);
    job->rc = training_config_decode(t, "spec.training", &job->training, &job->errors);
    job->rc |= strategy_json_decode(s, "spec.strategy", &job->strategy, &job->errors);
    fleet_errors_print(&job->errors, &text);
    if (job->rc)
        fail_msg("job of the test is refused: %s", fleet_strbuf_text(&text));
    job->rc = plan_build(&request, &job->plan, &job->errors);
}

static void job_release(struct job *job)
{
    if (job->rc == 0)
        plan_release(&job->plan);
    training_config_release(&job->training);
    strategy_release(&job->strategy);
    fleet_errors_release(&job->errors);
}

static void build(struct job *job, const char *training, const char *strategy)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    job_init(job, training, strategy);
    fleet_errors_print(&job->errors, &text);
    if (job->rc < 0)
        fail_msg("%s: %s", strategy, fleet_strbuf_text(&text));
}

static void expect_refused(const char *training, const char *strategy, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct job job;

    job_init(&job, training, strategy);
    fleet_errors_print(&job.errors, &text);
    if (job.rc == 0 || !strstr(fleet_strbuf_text(&text), wanted))
        fail_msg("%s: %d \"%s\", expected \"%s\"", strategy, job.rc, fleet_strbuf_text(&text),
                 wanted);
    job_release(&job);
}

static const struct program_op *update_of(const struct program *p, const char *parameter)
{
    for (int i = 0; i < p->op_count; i++)
        if (p->ops[i].section == PROGRAM_SECTION_UPDATE &&
            strcmp(p->vars[p->ops[i].inputs[0]].name, parameter) == 0)
            return &p->ops[i];
    fail_msg("%s is not updated", parameter);
    return NULL;
}

static int count_ops(const struct program *p, enum op_kind kind, bool backward)
{
    int count = 0;

    for (int i = 0; i < p->op_count; i++)
        count += p->ops[i].kind == kind && p->ops[i].backward == backward;
    return count;
}

static enum program_type type_of(const struct program *p, const char *name)
{
    int var = program_find_var(p, name);

    if (var == PROGRAM_NONE)
        fail_msg("there is no %s", name);
    return p->vars[var].type;
}

/* ---- optimizer ------------------------------------------------------------------------------- */

static void test_passes__optimizer_decays_matrices_or_all(void **state)
{
    struct job job;

    (void)state;
    build(&job, GPT(1, "\"optimizer\":{\"learningRate\":0.1,\"weightDecay\":0.2}"), "{}");
    assert_int_equal(update_of(&job.plan.program, "wte.weight")->kind, OP_ADAMW);
    assert_int_equal(update_of(&job.plan.program, "wte.weight")->attributes.optimizer.decay_kind,
                     OP_DECAY_DECOUPLED);
    assert_true(update_of(&job.plan.program, "wte.weight")->attributes.optimizer.decay == 0.2);
    assert_int_equal(update_of(&job.plan.program, "ln_f.bias")->attributes.optimizer.decay_kind,
                     OP_DECAY_NONE);
    job_release(&job);
    build(&job,
          GPT(1, "\"optimizer\":{\"name\":\"momentum\",\"learningRate\":0.1,\"weightDecay\":0.2,"
                 "\"weightDecayOn\":\"all\",\"nesterov\":true}"),
          "{}");
    assert_int_equal(update_of(&job.plan.program, "ln_f.bias")->kind, OP_MOMENTUM);
    assert_int_equal(update_of(&job.plan.program, "ln_f.bias")->attributes.optimizer.decay_kind,
                     OP_DECAY_L2);
    assert_true(update_of(&job.plan.program, "ln_f.bias")->attributes.optimizer.nesterov);
    assert_int_equal(job.plan.program.state_count, 1);
    job_release(&job);
}

static void test_passes__optimizer_clips(void **state)
{
    static const struct {
        const char *clip;
        enum op_clip kind;
        int inputs; /* of sgd: param grad [norms] */
    } cases[] = {
        {"{}", OP_CLIP_NONE, 2},
        {"{\"value\":3}", OP_CLIP_VALUE, 2},
        {"{\"norm\":3}", OP_CLIP_NORM, 3},
        {"{\"globalNorm\":3}", OP_CLIP_GLOBAL_NORM, 3},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        const struct program_op *op;
        struct job job;

        fleet_strbuf_appendf(&text,
                             GPT(1, "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1,"
                                    "\"clip\":%s}"),
                             cases[i].clip);
        build(&job, text.text, "{}");
        op = update_of(&job.plan.program, "wte.weight");
        assert_int_equal(op->attributes.optimizer.clip, cases[i].kind);
        assert_int_equal(op->input_count, cases[i].inputs);
        assert_true(op->attributes.optimizer.clip_limit == (i ? 3 : 0));
        job_release(&job);
    }
}

/* Place of each norm: the parameters in byte order of their names. */
static void test_passes__optimizer_numbers_norms_by_name(void **state)
{
    struct job job;
    int *order, count;

    (void)state;
    build(&job, GPT(11, ADAMW), "{}");
    count = program_parameters(&job.plan.program, true, &order);
    for (int i = 0; i < count; i++) {
        const char *name = job.plan.program.vars[order[i]].name;
        assert_int_equal(update_of(&job.plan.program, name)->attributes.optimizer.norm_index, i);
        if (i > 0)
            assert_true(strcmp(job.plan.program.vars[order[i - 1]].name, name) < 0);
    }
    free(order);
    job_release(&job);
}

static void test_passes__lars_excludes_by_part_lamb_by_end(void **state)
{
    struct job job;
    const struct program_op *op;

    (void)state;
    build(&job,
          GPT(1, "\"optimizer\":{\"name\":\"momentum\",\"learningRate\":0.1,\"momentum\":0.8,"
                 "\"nesterov\":true}"),
          "{\"lars\":true,\"lars_configs\":{\"lars_coeff\":0.5,\"lars_weight_decay\":0.25,"
          "\"epsilon\":0.125,\"exclude_from_weight_decay\":[\"ln_\"]}}");
    op = update_of(&job.plan.program, "h.0.ln_1.bias");
    assert_int_equal(op->kind, OP_LARS);
    assert_true(op->attributes.optimizer.lambda == 0);
    op = update_of(&job.plan.program, "wte.weight");
    assert_true(op->attributes.optimizer.lambda == 0.25);
    assert_true(op->attributes.optimizer.coefficient == 0.5);
    assert_true(op->attributes.optimizer.epsilon == 0.125);
    assert_true(op->attributes.optimizer.momentum == 0.8);
    assert_false(op->attributes.optimizer.nesterov);
    assert_string_equal(job.plan.selection.applied.items[0], "lars");
    job_release(&job);

    build(&job, GPT(1, "\"optimizer\":{\"name\":\"adam\",\"learningRate\":0.1,\"beta2\":0.75}"),
          "{\"lamb\":true,\"lamb_configs\":{\"lamb_weight_decay\":0.25,"
          "\"exclude_from_weight_decay\":[\"bias\",\"ln_\"]}}");
    op = update_of(&job.plan.program, "h.0.ln_1.bias");
    assert_int_equal(op->kind, OP_LAMB);
    assert_true(op->attributes.optimizer.lambda == 0);
    op = update_of(&job.plan.program, "h.0.ln_1.weight"); /* "ln_" is not its end */
    assert_true(op->attributes.optimizer.lambda == 0.25);
    assert_true(op->attributes.optimizer.beta2 == 0.75);
    assert_true(op->attributes.optimizer.always_adapt);
    job_release(&job);
}

/* ---- exchange -------------------------------------------------------------------------------- */

/* Buckets are ranges that cover the space once, complete ones first, none over its limit by more
 * than a tensor. */
static void expect_cover(const struct plan *plan, int *out_count)
{
    const struct program *p = &plan->program;
    int64_t covered = 0;
    char *touched = calloc((size_t)p->flat_count + 1, 1);

    *out_count = 0;
    for (int i = 0; i < p->op_count; i++) {
        const struct op_attributes *a = &p->ops[i].attributes;
        if (p->ops[i].kind != OP_ALL_REDUCE)
            continue;
        for (int64_t e = a->flat_first; e < a->flat_first + a->flat_count; e++)
            if (touched[e]++)
                fail_msg("element %ld is exchanged twice", (long)e);
        covered += a->flat_count;
        (*out_count)++;
    }
    assert_int_equal(covered, p->flat_count);
    free(touched);
}

static void test_passes__buckets_cover_the_gradients_once(void **state)
{
    static const struct {
        const char *strategy;
        int min, max;
    } cases[] = {
        {"{}", 2, 2}, /* the small one and the rest */
        {"{\"fuse_grad_size_in_MB\":1}", 3, 8},
        {"{\"fuse_all_reduce_ops\":false}", 12 * 20 + 4, 12 * 20 + 4},
        {"{\"last_comm_group_size_MB\":1000}", 1, 1},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct job job;
        int count;

        build(&job, GPT(20, ADAMW), cases[i].strategy);
        expect_cover(&job.plan, &count);
        if (count < cases[i].min || count > cases[i].max)
            fail_msg("%s: %d buckets, expected %d to %d", cases[i].strategy, count, cases[i].min,
                     cases[i].max);
        job_release(&job);
    }
}

/* The ranges of the exchange in the order of launching: "[first,end) …" as names of parameters. */
static void print_buckets(const struct program *p, struct fleet_strbuf *out)
{
    for (int i = 0; i < p->op_count; i++) {
        const struct op_attributes *a = &p->ops[i].attributes;
        const char *space = "";

        if (p->ops[i].kind != OP_ALL_REDUCE)
            continue;
        fleet_strbuf_appendf(out, "%s[", out->length ? " " : "");
        for (int v = 0; v < p->var_count; v++)
            if (p->vars[v].role == PROGRAM_ROLE_PARAMETER &&
                p->vars[v].flat_offset >= a->flat_first &&
                p->vars[v].flat_offset < a->flat_first + a->flat_count) {
                fleet_strbuf_appendf(out, "%s%s", space, p->vars[v].name);
                space = " ";
            }
        fleet_strbuf_append(out, "]");
    }
}

/* Eleven layers, because "layers.10" is before "layers.2" by name and behind it by definition. */
#define MLP_OF_ELEVEN                                                                           \
    "{\"model\":{\"name\":\"mlp\",\"sizes\":[400,400,400,400,400,400,400,400,400,400,400,10]}," \
    "\"data\":{\"path\":\"t\",\"tokenizer\":\"cifar10\"},\"globalBatchSize\":8,"                \
    "\"microBatchSize\":2,\"steps\":8," ADAMW "}"

/* spec/data_parallel.md 3: filled in the order of definition, launched backwards; the small bucket,
 * that of the first parameters, is exchanged last. */
static void test_passes__buckets_are_filled_as_parameters_are_defined(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct job job;

    (void)state;
    build(&job, MLP_OF_ELEVEN, "{\"fuse_grad_size_in_MB\":3}");
    print_buckets(&job.plan.program, &text);
    assert_string_equal(
        fleet_strbuf_text(&text),
        "[layers.6.bias layers.7.weight layers.7.bias layers.8.weight layers.8.bias "
        "layers.9.weight layers.9.bias layers.10.weight layers.10.bias] "
        "[layers.1.bias layers.2.weight layers.2.bias layers.3.weight layers.3.bias "
        "layers.4.weight layers.4.bias layers.5.weight layers.5.bias layers.6.weight] "
        "[layers.0.weight layers.0.bias layers.1.weight]");
    job_release(&job);
}

static void test_passes__gradient_merge_makes_leaves(void **state)
{
    struct job job;

    (void)state;
    build(&job, GPT(1, ADAMW),
          "{\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":4,\"avg\":false}}");
    assert_int_equal(job.plan.program.merge_steps, 4);
    assert_false(job.plan.program.merge_average);
    assert_int_equal(job.plan.leaves, 16);
    job_release(&job);
}

static void expect_idle(const char *training, const char *strategy, const char *knob,
                        const char *because)
{
    const struct select_notes *idle;
    struct job job;
    bool found = false;

    build(&job, training, strategy);
    idle = &job.plan.selection.without_effect;
    for (size_t i = 0; i < idle->count; i++)
        if (strcmp(idle->items[i].knob, knob) == 0) {
            assert_string_equal(idle->items[i].because, because);
            found = true;
        }
    if (!found)
        fail_msg("%s: nothing says that %s has no effect", strategy, knob);
    for (size_t i = 0; i < job.plan.selection.applied.count; i++)
        assert_string_not_equal(job.plan.selection.applied.items[i], knob);
    job_release(&job);
}

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

static int count_kind(const struct program *p, enum op_kind kind)
{
    int count = 0;

    for (int i = 0; i < p->op_count; i++)
        count += p->ops[i].kind == kind;
    return count;
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

/* ---- recompute ------------------------------------------------------------------------------- */

/* spec/strategy.md 8.5: checkpoints after each of L layers; all but the tail run twice, but for
 * what makes a checkpoint, and for what only that would read. */
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
static void test_passes__offload_of_one_checkpoint_is_told(void **state)
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

static void test_passes__recompute_of_nothing_is_told(void **state)
{
    (void)state;
    expect_idle(GPT(1, ADAMW), "{\"recompute\":true}", "recompute",
                "a model of less than two layers has no place for a checkpoint");
    expect_idle(GPT(4, ADAMW),
                "{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"ln_f\",\"h.3\"]}}",
                "recompute", "nothing lies between these checkpoints");
}

/* ---- together -------------------------------------------------------------------------------- */

static void test_passes__work_together(void **state)
{
    static const char *const strategies[] = {
        "{\"amp\":true,\"recompute\":true}",
        "{\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":2},\"amp\":true,"
        "\"recompute\":true}",
        "{\"amp\":true,\"amp_configs\":{\"use_pure_fp16\":true},\"recompute\":true}",
    };
    static const char *const models[] = {
        "{\"name\":\"gpt\",\"layers\":4,\"heads\":4,\"width\":64,\"context\":32,\"dropout\":0.1}",
        "{\"name\":\"llama\",\"layers\":4,\"heads\":4,\"width\":64,\"context\":32}",
        "{\"preset\":\"resnet18\",\"baseWidth\":8}",
        "{\"preset\":\"resnet50\",\"baseWidth\":8,\"stem\":\"imagenet\"}",
        "{\"name\":\"mlp\",\"sizes\":[3072,64,32,10]}",
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(strategies); i++)
        for (size_t j = 0; j < FLEET_COUNT(models); j++) {
            FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, before = {0}, after = {0};
            struct program read;
            struct job job;

            fleet_strbuf_appendf(&text,
                                 "{\"model\":%s,\"data\":{\"path\":\"t\",\"tokenizer\":\"%s\"},"
                                 "\"globalBatchSize\":8,\"microBatchSize\":2,\"steps\":8," ADAMW
                                 "}",
                                 models[j], j < 2 ? "bytes" : "cifar10");
            build(&job, text.text, strategies[i]);
            print_program(&job.plan.program, &before);
            assert_int_equal(print_parse(before.text, before.length, &read, NULL), 0);
            print_program(&read, &after);
            assert_string_equal(before.text, after.text);
            program_release(&read);
            job_release(&job);
        }
}

static void test_passes__units_without_a_pass_are_refused(void **state)
{
    (void)state;
    expect_refused(GPT(4, "\"optimizer\":{\"name\":\"momentum\",\"learningRate\":0.1}"),
                   "{\"dgc\":true}", "spec.strategy.dgc: the built-in trainer cannot run this yet");
    expect_refused(GPT(4, ADAMW), "{\"gradient_scale_configs\":{\"scale_strategy\":\"sum\"}}",
                   "scale_strategy: is sum: the built-in runtime averages gradients");
    expect_refused("{\"model\":{\"preset\":\"resnet18\"},\"data\":{\"path\":\"t\",\"tokenizer\":"
                   "\"cifar10\"},\"globalBatchSize\":8,\"microBatchSize\":2,\"steps\":8," ADAMW "}",
                   "{\"sync_batch_norm\":true}", "spec.strategy.sync_batch_norm: the built-in");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes__optimizer_decays_matrices_or_all),
        cmocka_unit_test(test_passes__optimizer_clips),
        cmocka_unit_test(test_passes__optimizer_numbers_norms_by_name),
        cmocka_unit_test(test_passes__lars_excludes_by_part_lamb_by_end),
        cmocka_unit_test(test_passes__buckets_cover_the_gradients_once),
        cmocka_unit_test(test_passes__buckets_are_filled_as_parameters_are_defined),
        cmocka_unit_test(test_passes__gradient_merge_makes_leaves),
        cmocka_unit_test(test_passes__amp_follows_its_lists),
        cmocka_unit_test(test_passes__casts_beside_sums_and_norms_are_fused),
        cmocka_unit_test(test_passes__relus_go_into_what_is_in_front_of_them),
        cmocka_unit_test(test_passes__precision_alone_needs_no_scale),
        cmocka_unit_test(test_passes__amp_obeys_custom_lists),
        cmocka_unit_test(test_passes__amp_lists_name_operators),
        cmocka_unit_test(test_passes__amp_lists_reach_into_a_linear),
        cmocka_unit_test(test_passes__pure_16_bits_obey_the_black_list),
        cmocka_unit_test(test_passes__precision_alone_has_no_custom_lists),
        cmocka_unit_test(test_passes__amp_scales_only_if_asked),
        cmocka_unit_test(test_passes__recompute_repeats_all_but_the_tail),
        cmocka_unit_test(test_passes__recompute_lowers_memory_as_sqrt),
        cmocka_unit_test(test_passes__recompute_keeps_masks),
        cmocka_unit_test(test_passes__recompute_counts_statistics_once),
        cmocka_unit_test(test_passes__recompute_names_what_it_does_not_find),
        cmocka_unit_test(test_passes__offload_fetches_one_ahead),
        cmocka_unit_test(test_passes__offload_of_one_checkpoint_is_told),
        cmocka_unit_test(test_passes__recompute_of_nothing_is_told),
        cmocka_unit_test(test_passes__work_together),
        cmocka_unit_test(test_passes__units_without_a_pass_are_refused),
    };
    return cmocka_run_group_tests_name("passes", tests, NULL, NULL);
}
