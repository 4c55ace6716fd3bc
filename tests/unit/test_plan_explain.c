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
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/plan/plan.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"

/* 64 micro-batches of 2, a model of 8 equal layers. */
#define JOB(optimizer)                                                                         \
    "{\"model\":{\"name\":\"gpt\",\"layers\":8,\"heads\":4,\"width\":128,\"context\":64,"      \
    "\"vocabulary\":256},\"data\":{\"path\":\"t\"},\"optimizer\":{\"name\":\"" optimizer "\"," \
    "\"learningRate\":0.1},\"globalBatchSize\":128,\"microBatchSize\":2,\"steps\":10}"

/* ln_1, c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj: matrices, vectors. */
#define LAYER_MATRICES (128 * 384 + 128 * 128 + 2 * 128 * 512)
#define LAYER_VECTORS  (4 * 128 + 384 + 128 + 512 + 128)
#define LAYER          (LAYER_MATRICES + LAYER_VECTORS)
#define TOKENS         (256 * 128) /* wte, which the last stage reads too */
#define POSITIONS      (64 * 128)
#define LAST_NORM      (2 * 128)
#define ALL            (8 * LAYER + TOKENS + POSITIONS + LAST_NORM)
#define BOUNDARY       (2 * 64 * 128 * 4) /* bytes between two layers, of one micro-batch, fp32 */

struct job {
    struct training_config training;
    struct strategy strategy;
    struct plan plan;
    struct fleet_errors errors;
    int rc;
};

static void job_init(struct job *job, const char *training, const char *strategy, int world)
{
    FLEET_AUTO_JSON cJSON *t = training ? cJSON_Parse(training) : NULL, *s = cJSON_Parse(strategy);
    struct plan_request request = {
        .strategy = &job->strategy, .world = world, .only_explain = true};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    *job = (struct job){0};
    assert_non_null(s);
    if (training) {
        assert_non_null(t);
        job->rc = training_config_decode(t, "spec.training", &job->training, &job->errors);
        request.training = &job->training;
    }
    job->rc |= strategy_json_decode(s, "spec.strategy", &job->strategy, &job->errors);
    if (job->rc == 0)
        job->rc = plan_build(&request, &job->plan, &job->errors);
    fleet_errors_print(&job->errors, &text);
    if (job->rc)
        fail_msg("%s on %d: refused: %s", strategy, world, text.text);
}

static void job_release(struct job *job)
{
    plan_release(&job->plan);
    training_config_release(&job->training);
    strategy_release(&job->strategy);
    fleet_errors_release(&job->errors);
}

static void expect_bytes(const struct plan *plan, enum plan_bytes kind, double wanted)
{
    if (fabs((double)plan->bytes[kind] - wanted) > 1)
        fail_msg("%s: expected %.0f, got %zu", plan_bytes_name(kind), wanted, plan->bytes[kind]);
}

static const struct plan_transfer *find(const struct plan_traffic *traffic, const char *what)
{
    for (size_t i = 0; i < traffic->count; i++)
        if (strncmp(traffic->items[i].what, what, strlen(what)) == 0)
            return &traffic->items[i];
    return NULL;
}

static void expect_sent(const struct plan_traffic *traffic, const char *kind, const char *what,
                        double wanted)
{
    const struct plan_transfer *t = find(traffic, what);

    if (!t)
        fail_msg("%s %s: expected, but nobody sends it", kind, what);
    assert_string_equal(t->kind, kind);
    if (fabs(t->bytes - wanted) > 1 + 1e-9 * wanted)
        fail_msg("%s %s: expected %.0f bytes, got %.0f", kind, what, wanted, t->bytes);
}

