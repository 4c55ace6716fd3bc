/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Faults of jobs on a GPU (cuda_fixture.h): a killed trainer, a lost device, a failing NCCL, and
 * why there is no GPU. No step is lost, and the weights are those of a job that was left alone.
 */
#include "tests/integration/cuda_fixture.h"

static void test_cuda__a_killed_trainer_loses_nothing(void **state)
{
    const struct struck_job job = {
        .model = &models[0], .strategy = "{}", .every = 2, .train = train_on_cuda};

    (void)state;
    assert_true(job_strike_until_hit(strike_one_of_two, &job, 20));
}

/* The only trainer saves each step and is killed. Does the next one go on from a checkpoint, to the
 * weights of a job that was left alone? */
static bool strike_savers(const void *context, int steps)
{
    struct model model = models[0];
    FLEET_AUTO_FREE char *saved = fleet_file_join(folder, "saved");
    FLEET_AUTO_FREE char *path = NULL, *plain = NULL;
    struct job_killer killer = {.every = 3, .rounds = 2, .victims = 1, .first = true};
    struct job_run calm, struck;
    bool is_hit;

    (void)context;
    model.steps = steps;
    path = write_job(&model, "checkpoint: {path: saved, everySteps: 1}, ");
    job_run_may_lose_state = true;
    run_on("cuda", path, "1", job_killer_watch, &killer, &struck);
    job_run_may_lose_state = false;
    is_hit = killer.sent == 2 && struck.restart_count == 2;
    if (struck.exit_code != 0)
        fail_msg("exit %d: %s", struck.exit_code, struck.errors);
    if (is_hit) {
        plain = write_job(&model, "");
        run_on("cuda", plain, "1", NULL, NULL, &calm);
        expect_success(&calm, steps);
        assert_string_equal(struck.sha256, calm.sha256);
        job_run_release(&calm);
    }
    job_run_release(&struck);
    job_run_remove(saved);
    return is_hit;
}

static void test_cuda__a_killed_trainer_leaves_no_torn_checkpoint(void **state)
{
    (void)state;
    assert_true(job_strike_until_hit(strike_savers, NULL, 20));
}

/* One call to the driver fails. How many restarts does that cost? The weights are the calm ones. */
static int lose_device(const char *path, const char *call, const struct job_run *calm)
{
    FLEET_AUTO_FREE char *once = fleet_file_join(folder, "failed");
    struct job_run struck;
    char fail[4200];
    int restarts;

    (void)unlink(once);
    (void)snprintf(fail, sizeof(fail), "%s:%s", call, once);
    set("FAKE_CUDA_FAIL", fail);
    run_on("cuda", path, "2", NULL, NULL, &struck);
    set("FAKE_CUDA_FAIL", NULL);
    expect_success(&struck, models[0].steps);
    assert_int_equal(access(once, F_OK), 0);
    assert_true(struck.restart_count >= 1);
    assert_string_equal(struck.sha256, calm->sha256);
    restarts = struck.restart_count;
    job_run_release(&struck);
    return restarts;
}

/* A context that is lost ends its process; the agent starts another one. On a busy machine the hub
 * may miss a worker, too, but not each time. */
