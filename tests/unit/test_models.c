/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Models have the tensors of the libraries whose files they read (names and shapes recorded from
 * them), start from the right distributions, and refuse what cannot be built.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
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
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/models/model.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "libfleet/training/training.h"

#define JOB(model, data)                                                                \
    "{\"model\":" model ",\"data\":" data                                               \
    ",\"optimizer\":{\"learningRate\":0.1},\"globalBatchSize\":4,\"microBatchSize\":2," \
    "\"steps\":1}"
#define TEXT  "{\"path\":\"t\"}"
#define CIFAR "{\"path\":\"t\",\"tokenizer\":\"cifar10\"}"
#define GPT \
    "\"name\":\"gpt\",\"layers\":4,\"heads\":4,\"width\":128,\"context\":64,\"vocabulary\":256"
#define LLAMA \
    "\"name\":\"llama\",\"layers\":2,\"heads\":4,\"width\":64,\"context\":32,\"hidden\":96"

static int build(const char *job, struct program *out, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(job);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    struct training_config config;
    int rc;

    assert_non_null(json);
    rc = training_config_decode(json, "", &config, &errors);
    fleet_errors_print(&errors, &text);
    if (rc < 0)
        fail_msg("the test's job is refused: %s", text.text);
    rc = model_build(&config, NULL, out, err);
    training_config_release(&config);
    return rc;
}

static void build_well(const char *job, struct program *out)
{
    struct fleet_error err;

    if (build(job, out, &err) < 0 || verify_program(out, VERIFY_FORWARD, &err) < 0)
        fail_msg("%s", err.text);
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Parameters and buffers, "name [shape]" a line, sorted. */
static char *list_tensors(const struct program *p)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf all = {0};
    char **lines = calloc((size_t)p->var_count, sizeof(*lines));
    size_t count = 0;

    for (int i = 0; i < p->var_count; i++) {
        const struct program_var *var = &p->vars[i];
        FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

        if (var->role != PROGRAM_ROLE_PARAMETER && var->role != PROGRAM_ROLE_BUFFER)
            continue;
        fleet_strbuf_appendf(&line, "%s [", var->name);
        for (int d = 0; d < var->ndim; d++)
            fleet_strbuf_appendf(&line, "%s%" PRId64, d ? "," : "", var->shape[d]);
        fleet_strbuf_append(&line, "]\n");
        lines[count++] = fleet_strbuf_take(&line);
    }
    qsort(lines, count, sizeof(*lines), compare_lines);
    for (size_t i = 0; i < count; i++) {
        fleet_strbuf_append(&all, lines[i]);
        free(lines[i]);
    }
    free(lines);
    return fleet_strbuf_take(&all);
}

static void expect_tensors(const char *job, const char *path)
{
    FLEET_AUTO_FREE char *found = NULL;
    struct program program;
    char wanted[16384];
    FILE *file = fopen(path, "r");
    size_t size;

    if (!file)
        fail_msg("%s: %s", path, strerror(errno));
    size = fread(wanted, 1, sizeof(wanted) - 1, file);
    wanted[size] = '\0';
    (void)fclose(file);
    build_well(job, &program);
    found = list_tensors(&program);
    assert_string_equal(found, wanted);
    program_release(&program);
}

static void test_models__gpt_has_the_tensors_of_hugging_face(void **state)
{
    (void)state;
    expect_tensors(JOB("{" GPT "}", TEXT), "tests/golden/models/gpt2.txt");
}

static void test_models__resnet_has_the_tensors_of_torchvision(void **state)
{
    (void)state;
    expect_tensors(JOB("{\"preset\":\"resnet18\",\"baseWidth\":16}", CIFAR),
                   "tests/golden/models/resnet18.txt");
}

static void expect_var(const struct program *p, const char *name, int64_t rows, int64_t columns)
{
    int var = program_find_var(p, name);

    if (var == PROGRAM_NONE)
        fail_msg("there is no %s", name);
    if (p->vars[var].shape[0] != rows || (columns && p->vars[var].shape[1] != columns))
        fail_msg("%s is [%" PRId64 ",%" PRId64 "], expected [%" PRId64 ",%" PRId64 "]", name,
                 p->vars[var].shape[0], p->vars[var].shape[1], rows, columns);
}