/* Rajbhandari and others, 1910.02054, figure 1, with the 16 bytes an element of mixed precision. */
static void test_plan_explain__divides_bytes_by_stage_of_sharding(void **state)
{
    static const struct {
        int stage;
        double parameters, gradients, optimizer; /* bytes an element, for 4 ranks */
    } rows[] = {{3, 2.0 / 4, 2.0 / 4, 12.0 / 4}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char strategy[200];
        struct job job;
        double slots;

        (void)snprintf(strategy, sizeof(strategy),
                       "{\"amp\":true,\"sharding\":true,\"sharding_configs\":{\"stage\":%d}}",
                       rows[i].stage);
        job_init(&job, JOB("adam"), strategy, 4);
        slots = job.plan.slots;
        assert_int_equal(job.plan.parts.elements, ALL);
        expect_bytes(&job.plan, PLAN_BYTES_PARAMETERS, rows[i].parameters * ALL);
        expect_bytes(&job.plan, PLAN_BYTES_GRADIENTS, rows[i].gradients * ALL * slots);
        expect_bytes(&job.plan, PLAN_BYTES_OPTIMIZER, rows[i].optimizer * ALL);
        assert_true(job.plan.by_formula[PLAN_BYTES_OPTIMIZER]);
        assert_false(job.plan.by_formula[PLAN_BYTES_ACTIVATIONS]);
        assert_int_equal(job.plan.cannot_run.count, 1);
        job_release(&job);
    }
}

/* Stage 1 runs: the bytes are those of the program. Without buddies the shards add up to the states
 * of one rank that has all; with them, to twice as much. */
static void test_plan_explain__counts_the_states_that_a_rank_holds(void **state)
{
    struct job whole, job;

    (void)state;
    job_init(&whole, JOB("adam"), "{}", 4);
    job_init(&job, JOB("adam"), "{\"sharding\":true}", 4);
    for (int buddies = 0; buddies < 2; buddies++) {
        size_t sum = 0, most = 0;
        job.plan.ownership.has_buddies = buddies;
        for (int shard = 0; shard < 4; shard++) {
            size_t bytes[PLAN_BYTES_COUNT];
            bool by_formula[PLAN_BYTES_COUNT];
            plan_cost_bytes(&job.plan, 0, shard, bytes, by_formula);
            sum += bytes[PLAN_BYTES_OPTIMIZER];
            most = bytes[PLAN_BYTES_OPTIMIZER] > most ? bytes[PLAN_BYTES_OPTIMIZER] : most;
            assert_false(by_formula[PLAN_BYTES_OPTIMIZER]);
            assert_int_equal(bytes[PLAN_BYTES_GRADIENTS], whole.plan.bytes[PLAN_BYTES_GRADIENTS]);
        }
        assert_int_equal(sum, (size_t)(buddies + 1) * whole.plan.bytes[PLAN_BYTES_OPTIMIZER]);
        if (!buddies) /* as it was planned */
            assert_int_equal(job.plan.bytes[PLAN_BYTES_OPTIMIZER], most);
    }
    assert_int_equal(job.plan.cannot_run.count, 0);
    job_release(&whole);
    job_release(&job);
}

/* Stage 2 runs: each live sum of the gradients is held once, the complete one also by buddies. */
static void test_plan_explain__counts_the_sums_that_a_rank_holds(void **state)
{
    struct job whole, job;

    (void)state;
    job_init(&whole, JOB("adam"), "{}", 4);
    job_init(&job, JOB("adam"), "{\"sharding\":true,\"sharding_configs\":{\"stage\":2}}", 4);
    for (int buddies = 0; buddies < 2; buddies++) {
        size_t sum = 0, sums = (size_t)(buddies + job.plan.slots);
        job.plan.ownership.has_buddies = buddies;
        for (int shard = 0; shard < 4; shard++) {
            size_t bytes[PLAN_BYTES_COUNT];
            bool by_formula[PLAN_BYTES_COUNT];
            plan_cost_bytes(&job.plan, 0, shard, bytes, by_formula);
            assert_false(by_formula[PLAN_BYTES_GRADIENTS]);
            sum += bytes[PLAN_BYTES_GRADIENTS];
        }
        assert_int_equal(sum, sums * sizeof(float) * (size_t)job.plan.program.flat_count);
    }
    assert_int_equal(job.plan.cannot_run.count, 0);
    assert_true(job.plan.bytes[PLAN_BYTES_ACTIVATIONS] > whole.plan.bytes[PLAN_BYTES_ACTIVATIONS]);
    job_release(&whole);
    job_release(&job);
}

static double sent_of(const struct plan *plan, int replica, const char *kind, const char *what)
{
    struct plan_traffic traffic = {.count = 0};
    double sum = 0;

    program_traffic(plan, replica, &traffic);
    for (size_t i = 0; i < traffic.count; i++)
        if (strcmp(traffic.items[i].kind, kind) == 0 && strcmp(traffic.items[i].what, what) == 0)
            sum += traffic.items[i].bytes;
    return sum;
}

