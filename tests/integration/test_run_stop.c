/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Runs that are interrupted, drained, frozen or killed themselves: no step is lost or made twice,
 * and nothing is left behind, whichever process is struck.
 */
#include "tests/integration/run_fixture.h"

/* ---- stopping -------------------------------------------------------------------------------- */

/* False: the job was over before it was interrupted. */
static bool interrupt_and_go_on(const void *context, int steps)
{
    struct run run;
    struct story story, later;
    char training[100];

    (void)context;
    (void)snprintf(training, sizeof(training),
                   "    checkpoint: {path: saved-%d, everySteps: 1000000}\n", steps);
    start_small_job(&run, write_job("resume", training, ""), "3", steps_text(steps));
    wait_for_step(&run, 40);
    (void)kill(run.process.pid, SIGINT);
    wait_for_end(&run);
    story = read_story(&run);
    expect_nothing_left(&run);
    if (story.steps == steps) {
        release(&run);
        return false;
    }
    expect_exit(&run, 130);
    assert_string_equal(story.state, "Suspended");
    assert_true(story.steps >= 40);
    release(&run);

    start_small_job(&run, write_job("resume", training, ""), "2", steps_text(steps));
    wait_for_end(&run);
    expect_exit(&run, 0);
    later = read_story(&run);
    assert_int_equal(later.first_step, story.steps + 1); /* none is lost, none is made twice */
    expect_words(&run.out, undisturbed_weights(steps_text(steps)));
    expect_nothing_left(&run);
    release(&run);
    return true;
}

static void test_run_stop__an_interrupt_saves_and_a_later_run_goes_on(void **state)
{
    (void)state;
    strike_until_hit(interrupt_and_go_on, NULL, many_steps);
}

/* The text of a run, with what it says on the error stream. */
static char *run_text(const char *path, const char *steps)
{
    struct fleet_strbuf text = {0};
    struct run run;

    run_words(&run, "run", path, "--steps", steps, NULL);
    expect_exit(&run, 0);
    fleet_strbuf_append(&text, fleet_strbuf_text(&run.out));
    fleet_strbuf_append(&text, fleet_strbuf_text(&run.err));
    expect_nothing_left(&run);
    release(&run);
    return fleet_strbuf_take(&text);
}

static void expect_in(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("not said: \"%s\":\n%s", words, text);
}

/* "loss      5.5350 at first" of the summary. */
static double first_loss(const char *text)
{
    const char *line = strstr(text, "loss      ");

    assert_non_null(line);
    return strtod(line + 10, NULL);
}

static int count_checkpoints(const char *path)
{
    const struct dirent *entry;
    DIR *dir = opendir(path);
    int count = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)))
        count += strncmp(entry->d_name, "step-", 5) == 0;
    (void)closedir(dir);
    return count;
}

/* What is gone on from, or that nothing is left; the losses are the job's, not only the run's. */
static void test_run_stop__a_resume_speaks(void **state)
{
    const char *path =
        write_job("spoken", "    checkpoint: {path: spoken, everySteps: 10, keep: 2}\n", "");
    FLEET_AUTO_FREE char *first = run_text(path, "20");
    FLEET_AUTO_FREE char *second = run_text(path, "40");
    FLEET_AUTO_FREE char *third = run_text(path, "40");
    FLEET_AUTO_FREE char *losses = NULL;
    char record[128];
    const char *at;
    size_t size;

    (void)state;
    assert_null(strstr(first, "continuing"));
    expect_in(second, "[0] continuing from step 20 (");
    expect_in(second, ") generation=1\n");
    expect_in(third, "all 40 steps are done (");
    expect_in(third, "nothing is left to do");
    assert_true(first_loss(first) == first_loss(second) && first_loss(first) == first_loss(third));
    (void)snprintf(record, sizeof(record), "%s/spoken/losses-spoken.tsv", folder);
    assert_int_equal(fleet_file_read(record, 1 << 16, &losses, &size, NULL), 0);
    assert_int_equal(strncmp(losses, "# fleetjob losses {\"job\":\"spoken\"", 33), 0);
    at = strchr(strchr(losses, '\n') + 1, '\n') + 1;
    assert_non_null(strstr(at, "\n20\t"));
    assert_non_null(strstr(at, "\t\tresume\n21\t")); /* the second run went on from there */
    for (int step = 1; step <= 40; step++, at = strchr(at, '\n') + 1)
        assert_int_equal(atoi(at), step);
    assert_int_equal(*at, '\0');
    (void)snprintf(record, sizeof(record), "%s/spoken", folder);
    assert_int_equal(count_checkpoints(record), 2); /* keep, over all runs */
}

