/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose data and checkpoints lie on a real HDFS (tools/hdfs.sh), by WebHDFS. Without it the
 * tests are skipped, and the reason is printed.
 */
#include "tests/integration/hdfs_fixture.h"
#include "tests/integration/store_job_fixture.h"

static struct hdfs hdfs;
static char words[96], saved[96];

static int start_all(void **state)
{
    (void)state;
    if (!hdfs.home[0])
        return 0;
    home = job_run_folder();
    if (mkdir(at_home("server"), 0777) != 0 || !hdfs_start(&hdfs, at_home("server")))
        return -1;
    (void)snprintf(words, sizeof(words), "webhdfs://localhost:%d/fleet/words", hdfs.http_port);
    (void)snprintf(saved, sizeof(saved), "webhdfs://localhost:%d/fleet/saved", hdfs.http_port);
    words_folder = "words";
    (void)setenv("HADOOP_USER_NAME", hdfs.user, 1);
    (void)setenv("FLEET_CACHE", at_home("cache"), 1);
    make_programs();
    make_words();
    send_words(words);
    return 0;
}

static int stop_all(void **state)
{
    (void)state;
    if (!hdfs.home[0])
        return 0;
    hdfs_stop(&hdfs);
    job_run_remove(home);
    free(home);
    return 0;
}

static void begin(void)
{
    if (!hdfs.home[0])
        skip();
}

/* Ten steps, then ten more on machines with empty caches: they begin at the checkpoint. */
static void test_store_hdfs__a_job_saves_there_and_goes_on(void **state)
{
    const struct wishes first = {
        .data = words, .saved = saved, .more = ", everySteps: 5", .steps = 10, .workers = 2};
    const struct wishes second = {
        .data = words, .saved = saved, .more = ", everySteps: 5", .steps = 20, .workers = 1};
    struct job_run run;

    (void)state;
    begin();
    run_job(&first, &run);
    expect_success(&run);
    assert_int_equal(run.checkpoint_count, 2);
    job_run_release(&run);
    assert_int_equal(rename(at_home("caches"), at_home("caches-of-the-first")), 0);
    run_job(&second, &run);
    expect_success(&run);
    assert_true(run.step_count > 0);
    assert_int_equal(run.steps[0].step, 11);
    expect_local_weights(run.sha256, 20);
    job_run_release(&run);
}

static void test_store_hdfs__what_is_refused_ends_the_job_once(void **state)
{
    char wrong[96];

    (void)state;
    begin();
    (void)setenv("HADOOP_USER_NAME", "somebody", 1);
    expect_refused_once(words, saved,
                        (const char *const[]){"spec.training.checkpoint.path",
                                              "Permission denied: user=somebody", NULL});
    (void)setenv("HADOOP_USER_NAME", hdfs.user, 1);
    (void)snprintf(wrong, sizeof(wrong), "webhdfs://localhost:%d/nowhere", hdfs.http_port);
    expect_refused_once(
        wrong, saved,
        (const char *const[]){"spec.training.data.path", "nowhere does not exist", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_hdfs__a_job_saves_there_and_goes_on),
        cmocka_unit_test(test_store_hdfs__what_is_refused_ends_the_job_once),
    };

    (void)hdfs_find(&hdfs);
    return cmocka_run_group_tests(tests, start_all, stop_all);
}