static void test_cuda__a_lost_device_costs_a_restart(void **state)
{
    static const char *const calls[] = {"150:214", "400:700", "700:719"};
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run calm;

    (void)state;
    run_on("cuda", path, "1", NULL, NULL, &calm);
    expect_success(&calm, models[0].steps);
    for (size_t i = 0; i < FLEET_COUNT(calls); i++) {
        int tries = 1;
        while (lose_device(path, calls[i], &calm) > 1)
            assert_true(tries++ < 5);
    }
    job_run_release(&calm);
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

static void test_cuda__gradients_go_by_the_host_without_nccl(void **state)
{
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run with, without;

    (void)state;
    run_on("cuda", path, "2", NULL, NULL, &with);
    expect_success(&with, models[0].steps);
    set("FLEET_NCCL_LIBRARY", other_library);
    run_on("cuda", path, "2", NULL, NULL, &without);
    set("FLEET_NCCL_LIBRARY", nccl);
    expect_success(&without, models[0].steps);
    assert_string_equal(without.sha256, with.sha256);
    job_run_release(&with);
    job_run_release(&without);
}

/* A connection that breaks costs a generation in the same processes; anything else, and a call that
 * never returns, a trainer. No step is lost. */
static void test_cuda__failures_of_nccl_lose_nothing(void **state)
{
    static const struct {
        const char *variable, *function;
        int call; /* of all ranks, from 0; how often a rank asks for errors depends on time */
        const char *code;
    } faults[] = {{"FAKE_NCCL_FAIL", "ncclCommInitRankConfig", 0, ":2"},
                  {"FAKE_NCCL_FAIL", "ncclSend", 3, ":2"}, /* in a step */
                  {"FAKE_NCCL_FAIL", "ncclGroupEnd", 5, ":3"},
                  {"FAKE_NCCL_HANG", "ncclRecv", 4, ""}};
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run calm, struck;

    (void)state;
    run_on("cuda", path, "2", NULL, NULL, &calm);
    expect_success(&calm, models[0].steps);
    for (size_t i = 0; i < FLEET_COUNT(faults); i++) {
        char value[4200], reached[4200];

        (void)snprintf(value, sizeof(value), "%s#%d%s:%s/failed-%zu", faults[i].function,
                       faults[i].call, faults[i].code, folder, i);
        (void)snprintf(reached, sizeof(reached), "%s/failed-%zu.%d", folder, i, faults[i].call);
        set(faults[i].variable, value);
        run_on("cuda", path, "2", NULL, NULL, &struck);
        set(faults[i].variable, NULL);
        expect_success(&struck, models[0].steps);
        assert_int_equal(access(reached, F_OK), 0);
        assert_string_equal(struck.sha256, calm.sha256);
        job_run_release(&struck);
    }
    job_run_release(&calm);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void expect_refusal(const char *variable, const char *value, const char *text)
{
    FLEET_AUTO_FREE char *path = write_job(&models[0], "");
    struct job_run run;

    set(variable, value);
    run_on("cuda", path, "1", NULL, NULL, &run);
    set("FLEET_CUDA_LIBRARY", library);
    if (strcmp(variable, "FLEET_CUDA_LIBRARY") != 0)
        set(variable, NULL);
    assert_int_not_equal(run.exit_code, 0);
    assert_int_equal(run.step_count, 0);
    if (!strstr(run.errors, text))
        fail_msg("%s=%s: \"%s\" is not in: %s", variable, value, text, run.errors);
    job_run_release(&run);
}

static void test_cuda__says_why_there_is_no_gpu(void **state)
{
    (void)state;
    expect_refusal("FLEET_CUDA_LIBRARY", other_library, "cannot open shared object file");
    expect_refusal("FAKE_CUDA_DRIVER", "0", "this machine has no NVIDIA driver (libcuda.so.1)");
    expect_refusal("FAKE_CUDA_DRIVER", "12040",
                   "the NVIDIA driver knows CUDA 12.4, and this program needs CUDA 13.0 or later");
    expect_refusal("FAKE_CUDA_DEVICES", "0", "this machine has no GPU that a process may use");
    expect_refusal("FAKE_CUDA_CAPABILITY", "75",
                   "the GPU has compute capability 7.5, at least 8.0 is needed");
    expect_refusal("FLEET_CUBLASLT_LIBRARY", other_library,
                   "FLEET_CUBLASLT_LIBRARY: cannot be opened");
    set("FLEET_CUBLASLT_LIBRARY", cublaslt);
    expect_refusal("FAKE_CUDA_MEMORY", "100000", "of its 100000 bytes are free");
}

static void test_cuda__says_that_a_gpu_is_hidden(void **state)
{
    (void)state;
    if (is_fake())
        skip(); /* it does not look at the variable */
    expect_refusal("CUDA_VISIBLE_DEVICES", "-1", "this machine has no GPU that a process may use");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda__a_killed_trainer_loses_nothing),
        cmocka_unit_test(test_cuda__a_killed_trainer_leaves_no_torn_checkpoint),
        cmocka_unit_test(test_cuda__a_lost_device_costs_a_restart),
        cmocka_unit_test(test_cuda__gradients_go_by_the_host_without_nccl),
        cmocka_unit_test(test_cuda__failures_of_nccl_lose_nothing),
        cmocka_unit_test(test_cuda__says_why_there_is_no_gpu),
    };

    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(test_cuda__a_killed_trainer_loses_nothing),
        cmocka_unit_test(test_cuda__says_that_a_gpu_is_hidden),
    };

    return cuda_run_tests("cuda, faults", tests, on_gpu);
}
