/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `fleetjob run`: its command line, jobs that are refused, jobs that go well, trainers of other
 * people. What it prints, with which code it exits, and that nothing is left behind.
 */
#include "tests/integration/run_fixture.h"

/* ---- the command line ------------------------------------------------------------------------ */

static void test_run__wrong_usage_exits_2(void **state)
{
    static const struct {
        const char *words[5], *says;
    } cases[] = {
        {{NULL}, "Usage: fleetjob COMMAND"},
        {{"rnu"}, "did you mean \"run\"?"},
        {{"run"}, "JOB.yaml is missing"},
        {{"run", "a.yaml", "b.yaml"}, "\"b.yaml\" is one word too many"},
        {{"run", "--nonsense", "a.yaml"}, "Usage: fleetjob run"},
        {{"run", "--workers", "0", "a.yaml"}, "--workers must be in [1, 256], not \"0\""},
        {{"run", "--workers", "two", "a.yaml"}, "--workers must be in [1, 256], not \"two\""},
        {{"run", "--steps", "-3", "a.yaml"}, "--steps must be in"},
        {{"plan", "--output", "xml", "a.yaml"}, "--output must be table or json, not \"xml\""},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        const char *const *w = cases[i].words;
        struct run run;
        run_words(&run, w[0], w[0] ? w[1] : NULL, w[0] && w[1] ? w[2] : NULL,
                  w[0] && w[1] && w[2] ? w[3] : NULL, NULL);
        expect_exit(&run, 2);
        expect_words(&run.err, cases[i].says);
        assert_int_equal(run.out.length, 0);
        release(&run);
    }
}

static void test_run__help_and_version_exit_0(void **state)
{
    static const char *const commands[] = {"run", "plan", "validate", "select", "convert"};
    struct run run;

    (void)state;
    run_words(&run, "--version", NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "fleetjob 0.");
    release(&run);
    for (size_t i = 0; i < FLEET_COUNT(commands); i++) {
        run_words(&run, commands[i], "--help", NULL);
        expect_exit(&run, 0);
        expect_words(&run.out, "Usage: fleetjob");
        release(&run);
        run_words(&run, "help", commands[i], NULL);
        expect_exit(&run, 0);
        expect_words(&run.out, "Usage: fleetjob");
        release(&run);
    }
}

/* ---- bad jobs -------------------------------------------------------------------------------- */

static void test_run__refuses_a_bad_job_with_all_its_errors(void **state)
{
    static const struct {
        const char *training, *extra, *says[3];
    } cases[] = {
        {"    evaluation: {everySteps: 0}\n    seed: -1\n",
         "  strategy: {amp: true, gradient_mrege: true}\n",
         {"spec.training.evaluation.everySteps", "spec.training.seed", "gradient_merge"}},
        {"", "  runPolicy: {cleanPodPolicy: Sometimes}\n", {"spec.runPolicy.cleanPodPolicy"}},
    };
    struct run run;
    FILE *file;
    char path[128];

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        run_words(&run, "run", write_job("bad", cases[i].training, cases[i].extra), NULL);
        expect_exit(&run, 1);
        for (int s = 0; s < 3 && cases[i].says[s]; s++)
            expect_words(&run.err, cases[i].says[s]);
        assert_int_equal(run.out.length, 0);
        expect_nothing_left(&run);
        release(&run);
    }
    (void)snprintf(path, sizeof(path), "%s/broken.yaml", folder);
    file = fopen(path, "w");
    (void)fputs("spec: {worker: [\n", file);
    (void)fclose(file);
    run_words(&run, "run", path, NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "broken.yaml: line ");
    release(&run);
    run_words(&run, "run", "/nowhere/job.yaml", NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "/nowhere/job.yaml");
    release(&run);
}

static void test_run__refuses_more_workers_than_micro_batches(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "run", write_job("wide", "", ""), "--workers", "13", NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "spec.worker.replicas");
    release(&run);
}

static void test_run__what_the_command_line_changes_is_checked_like_the_file(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "run", write_job("gif", "", ""), "--curve", "loss.gif", NULL);
    expect_exit(&run, 1);
    expect_words(&run.err, "--curve: loss.gif: must end in .svg or .png");
    release(&run);
}

