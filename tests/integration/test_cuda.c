/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whole jobs on the back end for NVIDIA GPUs (cuda_fixture.h). Each model trains as on the CPU; one
 * worker, two workers and other seeds give the same bits. test_cuda_divided.c divides them,
 * test_cuda_faults.c kills and breaks.
 */
#include "tests/integration/cuda_fixture.h"

/* ---- models ---------------------------------------------------------------------------------- */

static void test_cuda__models_train_as_on_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(models); i++) {
        FLEET_AUTO_FREE char *path = write_job(&models[i], "");
        struct job_run cpu, one, two;

        run_on("cpu", path, "1", NULL, NULL, &cpu);
        expect_success(&cpu, models[i].steps);
        run_on("cuda", path, "1", NULL, NULL, &one);
        expect_success(&one, models[i].steps);
        expect_near(&one, &cpu, models[i].name);
        set("FAKE_CUDA_SEED", "77");
        run_on("cuda", path, "2", NULL, NULL, &two);
        set("FAKE_CUDA_SEED", NULL);
        expect_success(&two, models[i].steps);
        assert_string_equal(two.sha256, one.sha256);
        job_run_release(&cpu);
        job_run_release(&one);
        job_run_release(&two);
    }
}

/* By default kernels run as CUDA graphs. */
static void test_cuda__graphs_change_no_bits(void **state)
{
    static const struct {
        const char *workers, *setting;
        bool communicates; /* in its graphs */
    } rows[] = {{"1", NULL, false}, {"2", "kernels", false}, {"2", NULL, true}, {"3", NULL, true}};
    struct model model = models[0];
    FLEET_AUTO_FREE char *mark = fleet_file_join(folder, "graphed");
    FLEET_AUTO_FREE char *other = fleet_file_join(folder, "graphed-nccl");
    FLEET_AUTO_FREE char *path = NULL;
    struct job_run plain, graphs;

    (void)state;
    model.steps = 8;
    path = write_job(&model, "");
    set("FAKE_CUDA_GRAPHED", mark);
    set("FAKE_CUDA_GRAPHED_OTHER", other);
    set("FLEET_CUDA_GRAPH", "0");
    run_on("cuda", path, "2", NULL, NULL, &plain);
    expect_success(&plain, model.steps);
    assert_int_not_equal(access(mark, F_OK), 0); /* the fake makes it, a GPU does not */
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        set("FLEET_CUDA_GRAPH", rows[i].setting);
        run_on("cuda", path, rows[i].workers, NULL, NULL, &graphs);
        expect_success(&graphs, model.steps);
        assert_true(gpu || unlink(mark) == 0);
        assert_true(gpu || (unlink(other) == 0) == rows[i].communicates);
        assert_null(strstr(graphs.errors, "without a CUDA graph"));
        assert_string_equal(graphs.sha256, plain.sha256);
        job_run_release(&graphs);
    }
    set("FLEET_CUDA_GRAPH", NULL);
    set("FAKE_CUDA_GRAPHED", NULL);
    set("FAKE_CUDA_GRAPHED_OTHER", NULL);
    job_run_release(&plain);
}

/* The classifier runs in chunks, also where an evaluation wants the loss alone. */
static void test_cuda__logits_in_chunks_train_as_on_the_cpu(void **state)
{
    FLEET_AUTO_FREE char *path = write_job(&many_rows, "evaluation: {everySteps: 1}, ");
    struct job_run cpu, one, two;

    (void)state;
    run_on("cpu", path, "1", NULL, NULL, &cpu);
    expect_success(&cpu, many_rows.steps);
    run_on("cuda", path, "1", NULL, NULL, &one);
    expect_success(&one, many_rows.steps);
    expect_near(&one, &cpu, many_rows.name);
    assert_int_equal(one.evaluation_count, cpu.evaluation_count);
    run_on("cuda", path, "2", NULL, NULL, &two);
    expect_success(&two, many_rows.steps);
    assert_string_equal(two.sha256, one.sha256);
    job_run_release(&cpu);
    job_run_release(&one);
    job_run_release(&two);
}

/* Pieces of the runtime that use the device beside the step. */
static void test_cuda__checkpoints_and_evaluation_use_the_device(void **state)
{
    FLEET_AUTO_FREE char *path =
        write_job(&models[0], "evaluation: {everySteps: 2}, checkpoint: {path: saved, "
                              "everySteps: 2}, ");
    FLEET_AUTO_FREE char *saved = fleet_file_join(folder, "saved");
    struct job_run cpu, cuda;

    (void)state;
    run_on("cuda", path, "2", NULL, NULL, &cuda);
    expect_success(&cuda, models[0].steps);
    assert_true(cuda.checkpoint_count > 0 && cuda.evaluation_count > 0);
    job_run_remove(saved);
    run_on("cpu", path, "1", NULL, NULL, &cpu);
    expect_success(&cpu, models[0].steps);
    expect_near(&cuda, &cpu, "gpt");
    job_run_release(&cpu);
    job_run_release(&cuda);
}

