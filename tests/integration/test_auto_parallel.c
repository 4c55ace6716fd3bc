/* SPDX-License-Identifier: Apache-2.0 */

/*
 * MindSpore's context acts: a job with spec.autoParallel trains to the weights of the job whose
 * strategy says the same, and to other weights where gradients are added instead of averaged.
 */
#include <stdio.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_folder.h"

#define LIMIT_S 600.0
#define DATA    "parallel_mode: data_parallel, "

/* The digest of the weights after ten steps, with more of the optimizer and lines of the spec. */
static void train_in(int workers, int micro_batch, const char *optimizer, const char *lines,
                     char sha256[65])
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {path, NULL};
    struct job_run run;

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: context}\nspec:\n"
        "  worker: {replicas: %d}\n"
        "  training:\n"
        "    model: {name: gpt, layers: 2, heads: 2, width: 32, context: 32}\n"
        "    data: {tokenizer: synthetic-markov, symbols: 16}\n"
        "    optimizer: {name: adamw, learningRate: 1.0e-3%s%s}\n"
        "    globalBatchSize: 8\n    microBatchSize: %d\n    steps: 10\n%s\n",
        workers, *optimizer ? ", " : "", optimizer, micro_batch, lines);
    write_file("job.yaml", text.text, text.length);
    job_run(arguments, LIMIT_S, NULL, NULL, &run);
    if (run.exit_code != 0 || run.problem[0])
        fail_msg("%s: exit %d, problem \"%s\": %s", lines, run.exit_code, run.problem, run.errors);
    memcpy(sha256, run.sha256, 65);
    job_run_release(&run);
}

static void train_with(int workers, const char *optimizer, const char *lines, char sha256[65])
{
    train_in(workers, 1, optimizer, lines, sha256);
}

static void train(int workers, const char *lines, char sha256[65])
{
    train_with(workers, "", lines, sha256);
}

static void test_auto_parallel__means_what_the_strategy_says(void **state)
{
    char plain[65], added[65], other[65];

    (void)state;
    train(4, "", plain);
    train(4, "  strategy: {gradient_scale_configs: {scale_strategy: sum}}", added);
    assert_string_not_equal(plain, added);
    train(4, "  autoParallel: {" DATA "gradients_mean: true, device_num: 4}", other);
    assert_string_equal(other, plain);
    train(4, "  autoParallel: {" DATA "}", other);
    assert_string_equal(other, added);
    train(4, "  autoParallel: {parallel_mode: hybrid_parallel}", other);
    assert_string_equal(other, added);
}

/* Neither the cuts of all-reduces nor the division of the optimizer's states changes a bit. */
static void test_auto_parallel__divides_and_fuses_without_a_change(void **state)
{
    static const char *const contexts[] = {
        "all_reduce_fusion_config: [1, 3]",
        "comm_fusion: {allreduce: {mode: index, config: [0, 200]}}",
        "comm_fusion: {allreduce: {mode: size, config: 1}}",
        "comm_fusion: {openstate: false}",
        "enable_parallel_optimizer: true",
        ("enable_parallel_optimizer: true, "
         "parallel_optimizer_config: {optimizer_weight_shard_size: 2}"),
        "force_fp32_communication: true, parameter_broadcast: true",
    };
    char plain[65], other[65];

    (void)state;
    train(1, "", plain);
    for (size_t i = 0; i < FLEET_COUNT(contexts); i++) {
        char lines[300];
        (void)snprintf(lines, sizeof(lines), "  autoParallel: {" DATA "gradients_mean: true, %s}",
                       contexts[i]);
        train(i % 2 ? 2 : 4, lines, other);
        assert_string_equal(other, plain);
    }
}

#define GRAPH "  autoParallel: {parallel_mode: semi_auto_parallel, "
#define TWICE "rescaleGrad: 2"

/* Neither stages nor shards change a bit; sums do, by an exact factor. */
static void test_auto_parallel__divides_a_graph_into_stages(void **state)
{
    static const struct {
        int workers;
        const char *lines;
        bool is_twice; /* gradients are multiplied by two */
    } jobs[] = {
        {2, GRAPH "gradients_mean: true}", false},
        {2, GRAPH "gradients_mean: true, pipeline_stages: 2, device_num: 2}", false},
        {4,
         GRAPH "gradients_mean: true, pipeline_stages: 2, enable_parallel_optimizer: true, "
               "pipeline_config: {pipeline_interleave: true, pipeline_scheduler: gpipe}, "
               "parallel_optimizer_config: {gradient_accumulation_shard: true}}",
         false},
        {4, GRAPH "pipeline_stages: 2}", true},
    };
    char plain[65], twice[65], other[65];

    (void)state;
    train(1, "", plain);
    train_with(1, TWICE, "", twice);
    assert_string_not_equal(plain, twice);
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        train(jobs[i].workers, jobs[i].lines, other);
        assert_string_equal(other, jobs[i].is_twice ? twice : plain);
    }
}

/* Two ranks compute one loss: its gradient counts once, or twice. */
static void test_auto_parallel__counts_a_repeated_loss(void **state)
{
    static const char tensor[] = "  strategy: {hybrid_configs: {mp_degree: 2}}\n";
    char lines[300], plain[65], twice[65], other[65];

    (void)state;
    train(2, tensor, plain);
    train_with(2, TWICE, tensor, twice);
    (void)snprintf(lines, sizeof(lines), "%s" GRAPH "gradients_mean: true}", tensor);
    train(2, lines, other);
    assert_string_equal(other, plain);
    (void)snprintf(lines, sizeof(lines),
                   "%s" GRAPH "gradients_mean: true, loss_repeated_mean: false}", tensor);
    train(2, lines, other);
    assert_string_equal(other, twice);
}