/* All ranks together send each micro-batch's gradient once, but for the sender's own part, and each
 * complete sum once to the buddy. */
static void test_plan_explain__sends_divided_gradients_once(void **state)
{
    struct job job;
    double gradient, sent = 0;

    (void)state;
    job_init(&job, JOB("adam"), "{\"sharding\":true,\"sharding_configs\":{\"stage\":2}}", 4);
    gradient = 4.0 * (double)job.plan.program.flat_count;
    assert_int_equal(job.plan.leaves % 4, 0);
    job.plan.ownership.has_buddies = true;
    for (int replica = 0; replica < 4; replica++)
        sent += sent_of(&job.plan, replica, "tree_sum", "gradients");
    assert_true(sent == gradient * (double)(job.plan.leaves / 4 * 3 + 1));
    job_release(&job);
}

/* 1.5 of the bytes that data parallelism sends, by stage 3 (one micro-batch a rank). */
static void test_plan_explain__sends_as_sharding_does(void **state)
{
    struct job job;
    double shard = 4.0 * ALL * 63 / 64;

    (void)state;
    job_init(&job, JOB("adam"), "{\"sharding\":true,\"sharding_configs\":{\"stage\":3}}", 64);
    expect_sent(&job.plan.traffic, "reduce", "gradients", shard);
    assert_null(find(&job.plan.traffic, "owned gradients"));
    expect_sent(&job.plan.traffic, "broadcast", "parameters", 2 * shard);
    job_release(&job);
    job_init(&job, JOB("adam"),
             "{\"sharding\":true,\"sharding_configs\":{\"stage\":3,\"hybrid_dp\":true,"
             "\"sharding_group_size\":4}}",
             16);
    expect_sent(&job.plan.traffic, "reduce", "gradients", 4.0 * ALL * 3 / 4);
    expect_sent(&job.plan.traffic, "all_reduce", "owned gradients", 2 * 4.0 * ALL / 4 * 3 / 4);
    job_release(&job);
}

static void test_plan_explain__hands_out_whole_parameters(void **state)
{
    struct job job;
    int64_t elements = 0, tensors = 0;

    (void)state;
    job_init(&job, JOB("adam"), "{\"sharding\":true}", 5);
    for (int shard = 0; shard < 5; shard++) {
        elements += plan_parts_shard_elements(&job.plan.parts, 0, shard);
        tensors += plan_parts_shard_tensors(&job.plan.parts, 0, shard);
    }
    assert_int_equal(elements, ALL);
    assert_int_equal(tensors, job.plan.parts.stages[0].tensors);
    assert_int_equal(tensors, 8 * 12 + 4);
    job_release(&job);
}

