/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a plan says of knobs that the built-in runtime cannot run yet: bytes and traffic by the
 * closed formulas, worked out here by hand for a model of known size; stages, shards, groups,
 * schedules.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/plan/plan.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"
#include "tests/unit/plan_explain_fixture.h"

#define BOUNDARY (2 * 64 * 128 * 4) /* bytes between two layers, of one micro-batch, fp32 */

static void test_plan_explain__cuts_layers_into_stages(void **state)
{
    struct job job;
    const struct plan_stage *stages;
    size_t whole, arena;
    FLEET_AUTO_JSON cJSON *json = NULL;

    (void)state;
    job_init(&job, JOB("adam"), "{}", 1);
    whole = job.plan.bytes[PLAN_BYTES_ACTIVATIONS];
    job_release(&job);
    job_init(&job, JOB("adam"),
             "{\"pipeline\":true,\"pipeline_configs\":{\"accumulate_steps\":64}}", 4);
    stages = job.plan.parts.stages;
    assert_int_equal(job.plan.topology.degree[TOPOLOGY_PIPELINE], 4);
    for (int s = 0; s < 4; s++) {
        assert_int_equal(stages[s].first_layer, 2 * s);
        assert_int_equal(stages[s].end_layer, 2 * s + 2);
        assert_int_equal(stages[s].sent_bytes, s < 3 ? BOUNDARY : 0);
    }
    assert_int_equal(stages[0].elements, 2 * LAYER + TOKENS + POSITIONS);
    assert_int_equal(stages[1].elements, 2 * LAYER);
    assert_int_equal(stages[3].elements, 2 * LAYER + TOKENS + LAST_NORM);
    assert_int_equal(job.plan.parts.shared_elements, TOKENS);
    /* the first stage holds four micro-batches */
    arena = job.plan.memory.bytes[MEMORY_ARENA];
    assert_true(arena < whole);
    expect_bytes(&job.plan, PLAN_BYTES_ACTIVATIONS, 4.0 * (double)arena);
    assert_false(job.plan.by_formula[PLAN_BYTES_ACTIVATIONS]);
    /* those in the middle send most: both ways, and what the head adds to the embedding's gradient,
     * for each of 64 micro-batches */
    expect_sent(&job.plan.traffic, "send", "activations", 64.0 * BOUNDARY);
    expect_sent(&job.plan.traffic, "send", "gradients of activations",
                64.0 * (BOUNDARY + 4.0 * TOKENS));
    job_release(&job);
    job_init(&job, JOB("adam"),
             "{\"pipeline\":true,\"pipeline_configs\":{\"accumulate_steps\":64,"
             "\"schedule_mode\":\"F-then-B\"}}",
             4);
    json = plan_encode_rank(&job.plan, 0);
    assert_float_equal(fleet_json_at(json, "bytes.activations")->valuedouble, 64.0 * (double)arena,
                       0.5);
    job_release(&job);
}

static void test_plan_explain__prints_the_schedule_of_a_rank(void **state)
{
    struct job job;
    const char *schedule;

    (void)state;
    job_init(&job, NULL,
             "{\"pipeline\":true,\"pipeline_configs\":{\"accumulate_steps\":8},"
             "\"hybrid_configs\":{\"pp_degree\":4}}",
             8);
    for (int rank = 0; rank < 8; rank++) {
        static const char *const orders[] = {"f0 f1 f2 f3 b0 f4 b1 f5 b2 f6 b3 f7 b4 b5 b6 b7",
                                             "f0 f1 f2 b0 f3 b1 f4 b2 f5 b3 f6 b4 f7 b5 b6 b7",
                                             "f0 f1 b0 f2 b1 f3 b2 f4 b3 f5 b4 f6 b5 f7 b6 b7",
                                             "f0 b0 f1 b1 f2 b2 f3 b3 f4 b4 f5 b5 f6 b6 f7 b7"};
        cJSON *json = plan_encode_rank(&job.plan, rank);

        assert_int_equal(fleet_json_get_string(json, "stage.schedule", &schedule, NULL), 0);
        assert_string_equal(schedule, orders[rank % 4]);
        cJSON_Delete(json);
    }
    job_release(&job);
}

static void test_plan_explain__divides_matrices(void **state)
{
    struct job job;

    (void)state;
    job_init(&job, JOB("adam"), "{\"hybrid_configs\":{\"mp_degree\":2}}", 2);
    /* whole: positions, norms and the biases behind sums; half: matrices, words, other biases */
    assert_in_range(job.plan.parts.stages[0].elements,
                    8 * LAYER_MATRICES / 2 + TOKENS / 2 + POSITIONS + LAST_NORM,
                    8 * (LAYER_MATRICES / 2 + LAYER_VECTORS) + TOKENS / 2 + POSITIONS + LAST_NORM);
    assert_int_equal(job.plan.parts.elements,
                     8 * (LAYER_MATRICES + LAYER_VECTORS) + TOKENS + POSITIONS + LAST_NORM);
    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++)
        assert_false(job.plan.by_formula[kind]);
    /* 64 micro-batches, once forward: the embedding and twice a layer, which a ring sends once with
     * two */
    expect_sent(&job.plan.traffic, "all_reduce", "values of micro-batches",
                64.0 * (1 + 8 * 2) * BOUNDARY);
    job_release(&job);
}

