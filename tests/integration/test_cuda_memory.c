/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The memory of a GPU: what `fleetjob plan` says beside what trainers allocate, over the fake
 * libcudart. And a trainer allocates nothing after its first steps.
 */
#include "libfleet/base/json.h"
#include "libfleet/plan/gpu_scratch.h"
#include "libfleet/plan/runtime_memory.h"
#include "tests/integration/cuda_fixture.h"

#define OFF_BY 0.01 /* of the planned bytes without the workspace of cuBLASLt, a constant */

struct memory_case {
    const char *training, *strategy, *workers;
};

/* What a process reports (fake.h). */
struct report {
    double most_bytes;
    long most_allocations;
    int processes;
};

static struct report read_report(const char *path)
{
    struct report report = {0};
    FILE *file = fopen(path, "r");
    char line[64];

    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        char *end;
        double bytes = strtod(line, &end);
        long allocations = strtol(end, NULL, 10);
        report.most_bytes = bytes > report.most_bytes ? bytes : report.most_bytes;
        report.most_allocations =
            allocations > report.most_allocations ? allocations : report.most_allocations;
        report.processes++;
    }
    (void)fclose(file);
    (void)unlink(path);
    return report;
}

static struct report measure(const char *path, int steps, const char *workers)
{
    FLEET_AUTO_FREE char *file = fleet_file_join(folder, "report");
    struct report report;
    struct job_run run;

    set("FAKE_CUDA_REPORT", file);
    run_on("cuda", path, workers, NULL, NULL, &run);
    set("FAKE_CUDA_REPORT", NULL);
    expect_success(&run, steps);
    job_run_release(&run);
    report = read_report(file);
    assert_int_equal(report.processes, strtol(workers, NULL, 10));
    return report;
}

static double planned(const char *path, const char *workers)
{
    const char *arguments[] = {"plan", "--output", "json", "--world-size", workers, path, NULL};
    FLEET_AUTO_FREE char *text = NULL, *errors = NULL;
    FLEET_AUTO_JSON cJSON *json = NULL;
    const cJSON *total;

    if (job_run_command("fleetjob", arguments, &text, &errors) != 0)
        fail_msg("%s", errors);
    json = cJSON_Parse(text);
    total = fleet_json_at(json, "gpu.bytesPerRank.total");
    assert_true(cJSON_IsNumber(total));
    return total->valuedouble;
}

static void expect_planned(const struct model *m, const struct memory_case *c)
{
    FLEET_AUTO_FREE char *path = write_divided_job(m, c->training, c->strategy);
    double plan = planned(path, c->workers) - (double)GPU_SCRATCH_PRODUCTS;
    double most = measure(path, m->steps, c->workers).most_bytes - (double)GPU_SCRATCH_PRODUCTS;

    if (most > plan * (1 + OFF_BY) || most < plan * (1 - OFF_BY))
        fail_msg("%s {%s} %s on %s: planned %.0f bytes, allocated %.0f", m->name, c->training,
                 c->strategy, c->workers, plan, most);
}

static void test_cuda_memory__models_allocate_what_is_planned(void **state)
{
    static const struct memory_case cases[] = {{"", "{}", "1"}, {"", "{}", "2"}};

    (void)state;
    for (size_t m = 0; m < FLEET_COUNT(models); m++)
        for (size_t i = 0; i < FLEET_COUNT(cases); i++)
            expect_planned(&models[m], &cases[i]);
}

static void test_cuda_memory__settings_allocate_what_is_planned(void **state)
{
    static const struct memory_case cases[] = {
        {"precision: bf16, ", "{}", "1"},
        {"precision: fp8, ", "{}", "1"},
        {"", "{amp: true}", "2"},
        {"", "{recompute: true}", "2"},
        {"", "{sharding: true}", "2"},
        {"", "{sharding: true, sharding_configs: {stage: 2}}", "2"},
        {"", "{sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.001}}", "2"},
        {"", "{amp: true, sharding: true, sharding_configs: {stage: 3}}", "2"},
        {"", "{hybrid_configs: {mp_degree: 2}}", "2"},
        {"", "{fp16_allreduce: true}", "3"},
        {"",
         "{fp16_allreduce: true, use_hierarchical_allreduce: true, "
         "hierarchical_allreduce_inter_nranks: 2}",
         "4"},
    };
    static const struct memory_case updates[] = {
        /* the optimizer instead of the training */
        {"{name: momentum, learningRate: 0.01}",
         "{dgc: true, dgc_configs: {rampup_begin_step: 1, sparsity: [0.99]}}", "2"},
        {"{name: lamb, learningRate: 0.003}", "{hybrid_configs: {mp_degree: 2}}", "2"},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++)
        expect_planned(&models[0], &cases[i]);
    expect_planned(&many_rows, &cases[0]);
    for (size_t i = 0; i < FLEET_COUNT(updates); i++) {
        struct model model = models[i == 0 ? 2 : 0];
        model.optimizer = updates[i].training;
        expect_planned(&model, &(struct memory_case){"", updates[i].strategy, "2"});
    }
}

/* Without NCCL: windows of the world, of groups (of tensors, of a replica, of replicas), of blocks,
 * of their leaders. */
static void test_cuda_memory__shared_windows_are_planned(void **state)
{
    static const struct {
        const char *strategy, *workers;
        double windows; /* ranks of all communicators */
    } rows[] = {{"{}", "2", 2},
                {"{sharding: true, sharding_configs: {stage: 3}, "
                 "hybrid_configs: {mp_degree: 2, sharding_degree: 2}}",
                 "4", 4 + 2 + 2 + 2},
                {"{use_hierarchical_allreduce: true, hierarchical_allreduce_inter_nranks: 2}", "4",
                 4 + 2 + 2}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        FLEET_AUTO_FREE char *path = write_divided_job(&models[0], "", rows[i].strategy);
        double plan = -planned(path, rows[i].workers);
        double most = -measure(path, models[0].steps, rows[i].workers).most_bytes;

        set("FLEET_CUDA_COMM", "ipc");
        plan += planned(path, rows[i].workers);
        most += measure(path, models[0].steps, rows[i].workers).most_bytes;
        set("FLEET_CUDA_COMM", NULL);
        if (plan != rows[i].windows * (double)RUNTIME_WINDOW_BYTES || most != plan)
            fail_msg("%s on %s: planned %.0f bytes, allocated %.0f", rows[i].strategy,
                     rows[i].workers, plan, most);
    }
}

/* Twelve steps take as many allocations as four. */
static void test_cuda_memory__steps_allocate_nothing(void **state)
{
    static const char *const workers[] = {"1", "2"};
    struct model longer = models[0];

    (void)state;
    longer.steps = 3 * models[0].steps;
    for (size_t i = 0; i < FLEET_COUNT(workers); i++) {
        FLEET_AUTO_FREE char *few = write_job(&models[0], "");
        long some = measure(few, models[0].steps, workers[i]).most_allocations;
        FLEET_AUTO_FREE char *many = write_job(&longer, "");

        assert_int_equal(measure(many, longer.steps, workers[i]).most_allocations, some);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_memory__models_allocate_what_is_planned),
        cmocka_unit_test(test_cuda_memory__settings_allocate_what_is_planned),
        cmocka_unit_test(test_cuda_memory__shared_windows_are_planned),
        cmocka_unit_test(test_cuda_memory__steps_allocate_nothing),
    };

    if (getenv("FLEET_TEST_GPU")) /* tests/gpu/memory.sh measures a real one */
        return 0;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
