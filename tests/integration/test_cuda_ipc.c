/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose ranks exchange gradients through GPU memory that they share (FLEET_CUDA_COMM=ipc),
 * over the fakes (cuda_fixture.h). There is no NCCL. The bits are those of an exchange by the host,
 * also after a killed trainer.
 */
#include "tests/integration/cuda_fixture.h"

static const char by_host[] = "by way of the host's memory";

static void run_with(const char *comm, const char *path, const char *workers, job_run_watch watch,
                     void *context, struct job_run *out)
{
    set("FLEET_CUDA_COMM", comm);
    set("FLEET_NCCL_LIBRARY", "none");
    run_on("cuda", path, workers, watch, context, out);
    set("FLEET_NCCL_LIBRARY", nccl);
    set("FLEET_CUDA_COMM", NULL);
}

static void test_cuda_ipc__the_bits_are_those_by_way_of_the_host(void **state)
{
    static const struct {
        const char *strategy, *workers;
    } rows[] = {{"{}", "3"},
                {"{sharding: true, sharding_configs: {stage: 3}, "
                 "hybrid_configs: {mp_degree: 2, sharding_degree: 2}}",
                 "4"}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        FLEET_AUTO_FREE char *path = write_divided_job(&models[0], "", rows[i].strategy);
        struct job_run host, ipc;

        run_with(NULL, path, rows[i].workers, NULL, NULL, &host);
        expect_success(&host, models[0].steps);
        assert_non_null(strstr(host.errors, by_host));
        run_with("ipc", path, rows[i].workers, NULL, NULL, &ipc);
        expect_success(&ipc, models[0].steps);
        assert_null(strstr(ipc.errors, by_host));
        assert_string_equal(ipc.sha256, host.sha256);
        job_run_release(&host);
        job_run_release(&ipc);
    }
}

/* A name that there is not is said, and the host exchanges. */
static void test_cuda_ipc__another_name_is_said(void **state)
{
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run run;

    (void)state;
    run_with("gloo", path, "2", NULL, NULL, &run);
    expect_success(&run, models[0].steps);
    assert_non_null(strstr(run.errors, "FLEET_CUDA_COMM: 'gloo' is neither nccl nor ipc"));
    job_run_release(&run);
}

static void train_by_ipc(const char *path, const char *workers, job_run_watch watch, void *context,
                         struct job_run *out)
{
    run_with("ipc", path, workers, watch, context, out);
}

static void test_cuda_ipc__a_killed_trainer_loses_nothing(void **state)
{
    const struct struck_job job = {
        .model = &models[0], .strategy = "{}", .every = 2, .train = train_by_ipc};

    (void)state;
    assert_true(job_strike_until_hit(strike_one_of_two, &job, 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_ipc__the_bits_are_those_by_way_of_the_host),
        cmocka_unit_test(test_cuda_ipc__another_name_is_said),
        cmocka_unit_test(test_cuda_ipc__a_killed_trainer_loses_nothing),
    };

    return cmocka_run_group_tests_name("cuda, shared memory of GPUs", tests, set_up, tear_down);
}