/* Heads of 64 columns, several tiles a product, in both types of weights. */
static void test_cuda__a_larger_model_trains_as_on_the_cpu(void **state)
{
    static const struct model larger = {
        "gpt",
        "{name: gpt, layers: 2, heads: 2, width: 128, context: 96, dropout: 0.1}",
        "{name: adamw, learningRate: 0.001, clip: {globalNorm: 1}}",
        12,
        8,
        2};
    static const char *const precisions[] = {"", "precision: bf16, ", "precision: fp8, "};

    (void)state;
    if (is_fake())
        skip(); /* minutes on the emulator */
    for (size_t i = 0; i < FLEET_COUNT(precisions); i++) {
        FLEET_AUTO_FREE char *path = write_job(&larger, precisions[i]);
        struct job_run cpu, one, two;

        run_on("cpu", path, "1", NULL, NULL, &cpu);
        expect_success(&cpu, larger.steps);
        run_on("cuda", path, "1", NULL, NULL, &one);
        expect_success(&one, larger.steps);
        expect_within(&one, &cpu, larger.name, i == 0 ? TOLERANCE : TOLERANCE_BF16);
        run_on("cuda", path, "2", NULL, NULL, &two);
        expect_success(&two, larger.steps);
        assert_string_equal(two.sha256, one.sha256);
        job_run_release(&cpu);
        job_run_release(&one);
        job_run_release(&two);
    }
}

/* ---- matrix products ------------------------------------------------------------------------- */

static void test_cuda__matrices_are_multiplied_without_cublaslt(void **state)
{
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run with, without;

    (void)state;
    if (strcmp(cublaslt, "none") == 0)
        skip();
    run_on("cuda", path, "1", NULL, NULL, &with);
    expect_success(&with, models[0].steps);
    set("FLEET_CUBLASLT_LIBRARY", "none");
    run_on("cuda", path, "1", NULL, NULL, &without);
    set("FLEET_CUBLASLT_LIBRARY", cublaslt);
    expect_success(&without, models[0].steps);
    expect_near(&without, &with, "gpt");
    /* in another order, so the library was there */
    assert_string_not_equal(without.sha256, with.sha256);
    job_run_release(&with);
    job_run_release(&without);
}

/* Of several algorithms each rank takes the same one; scales are those of a micro-batch. */
static void expect_same_bits(const struct model *model, const char *precision)
{
    FLEET_AUTO_FREE char *path = write_job(model, precision);
    struct job_run one, two;

    run_on("cuda", path, "1", NULL, NULL, &one);
    expect_success(&one, model->steps);
    run_on("cuda", path, "2", NULL, NULL, &two);
    expect_success(&two, model->steps);
    assert_string_equal(two.sha256, one.sha256);
    job_run_release(&one);
    job_run_release(&two);
}

static void test_cuda__two_workers_have_one_worker_s_bits_in_bf16(void **state)
{
    (void)state;
    expect_same_bits(&models[0], "precision: bf16, ");
}

static void test_cuda__weights_are_rounded_at_random_as_on_the_cpu(void **state)
{
    static const char settings[] = "precision: bf16, stochasticRounding: true, ";
    FLEET_AUTO_FREE char *path = write_job(&models[0], settings);
    struct job_run cpu, cuda;

    (void)state;
    run_on("cpu", path, "1", NULL, NULL, &cpu);
    expect_success(&cpu, models[0].steps);
    run_on("cuda", path, "1", NULL, NULL, &cuda);
    expect_success(&cuda, models[0].steps);
    expect_within(&cuda, &cpu, "rounded at random", TOLERANCE_BF16);
    job_run_release(&cpu);
    job_run_release(&cuda);
    expect_same_bits(&models[0], settings);
}

/* A micro-batch has 16 tokens, so linear layers multiply in fp8. */
static const struct model in_fp8 = {
    "gpt",
    "{name: gpt, layers: 1, heads: 2, width: 16, context: 8, dropout: 0.1}",
    "{name: adamw, learningRate: 0.003, clip: {globalNorm: 1}}",
    5,
    8,
    2};

static void test_cuda__two_workers_have_one_worker_s_bits_in_fp8(void **state)
{
    (void)state;
    expect_same_bits(&in_fp8, "precision: fp8, ");
}

