/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose ranks divide a model, on the back end for NVIDIA GPUs (cuda_fixture.h): stages,
 * tensors, sequences, optimizer states, gradients and parameters. The divisions of a group end with
 * the same bits.
 */
#include "tests/integration/cuda_fixture.h"

#define ROWS 10

static const struct model small = {
    "gpt",
    "{name: gpt, layers: 2, heads: 2, width: 16, context: 8, dropout: 0.1}",
    "{name: adamw, learningRate: 0.003, clip: {globalNorm: 1}}",
    4,
    8,
    2};

/* The first division is the reference: its losses are near those of the CPU. */
static const struct group {
    const char *name;
    struct division {
        const char *strategy, *workers;
    } rows[ROWS];
} groups[] = {
    {"one worker's bits",
     {{"{}", "1"},
      {"{pipeline: true, hybrid_configs: {pp_degree: 2}}", "2"},
      {"{pipeline: true, hybrid_configs: {pp_degree: 2}}", "4"},
      {"{pipeline: true, hybrid_configs: {pp_degree: 2}, "
       "pipeline_configs: {schedule_mode: F-then-B}}",
       "2"},
      {"{sharding: true, sharding_configs: {stage: 2}}", "2"},
      {"{sharding: true, sharding_configs: {stage: 2}}", "3"},
      {"{sharding: true, sharding_configs: {stage: 2, optimize_offload: true}}", "2"},
      {"{sharding: true, sharding_configs: {stage: 3}}", "2"},
      {"{sharding: true, sharding_configs: {stage: 3}}", "4"},
      {"{pipeline: true, sharding: true, sharding_configs: {stage: 3}, "
       "hybrid_configs: {pp_degree: 2, sharding_degree: 2}}",
       "4"}}},
    {"shared tensors",
     {{"{hybrid_configs: {mp_degree: 2}}", "2"},
      {"{hybrid_configs: {mp_degree: 2}}", "4"},
      {"{pipeline: true, hybrid_configs: {mp_degree: 2, pp_degree: 2}}", "4"},
      {"{sharding: true, sharding_configs: {stage: 3}, "
       "hybrid_configs: {mp_degree: 2, sharding_degree: 2}}",
       "4"}}},
    {"divided tokens",
     {{"{hybrid_configs: {mp_degree: 2}, tensor_parallel_configs: {sequence_parallel: true}}", "2"},
      {"{hybrid_configs: {mp_degree: 2}, tensor_parallel_configs: {sequence_parallel: true}}", "4"},
      {"{pipeline: true, hybrid_configs: {mp_degree: 2, pp_degree: 2}, "
       "tensor_parallel_configs: {sequence_parallel: true}}",
       "4"}}},
    {"sequences",
     {{"{hybrid_configs: {sep_degree: 2}}", "2"},
      {"{hybrid_configs: {sep_degree: 2}}", "4"},
      {"{pipeline: true, hybrid_configs: {sep_degree: 2, pp_degree: 2}}", "4"},
      {"{sharding: true, sharding_configs: {stage: 3}, "
       "hybrid_configs: {sep_degree: 2, sharding_degree: 2}}",
       "4"}}},
};

static void train(const struct model *m, const char *backend, const struct division *division,
                  struct job_run *out)
{
    FLEET_AUTO_FREE char *path = write_divided_job(m, "", division->strategy);

    run_on(backend, path, division->workers, NULL, NULL, out);
    if (out->exit_code != 0)
        fail_msg("%s on %s workers, back end %s: exit %d: %s", division->strategy,
                 division->workers, backend, out->exit_code, out->errors);
    expect_success(out, m->steps);
}

static void expect_one_result(const struct group *group)
{
    struct job_run cpu, reference, run;

    train(&small, "cpu", &group->rows[0], &cpu);
    train(&small, "cuda", &group->rows[0], &reference);
    expect_near(&reference, &cpu, group->name);
    for (size_t i = 1; i < ROWS && group->rows[i].strategy; i++) {
        train(&small, "cuda", &group->rows[i], &run);
        if (strcmp(run.sha256, reference.sha256) != 0)
            fail_msg("%s: %s on %s workers ends with %s, %s on %s with %s", group->name,
                     group->rows[i].strategy, group->rows[i].workers, run.sha256,
                     group->rows[0].strategy, group->rows[0].workers, reference.sha256);
        job_run_release(&run);
    }
    job_run_release(&cpu);
    job_run_release(&reference);
}

static void test_cuda_divided__one_worker_s_bits(void **state)
{
    (void)state;
    expect_one_result(&groups[0]);
}

static void test_cuda_divided__shared_tensors(void **state)
{
    (void)state;
    expect_one_result(&groups[1]);
}

static void test_cuda_divided__tokens(void **state)
{
    (void)state;
    expect_one_result(&groups[2]);
}

static void test_cuda_divided__sequences(void **state)
{
    (void)state;
    expect_one_result(&groups[3]);
}

/* Parameters travel in 16 bits, also if their states are on the host. */
static void test_cuda_divided__rounded_parameters(void **state)
{
    static const struct division rows[] = {
        {"{amp: true}", "1"},
        {"{amp: true, sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.001}}",
         "2"},
        {"{amp: true, sharding: true, sharding_configs: {stage: 3, optimize_offload: true}}", "3"}};
    struct job_run one, parts;

    (void)state;
    train(&small, "cuda", &rows[0], &one);
    for (size_t i = 1; i < FLEET_COUNT(rows); i++) {
        train(&small, "cuda", &rows[i], &parts);
        assert_string_equal(parts.sha256, one.sha256);
        job_run_release(&parts);
    }
    job_run_release(&one);
}

/* LAMB and LARS need norms of whole tensors before the vote. */
static void test_cuda_divided__trust_ratios_of_shared_tensors(void **state)
{
    static const char strategy[] = "{hybrid_configs: {mp_degree: 2}}";
    static const char *const optimizers[] = {"{name: lamb, learningRate: 0.003}",
                                             "{name: lars, learningRate: 0.05}"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(optimizers); i++) {
        struct model model = models[0];
        FLEET_AUTO_FREE char *path = NULL;
        struct job_run cpu, two;

        model.optimizer = optimizers[i];
        model.steps = 3;
        path = write_divided_job(&model, "", strategy);
        run_on("cpu", path, "2", NULL, NULL, &cpu);
        expect_success(&cpu, model.steps);
        run_on("cuda", path, "2", NULL, NULL, &two);
        expect_success(&two, model.steps);
        expect_near(&two, &cpu, model.name);
        job_run_release(&cpu);
        job_run_release(&two);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_divided__one_worker_s_bits),
        cmocka_unit_test(test_cuda_divided__shared_tensors),
        cmocka_unit_test(test_cuda_divided__tokens),
        cmocka_unit_test(test_cuda_divided__sequences),
        cmocka_unit_test(test_cuda_divided__rounded_parameters),
        cmocka_unit_test(test_cuda_divided__trust_ratios_of_shared_tensors),
    };

    return cuda_run_tests("cuda divided", tests, tests);
}
