/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Bad input and broken surroundings, as a user meets them: each ends with one clear message that
 * names the field and the value, the right exit code, and nothing left behind.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/manifest.h"
#include "tests/support/job_run.h"

#define LIMIT_S 600.0

struct parts {
    const char *worker, *strategy, *model, *data, *batch, *steps, *extra; /* NULL: as below */
};

static const char *or_else(const char *text, const char *otherwise)
{
    return text ? text : otherwise;
}

/* A job file in a fresh folder, with a good data file beside it. Returns the folder. */
static char *write_job(const struct parts *parts)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, data = {0};
    char *folder = job_run_folder();
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_FREE char *data_path = fleet_file_join(folder, "text.txt");

    for (int i = 0; i < 400; i++)
        fleet_strbuf_appendf(&data, "line %d of some text to learn\n", i);
    assert_int_equal(fleet_file_write(data_path, data.text, data.length, NULL), 0);
    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\n"
        "kind: FleetJob\n"
        "metadata: {name: faults}\n"
        "spec:\n"
        "  worker: %s\n"
        "  strategy: %s\n"
        "  training:\n"
        "    model: %s\n"
        "    data: %s\n"
        "    optimizer: {name: adamw, learningRate: 0.001}\n"
        "    %s\n"
        "    steps: %s\n"
        "%s",
        or_else(parts->worker, "{replicas: 2}"), or_else(parts->strategy, "{}"),
        or_else(parts->model, "{name: gpt, layers: 1, heads: 2, width: 32, context: 32}"),
        or_else(parts->data, "{path: text.txt}"),
        or_else(parts->batch, "globalBatchSize: 4\n    microBatchSize: 2"),
        or_else(parts->steps, "20"), or_else(parts->extra, ""));
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    return folder;
}

static void run_in(const char *folder, job_run_watch watch, void *context, struct job_run *out)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    const char *arguments[] = {path, NULL};

    job_run(arguments, LIMIT_S, watch, context, out);
}

