/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A NaN is traced to the operator that wrote it first: each parameter of each model in turn is
 * spoilt, and the first operator that reads it has to be named, with its output. Sound models have
 * none.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/step/diagnose.h"
#include "tests/numerics/step_rig.h"

#define JOB(model, data, rest)                                                         \
    "{\"model\":" model ",\"data\":{\"path\":\"t\",\"tokenizer\":\"" data "\"},"       \
    "\"optimizer\":{\"learningRate\":0.1},\"globalBatchSize\":2,\"microBatchSize\":2," \
    "\"steps\":1" rest "}"
#define GPT \
    "{\"name\":\"gpt\",\"layers\":2,\"heads\":2,\"width\":32,\"context\":16,\"vocabulary\":256}"
#define LLAMA \
    "{\"name\":\"llama\",\"layers\":1,\"heads\":2,\"width\":32,\"context\":16,\"hidden\":48}"
#define RESNET "{\"name\":\"resnet\",\"preset\":\"resnet18\",\"baseWidth\":8,\"depths\":[1,1,1,1]}"
#define MLP    "{\"name\":\"mlp\",\"sizes\":[3072,32,10],\"activation\":\"gelu\"}"

static void fill_inputs(struct step_rig *rig)
{
    const struct program *program = &rig->plan.program;

    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        int64_t count = program_var_elements(var);
        if (var->role != PROGRAM_ROLE_INPUT)
            continue;
        for (int64_t i = 0; i < count; i++)
            if (var->type == PROGRAM_INT32)
                ((int32_t *)state_address(&rig->state, v))[i] = (int32_t)(i * 7 % 10);
            else
                ((float *)state_address(&rig->state, v))[i] = (float)(i % 5) - 2.0f;
    }
}

static void diagnose(struct step_rig *rig, struct finding *out)
{
    static const atomic_bool never;
    struct executor_bases bases = rig->state.bases;
    struct run_scalars scalars = {.seed = rig->config.seed};
    struct fleet_error err;

    bases.segment[MEMORY_GRADIENTS] = rig->state.slots[0];
    if (diagnose_micro_batch(rig->executor, &rig->plan.program, rig->backend, &bases, &scalars,
                             &never, out, &err) < 0)
        rig_fail("%s", err.text);
}

/* The first operator that reads variable `var`. */
static int first_reader(const struct program *program, int var)
{
    for (int i = 0; i < program->op_count; i++)
        for (int n = 0; n < program->ops[i].input_count; n++)
            if (program->ops[i].inputs[n] == var)
                return i;
    return PROGRAM_NONE;
}

static bool writes(const struct program_op *op, int var)
{
    for (int o = 0; o < op->output_count; o++)
        if (op->outputs[o] == var)
            return true;
    return false;
}

static void spoil_each_parameter(struct step_rig *rig, const char *job)
{
    const struct program *program = &rig->plan.program;

    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        int64_t count = program_var_elements(var);
        int wanted = first_reader(program, v);
        struct finding finding;
        float *values;
        if (var->role != PROGRAM_ROLE_PARAMETER)
            continue;
        values = state_address(&rig->state, v);
        for (int64_t i = 0; i < count; i++)
            values[i] = NAN;
        fill_inputs(rig);
        diagnose(rig, &finding);
        if (!finding.is_found || finding.op != wanted || !finding.is_nan || finding.wrong < 1 ||
            finding.wrong > finding.values || !writes(&program->ops[wanted], finding.var))
            rig_fail("%s: %s spoilt: found %d, operator %d, %lld of %lld; expected operator %d",
                     job, var->name, finding.is_found, finding.op, (long long)finding.wrong,
                     (long long)finding.values, wanted);
        state_initialize(&rig->state, &(struct state_seeds){rig->config.seed, rig->config.seed}, 1);
    }
}

static void test_diagnose__names_the_first_operator(void **state)
{
    static const char *const jobs[] = {
        JOB(GPT, "bytes", ""),   JOB(GPT, "bytes", ",\"precision\":\"bf16\""),
        JOB(LLAMA, "bytes", ""), JOB(RESNET, "cifar10", ""),
        JOB(MLP, "cifar10", ""), JOB(MLP, "cifar10", ",\"precision\":\"fp16\""),
    };

    (void)state;
    for (size_t j = 0; j < sizeof(jobs) / sizeof(*jobs); j++) {
        struct step_rig rig;
        struct finding finding;
        step_rig_init(&rig, jobs[j], FLEET_ISA_PLAIN, 1);
        fill_inputs(&rig);
        diagnose(&rig, &finding);
        if (finding.is_found)
            rig_fail("%s is sound, but %s is not", jobs[j],
                     rig.plan.program.vars[finding.var].name);
        assert_int_equal(finding.op, PROGRAM_NONE);
        spoil_each_parameter(&rig, jobs[j]);
        step_rig_release(&rig);
    }
}

static void test_diagnose__counts_in_every_type(void **state)
{
    static const uint16_t halves[] = {0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x0001}; /* fp16 */
    static const uint16_t brains[] = {0x7f7f, 0x7f80, 0xff80, 0x3f80, 0x0001}; /* bf16 */
    static const int32_t integers[] = {0x7f800000, -1, 0};
    struct backend *backend;
    struct finding finding = {0};
    static float many[10001];

    (void)state;
    assert_int_equal(backend_cpu_new(FLEET_ISA_PLAIN, 1, &backend, NULL), 0);
    many[10000] = -INFINITY;
    diagnose_values(backend, PROGRAM_FP32, many, 10001, &finding);
    assert_true(finding.is_found && !finding.is_nan && finding.wrong == 1);
    assert_int_equal(finding.values, 10001);
    many[4096] = NAN;
    diagnose_values(backend, PROGRAM_FP32, many, 10001, &finding);
    assert_true(finding.is_found && finding.is_nan && finding.wrong == 2);
    diagnose_values(backend, PROGRAM_FP32, many, 4096, &finding);
    assert_true(!finding.is_found && !finding.is_nan && finding.wrong == 0);
    diagnose_values(backend, PROGRAM_FP16, halves, 5, &finding);
    assert_true(finding.is_found && finding.is_nan && finding.wrong == 3);
    diagnose_values(backend, PROGRAM_FP16, halves, 3, &finding);
    assert_true(finding.is_found && !finding.is_nan && finding.wrong == 2);
    diagnose_values(backend, PROGRAM_BF16, brains, 5, &finding);
    assert_true(finding.is_found && !finding.is_nan && finding.wrong == 2);
    diagnose_values(backend, PROGRAM_INT32, integers, 3, &finding);
    assert_false(finding.is_found);
    backend_free(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diagnose__names_the_first_operator),
        cmocka_unit_test(test_diagnose__counts_in_every_type),
    };

    return cmocka_run_group_tests_name("diagnose", tests, NULL, NULL);
}
