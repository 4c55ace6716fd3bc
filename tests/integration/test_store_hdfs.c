/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs whose data and checkpoints lie on a real HDFS (tools/hdfs.sh), by WebHDFS and by the program
 * hadoop. Name node and data node are killed while a job trains. Without HDFS the tests are
 * skipped, and the reason is printed. The program needs a second for each file that it looks at, so
 * one test runs only in `make check-hadoop`.
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

/* The server dies when the first checkpoint is there, and comes back after some seconds. */
static void kill_server(void *context, struct job_run *run, const cJSON *event)
{
    int *checkpoints = context;
    const char *name = "";

    (void)run;
    (void)fleet_json_opt_string(event, "event", &name, NULL);
    if (strcmp(name, "checkpoint") == 0 && ++*checkpoints == 1)
        hdfs_replace(&hdfs, at_home("server"));
}

/* What is at `to`, by the name `to_by_http`, is complete: another machine goes on with it. */
static void outlive_a_kill(const char *data, const char *to, const char *to_by_http, int workers)
{
    int checkpoints = 0;
    struct wishes w = {.data = data,
                       .saved = to,
                       .more = ", everySteps: 5",
                       .steps = 20,
                       .workers = workers,
                       .watch = kill_server,
                       .context = &checkpoints};
    struct job_run run;

    run_job(&w, &run);
    expect_success(&run);
    assert_true(checkpoints > 1);
    expect_local_weights(run.sha256, 20);
    job_run_release(&run);
    job_run_remove(at_home("caches"));
    w.data = words;
    w.saved = to_by_http;
    w.steps = 22;
    w.watch = NULL;
    run_job(&w, &run);
    expect_success(&run);
    assert_int_equal(run.steps[0].step, 21);
    job_run_release(&run);
}

static void test_store_hdfs__a_killed_server_costs_no_step(void **state)
{
    char to[112];

    (void)state;
    begin();
    (void)snprintf(to, sizeof(to), "%s-killed", saved);
    outlive_a_kill(words, to, to, 2);
}

/* Names by the program hadoop, which the job uses, and by WebHDFS. */
struct two_names {
    char data[96], to[96], by_http[112];
};

static void name_for_program(const char *name, struct two_names *out)
{
    (void)setenv("HADOOP_HOME", hdfs.home, 1);
    (void)snprintf(out->data, sizeof(out->data), "hdfs://localhost:%d/fleet/words", hdfs.port);
    (void)snprintf(out->to, sizeof(out->to), "hdfs://localhost:%d/fleet/%s", hdfs.port, name);
    (void)snprintf(out->by_http, sizeof(out->by_http), "webhdfs://localhost:%d/fleet/%s",
                   hdfs.http_port, name);
}

static void test_store_hdfs__saves_by_the_program_hadoop(void **state)
{
    struct two_names names;
    struct wishes w = {.data = words, .more = "", .steps = 2, .workers = 1};
    struct job_run run;

    (void)state;
    begin();
    name_for_program("by-program", &names);
    w.saved = names.to;
    run_job(&w, &run);
    expect_success(&run);
    assert_int_equal(run.checkpoint_count, 1);
    job_run_release(&run);
    w.saved = names.by_http;
    w.steps = 4;
    run_job(&w, &run);
    expect_success(&run);
    assert_int_equal(run.steps[0].step, 3);
    job_run_release(&run);
}

static void test_store_hdfs__a_killed_server_of_the_program_costs_no_step(void **state)
{
    struct two_names names;

    (void)state;
    begin();
    if (!getenv("FLEET_CHECK_HADOOP")) {
        print_message("only in make check-hadoop: it takes minutes\n");
        skip();
    }
    name_for_program("by-program-killed", &names);
    outlive_a_kill(names.data, names.to, names.by_http, 1);
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
        cmocka_unit_test(test_store_hdfs__a_killed_server_costs_no_step),
        cmocka_unit_test(test_store_hdfs__saves_by_the_program_hadoop),
        cmocka_unit_test(test_store_hdfs__a_killed_server_of_the_program_costs_no_step),
        cmocka_unit_test(test_store_hdfs__what_is_refused_ends_the_job_once),
    };

    (void)hdfs_find(&hdfs);
    return cmocka_run_group_tests(tests, start_all, stop_all);
}
