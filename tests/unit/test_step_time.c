/* SPDX-License-Identifier: Apache-2.0 */

/* The model of time by itself: operators at given rates, stages, tensor parallelism. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/training/training.h"

static const struct links usual = {.devices_per_node = 4,
                                   .memory = 1e9,
                                   .compute = {{1e10, 1e10, 1e10}, 1e10},
                                   .inside = {1e-6, 1e10},
                                   .between = {1e-4, 1e8}};

static void gpt(struct training_config *out)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(
        "{\"model\":{\"name\":\"gpt\",\"layers\":3,\"heads\":2,\"width\":256,\"context\":8,"
        "\"vocabulary\":256},\"data\":{\"tokenizer\":\"synthetic-markov\"},"
        "\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001},"
        "\"globalBatchSize\":6,\"microBatchSize\":1,\"steps\":1}");
    struct fleet_errors errors = {0};

    assert_int_equal(training_config_decode(json, "spec.training", out, &errors), 0);
}

/* That gpt on one device; release all three. */
static void plan_one_device(struct training_config *training, struct strategy *strategy,
                            struct plan *plan)
{
    struct full_choice choice = {
        .data = 1, .sharding = 1, .pipeline = 1, .sequence = 1, .model = 1};
    struct fleet_errors errors = {0};
    struct plan_request request;

    gpt(training);
    full_strategy(NULL, &choice, strategy);
    request = plan_request_of(training, strategy, STRATEGY_FULL, NULL, 1);
    assert_int_equal(plan_build(&request, plan, &errors), 0);
}

/* One device: the sum of its operators, and nothing else. */
static void test_step_time__of_one_device_is_its_operators(void **state)
{
    STRATEGY_AUTO struct strategy strategy;
    struct training_config training;
    struct step_profile profile;
    struct step_time time;
    struct plan plan;
    double sum = 0;

    (void)state;
    plan_one_device(&training, &strategy, &plan);
    step_profile_build(&plan.program, &usual, &profile);
    step_time_of(&plan, &profile, &usual, &time);
    for (int i = 0; i < plan.program.op_count; i++)
        if (plan.program.ops[i].section == PROGRAM_SECTION_MICRO_BATCH)
            sum += 6 * links_op_seconds(&usual, &plan.program, &plan.program.ops[i]);
    assert_true(fabs(time.seconds[STEP_COMPUTE] - sum) < 1e-9 * sum);
    assert_true(time.seconds[STEP_BUBBLE] == 0 && time.seconds[STEP_MODEL] == 0 &&
                time.seconds[STEP_EXCHANGE] == 0 && time.seconds[STEP_UPDATE] > 0);
    assert_true(fabs(time.total - sum - time.seconds[STEP_UPDATE]) < 1e-9 * sum);
    /* Stages share the layers; both ends have more to do. */
    assert_true(step_slot_seconds(&profile, 1, 1) > step_slot_seconds(&profile, 3, 1));
    assert_true(3 * step_slot_seconds(&profile, 3, 1) >= profile.total);
    assert_true(step_slot_seconds(&profile, 1, 2) < profile.total);
    step_profile_release(&profile);
    plan_release(&plan);
    training_config_release(&training);
}

/* A product reads its weights; its gradient reads them and writes theirs, for any batch. */
static void test_step_time__counts_weights_in_every_micro_batch(void **state)
{
    struct links slow = usual;
    STRATEGY_AUTO struct strategy strategy;
    struct training_config training;
    struct step_profile fast_profile, slow_profile;
    struct plan plan;
    double weights = 0;

    (void)state;
    slow.compute.weight_bytes = 1e9;
    plan_one_device(&training, &strategy, &plan);
    for (int i = 0; i < plan.program.op_count; i++) {
        const struct program_op *op = &plan.program.ops[i];
        double moved = links_op_weights(&plan.program, op);

        weights += moved;
        assert_true((moved > 0) == (op->kind == OP_LINEAR || op->kind == OP_LINEAR_GRAD));
    }
    step_profile_build(&plan.program, &usual, &fast_profile);
    step_profile_build(&plan.program, &slow, &slow_profile);
    /* Three times 12 · width² of each of three layers, and a few more. */
    assert_true(weights > 3 * 4.0 * 3 * 12 * 256 * 256 && weights < 3 * 4.0 * 40 * 256 * 256);
    assert_true(fabs(slow_profile.total - fast_profile.total - weights / 1e9) < 1e-9 * weights);
    step_profile_release(&fast_profile);
    step_profile_release(&slow_profile);
    plan_release(&plan);
    training_config_release(&training);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_time__of_one_device_is_its_operators),
        cmocka_unit_test(test_step_time__counts_weights_in_every_micro_batch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