static void test_run__bad_data_is_refused_with_the_path(void **state)
{
    static const char *const paths[] = {"/nowhere/at/all", "empty", "short"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(paths); i++) {
        struct run run;
        const char *words;
        char path[128];
        (void)snprintf(path, sizeof(path), "%s%s%s", i ? folder : "", i ? "/" : "", paths[i]);
        run_words(&run, "run", write_job("nodata", "", ""), "--json", "--data", path, NULL);
        expect_exit(&run, 1);
        expect_words(&run.err, paths[i]);
        words = strstr(run.err.text, "spec.training.data.path");
        assert_non_null(words);
        assert_null(strstr(words + 1, "spec.training.data.path")); /* once */
        assert_int_equal(run.out.length, 0);                       /* nothing began */
        expect_nothing_left(&run);
        release(&run);
    }
}

/* ---- good jobs ------------------------------------------------------------------------------- */

static void test_run__the_weights_are_the_same_on_any_number_of_workers(void **state)
{
    static const char *const workers[] = {"2", "3", "4"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(workers); i++) {
        struct run run;
        struct story story;
        start_small_job(&run, write_job("equal", "", ""), workers[i], "60");
        wait_for_end(&run);
        story = expect_success(&run, STEPS);
        assert_true(story.last_loss < story.first_loss - 1.0);
        expect_undisturbed(&story, "60");
        release(&run);
    }
}

static void test_run__text_is_for_people(void **state)
{
    struct run run;
    char curve[128];

    (void)state;
    (void)snprintf(curve, sizeof(curve), "%s/loss.svg", folder);
    run_words(&run, "run", write_job("text", "", ""), "--curve", curve, NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, "text: gpt of 2 layers, width 32, 2 heads, context 32");
    expect_words(&run.out, "step 60/60  loss ");
    expect_words(&run.out, "Succeeded after ");
    expect_words(&run.out, undisturbed_weights("60"));
    expect_words(&run.out, curve);
    assert_null(strchr(run.out.text, '\r'));
    assert_int_equal(access(curve, R_OK), 0);
    release(&run);
}

/* The rest of the line is the path of a folder and nothing else. */
static void expect_folder_behind(const char *text, const char *words)
{
    const char *line = strstr(text, words);
    FLEET_AUTO_FREE char *path = NULL;

    assert_non_null(line);
    line += strlen(words);
    path = strndup(line, strcspn(line, "\n"));
    if (access(path, X_OK) < 0)
        fail_msg("there is no folder \"%s\"", path);
}

static void test_run__the_command_line_says_where_checkpoints_go(void **state)
{
    struct run run;
    char path[128];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/elsewhere", folder);
    run_words(&run, "run",
              write_job("place", "    checkpoint: {path: /proc/nowhere, everySteps: 30}\n", ""),
              "--checkpoint", path, "--steps", "60", NULL);
    expect_exit(&run, 0);
    expect_words(&run.out, path);
    assert_int_equal(access(path, R_OK), 0);
    expect_folder_behind(run.out.text, "checkpoint of step 60: ");
    expect_words(&run.out, " --steps 60 --checkpoint again    # the same weights, bit for bit");
    release(&run);
}

static void test_run__output_that_cannot_be_written_is_no_success(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0};
    char *arguments[] = {(char *)"sh", (char *)"-c", NULL, NULL};
    struct run run;

    (void)state;
    fleet_strbuf_appendf(&command, "%s validate %s >/dev/full", program, write_job("full", "", ""));
    arguments[2] = command.text;
    start_program(&run, "/bin/sh", arguments);
    wait_for_end(&run);
    expect_exit(&run, 1);
    expect_words(&run.err, "fleetjob validate: standard output: cannot be written");
    release(&run);
}

static void test_run__a_reader_that_leaves_stops_the_run(void **state)
{
    struct run run;

    (void)state;
    start_small_job(&run, write_job("pipe", "", ""), "2", ENDLESS_STEPS);
    while (run.out.length == 0)
        listen_to(&run, 1000);
    (void)close(run.process.out_fd);
    run.process.out_fd = -1;
    wait_for_end(&run);
    expect_exit(&run, 130);
    expect_nothing_left(&run);
    release(&run);
}

/* ---- other people's trainers ----------------------------------------------------------------- */

static const char *write_own_job(const char *command)
{
    static char path[128];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/own.yaml", folder);
    file = fopen(path, "w");
    (void)fprintf(file,
                  "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: own}\n"
                  "spec:\n  worker:\n    replicas: 2\n    processesPerPod: 2\n    template:\n"
                  "      spec:\n        containers:\n          - name: trainer\n"
                  "            env: [{name: WHERE, value: %s}]\n"
                  "            command: [sh, -c, '%s']\n"
                  "  runPolicy: {restart: {maxRestarts: 1}}\n",
                  folder, command);
    (void)fclose(file);
    return path;
}