static void test_models__llama_has_the_tensors_of_hugging_face(void **state)
{
    struct program p;
    int *order;

    (void)state;
    build_well(JOB("{" LLAMA ",\"tieEmbeddings\":false}", TEXT), &p);
    expect_var(&p, "model.embed_tokens.weight", 256, 64);
    expect_var(&p, "model.layers.1.input_layernorm.weight", 64, 0);
    expect_var(&p, "model.layers.1.self_attn.q_proj.weight", 64, 64);
    expect_var(&p, "model.layers.1.self_attn.k_proj.weight", 64, 64);
    expect_var(&p, "model.layers.1.self_attn.v_proj.weight", 64, 64);
    expect_var(&p, "model.layers.1.self_attn.o_proj.weight", 64, 64);
    expect_var(&p, "model.layers.1.post_attention_layernorm.weight", 64, 0);
    expect_var(&p, "model.layers.1.mlp.gate_proj.weight", 96, 64);
    expect_var(&p, "model.layers.1.mlp.up_proj.weight", 96, 64);
    expect_var(&p, "model.layers.1.mlp.down_proj.weight", 64, 96);
    expect_var(&p, "model.norm.weight", 64, 0);
    expect_var(&p, "lm_head.weight", 256, 64);
    assert_int_equal(program_parameters(&p, true, &order), 2 * 9 + 3);
    free(order);
    program_release(&p);
    build_well(JOB("{" LLAMA ",\"kvHeads\":2}", TEXT), &p);
    expect_var(&p, "model.layers.1.self_attn.q_proj.weight", 64, 64);
    expect_var(&p, "model.layers.1.self_attn.k_proj.weight", 32, 64);
    expect_var(&p, "model.layers.1.self_attn.v_proj.weight", 32, 64);
    program_release(&p);
    build_well(JOB("{" LLAMA "}", TEXT), &p); /* tied: no head of its own */
    assert_int_equal(program_find_var(&p, "lm_head.weight"), PROGRAM_NONE);
    program_release(&p);
}

static void test_models__start_from_the_right_distributions(void **state)
{
    static const struct {
        const char *job, *name;
        enum program_initial initial;
        double deviation;
    } cases[] = {
        {JOB("{" GPT "}", TEXT), "wte.weight", PROGRAM_INITIAL_NORMAL, 0.02},
        {JOB("{" GPT "}", TEXT), "h.3.attn.c_attn.weight", PROGRAM_INITIAL_NORMAL, 0.02},
        {JOB("{" GPT "}", TEXT), "h.3.attn.c_proj.weight", PROGRAM_INITIAL_NORMAL, 0.00707107},
        {JOB("{" GPT "}", TEXT), "h.0.mlp.c_proj.weight", PROGRAM_INITIAL_NORMAL, 0.00707107},
        {JOB("{" GPT "}", TEXT), "h.0.mlp.c_proj.bias", PROGRAM_INITIAL_ZERO, 0},
        {JOB("{" GPT "}", TEXT), "ln_f.weight", PROGRAM_INITIAL_ONE, 0},
        {JOB("{\"preset\":\"resnet18\"}", CIFAR), "conv1.weight", PROGRAM_INITIAL_NORMAL,
         0.0589256}, /* √(2/(64·9)) */
        {JOB("{\"preset\":\"resnet18\"}", CIFAR), "fc.bias", PROGRAM_INITIAL_UNIFORM, 0.0441942},
        {JOB("{\"preset\":\"resnet18\"}", CIFAR), "bn1.running_var", PROGRAM_INITIAL_ONE, 0},
        {JOB("{\"name\":\"mlp\",\"sizes\":[3072,100,10]}", CIFAR), "layers.1.weight",
         PROGRAM_INITIAL_UNIFORM, 0.1},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct program p;
        const struct program_var *var;

        build_well(cases[i].job, &p);
        assert_int_not_equal(program_find_var(&p, cases[i].name), PROGRAM_NONE);
        var = &p.vars[program_find_var(&p, cases[i].name)];
        if (var->initial != cases[i].initial ||
            fabs((double)var->deviation - cases[i].deviation) > 1e-6)
            fail_msg("%s starts as %d, %g, expected %d, %g", cases[i].name, (int)var->initial,
                     (double)var->deviation, (int)cases[i].initial, cases[i].deviation);
        program_release(&p);
    }
}