static void test_plan_explain__cuts_layers_into_stages(void **state)
{
    struct job job;
    const struct plan_stage *stages;
    size_t whole;

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
    /* the first stage holds four micro-batches of a quarter of the layers */
    expect_bytes(&job.plan, PLAN_BYTES_ACTIVATIONS, (double)whole);
    assert_true(job.plan.by_formula[PLAN_BYTES_ACTIVATIONS]);
    /* the second sends most: both ways, for each of 64 micro-batches */
    expect_sent(&job.plan.traffic, "send", "activations", 64.0 * BOUNDARY);
    expect_sent(&job.plan.traffic, "send", "gradients of activations", 64.0 * BOUNDARY);
    job_release(&job);
    job_init(&job, JOB("adam"),
             "{\"pipeline\":true,\"pipeline_configs\":{\"accumulate_steps\":64,"
             "\"schedule_mode\":\"F-then-B\"}}",
             4);
    expect_bytes(&job.plan, PLAN_BYTES_ACTIVATIONS, (double)whole / 4 * 64);
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

static void test_plan_explain__compresses_with_dgc(void **state)
{
    /* tensors of 16384 elements and more take part: the matrices of layers, and wte; not wpe */
    double sparse = 8.0 * LAYER_MATRICES + TOKENS;
    double kept = 8 * (49 + 16 + 65 + 65) + 32; /* ⌊n/1000⌋ of each */
    const struct plan_transfer *whole, *small;
    struct job job, plain;

    (void)state;
    job_init(&job, JOB("momentum"), "{\"dgc\":true}", 4);
    job_init(&plain, JOB("momentum"), "{}", 4);
    expect_sent(&job.plan.traffic, "dgc_gather", "the largest", 8 * kept * 3); /* to 3 others */
    whole = find(&plain.plan.traffic, "gradients");
    small = find(&job.plan.traffic, "gradients");
    assert_true(small && whole && small->bytes > 0);
    assert_true(small->bytes < 3 * whole->bytes * (1 - sparse / ALL)); /* in small pieces, whole */
    expect_bytes(&job.plan, PLAN_BYTES_OPTIMIZER, 2 * 4.0 * ALL);
    job_release(&job);
    job_release(&plain);
}

static void test_plan_explain__averages_with_localsgd(void **state)
{
    struct job job;

    (void)state;
    job_init(&job, JOB("sgd"), "{\"localsgd\":true,\"localsgd_configs\":{\"k_steps\":5}}", 4);
    expect_sent(&job.plan.traffic, "all_reduce", "parameters", 2 * 4.0 * ALL * 3 / 4 / 5);
    expect_bytes(&job.plan, PLAN_BYTES_OPTIMIZER, 4.0 * ALL); /* the snapshot */
    expect_bytes(&job.plan, PLAN_BYTES_EXCHANGE, 0);
    assert_int_equal(job.plan.traffic.count, 1);
    job_release(&job);
}

static void test_plan_explain__halves_with_fp16_allreduce(void **state)
{
    struct job whole, half;

    (void)state;
    job_init(&whole, JOB("sgd"), "{}", 4);
    job_init(&half, JOB("sgd"), "{\"fp16_allreduce\":true}", 4);
    assert_true(whole.plan.traffic.items[0].from_program);
    assert_true(half.plan.traffic.items[0].from_program);
    assert_true(fabs(whole.plan.sent_bytes - 2 * half.plan.sent_bytes) < 1);
    job_release(&whole);
    job_release(&half);
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
    assert_int_equal(cJSON_GetArraySize(fleet_json_at(whole, "cannotRun")), 2);
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
                        "16 pipeline stages are more than the 8 layers of gpt: at most 8 stages");
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
    job_init(&job, JOB("momentum"), "{\"pipeline\":true}", 4);
    request.training = &job.training;
    request.strategy = &job.strategy;
    assert_int_equal(plan_build(&request, &plan, &errors), -EINVAL);
    assert_int_equal(errors.count, 1);
    assert_string_equal(errors.items[0].path, "spec.strategy.pipeline");
    fleet_errors_release(&errors);
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
        cmocka_unit_test(test_plan_explain__divides_bytes_by_stage_of_sharding),
        cmocka_unit_test(test_plan_explain__counts_the_sums_that_a_rank_holds),
        cmocka_unit_test(test_plan_explain__sends_divided_gradients_once),
        cmocka_unit_test(test_plan_explain__counts_the_states_that_a_rank_holds),
        cmocka_unit_test(test_plan_explain__sends_as_sharding_does),
        cmocka_unit_test(test_plan_explain__hands_out_whole_parameters),
        cmocka_unit_test(test_plan_explain__cuts_layers_into_stages),
        cmocka_unit_test(test_plan_explain__prints_the_schedule_of_a_rank),
        cmocka_unit_test(test_plan_explain__divides_matrices),
        cmocka_unit_test(test_plan_explain__compresses_with_dgc),
        cmocka_unit_test(test_plan_explain__averages_with_localsgd),
        cmocka_unit_test(test_plan_explain__halves_with_fp16_allreduce),
        cmocka_unit_test(test_plan_explain__takes_the_program_where_passes_exist),
        cmocka_unit_test(test_plan_explain__gives_each_rank_its_place),
        cmocka_unit_test(test_plan_explain__refuses_more_stages_than_layers),
        cmocka_unit_test(test_plan_explain__runs_a_pipeline_of_one_stage),
        cmocka_unit_test(test_plan_explain__refuses_to_run_what_has_no_pass),
        cmocka_unit_test(test_plan_explain__does_without_a_model),
    };
    return cmocka_run_group_tests_name("plan_explain", tests, NULL, NULL);
}