/* The job ends with exit code 1 and a message that holds all of `words` (NULL at the end). */
static void expect_refused(const struct parts *parts, const char *const *words)
{
    char *folder = write_job(parts);
    struct job_run run;

    run_in(folder, NULL, NULL, &run);
    if (run.exit_code != 1)
        fail_msg("exit code %d, expected 1; it said: %s", run.exit_code, run.errors);
    for (; *words; words++)
        if (!strstr(run.errors, *words))
            fail_msg("no \"%s\" in: %s", *words, run.errors);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

#define REFUSED(parts, ...) expect_refused(parts, (const char *[]){__VA_ARGS__, NULL})
#define PARTS(...)          (&(struct parts){__VA_ARGS__})

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

static void test_faults__checkpoints_that_cannot_be_written_do_not_stop_training(void **state)
{
    struct parts parts = {.extra = "    checkpoint: {path: text.txt/inside, everySteps: 5}\n"};
    char *folder = write_job(&parts);
    struct job_run run;

    (void)state;
    run_in(folder, NULL, NULL, &run);
    if (run.exit_code == 0)
        assert_string_equal(run.state, "Succeeded");
    if (!strstr(run.errors, "checkpoint") || !strstr(run.errors, "text.txt/inside"))
        fail_msg("neither field nor path in: %s", run.errors);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

/* What is written at the end is tried at the start: no step is lost. */
static void test_faults__outputs_that_cannot_be_written(void **state)
{
    struct parts parts = {0};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_FREE char *inside = fleet_file_join(folder, "text.txt/losses.svg");
    struct job_run run;

    (void)state;
    REFUSED(PARTS(.extra = "    log: {curve: text.txt/losses.svg}\n"), "spec.training.log.curve",
            "text.txt", "not a folder");
    job_run((const char *[]){"--curve", inside, path, NULL}, LIMIT_S, NULL, NULL, &run);
    assert_int_equal(run.exit_code, 1);
    assert_int_equal(run.step_count, 0);
    assert_non_null(strstr(run.errors, "--curve: "));
    job_run_release(&run);
    job_run((const char *[]){"--state-file", folder, path, NULL}, LIMIT_S, NULL, NULL, &run);
    assert_int_equal(run.exit_code, 1);
    assert_non_null(strstr(run.errors, "--state-file: "));
    assert_non_null(strstr(run.errors, folder));
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

/* What is no regular file stays what it is, and the job does not begin. */
static void test_faults__outputs_that_would_destroy(void **state)
{
    static const char *const options[] = {"--curve", "--state-file"};
    struct parts parts = {0};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_FREE char *fifo = fleet_file_join(folder, "fifo.svg");
    FLEET_AUTO_FREE char *link = fleet_file_join(folder, "link.svg");
    const struct {
        const char *path, *what;
    } places[] = {{fifo, "a named pipe"},
                  {link, "a symbolic link"},
                  {"/dev/null", "a device"},
                  {"-", "standard output"}};
    struct job_run run;
    struct stat info;

    (void)state;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink(path, link), 0);
    for (size_t i = 0; i < 8; i++) {
        if (i % 2 == 0 && i >= 4)
            continue; /* a curve's path ends in .svg or .png */
        const char *words[] = {options[i % 2], places[i / 2].path, path, NULL};
        job_run(words, LIMIT_S, NULL, NULL, &run);
        assert_int_equal(run.exit_code, 1);
        assert_int_equal(run.step_count, 0);
        if (!strstr(run.errors, options[i % 2]) || !strstr(run.errors, places[i / 2].what))
            fail_msg("%s %s: %s", words[0], words[1], run.errors);
        job_run_release(&run);
    }
    assert_true(lstat(fifo, &info) == 0 && S_ISFIFO(info.st_mode));
    assert_true(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
    assert_true(lstat("/dev/null", &info) == 0 && S_ISCHR(info.st_mode));
    job_run_remove(folder);
    free(folder);
}

/* Going on from another job's checkpoint is done, and said with what differs. */
static void test_faults__a_checkpoint_of_another_job_is_reported(void **state)
{
    struct parts parts = {.steps = "4",
                          .extra = "    seed: 5\n"
                                   "    checkpoint: {path: checkpoints, everySteps: 2}\n"};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_FREE char *data = fleet_file_join(folder, "text.txt");
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;
    struct job_run run;

    (void)state;
    run_in(folder, NULL, NULL, &run);
    assert_int_equal(run.exit_code, 0);
    job_run_release(&run);
    job_run((const char *[]){"--steps", "8", "--workers", "1", path, NULL}, LIMIT_S, NULL, NULL,
            &run);
    assert_int_equal(run.exit_code, 0);
    assert_int_equal(run.step_count, 4);
    if (strstr(run.errors, "other settings"))
        fail_msg("the same job for longer: %s", run.errors);
    job_run_release(&run);

    assert_int_equal(fleet_file_read(data, 1 << 20, &text, &size, NULL), 0);
    text[0] = 'L';
    assert_int_equal(fleet_file_write(data, text, size, NULL), 0);
    free(text);
    assert_int_equal(fleet_file_read(path, 1 << 20, &text, &size, NULL), 0);
    *strstr(text, "seed: 5") = '#'; /* the default */
    assert_int_equal(fleet_file_write(path, text, size, NULL), 0);
    job_run((const char *[]){"--steps", "12", path, NULL}, LIMIT_S, NULL, NULL, &run);
    assert_int_equal(run.exit_code, 0);
    assert_int_equal(run.step_count, 4);
    if (!strstr(run.errors, "which job faults wrote with other settings: spec.training.seed, the "
                            "data of spec.training.data.path;"))
        fail_msg("not what differs: %s", run.errors);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

/* Another job's checkpoint is newer than this run. */
static void test_faults__two_runs_in_one_folder_are_reported(void **state)
{
    struct parts parts = {
        .steps = "6",
        .extra = "    checkpoint: {path: checkpoints, everySteps: 2, resume: never}\n"};
    struct manifest theirs = {.step = 9,
                              .generation = {0, 1},
                              .created_wall_ms = fleet_wall_ms() + 3600000,
                              .job = cJSON_Parse("{\"uid\":\"another\"}")};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "checkpoints/step-00000009-g0.1");
    FLEET_AUTO_FREE char *file = fleet_file_join(path, MANIFEST_NAME);
    FLEET_AUTO_FREE char *text = manifest_encode(&theirs);
    struct job_run run;

    (void)state;
    cJSON_Delete(theirs.job);
    assert_int_equal(fleet_file_make_folder(path, NULL), 0);
    assert_int_equal(fleet_file_write(file, text, strlen(text), NULL), 0);
    run_in(folder, NULL, NULL, &run);
    assert_int_equal(run.exit_code, 0);
    if (!strstr(run.errors, "written by another run") ||
        !strstr(run.errors, "spec.training.checkpoint.path") ||
        !strstr(run.errors, "step-00000009-g0.1"))
        fail_msg("not told: %s", run.errors);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

static int count_folders(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    int count = 0;

    if (!folder)
        return 0;
    while ((entry = readdir(folder)))
        count += strncmp(entry->d_name, "step-", 5) == 0;
    (void)closedir(folder);
    return count;
}

/* A file system of `size`; false where we may not mount one. */
static bool mount_small(const char *folder, const char *place, const char *size)
{
    char options[32];

    (void)snprintf(options, sizeof(options), "size=%s", size);
    assert_int_equal(mkdir(place, 0777), 0);
    if (mount("tmpfs", place, "tmpfs", 0, options) == 0)
        return true;
    print_message("not allowed to mount a small file system (%s): left out\n", strerror(errno));
    job_run_remove(folder);
    return false;
}

/* It holds one checkpoint and a half. The first stays; the job that cannot write its last one has
 * failed, and says what is lost and where the newest is. */
static void test_faults__a_last_checkpoint_that_cannot_be_written_fails_the_job(void **state)
{
    struct parts parts = {.extra = "    checkpoint: {path: small/checkpoints, everySteps: 5}\n"};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *small = fleet_file_join(folder, "small");
    FLEET_AUTO_FREE char *checkpoints = fleet_file_join(folder, "small/checkpoints");
    struct job_run run;
    int left;

    (void)state;
    if (!mount_small(folder, small, "450k")) {
        free(folder);
        skip();
    }
    assert_int_equal(setenv("FLEET_SAVE_PATIENCE_SECONDS", "2", 1), 0);
    run_in(folder, NULL, NULL, &run);
    assert_int_equal(unsetenv("FLEET_SAVE_PATIENCE_SECONDS"), 0);
    (void)fprintf(stderr, "%s", run.errors);
    left = count_folders(checkpoints);
    (void)umount(small);
    assert_int_equal(run.exit_code, 1);
    assert_string_equal(run.state, "Failed");
    assert_int_equal(run.step_count, 20); /* training went on */
    assert_non_null(strstr(run.errors, "No space left"));
    assert_non_null(strstr(run.errors, "the last checkpoint, of step 20,"));
    assert_non_null(strstr(run.errors, "the newest checkpoint is step-00000005"));
    assert_int_equal(run.checkpoint_count, 1);
    assert_int_equal(left, 1);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
}

struct full_disk {
    char *ballast; /* fills it; removed when the first save has failed */
};

static void make_room(void *context, struct job_run *run, const cJSON *event)
{
    struct full_disk *disk = context;
    const char *name = "";

    (void)run;
    (void)fleet_json_opt_string(event, "event", &name, NULL);
    if (strcmp(name, "checkpointFailed") == 0)
        (void)unlink(disk->ballast);
}

/* The disk gets room again: the save that failed is repeated, and the job succeeds. */
static void test_faults__a_save_that_fails_is_tried_again(void **state)
{
    static char full[400 << 10];
    struct parts parts = {.extra = "    checkpoint: {path: small/checkpoints}\n"};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *small = fleet_file_join(folder, "small");
    FLEET_AUTO_FREE char *ballast = fleet_file_join(folder, "small/ballast");
    struct full_disk disk = {ballast};
    struct job_run run;

    (void)state;
    if (!mount_small(folder, small, "450k")) {
        free(folder);
        skip();
    }
    assert_int_equal(fleet_file_write(ballast, full, sizeof(full), NULL), 0);
    run_in(folder, make_room, &disk, &run);
    (void)umount(small);
    if (run.exit_code != 0)
        fail_msg("exit %d: %s", run.exit_code, run.errors);
    assert_non_null(strstr(run.errors, "failed and is tried again"));
    assert_int_equal(run.checkpoint_count, 1);
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
    if (run->step_count == 3 && pids[0] == 0) { /* other events may follow this step */
        pids[0] = job_run_agents(run->pid, pids + 1, 20);
        pids[0] += job_run_trainers(run->pid, pids + 1 + pids[0], 20);
        (void)kill(run->pid, SIGINT);
    }
}

static void test_faults__ctrl_c_leaves_nothing_running(void **state)
{
    struct parts parts = {.steps = "5000"};
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
        cmocka_unit_test(test_faults__outputs_that_would_destroy),
        cmocka_unit_test(test_faults__an_export_to_standard_output),
        cmocka_unit_test(test_faults__wrong_variables_are_refused),
        cmocka_unit_test(test_faults__numbers_of_workers),
        cmocka_unit_test(test_faults__unknown_names),
        cmocka_unit_test(test_faults__all_errors_are_reported_at_once),
        cmocka_unit_test(test_faults__data_that_cannot_be_read),
        cmocka_unit_test(test_faults__an_empty_file),
        cmocka_unit_test(test_faults__data_that_changes_during_the_run),
        cmocka_unit_test(test_faults__checkpoints_that_cannot_be_written_do_not_stop_training),
        cmocka_unit_test(test_faults__outputs_that_cannot_be_written),
        cmocka_unit_test(test_faults__a_checkpoint_of_another_job_is_reported),
        cmocka_unit_test(test_faults__two_runs_in_one_folder_are_reported),
        cmocka_unit_test(test_faults__a_last_checkpoint_that_cannot_be_written_fails_the_job),
        cmocka_unit_test(test_faults__a_save_that_fails_is_tried_again),
        cmocka_unit_test(test_faults__wrong_command_lines_exit_2),
        cmocka_unit_test(test_faults__ctrl_c_leaves_nothing_running),
    };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