/* Every model and option can be differentiated. */
static void test_models__have_backward_parts(void **state)
{
    static const char *const jobs[] = {
        JOB("{" GPT "}", TEXT),
        JOB("{" GPT ",\"tieEmbeddings\":false,\"dropout\":0.1,\"hidden\":64}", TEXT),
        JOB("{" LLAMA "}", TEXT),
        JOB("{" LLAMA ",\"tieEmbeddings\":false,\"dropout\":0.2}", TEXT),
        JOB("{" LLAMA ",\"kvHeads\":1}", TEXT),
        JOB("{\"preset\":\"resnet18\",\"baseWidth\":8}", CIFAR),
        JOB("{\"preset\":\"resnet18\",\"baseWidth\":8,\"stem\":\"imagenet\"}", CIFAR),
        JOB("{\"preset\":\"resnet50\",\"baseWidth\":8,\"depths\":[1,1]}", CIFAR),
        JOB("{\"name\":\"mlp\",\"sizes\":[3072,10]}", CIFAR),
        JOB("{\"name\":\"mlp\",\"sizes\":[3072,30,20,10],\"activation\":\"gelu\"}", CIFAR),
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        struct program p;
        struct fleet_error err;

        build_well(jobs[i], &p);
        if (autodiff_run(&p, &err) < 0 || verify_program(&p, VERIFY_BACKWARD, &err) < 0)
            fail_msg("%s: %s", jobs[i], err.text);
        program_release(&p);
    }
}

static void test_models__dropouts_have_streams_of_their_own(void **state)
{
    struct program p;
    uint64_t next = 0;

    (void)state;
    build_well(JOB("{" GPT ",\"dropout\":0.1}", TEXT), &p);
    for (int i = 0; i < p.op_count; i++)
        if (p.ops[i].kind == OP_DROPOUT)
            assert_int_equal(p.ops[i].attributes.stream, next++);
    assert_int_equal(next, 1 + 2 * 4);
    program_release(&p);
}

static void expect_refused(const char *job, int code, const char *text)
{
    struct program p;
    struct fleet_error err = {0};
    int rc = build(job, &p, &err);

    if (rc != code || !strstr(err.text, text))
        fail_msg("%s: %d \"%s\", expected %d \"%s\"", job, rc, err.text, code, text);
}

static void test_models__refuse_what_cannot_be_built(void **state)
{
    (void)state;
    expect_refused(JOB("{\"name\":\"gpt\",\"layers\":1,\"heads\":1,\"width\":262144,"
                       "\"context\":64,\"vocabulary\":16777216}",
                       TEXT),
                   -EOVERFLOW, "wte.weight has more than 2^40 elements");
    expect_refused(JOB("{\"preset\":\"resnet18\",\"depths\":[1024,1024,1024,1024]}", CIFAR), -E2BIG,
                   "model resnet has more than 50000 variables");
    expect_refused(
        JOB("{\"name\":\"llama\",\"layers\":1,\"heads\":2,\"width\":6,\"context\":4}", TEXT),
        -EINVAL, "rope: head_dim is 3, must be even");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models__gpt_has_the_tensors_of_hugging_face),
        cmocka_unit_test(test_models__resnet_has_the_tensors_of_torchvision),
        cmocka_unit_test(test_models__llama_has_the_tensors_of_hugging_face),
        cmocka_unit_test(test_models__start_from_the_right_distributions),
        cmocka_unit_test(test_models__have_backward_parts),
        cmocka_unit_test(test_models__dropouts_have_streams_of_their_own),
        cmocka_unit_test(test_models__refuse_what_cannot_be_built),
    };
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