static void test_plan_explain__takes_the_program_where_passes_exist(void **state)
{
    struct job job;

    (void)state;
    job_init(&job, JOB("adam"),
             "{\"amp\":true,\"recompute\":true,\"gradient_merge\":true,\"gradient_merge_configs\":"
             "{\"k_steps\":2}}",
             4);
    assert_int_equal(job.plan.cannot_run.count, 0);
    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++)
        assert_false(job.plan.by_formula[kind]);
    assert_int_equal(job.plan.bytes[PLAN_BYTES_PARAMETERS], job.plan.program.flat_count * 4);
    job_release(&job);
}

/* Everything at once, on a grid with five different axes' worth of ranks. */
static void test_plan_explain__gives_each_rank_its_place(void **state)
{
    struct job job;
    cJSON *whole;

    (void)state;
    job_init(
        &job, JOB("adam"),
        "{\"pipeline\":true,\"sharding\":true,\"amp\":true,\"hybrid_configs\":{\"pp_degree\":4,"
        "\"sharding_degree\":2,\"mp_degree\":2,\"dp_degree\":2}}",
        32);
    for (int rank = 0; rank < 32; rank++) {
        cJSON *json = plan_encode_rank(&job.plan, rank);
        double at[TOPOLOGY_AXES], number;

        for (int axis = 0; axis < TOPOLOGY_AXES; axis++) {
            char path[64];
            (void)snprintf(path, sizeof(path), "coordinates.%s",
                           topology_axis_name((enum topology_axis)axis));
            assert_int_equal(fleet_json_get_number(json, path, &at[axis], NULL), 0);
        }
        /* model fastest, then sharding, pipeline, data */
        number = at[TOPOLOGY_MODEL] + 2 * at[TOPOLOGY_SHARDING] + 4 * at[TOPOLOGY_PIPELINE] +
                 16 * at[TOPOLOGY_DATA];
        assert_int_equal((int)number, rank);
        assert_int_equal(fleet_json_get_number(json, "microBatches.count", &number, NULL), 0);
        assert_int_equal((int)number, 64 / 4);
        cJSON_Delete(json);
    }
    whole = plan_encode_whole(&job.plan);
    assert_int_equal(cJSON_GetArraySize(fleet_json_at(whole, "groups.pipeline")), 8);
    assert_int_equal(cJSON_GetArraySize(fleet_json_at(whole, "groups.pipeline[0]")), 4);
    assert_int_equal(fleet_json_at(whole, "groups.pipeline[0][3]")->valueint, 12);
    assert_int_equal(cJSON_GetArraySize(fleet_json_at(whole, "cannotRun")), 0);
    cJSON_Delete(whole);
    job_release(&job);
}

static void test_plan_explain__refuses_more_stages_than_layers(void **state)
{
    struct fleet_errors errors = {0};
    struct training_config training = {0};
    struct plan plan;
    FLEET_AUTO_JSON cJSON *t = cJSON_Parse(JOB("adam"));
    FLEET_AUTO_JSON cJSON *s = cJSON_Parse("{\"pipeline\":true}");
    STRATEGY_AUTO struct strategy strategy = {0};
    struct plan_request request = {
        .training = &training, .strategy = &strategy, .world = 16, .only_explain = true};

    (void)state;
    assert_int_equal(training_config_decode(t, "", &training, &errors), 0);
    assert_int_equal(strategy_json_decode(s, "", &strategy, &errors), 0);
    assert_int_equal(plan_build(&request, &plan, &errors), -EINVAL);
    assert_int_equal(errors.count, 1);
    assert_string_equal(errors.items[0].message,
                        "16 pipeline stages are more than the 8 layers of gpt; nearest possible: "
                        "8 workers");
    training_config_release(&training);
    fleet_errors_release(&errors);
}