#define AUTO "  autoParallel: {parallel_mode: auto_parallel, gradients_mean: true, "

/* What a search finds has the bits of the same grid written by hand. Where ranks share tensors,
 * dynamic_programming also divides single operators: test_plan_operators.c. */
static void test_auto_parallel__trains_what_a_search_finds(void **state)
{
    static const struct {
        int workers, micro_batch;
        const char *context, *by_hand;
    } jobs[] = {
        {4, 1, AUTO "search_mode: dynamic_programming}", ""},
        {4, 4, AUTO "}", /* two micro-batches, so two replicas */
         "  strategy: {hybrid_configs: {mp_degree: 2}}"},
        {4, 4, AUTO "pipeline_stages: 2}",
         "  strategy: {pipeline: true, hybrid_configs: {mp_degree: 2, pp_degree: 2}}"},
    };
    char found[65], given[65];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        train_in(jobs[i].workers, jobs[i].micro_batch, "", jobs[i].context, found);
        train_in(jobs[i].workers, jobs[i].micro_batch, "", jobs[i].by_hand, given);
        assert_string_equal(found, given);
    }
}

#define MEAN            GRAPH "gradients_mean: true}"
#define PROPAGATION     AUTO "search_mode: sharding_propagation}"
#define OPERATORS(list) "    operatorStrategies: [" list "]\n"

/* Strategies of operators have the bits of the grid that they ask for. */
static void test_auto_parallel__divides_operators_as_given(void **state)
{
    static const char model[] = "  strategy: {hybrid_configs: {mp_degree: 2}}";
    static const struct {
        const char *lines, *by_hand;
    } jobs[] = {
        {OPERATORS("{operator: 'h.*.mlp.c_fc', in: [[1, 1, 1], [1, 2]], out: [[1, 1, 2]]}") MEAN,
         model},
        {OPERATORS("{operator: 'h.0.attn.c_proj', in: [[1, 1, 2], [2, 1]]}") PROPAGATION, model},
        {OPERATORS("{operator: embedding, in: [[2, 1], [1, 1]]}") MEAN, ""},
        {OPERATORS("{operator: 'h.0.attn', in: [[1, 1, 2]]}, {operator: '*.ln_?', in: [[1, 2, 1]]}")
             MEAN,
         "  strategy: {hybrid_configs: {mp_degree: 2}, tensor_parallel_configs: "
         "{sequence_parallel: true}}"},
        {OPERATORS("{operator: 'h.1.mlp.c_fc', in: [[1, 2, 1], [1, 1]]}") MEAN,
         "  strategy: {hybrid_configs: {sep_degree: 2}}"},
    };
    char given[65], other[65];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(jobs); i++) {
        train(2, jobs[i].by_hand, given);
        train(2, jobs[i].lines, other);
        assert_string_equal(other, given);
    }
}

/* Steps up to `until` on so many workers, from the checkpoint of the steps before. */
static void go_on(int workers, const char *until, const char *folder_name, const char *lines,
                  char sha256[65])
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "resized.yaml");
    const char *arguments[] = {path, "--steps", until, NULL};
    struct job_run run;

    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: resized}\nspec:\n"
        "  worker: {replicas: %d%s}\n"
        "  training:\n"
        "    model: {name: gpt, layers: 2, heads: 2, width: 32, context: 32}\n"
        "    data: {tokenizer: synthetic-markov, symbols: 16}\n"
        "    optimizer: {name: adamw, learningRate: 1.0e-3}\n"
        "    globalBatchSize: 8\n    microBatchSize: 4\n    steps: 10\n"
        "    checkpoint: {path: %s, everySteps: 100}\n%s\n",
        workers, strstr(lines, "auto_parallel") ? ", minReplicas: 1, maxReplicas: 4" : "",
        folder_name, lines);
    write_file("resized.yaml", text.text, text.length);
    job_run(arguments, LIMIT_S, NULL, NULL, &run);
    if (run.exit_code != 0 || run.problem[0])
        fail_msg("%s: exit %d, problem \"%s\": %s", lines, run.exit_code, run.problem, run.errors);
    memcpy(sha256, run.sha256, 65);
    job_run_release(&run);
}

/* Two micro-batches: four workers need tensor parallelism, and two that go on from them keep it. */
static void test_auto_parallel__keeps_a_division_that_fits(void **state)
{
    static const char by_hand[] = "  strategy: {hybrid_configs: {mp_degree: 2}}";
    static const struct {
        int workers;
        const char *until, *by_hand;
    } legs[] = {{2, "3", ""}, {4, "6", by_hand}, {2, "9", by_hand}, {1, "12", ""}};
    char found[65], given[65];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(legs); i++) {
        go_on(legs[i].workers, legs[i].until, "searched", AUTO "}", found);
        go_on(legs[i].workers, legs[i].until, "given", legs[i].by_hand, given);
        assert_string_equal(found, given);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_auto_parallel__means_what_the_strategy_says,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_auto_parallel__divides_and_fuses_without_a_change,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_auto_parallel__divides_a_graph_into_stages,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_auto_parallel__trains_what_a_search_finds,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_auto_parallel__divides_operators_as_given,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_auto_parallel__keeps_a_division_that_fits,
                                        job_folder_make, job_folder_remove),
        cmocka_unit_test_setup_teardown(test_auto_parallel__counts_a_repeated_loss, job_folder_make,
                                        job_folder_remove),
    };
    return cmocka_run_group_tests_name("auto_parallel", tests, NULL, NULL);
}
