/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The state before the first step is a function of the job: it depends neither on the number of
 * threads that made it, nor on what lay in the memory before. States of models with all kinds of
 * initial values, made by one thread and by several over memory full of rubbish, compared byte by
 * byte.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"
#include "tests/numerics/step_rig.h"

#define JOB(model, tokenizer)                                                           \
    "{\"model\":{" model "},\"data\":{\"path\":\"x\",\"tokenizer\":\"" tokenizer "\"}," \
    "\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.1},\"globalBatchSize\":2,"    \
    "\"microBatchSize\":2,\"steps\":1,\"seed\":7}"
#define GPT    "\"name\":\"gpt\",\"layers\":1,\"heads\":2,\"width\":130,\"context\":70"
#define RESNET "\"name\":\"resnet\",\"preset\":\"resnet18\",\"baseWidth\":8"
#define MLP    "\"name\":\"mlp\",\"sizes\":[3072,33,10]"

static const char *const jobs[] = {JOB(GPT, "bytes"), JOB(RESNET, "cifar10"), JOB(MLP, "cifar10")};
static const int threads[] = {1, 2, 3, 8};

static void spoil(const struct state *state)
{
    struct state_part parts[STATE_PARTS_MAX];
    int count = state_parts(state, STATE_WHOLE, parts);

    for (int i = 0; i < count; i++)
        memset(parts[i].data, 0xa5, (size_t)parts[i].count * sizeof(*parts[i].data));
}

/* Padding between tensors is left as it is, so tensors are compared, not segments. */
static void expect_equal(const struct step_rig *found, const struct step_rig *wanted, int with)
{
    const struct program *program = &wanted->plan.program;

    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        if (var->role != PROGRAM_ROLE_PARAMETER && var->role != PROGRAM_ROLE_STATE &&
            var->role != PROGRAM_ROLE_BUFFER)
            continue;
        if (memcmp(state_address(&found->state, v), state_address(&wanted->state, v),
                   program_var_bytes(var)) != 0)
            rig_fail("%s differs when %d threads make it", var->name, with);
    }
}

static void test_initial_state__does_not_depend_on_threads(void **state)
{
    (void)state;
    for (size_t j = 0; j < FLEET_COUNT(jobs); j++) {
        struct step_rig wanted, found;
        step_rig_init(&wanted, jobs[j], FLEET_ISA_PLAIN, 1);
        step_rig_init(&found, jobs[j], FLEET_ISA_PLAIN, 1);
        for (size_t t = 0; t < FLEET_COUNT(threads); t++) {
            spoil(&found.state);
            state_initialize(&found.state,
                             &(struct state_seeds){found.config.seed, found.config.seed},
                             threads[t]);
            expect_equal(&found, &wanted, threads[t]);
        }
        step_rig_release(&wanted);
        step_rig_release(&found);
    }
}

/* Every element, across the borders of the pieces that a thread makes at a time. */
static void test_initial_state__is_that_of_seed_name_and_element(void **state)
{
    struct step_rig rig;
    const struct program_var *var;
    const float *values;

    (void)state;
    step_rig_init(&rig, JOB(GPT, "bytes"), FLEET_ISA_PLAIN, 3);
    var = step_rig_var(&rig, "wte.weight");
    values = step_rig_at(&rig, "wte.weight");
    assert_true(program_var_elements(var) == 256 * 130);
    for (int64_t i = 0; i < program_var_elements(var); i++) {
        float wanted;
        fleet_random_normal(fleet_random_key(7, "wte.weight", 0), (uint64_t)i, 1, 0.0f,
                            var->deviation, &wanted);
        if (values[i] != wanted)
            rig_fail("wte.weight[%lld] is %.9g, expected %.9g", (long long)i, (double)values[i],
                     (double)wanted);
    }
    step_rig_release(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_initial_state__does_not_depend_on_threads),
        cmocka_unit_test(test_initial_state__is_that_of_seed_name_and_element),
    };
    return cmocka_run_group_tests_name("initial_state", tests, NULL, NULL);
}
