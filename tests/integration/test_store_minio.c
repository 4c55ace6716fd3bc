/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose data and checkpoints lie on a real MinIO (tools/minio.sh), behind a proxy that cuts
 * connections and kills MinIO at given bytes; with a divided state, too. A bucket that does not
 * exist and wrong keys end a job once. Without MinIO the tests are skipped, and the reason is
 * printed.
 */
#include "tests/integration/cutting_proxy.h"
#include "tests/integration/minio_fixture.h"
#include "tests/integration/store_job_fixture.h"
#include "tests/support/free_port.h"

#define GRADIENTS "sharding: true, sharding_configs: {stage: 2}"

static char minio[512]; /* the program; "": there is none */
static pid_t server;
static int server_port;
static struct cutting_proxy proxy;

/* ---- MinIO ----------------------------------------------------------------------------------- */

/* Through which address the job's programs go. */
static void use_port(int port)
{
    char url[64];

    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d", port);
    (void)setenv("AWS_ENDPOINT_URL_S3", url, 1);
}

static int start_all(void **state)
{
    (void)state;
    if (!minio[0])
        return 0;
    home = job_run_folder();
    if (mkdir(at_home("data"), 0777) != 0 || mkdir(at_home("data/fleet"), 0777) != 0)
        return -1;
    server_port = free_port();
    server = minio_start(minio, home, server_port);
    cutting_proxy_start(&proxy, server_port);
    words_folder = "words";
    (void)setenv("AWS_ACCESS_KEY_ID", MINIO_USER, 1);
    (void)setenv("AWS_SECRET_ACCESS_KEY", MINIO_SECRET, 1);
    (void)setenv("FLEET_CACHE", at_home("cache"), 1);
    make_programs();
    make_words();
    use_port(server_port);
    send_words(DATA); /* it also waits until MinIO answers */
    use_port(proxy.port);
    return 0;
}

static int stop_all(void **state)
{
    (void)state;
    if (!minio[0])
        return 0;
    cutting_proxy_stop(&proxy);
    (void)kill(server, SIGKILL);
    (void)waitpid(server, NULL, 0);
    job_run_remove(home);
    free(home);
    return 0;
}

static void begin(void)
{
    if (!minio[0])
        skip();
}

/* If the proxy has killed MinIO, another one takes its place. */
static void revive(void *context, struct job_run *run, const cJSON *event)
{
    (void)run, (void)event;
    if (waitpid(server, NULL, WNOHANG) != server)
        return;
    server = minio_start(minio, home, server_port);
    ++*(int *)context;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_store_minio__connections_that_break_change_nothing(void **state)
{
    const struct wishes w = {
        .data = DATA, .saved = SAVED "-cut", .more = ", everySteps: 5", .steps = 20, .workers = 2};
    struct job_run run;

    (void)state;
    begin();
    cutting_proxy_cut(&proxy, 4, 3000, true, 0);
    run_job(&w, &run);
    expect_success(&run);
    assert_int_equal(atomic_load(&proxy.orders->done), 4);
    expect_local_weights(run.sha256, 20);
    job_run_release(&run);
}

/* MinIO dies in an upload. The job goes on and saves when MinIO is back. */
static void test_store_minio__a_killed_server_costs_no_step(void **state)
{
    int revived = 0;
    const struct wishes w = {.data = DATA,
                             .saved = SAVED "-killed",
                             .more = ", everySteps: 5",
                             .strategy = GRADIENTS,
                             .steps = 20,
                             .workers = 2,
                             .watch = revive,
                             .context = &revived};
    struct job_run run;

    (void)state;
    begin();
    cutting_proxy_cut(&proxy, 1, 20000, false, server);
    run_job(&w, &run);
    expect_success(&run);
    assert_int_equal(revived, 1);
    expect_local_weights(run.sha256, 20);
    job_run_release(&run);
}

/* The state that two workers divide is read by three, on machines with empty caches. */
static void resume_on_three(int steps, const struct strike *strike, const char *saved)
{
    const struct wishes w = {.data = DATA,
                             .saved = saved,
                             .more = ", everySteps: 50",
                             .strategy = GRADIENTS,
                             .steps = steps,
                             .workers = 3};
    struct job_run run;

    assert_int_equal(job_run_left(strike->agents, strike->agent_count, 120), 0);
    assert_int_equal(rename(at_home("caches"), at_home("caches-of-the-first")), 0);
    run_job(&w, &run);
    expect_success(&run);
    assert_true(run.step_count > 0 && run.steps[0].step > strike->saved);
    expect_local_weights(run.sha256, steps);
    job_run_release(&run);
}

static void test_store_minio__a_divided_state_goes_on_elsewhere(void **state)
{
    (void)state;
    begin();
    expect_to_go_on(SAVED "-divided", GRADIENTS, resume_on_three);
}

static void test_store_minio__what_is_refused_ends_the_job_once(void **state)
{
    (void)state;
    begin();
    expect_refused_once("s3://nowhere/words", SAVED,
                        (const char *const[]){"spec.training.data.path", "NoSuchBucket", NULL});
    expect_refused_once(
        DATA, "s3://nowhere/saved",
        (const char *const[]){"spec.training.checkpoint.path", "NoSuchBucket", NULL});
    (void)setenv("AWS_SECRET_ACCESS_KEY", "wrong", 1);
    expect_refused_once(DATA, SAVED, (const char *const[]){"spec.training.data.path", "403", NULL});
    expect_refused_once(at_home(words_folder), SAVED,
                        (const char *const[]){"spec.training.checkpoint.path", "403", NULL});
    (void)setenv("AWS_SECRET_ACCESS_KEY", MINIO_SECRET, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_minio__connections_that_break_change_nothing),
        cmocka_unit_test(test_store_minio__a_killed_server_costs_no_step),
        cmocka_unit_test(test_store_minio__a_divided_state_goes_on_elsewhere),
        cmocka_unit_test(test_store_minio__what_is_refused_ends_the_job_once),
    };

    (void)minio_find(minio);
    return cmocka_run_group_tests(tests, start_all, stop_all);
}
