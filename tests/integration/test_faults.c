/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Bad input and commands, as a user meets them: each ends with one clear message that names the
 * field and the value, the right exit code, and nothing left behind. test_faults_files.c has what
 * cannot be written.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/integration/faults_fixture.h"

static void test_faults__numbers_of_workers(void **state)
{
    (void)state;
    REFUSED(PARTS(.worker = "{replicas: 0}"), "spec.worker.replicas", "0");
    REFUSED(PARTS(.worker = "{replicas: 3, minReplicas: 4, maxReplicas: 2}"),
            "spec.worker.minReplicas", "4", "2");
    REFUSED(PARTS(.worker = "{replicas: 3}"), "spec.worker.replicas", "3", "2");
}

static void test_faults__unknown_names(void **state)
{
    (void)state;
    REFUSED(PARTS(.model = "{name: gtp, layers: 1, heads: 2, width: 32, context: 32}"),
            "spec.training.model.name", "gtp", "gpt");
    REFUSED(PARTS(.strategy = "{gradient_merg: true}"), "spec.strategy.gradient_merg",
            "gradient_merge");
    REFUSED(PARTS(.model = "{name: gpt, layer: 1, heads: 2, width: 32, context: 32}"),
            "spec.training.model.layer", "layers");
    REFUSED(PARTS(.model = "{name: gpt, layers: 1, heads: 3, width: 32, context: 32}"),
            "spec.training.model", "32", "3");
}

static void test_faults__all_errors_are_reported_at_once(void **state)
{
    (void)state;
    REFUSED(PARTS(.worker = "{replicas: 0}", .strategy = "{ampp: true}",
                  .model = "{name: gpt, layers: -1, heads: 2, width: 32, context: 32}"),
            "spec.worker.replicas", "spec.strategy.ampp", "spec.training.model.layers");
}

static void test_faults__data_that_cannot_be_read(void **state)
{
    (void)state;
    REFUSED(PARTS(.data = "{path: nowhere.txt}"), "data.path", "nowhere.txt", "No such file");
    REFUSED(PARTS(.data = "{path: /dev/null/x}"), "data.path", "/dev/null/x");
    REFUSED(PARTS(.data = "{path: text.txt}",
                  .model = "{name: gpt, layers: 1, heads: 2, width: 32, context: 20000}"),
            "data.path", "text.txt");
    REFUSED(PARTS(.data = "{path: '*.nothing'}"), "data.path", "*.nothing");
}