static void test_run__a_command_of_ones_own_finds_its_rank(void **state)
{
    struct run run;

    (void)state;
    run_words(
        &run, "run",
        write_own_job("test -f $FLEET_STRATEGY_FILE && grep -q rank_id.*3 $RANK_TABLE_FILE && "
                      "echo $WORLD_SIZE $PADDLE_TRAINERS_NUM > $WHERE/rank-$RANK"),
        NULL);
    expect_exit(&run, 0);
    for (int rank = 0; rank < 4; rank++) {
        FLEET_AUTO_FREE char *text = NULL;
        char path[128];
        size_t size;
        (void)snprintf(path, sizeof(path), "%s/rank-%d", folder, rank);
        assert_int_equal(fleet_file_read(path, 100, &text, &size, NULL), 0);
        assert_string_equal(text, "4 4\n");
    }
    expect_nothing_left(&run);
    release(&run);
}

static void test_run__a_command_that_fails_fails_the_job(void **state)
{
    struct run run;

    (void)state;
    run_words(&run, "run", write_own_job("sleep 1000 & echo it broke; exit 3"), NULL);
    expect_exit(&run, 1);
    expect_words(&run.out, "1 restarts are used up; the last cause was TrainerFailed: it broke");
    expect_nothing_left(&run);
    release(&run);
}

/* For every rank, and at any progress of the others. */
static void test_run__a_rank_that_fails_after_others_have_finished_fails_the_job(void **state)
{
    static const char *const ranks[] = {"0", "3"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(ranks); i++) {
        char script[128];
        struct run run;
        (void)snprintf(script, sizeof(script), "[ $RANK != %s ] || { sleep 1; exit 5; }", ranks[i]);
        run_words(&run, "run", write_own_job(script), NULL);
        expect_exit(&run, 1);
        expect_words(&run.out, "1 restarts are used up; the last cause was TrainerFailed");
        expect_nothing_left(&run);
        release(&run);
    }
}

/* A command that is not there, whether the shell says so or the agent; and one that fails waits
 * before it starts again. */
static void test_run__restarts_that_cannot_help_are_not_tried_and_others_wait(void **state)
{
    static const char *const job =
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\n"
        "metadata: {name: own}\nspec:\n  worker:\n    replicas: 1\n"
        "    template: {spec: {containers: [{name: t, command: [%s]}]}}\n"
        "  runPolicy: {restart: {maxRestarts: 4}}\n";
    static const char *const commands[] = {"/no/such/command", "sh, -c, /no/such/command",
                                           "/etc/passwd", "sh, -c, exit 3"};
    static const char *const words[] = {"/no/such/command", "code 127 (command not found)",
                                        "code 126 (command cannot be executed)",
                                        "restart 4 in 4 s, after worker 0 exited with code 3"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(commands); i++) {
        char path[128];
        struct run run;
        FILE *file;
        (void)snprintf(path, sizeof(path), "%s/waits.yaml", folder);
        file = fopen(path, "w");
        (void)fprintf(file, job, commands[i]);
        (void)fclose(file);
        run_words(&run, "run", path, NULL);
        expect_exit(&run, 1);
        expect_words(&run.out, words[i]);
        if (i < 3)
            assert_null(strstr(fleet_strbuf_text(&run.out), "restart 1"));
        expect_nothing_left(&run);
        release(&run);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run__wrong_usage_exits_2),
        cmocka_unit_test(test_run__help_and_version_exit_0),
        cmocka_unit_test(test_run__refuses_a_bad_job_with_all_its_errors),
        cmocka_unit_test(test_run__refuses_more_workers_than_micro_batches),
        cmocka_unit_test(test_run__what_the_command_line_changes_is_checked_like_the_file),
        cmocka_unit_test(test_run__bad_data_is_refused_with_the_path),
        cmocka_unit_test(test_run__the_weights_are_the_same_on_any_number_of_workers),
        cmocka_unit_test(test_run__text_is_for_people),
        cmocka_unit_test(test_run__the_command_line_says_where_checkpoints_go),
        cmocka_unit_test(test_run__output_that_cannot_be_written_is_no_success),
        cmocka_unit_test(test_run__a_reader_that_leaves_stops_the_run),
        cmocka_unit_test(test_run__a_command_of_ones_own_finds_its_rank),
        cmocka_unit_test(test_run__a_command_that_fails_fails_the_job),
        cmocka_unit_test(test_run__a_rank_that_fails_after_others_have_finished_fails_the_job),
        cmocka_unit_test(test_run__restarts_that_cannot_help_are_not_tried_and_others_wait),
    };

    return find_everything(argc, argv) ? cmocka_run_group_tests(tests, make_folder, remove_folder)
                                       : 1;
}