static void test_cuda__fp8_trains_as_on_the_cpu(void **state)
{
    FLEET_AUTO_FREE char *path = write_job(&in_fp8, "precision: fp8, "), *wider = NULL;
    struct job_run cpu, cuda, bf16;

    (void)state;
    run_on("cpu", path, "1", NULL, NULL, &cpu);
    expect_success(&cpu, in_fp8.steps);
    run_on("cuda", path, "1", NULL, NULL, &cuda);
    expect_success(&cuda, in_fp8.steps);
    expect_within(&cuda, &cpu, "fp8", TOLERANCE_BF16);
    wider = write_job(&in_fp8, "precision: bf16, "); /* in its place */
    run_on("cuda", wider, "1", NULL, NULL, &bf16);
    expect_success(&bf16, in_fp8.steps);
    assert_string_not_equal(bf16.sha256, cuda.sha256);
    job_run_release(&cpu);
    job_run_release(&cuda);
    job_run_release(&bf16);
}

/* ---- settings whose weights depend on the workers -------------------------------------------- */

static void expect_two_near(const struct model *m, const char *strategy)
{
    FLEET_AUTO_FREE char *path = write_divided_job(m, "", strategy);
    struct job_run cpu, cuda;

    run_on("cpu", path, "2", NULL, NULL, &cpu);
    expect_success(&cpu, m->steps);
    run_on("cuda", path, "2", NULL, NULL, &cuda);
    expect_success(&cuda, m->steps);
    expect_near(&cuda, &cpu, m->name);
    job_run_release(&cpu);
    job_run_release(&cuda);
}

static void test_cuda__statistics_of_all_ranks(void **state)
{
    (void)state;
    expect_two_near(&models[3], "{sync_batch_norm: true}");
}

static void test_cuda__averages_of_local_updates(void **state)
{
    struct model model = models[2];

    (void)state;
    model.optimizer = "{name: momentum, learningRate: 0.01}";
    model.steps = 6;
    expect_two_near(&model, "{localsgd: true, localsgd_configs: {k_steps: 2, begin_step: 1}}");
}

/* The first update is dense, then ranks send the largest elements; one tensor takes part. */
static void test_cuda__compressed_gradients(void **state)
{
    static const char *const extras[] = {"", ", clip: {norm: 1}"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(extras); i++) {
        struct model model = models[2];
        char optimizer[200];

        (void)snprintf(optimizer, sizeof(optimizer),
                       "{name: momentum, learningRate: 0.01, momentum: 0.9%s}", extras[i]);
        model.optimizer = optimizer;
        model.steps = 4;
        expect_two_near(&model, "{dgc: true, dgc_configs: {rampup_begin_step: 1, "
                                "sparsity: [0.99]}}");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda__models_train_as_on_the_cpu),
        cmocka_unit_test(test_cuda__logits_in_chunks_train_as_on_the_cpu),
        cmocka_unit_test(test_cuda__graphs_change_no_bits),
        cmocka_unit_test(test_cuda__checkpoints_and_evaluation_use_the_device),
        cmocka_unit_test(test_cuda__matrices_are_multiplied_without_cublaslt),
        cmocka_unit_test(test_cuda__two_workers_have_one_worker_s_bits_in_bf16),
        cmocka_unit_test(test_cuda__weights_are_rounded_at_random_as_on_the_cpu),
        cmocka_unit_test(test_cuda__two_workers_have_one_worker_s_bits_in_fp8),
        cmocka_unit_test(test_cuda__fp8_trains_as_on_the_cpu),
        cmocka_unit_test(test_cuda__statistics_of_all_ranks),
        cmocka_unit_test(test_cuda__averages_of_local_updates),
        cmocka_unit_test(test_cuda__compressed_gradients),
    };

    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(test_cuda__models_train_as_on_the_cpu),
        cmocka_unit_test(test_cuda__a_larger_model_trains_as_on_the_cpu),
        cmocka_unit_test(test_cuda__logits_in_chunks_train_as_on_the_cpu),
        cmocka_unit_test(test_cuda__graphs_change_no_bits),
        cmocka_unit_test(test_cuda__checkpoints_and_evaluation_use_the_device),
        cmocka_unit_test(test_cuda__matrices_are_multiplied_without_cublaslt),
        cmocka_unit_test(test_cuda__two_workers_have_one_worker_s_bits_in_bf16),
        cmocka_unit_test(test_cuda__weights_are_rounded_at_random_as_on_the_cpu),
        cmocka_unit_test(test_cuda__two_workers_have_one_worker_s_bits_in_fp8),
        cmocka_unit_test(test_cuda__fp8_trains_as_on_the_cpu),
        cmocka_unit_test(test_cuda__statistics_of_all_ranks),
        cmocka_unit_test(test_cuda__averages_of_local_updates),
        cmocka_unit_test(test_cuda__compressed_gradients),
    };

    return cuda_run_tests("cuda", tests, on_gpu);
}