static void test_run_stop__saves_when_it_is_asked_and_goes_on(void **state)
{
    struct run run;
    struct story story;

    (void)state;
    start_small_job(&run,
                    write_job("ask", "    checkpoint: {path: asked, everySteps: 100000}\n", ""),
                    "2", ENDLESS_STEPS);
    wait_for_step(&run, 20);
    (void)kill(run.process.pid, SIGUSR1);
    wait_for_words(&run, "\"checkpoint\",\"step\":");
    wait_for_step(&run, 40); /* it goes on */
    (void)kill(run.process.pid, SIGINT);
    wait_for_end(&run);
    story = read_story(&run);
    assert_string_equal(story.state, "Suspended");
    expect_nothing_left(&run);
    release(&run);
}

/* False: it was over before it was interrupted. Its results are in a folder of the number `i`. */
static bool interrupt_demo(int i)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    char command[256], *arguments[] = {(char *)"sh", (char *)"-c", command, NULL};
    struct run run;

    (void)snprintf(command, sizeof(command),
                   "mkdir %s/demo-%d && TMPDIR=%s/demo-%d exec tools/demo-local.sh", folder, i,
                   folder, i);
    start_program(&run, "/bin/sh", arguments);
    while (run.process.out_fd >= 0 && !strstr(fleet_strbuf_text(&run.out), "step 1/300") &&
           fleet_monotonic_ms() < give_up_ms)
        listen_to(&run, 1000);
    (void)kill(-run.process.pid, SIGINT);
    wait_for_end(&run);
    expect_nothing_left(&run);
    if (strstr(fleet_strbuf_text(&run.out), "step 300/300")) {
        release(&run);
        return false;
    }
    expect_exit(&run, 130);
    expect_words(&run.out, "checkpoint of step ");
    expect_words(&run.out, "Suspended after ");
    release(&run);
    return true;
}

/* A terminal interrupts the whole group, and the script tells the run: that is one Ctrl-C, not
 * two. */
static void test_run_stop__an_interrupted_demo_saves_and_leaves_nothing(void **state)
{
    int tries = 0;

    (void)state;
    if (access("build/bin/fleetjob", X_OK) < 0)
        skip(); /* the script runs the release build */
    while (!interrupt_demo(tries))
        assert_true(++tries < 10);
}

/* Its pod is drained, twice between two checkpoints. False: the job was over before. */
static bool drain_twice(const void *context, int steps)
{
    struct story story;
    char training[100];
    struct run run;
    bool is_hit;

    (void)context;
    (void)snprintf(training, sizeof(training),
                   "    checkpoint: {path: drained-%d, everySteps: 1000000}\n", steps);
    start_small_job(&run, write_job("drained", training, ""), "1", steps_text(steps));
    wait_for_step(&run, 10);
    is_hit = strike_if_running(&run, 0, true, SIGTERM) &&
             listen_for_words(&run, "\"event\":\"restart\"") && /* its replacement steps */
             strike_if_running(&run, 0, true, SIGTERM);
    wait_for_end(&run);
    story = expect_success(&run, steps);
    assert_int_equal(story.lost_steps, 0);
    expect_undisturbed(&story, steps_text(steps));
    release(&run);
    return is_hit && story.restarts == 2;
}

/* What it saves as it leaves is known each time. */
static void test_run_stop__a_sole_worker_that_is_stopped_twice_loses_no_step(void **state)
{
    (void)state;
    strike_until_hit(drain_twice, NULL, many_steps);
}

/* False: the job was over before its trainer was frozen. */
static bool freeze(const void *context, int steps)
{
    struct story story;
    struct run run;
    bool is_hit;

    (void)context;
    start_small_job(&run, write_job("frozen", "", ""), "1", steps_text(steps));
    wait_for_step(&run, 10);
    is_hit = strike_if_running(&run, 0, false, SIGSTOP) &&
             listen_for_words(&run, "holds the state of step"); /* it was missed */
    if (is_hit)
        strike(&run, 0, false, SIGCONT);
    wait_for_end(&run);
    story = expect_success(&run, steps);
    assert_int_equal(story.lost_steps, 0);
    expect_undisturbed(&story, steps_text(steps));
    release(&run);
    return is_hit && story.restarts == 1;
}

/* No other worker holds its state, and there is no checkpoint: a worker that is stopped is not
 * killed. */
static void test_run_stop__a_sole_worker_that_is_frozen_comes_back_with_its_state(void **state)
{
    (void)state;
    strike_until_hit(freeze, NULL, few_steps);
}