static void test_faults__an_empty_file(void **state)
{
    struct parts parts = {.data = "{path: empty.txt}"};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *empty = fleet_file_join(folder, "empty.txt");
    struct job_run run;

    (void)state;
    assert_int_equal(fleet_file_write(empty, "", 0, NULL), 0);
    run_in(folder, NULL, NULL, &run);
    assert_int_equal(run.exit_code, 1);
    assert_non_null(strstr(run.errors, "data.path"));
    assert_non_null(strstr(run.errors, "empty.txt"));
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

static void append_at_step_5(void *context, struct job_run *run, const cJSON *event)
{
    FILE *file;

    (void)event;
    if (run->step_count != 5)
        return;
    file = fopen(context, "a");
    assert_non_null(file);
    assert_true(fputs("another line\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_faults__data_that_changes_during_the_run(void **state)
{
    struct parts parts = {.steps = "2000"}; /* not over before this reader has seen step 5 */
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *data = fleet_file_join(folder, "text.txt");
    struct job_run run;

    (void)state;
    run_in(folder, append_at_step_5, data, &run);
    assert_int_equal(run.exit_code, 1);
    if (!strstr(run.errors, "text.txt") || !strstr(run.errors, "changed"))
        fail_msg("neither file nor cause in: %s", run.errors);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

static void expect_code(int code, const char *const *arguments)
{
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_FREE char *errors = NULL;
    int actual = job_run_command("fleetjob", arguments, &text, &errors);

    if (actual != code)
        fail_msg("fleetjob %s %s: exit %d, expected %d: %s", arguments[0] ? arguments[0] : "",
                 arguments[0] && arguments[1] ? arguments[1] : "", actual, code, errors);
    if (code != 0 && errors[0] == '\0')
        fail_msg("fleetjob %s failed without a message", arguments[0] ? arguments[0] : "");
}

#define CODE(code, ...) expect_code(code, (const char *[]){__VA_ARGS__, NULL})

/* "-" is standard output: the same bytes as the file's. */
static void test_faults__an_export_to_standard_output(void **state)
{
    struct parts parts = {.extra = "    checkpoint: {path: saved}\n"};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *saved = fleet_file_join(folder, "saved");
    FLEET_AUTO_FREE char *fifo = fleet_file_join(folder, "fifo");
    FLEET_AUTO_FREE char *file = fleet_file_join(folder, "file.safetensors");
    FLEET_AUTO_FREE char *piped = fleet_file_join(folder, "piped");
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0};
    const char *programs = getenv("FLEET_BIN");
    struct job_run run;

    (void)state;
    run_in(folder, NULL, NULL, &run);
    assert_int_equal(run.exit_code, 0);
    job_run_release(&run);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    CODE(1, "export", saved, fifo);
    CODE(1, "export", saved, "/dev/null");
    CODE(0, "export", saved, file);
    fleet_strbuf_appendf(&command,
                         "'%s/fleetjob' export '%s' - 2>/dev/null | cat > '%s' && cmp '%s' '%s'",
                         programs ? programs : "build/bin", saved, piped, file, piped);
    assert_int_equal(system(command.text), 0); /* NOLINT(concurrency-mt-unsafe): a shell's pipe */
    job_run_remove(folder);
    free(folder);
}

static void test_faults__wrong_command_lines_exit_2(void **state)
{
    (void)state;
    CODE(2, "run");
    CODE(2, "rum", "x.yaml");
    CODE(2, "run", "--no-such-option", "x.yaml");
    CODE(2, "run", "--workers", "many", "x.yaml");
    CODE(2, "run", "a.yaml", "b.yaml");
    CODE(0, "--help");
    CODE(0, "run", "--help");
    CODE(1, "run", "/nowhere/job.yaml");
}

/* A number that is none is not "all". */
static void test_faults__wrong_variables_are_refused(void **state)
{
    static const char *const threads[] = {"garbage", "0", "-1", "2x", "99999"};
    struct parts parts = {0};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    struct job_run run;

    (void)state;
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        const char *words[] = {"plan", path, NULL};
        FLEET_AUTO_FREE char *errors = NULL;
        assert_int_equal(setenv("FLEET_THREADS", threads[i], 1), 0);
        assert_int_equal(job_run_command("fleetjob", words, NULL, &errors), 1);
        if (!strstr(errors, "FLEET_THREADS") || !strstr(errors, threads[i]))
            fail_msg("FLEET_THREADS=%s: %s", threads[i], errors);
    }
    assert_int_equal(unsetenv("FLEET_THREADS"), 0);
    assert_int_equal(setenv("FLEET_SAVE_PATIENCE_SECONDS", "5m", 1), 0);
    run_in(folder, NULL, NULL, &run);
    assert_int_equal(unsetenv("FLEET_SAVE_PATIENCE_SECONDS"), 0);
    assert_int_equal(run.exit_code, 1);
    assert_int_equal(run.step_count, 0);
    if (!strstr(run.errors, "FLEET_SAVE_PATIENCE_SECONDS is \"5m\", not a number between 0 and"))
        fail_msg("%s", run.errors);
    job_run_release(&run);
    assert_int_equal(setenv("FLEET_SHARED_MEMORY", "no", 1), 0);
    run_in(folder, NULL, NULL, &run);
    assert_int_equal(unsetenv("FLEET_SHARED_MEMORY"), 0);
    assert_int_equal(run.exit_code, 1);
    if (!strstr(run.errors, "FLEET_SHARED_MEMORY is \"no\", not a number between 0 and 1"))
        fail_msg("%s", run.errors);
    job_run_release(&run);
    assert_int_equal(setenv("FLEET_ISA", "avx3", 1), 0);
    run_in(folder, NULL, NULL, &run);
    assert_int_equal(unsetenv("FLEET_ISA"), 0);
    assert_int_equal(run.exit_code, 1);
    assert_int_equal(run.step_count, 0);
    if (!strstr(run.errors, "FLEET_ISA is \"avx3\", not one of plain, avx2"))
        fail_msg("%s", run.errors);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

static void interrupt_once(void *context, struct job_run *run, const cJSON *event)
{
    pid_t *pids = context;

    (void)event;
    /* A busy machine may have lost one that is started again: then a later step shows all. */
    if (run->step_count >= 3 && pids[0] < 4) {
        pids[0] = job_run_agents(run->pid, pids + 1, 20);
        pids[0] += job_run_trainers(run->pid, pids + 1 + pids[0], 20);
        if (pids[0] >= 4)
            (void)kill(run->pid, SIGINT);
    }
}

static void test_faults__ctrl_c_leaves_nothing_running(void **state)
{
    struct parts parts = {.steps = "1000000000"};
    char *folder = write_job(&parts);
    pid_t pids[42] = {0};
    struct job_run run;

    (void)state;
    run_in(folder, interrupt_once, pids, &run);
    assert_int_equal(run.exit_code, 130);
    assert_true(pids[0] >= 4);
    assert_int_equal(job_run_left(pids + 1, pids[0], 300), 0);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults__an_export_to_standard_output),
        cmocka_unit_test(test_faults__wrong_variables_are_refused),
        cmocka_unit_test(test_faults__numbers_of_workers),
        cmocka_unit_test(test_faults__unknown_names),
        cmocka_unit_test(test_faults__all_errors_are_reported_at_once),
        cmocka_unit_test(test_faults__data_that_cannot_be_read),
        cmocka_unit_test(test_faults__an_empty_file),
        cmocka_unit_test(test_faults__data_that_changes_during_the_run),
        cmocka_unit_test(test_faults__wrong_command_lines_exit_2),
        cmocka_unit_test(test_faults__ctrl_c_leaves_nothing_running),
    };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
