/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose ranks exchange gradients through GPU memory that they share (FLEET_CUDA_COMM=ipc),
 * over the fakes (cuda_fixture.h). There is no NCCL. The bits are those of an exchange by the host,
 * also after a killed trainer.
 */
#include "tests/integration/cuda_fixture.h"
#include "tests/support/job_killer.h"

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

/* Is the job's trainer killed before the job is over? Then it has the weights of one left alone. */
static bool strike(const void *context, int steps)
{
    struct model model = models[0];
    FLEET_AUTO_FREE char *path = NULL;
    struct job_killer killer = {.every = 2, .rounds = 1, .victims = 1, .first = true};
    struct job_run calm, struck;
    bool is_hit;

    (void)context;
    model.steps = steps;
    path = write_job(&model, "");
    run_with("ipc", path, "2", job_killer_watch, &killer, &struck);
    expect_success(&struck, steps);
    is_hit = killer.sent > 0 && struck.restart_count > 0;
    if (is_hit) {
        run_with(NULL, path, "1", NULL, NULL, &calm);
        expect_success(&calm, steps);
        assert_string_equal(struck.sha256, calm.sha256);
        job_run_release(&calm);
    }
    job_run_release(&struck);
    return is_hit;
}

static void test_cuda_ipc__a_killed_trainer_loses_nothing(void **state)
{
    (void)state;
    assert_true(job_strike_until_hit(strike, NULL, 20));
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
