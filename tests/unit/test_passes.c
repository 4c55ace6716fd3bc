/* SPDX-License-Identifier: Apache-2.0 */

/* Passes over a program: the optimizer, the exchange of gradients, all of them together. */
#include "tests/unit/passes_fixture.h"

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
        if (p->ops[i].kind != OP_TREE_SUM)
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

        if (p->ops[i].kind != OP_TREE_SUM)
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

/* Filled in the order of definition, launched backwards; the small bucket,
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
    expect_refused(GPT(4, "\"optimizer\":{\"name\":\"momentum\",\"learningRate\":0.1,\"clip\":{"
                          "\"globalNorm\":1}}"),
                   "{\"dgc\":true}", "only training.optimizer.clip.norm goes with it");
    expect_refused(GPT(4, ADAMW),
                   "{\"gradient_scale_configs\":{\"scale_strategy\":\"customized\"}}",
                   "scale_strategy: is customized: a program of your own would scale");
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
        cmocka_unit_test(test_passes__work_together),
        cmocka_unit_test(test_passes__units_without_a_pass_are_refused),
    };
    return cmocka_run_group_tests_name("passes", tests, NULL, NULL);
}
