/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose CUDA graphs hold communication that no GPU has run in a graph (FLEET_CUDA_GRAPH=all),
 * over the fakes (cuda_fixture.h): the bits are those without graphs, also after a killed trainer,
 * a lost device and a failing NCCL.
 */
#include <sys/stat.h>

#include "tests/integration/cuda_fixture.h"

#define SETTINGS 3

static const struct model small = {
    "gpt",
    "{name: gpt, layers: 1, heads: 2, width: 16, context: 8, dropout: 0.1}",
    "{name: adamw, learningRate: 0.003, clip: {globalNorm: 1}}",
    4,
    8,
    2};

static const char stage_2[] = "{sharding: true, sharding_configs: {stage: 2}}";
static const char stage_3[] =
    "{sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.001}}";

static const char halves[] = "{fp16_allreduce: true, fuse_all_reduce_ops: false}";

/* Three workers have no graph of the round in which one of them has no micro-batch. */
static const struct division {
    const char *strategy, *workers;
} divisions[] = {{stage_2, "3"},
                 {stage_3, "2"},
                 {"{amp: true, sharding: true, sharding_configs: {stage: 3}}", "2"},
                 {"{sharding: true, sharding_configs: {stage: 3}, "
                  "hybrid_configs: {mp_degree: 2, sharding_degree: 2}}",
                  "4"},
                 {halves, "3"},
                 {"{fp16_allreduce: true, hybrid_configs: {mp_degree: 2}}", "4"}};

static long length_of(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 ? (long)status.st_size : 0;
}

static void train(const struct model *m, const struct division *division, struct job_run *out)
{
    FLEET_AUTO_FREE char *path = write_divided_job(m, "", division->strategy);

    run_on("cuda", path, division->workers, NULL, NULL, out);
    if (out->exit_code != 0)
        fail_msg("%s on %s workers: exit %d: %s", division->strategy, division->workers,
                 out->exit_code, out->errors);
    expect_success(out, m->steps);
    assert_null(strstr(out->errors, "without a CUDA graph"));
}

static void test_cuda_graphed__no_bit_changes(void **state)
{
    static const char *const settings[SETTINGS] = {"0", NULL, "all"};
    FLEET_AUTO_FREE char *mark = fleet_file_join(folder, "graphed-nccl");

    (void)state;
    set("FAKE_CUDA_GRAPHED_OTHER", mark);
    for (size_t i = 0; i < FLEET_COUNT(divisions); i++) {
        struct job_run runs[SETTINGS];
        long launches[SETTINGS]; /* of graphs with communication */

        for (int s = 0; s < SETTINGS; s++) {
            set("FLEET_CUDA_GRAPH", settings[s]);
            (void)unlink(mark);
            train(&small, &divisions[i], &runs[s]);
            launches[s] = length_of(mark);
            assert_string_equal(runs[s].sha256, runs[0].sha256);
        }
        if (launches[0] != 0 || launches[2] <= launches[1])
            fail_msg("%s on %s workers: %ld, %ld, %ld graphs with communication",
                     divisions[i].strategy, divisions[i].workers, launches[0], launches[1],
                     launches[2]);
        for (int s = 0; s < SETTINGS; s++)
            job_run_release(&runs[s]);
    }
    set("FLEET_CUDA_GRAPH", NULL);
    set("FAKE_CUDA_GRAPHED_OTHER", NULL);
}

/* Sums in fp16 have the bits of the host's, also of those that it makes in two levels. */
static void test_cuda_graphed__halves_have_the_bits_of_the_host(void **state)
{
    static const struct division rows[] = {
        {halves, "3"},
        {"{fp16_allreduce: true, use_hierarchical_allreduce: true, "
         "hierarchical_allreduce_inter_nranks: 2}",
         "4"}};
    FLEET_AUTO_FREE char *mark = fleet_file_join(folder, "graphed-halves");

    (void)state;
    set("FLEET_CUDA_GRAPH", "all");
    set("FAKE_CUDA_GRAPHED_OTHER", mark);
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct job_run host, device;

        set("FLEET_NCCL_LIBRARY", "none");
        train(&small, &rows[i], &host);
        set("FLEET_NCCL_LIBRARY", nccl);
        (void)unlink(mark);
        train(&small, &rows[i], &device);
        assert_true(length_of(mark) > 0);
        assert_string_equal(device.sha256, host.sha256);
        job_run_release(&host);
        job_run_release(&device);
    }
    set("FLEET_CUDA_GRAPH", NULL);
    set("FAKE_CUDA_GRAPHED_OTHER", NULL);
}

/* ---- what is lost ---------------------------------------------------------------------------- */

static void test_cuda_graphed__a_killed_trainer_loses_nothing(void **state)
{
    const struct struck_job job = {
        .model = &small, .strategy = stage_3, .saves = true, .every = 3, .train = train_on_cuda};

    (void)state;
    set("FLEET_CUDA_GRAPH", "all");
    assert_true(job_strike_until_hit(strike_one_of_two, &job, 20));
    set("FLEET_CUDA_GRAPH", NULL);
}

/* A connection that breaks while a graph is captured or replayed costs a generation, anything else
 * a trainer; the next generation captures again. */
static void test_cuda_graphed__failures_of_libraries_lose_nothing(void **state)
{
    /* A call of all ranks, from 0: how often a rank asks for errors depends on time. */
    static const struct {
        const char *strategy, *variable, *value, *reached;
    } faults[] = {{stage_2, "FAKE_NCCL_FAIL", "ncclSend#9:2:", ".9"},
                  {stage_2, "FAKE_NCCL_FAIL", "ncclGroupEnd#25:2:", ".25"},
                  {stage_2, "FAKE_CUDA_FAIL", "700:719:", ""},
                  {halves, "FAKE_NCCL_FAIL", "ncclSend#70:2:", ".70"}};
    FLEET_AUTO_FREE char *saved = fleet_file_join(folder, "saved");

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(faults); i++) {
        FLEET_AUTO_FREE char *path = write_divided_job(
            &small, "checkpoint: {path: saved, everySteps: 1}, ", faults[i].strategy);
        struct job_run calm, struck;
        char value[4200], reached[4200];

        job_run_remove(saved);
        run_on("cuda", path, "2", NULL, NULL, &calm);
        expect_success(&calm, small.steps);

        job_run_remove(saved);
        (void)snprintf(value, sizeof(value), "%s%s/failed-%zu", faults[i].value, folder, i);
        (void)snprintf(reached, sizeof(reached), "%s/failed-%zu%s", folder, i, faults[i].reached);
        set(faults[i].variable, value);
        set("FLEET_CUDA_GRAPH", "all");
        job_run_may_lose_state = true;
        run_on("cuda", path, "2", NULL, NULL, &struck);
        job_run_may_lose_state = false;
        set("FLEET_CUDA_GRAPH", NULL);
        set(faults[i].variable, NULL);
        if (struck.exit_code != 0 || access(reached, F_OK) != 0)
            fail_msg("%s=%s: exit %d: %s", faults[i].variable, value, struck.exit_code,
                     struck.errors);
        assert_string_equal(struck.sha256, calm.sha256);
        job_run_release(&calm);
        job_run_release(&struck);
    }
    job_run_remove(saved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_graphed__no_bit_changes),
        cmocka_unit_test(test_cuda_graphed__halves_have_the_bits_of_the_host),
        cmocka_unit_test(test_cuda_graphed__a_killed_trainer_loses_nothing),
        cmocka_unit_test(test_cuda_graphed__failures_of_libraries_lose_nothing),
    };

    return cmocka_run_group_tests_name("cuda, graphs with communication", tests, set_up, tear_down);
}