/* Paddle keeps the pipeline of one worker; there is nothing to cut, for every model. */
static void test_plan_explain__runs_a_pipeline_of_one_stage(void **state)
{
    static const char mlp[] =
        "{\"model\":{\"name\":\"mlp\",\"sizes\":[3072,10]},\"data\":{\"path\":\"t\",\"tokenizer\":"
        "\"cifar10\"},\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1},\"globalBatchSize\":4,"
        "\"microBatchSize\":2,\"steps\":1}";
    FLEET_AUTO_JSON cJSON *t = cJSON_Parse(mlp);
    struct training_config training = {0};
    STRATEGY_AUTO struct strategy strategy;
    struct fleet_errors errors = {0};
    struct plan_request request = {
        .training = &training, .strategy = &strategy, .policy = STRATEGY_PADDLE, .world = 1};
    struct fleet_error err;
    struct plan plan;

    (void)state;
    strategy_init(&strategy);
    strategy.pipeline = true;
    strategy.has_pipeline = KNOB_BY_NAME;
    (void)training_config_decode(t, "", &training, &errors);
    if (plan_build(&request, &plan, &errors) < 0) {
        (void)fleet_errors_result(&errors, &err);
        fail_msg("refused: %s", err.text);
    }
    assert_int_equal(plan.cannot_run.count, 0);
    assert_string_equal(plan.selection.applied.items[0], "pipeline");
    plan_release(&plan);
    training_config_release(&training);
    fleet_errors_release(&errors);
}

/* Running is refused with the knob's name where explaining is not. */
static void test_plan_explain__refuses_to_run_what_has_no_pass(void **state)
{
    struct job job;
    struct fleet_errors errors = {0};
    struct plan plan;
    struct plan_request request = {.world = 4};

    (void)state;
    job_init(&job, JOB("momentum"), "{\"asp\":true}", 4);
    request.training = &job.training;
    request.strategy = &job.strategy;
    assert_int_equal(plan_build(&request, &plan, &errors), -EINVAL);
    assert_int_equal(errors.count, 1);
    assert_string_equal(errors.items[0].path, "spec.strategy.asp");
    fleet_errors_release(&errors);
    job_release(&job);
}

/* After a loss the trainers plan with three workers, which blocks of two do not divide. */
static void test_plan_explain__sums_in_one_level_after_a_loss(void **state)
{
    struct job job;
    struct fleet_errors errors = {0};
    struct plan plan;
    struct plan_request request = {.world = 3};

    (void)state;
    job_init(&job, JOB("momentum"),
             "{\"use_hierarchical_allreduce\":true,\"hierarchical_allreduce_inter_nranks\":2}", 4);
    request.training = &job.training;
    request.strategy = &job.strategy;
    assert_int_equal(plan_build(&request, &plan, &errors), -EINVAL);
    fleet_errors_release(&errors);
    request.keeps_settings = true;
    assert_int_equal(plan_build(&request, &plan, &errors), 0);
    assert_true(plan.selection.final.use_hierarchical_allreduce); /* for four of them again */
    plan_release(&plan);
    job_release(&job);
}

/* Without a model there are degrees, groups and kinds of communication, but no bytes. */
static void test_plan_explain__does_without_a_model(void **state)
{
    struct job job;
    FLEET_AUTO_JSON cJSON *json = NULL;
    double bytes;

    (void)state;
    job_init(&job, NULL, "{\"amp\":true,\"sharding\":true,\"sharding_configs\":{\"stage\":2}}", 8);
    assert_false(job.plan.has_program);
    json = plan_encode_whole(&job.plan);
    assert_null(fleet_json_at(json, "bytesPerRank"));
    assert_int_equal(fleet_json_get_number(json, "bytesPerParameter.parameters", &bytes, NULL), 0);
    assert_true(bytes == 2);
    assert_int_equal(fleet_json_get_number(json, "bytesPerParameter.gradients", &bytes, NULL), 0);
    assert_true(bytes == 2.0 / 8);
    assert_int_equal(fleet_json_get_number(json, "bytesPerParameter.optimizerState", &bytes, NULL),
                     0);
    assert_true(bytes == 12.0 / 8);
    assert_true(cJSON_IsNull(fleet_json_at(json, "communication[0].bytes")));
    job_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_explain__cuts_layers_into_stages),
        cmocka_unit_test(test_plan_explain__prints_the_schedule_of_a_rank),
        cmocka_unit_test(test_plan_explain__divides_matrices),
        cmocka_unit_test(test_plan_explain__takes_the_program_where_passes_exist),
        cmocka_unit_test(test_plan_explain__gives_each_rank_its_place),
        cmocka_unit_test(test_plan_explain__refuses_more_stages_than_layers),
        cmocka_unit_test(test_plan_explain__runs_a_pipeline_of_one_stage),
        cmocka_unit_test(test_plan_explain__refuses_to_run_what_has_no_pass),
        cmocka_unit_test(test_plan_explain__sums_in_one_level_after_a_loss),
        cmocka_unit_test(test_plan_explain__does_without_a_model),
    };
    return cmocka_run_group_tests_name("plan_explain", tests, NULL, NULL);
}
