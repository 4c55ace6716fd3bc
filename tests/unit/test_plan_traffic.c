/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Bytes that the plan counts: what a rank holds and what it sends, for each setting of the
 * strategy.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/plan/gathers.h"
#include "libfleet/plan/plan.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/program_traffic.h"
#include "tests/unit/plan_explain_fixture.h"

#define ALL (8 * LAYER + TOKENS + POSITIONS + LAST_NORM)

#define STAGE_3 "\"sharding\":true,\"sharding_configs\":{\"stage\":3"

/* Each parameter is held once, with buddies twice; the rank that holds most is planned. */
static void test_plan_explain__counts_the_parameters_that_a_rank_holds(void **state)
{
    struct job job;

    (void)state;
    job_init(&job, JOB("adam"), "{" STAGE_3 "}}", 4);
    for (int buddies = 0; buddies < 2; buddies++) {
        size_t sum = 0, most = 0;
        job.plan.ownership.has_buddies = buddies;
        for (int shard = 0; shard < 4; shard++) {
            size_t bytes[PLAN_BYTES_COUNT];
            bool by_formula[PLAN_BYTES_COUNT];
            plan_cost_bytes(&job.plan, 0, shard, bytes, by_formula);
            assert_false(by_formula[PLAN_BYTES_PARAMETERS]);
            sum += bytes[PLAN_BYTES_PARAMETERS];
            most = bytes[PLAN_BYTES_PARAMETERS] > most ? bytes[PLAN_BYTES_PARAMETERS] : most;
        }
        assert_int_equal(sum, (size_t)(buddies + 1) * sizeof(float) *
                                  (size_t)job.plan.program.flat_count);
        if (!buddies) /* as it was planned */
            assert_int_equal(job.plan.bytes[PLAN_BYTES_PARAMETERS], most);
    }
    assert_int_equal(job.plan.cannot_run.count, 0);
    job_release(&job);
}

/* Rajbhandari and others, 1910.02054, figure 1, in fp32: 4 bytes of a parameter and of its
 * gradient, 8 of its states. Activations are not counted, and segments are among them. */
static void test_plan_explain__divides_bytes_by_stage_of_sharding(void **state)
{
    static const char *const stages[] = {"1", "2", "3"};
    static const double bytes_each[] = {4 + 4 + 8.0 / 4, 4 + 4.0 / 4 + 8.0 / 4, 16.0 / 4};

    (void)state;
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++) {
        char strategy[200];
        double sum;
        struct job job;

        (void)snprintf(strategy, sizeof(strategy),
                       "{\"sharding\":true,\"sharding_configs\":{\"stage\":%s}}", stages[i]);
        job_init(&job, JOB("adam"), strategy, 4);
        sum = (double)job.plan.bytes[PLAN_BYTES_PARAMETERS] +
              (double)job.plan.memory.bytes[MEMORY_GRADIENTS] +
              (double)job.plan.bytes[PLAN_BYTES_OPTIMIZER];
        /* whole parameters are divided: the heaviest rank has a little more than a quarter */
        assert_true(sum >= bytes_each[i] * ALL && sum < 1.15 * bytes_each[i] * ALL);
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
        if (strcmp(transfer_kind_text(&traffic.items[i]), kind) == 0 &&
            strcmp(transfer_what_text(&traffic.items[i]), what) == 0)
            sum += traffic.items[i].bytes;
    return sum;
}

/* All ranks together send each micro-batch's gradient once, except for the sender's own part, and
 * each complete sum once to the buddy. */
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

static double gathered_elements(const struct program *program)
{
    double sum = 0;

    for (int i = 0; i < program->op_count; i++)
        if (gathers_is(&program->ops[i]))
            sum += (double)program->ops[i].attributes.flat_count;
    return sum;
}

/* All ranks together send each gather to the ranks that do not hold it: to all but one of a group,
 * and with buddies to all but two. About 1.5 of the bytes that data parallelism sends: the
 * embeddings are not gathered for the backward part. */
static void test_plan_explain__sends_divided_parameters_to_those_without(void **state)
{
    static const struct {
        const char *strategy;
        int world, others;
        bool has_buddies;
    } rows[] = {{"{" STAGE_3 ",\"fuse_broadcast_MB\":1}}", 4, 3, false},
                {"{" STAGE_3 ",\"fuse_broadcast_MB\":1}}", 4, 2, true},
                {"{" STAGE_3 ",\"hybrid_dp\":true,\"sharding_group_size\":4}}", 16, 12, false}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job job;
        double sent = 0, gathered, rounds;

        job_init(&job, JOB("adam"), rows[i].strategy, rows[i].world);
        job.plan.ownership.has_buddies = rows[i].has_buddies;
        gathered = 4.0 * gathered_elements(&job.plan.program);
        rounds = (double)((job.plan.leaves + rows[i].world - 1) / rows[i].world);
        for (int replica = 0; replica < rows[i].world; replica++)
            sent += sent_of(&job.plan, replica, "all_gather", "parameters");
        assert_true(sent == gathered * rows[i].others * rounds);
        assert_true(gathered >= 4.0 * ALL && gathered < 2.1 * 4.0 * ALL);
        job_release(&job);
    }
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

/* A grid of every axis: each kind of transfer has its own line. The exchanges of a micro-batch
 * carry what attention reads and gives: 4 tensors in a layer, of a rank's tokens and features. */
static void test_plan_explain__lists_the_transfers_of_every_axis(void **state)
{
    double tokens = 64.0 * 2 / 2, features = 128.0 / 2, layers = 4, sent = 0;
    struct job job;

    (void)state;
    job_init(&job, JOB("adam"),
             "{" STAGE_3 "},\"pipeline\":true,\"tensor_parallel_configs\":"
             "{\"sequence_parallel\":true},\"hybrid_configs\":{\"dp_degree\":1,"
             "\"sharding_degree\":2,\"pp_degree\":2,\"mp_degree\":2,\"sep_degree\":2}}",
             16);
    for (size_t i = 0; i < job.plan.traffic.count; i++)
        if (job.plan.traffic.items[i].kind == OP_ALL_TO_ALL)
            sent += job.plan.traffic.items[i].bytes;
    assert_true(job.plan.traffic.count > 16);
    assert_true(sent == 2 * layers * 4 * tokens * features / 2 * sizeof(float) *
                            (double)plan_cost_micro_batches(&job.plan));
    job_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_explain__divides_bytes_by_stage_of_sharding),
        cmocka_unit_test(test_plan_explain__counts_the_sums_that_a_rank_holds),
        cmocka_unit_test(test_plan_explain__sends_divided_gradients_once),
        cmocka_unit_test(test_plan_explain__counts_the_states_that_a_rank_holds),
        cmocka_unit_test(test_plan_explain__counts_the_parameters_that_a_rank_holds),
        cmocka_unit_test(test_plan_explain__sends_divided_parameters_to_those_without),
        cmocka_unit_test(test_plan_explain__hands_out_whole_parameters),
        cmocka_unit_test(test_plan_explain__compresses_with_dgc),
        cmocka_unit_test(test_plan_explain__averages_with_localsgd),
        cmocka_unit_test(test_plan_explain__lists_the_transfers_of_every_axis),
        cmocka_unit_test(test_plan_explain__halves_with_fp16_allreduce),
    };
    return cmocka_run_group_tests_name("plan_traffic", tests, NULL, NULL);
}