/* Until the state file says that its members were asked to end. */
static void wait_until_leaving(struct run *run)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    bool leaving = false;

    while (!leaving) {
        FLEET_AUTO_JSON cJSON *json = read_state(run);
        if (fleet_monotonic_ms() > give_up_ms)
            fail_msg("nobody was asked to end");
        leaving = json && cJSON_IsTrue(fleet_json_at(json, "members[0].deleting"));
        listen_to(run, 20);
    }
}

/* While the workers are frozen, so nothing but the run itself can have said it. */
static void wait_for_acknowledgement(struct run *run)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;

    while (!strstr(fleet_strbuf_text(&run->err),
                   "asked the workers to end; Ctrl-C again stops at once")) {
        if (fleet_monotonic_ms() > give_up_ms)
            fail_msg("the first interrupt was not answered: %s", fleet_strbuf_text(&run->err));
        listen_to(run, 20);
    }
}

/* Milliseconds from the second interrupt to the end. */
static double interrupt_twice(void)
{
    double second_ms, took_ms;
    struct run run;

    start_small_job(&run, write_job("twice", "", ""), "2", ENDLESS_STEPS);
    wait_for_step(&run, 5);
    strike(&run, 0, false, SIGSTOP); /* it cannot leave */
    (void)kill(run.process.pid, SIGTERM);
    wait_until_leaving(&run); /* two at once are one signal */
    wait_for_acknowledgement(&run);
    second_ms = fleet_monotonic_ms();
    (void)kill(run.process.pid, SIGTERM);
    wait_for_end(&run);
    took_ms = fleet_monotonic_ms() - second_ms;
    expect_exit(&run, 130);
    expect_nothing_left(&run);
    release(&run);
    return took_ms;
}

/* One that waits never ends before the grace of 30 s. One that does not may take as long now and
 * then, on a busy machine. */
static void test_run_stop__the_second_interrupt_does_not_wait(void **state)
{
    int tries = 1;

    (void)state;
    while (interrupt_twice() > 25000)
        assert_true(tries++ < 10);
}

static void test_run_stop__nothing_is_left_when_it_is_stopped_as_it_starts(void **state)
{
    char command[640], *arguments[] = {(char *)"sh", (char *)"-c", command, NULL}, place[128];

    (void)state;
    (void)snprintf(place, sizeof(place), "%s/temporary", folder);
    assert_int_equal(mkdir(place, 0700), 0);
    (void)snprintf(command, sizeof(command), "TMPDIR=%s exec %.300s run %s", place, program,
                   write_job("early", "", ""));
    for (useconds_t us = 0; us < 60000; us += 3000) {
        struct run run;
        start_program(&run, "/bin/sh", arguments);
        (void)usleep(us);
        (void)kill(run.process.pid, SIGTERM);
        wait_for_end(&run);
        expect_nothing_left(&run);
        release(&run);
    }
    assert_int_equal(rmdir(place), 0); /* as empty as it was */
}

static void test_run_stop__nothing_is_left_when_it_is_killed(void **state)
{
    (void)state;
    for (int moment = 0; moment < 4; moment++) {
        struct run run;
        start_small_job(&run, write_job("killed", "", ""), "3", ENDLESS_STEPS);
        if (moment < 2) /* while agents and trainers are being started */
            (void)usleep(30000 + 60000 * (useconds_t)moment);
        else
            wait_for_step(&run, moment * 5);
        (void)kill(run.process.pid, SIGKILL);
        wait_for_end(&run);
        expect_exit(&run, 137);
        expect_nothing_left(&run);
        release(&run);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_stop__an_interrupt_saves_and_a_later_run_goes_on),
        cmocka_unit_test(test_run_stop__a_resume_speaks),
        cmocka_unit_test(test_run_stop__saves_when_it_is_asked_and_goes_on),
        cmocka_unit_test(test_run_stop__an_interrupted_demo_saves_and_leaves_nothing),
        cmocka_unit_test(test_run_stop__a_sole_worker_that_is_stopped_twice_loses_no_step),
        cmocka_unit_test(test_run_stop__a_sole_worker_that_is_frozen_comes_back_with_its_state),
        cmocka_unit_test(test_run_stop__the_second_interrupt_does_not_wait),
        cmocka_unit_test(test_run_stop__nothing_is_left_when_it_is_stopped_as_it_starts),
        cmocka_unit_test(test_run_stop__nothing_is_left_when_it_is_killed),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folder, remove_folder)
                                       : 1;
}
