/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Files that a job cannot write, or must not: outputs, checkpoints, a full disk, a folder that two
 * runs use. What happens, and one clear message.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/clock.h"
#include "libfleet/base/json.h"
#include "libfleet/checkpoint/manifest.h"
#include "tests/integration/faults_fixture.h"

/* Before the first step: a job must not train for hours and then lose it all. */
static void test_faults__a_folder_of_checkpoints_that_cannot_be_made_is_refused(void **state)
{
    (void)state;
    REFUSED(PARTS(.extra = "    checkpoint: {path: text.txt/inside, everySteps: 5}\n"),
            "spec.training.checkpoint.path", "text.txt/inside", "not a folder");
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
static void expect_another_try(const char *strategy)
{
    static char full[400 << 10];
    struct parts parts = {.strategy = strategy,
                          .extra = "    checkpoint: {path: small/checkpoints}\n"};
    char *folder = write_job(&parts);
    FLEET_AUTO_FREE char *small = fleet_file_join(folder, "small");
    FLEET_AUTO_FREE char *ballast = fleet_file_join(folder, "small/ballast");
    struct full_disk disk = {ballast};
    struct job_run run;

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

static void test_faults__a_save_that_fails_is_tried_again(void **state)
{
    (void)state;
    expect_another_try(NULL);
}

static void test_faults__a_save_of_all_ranks_that_fails_is_tried_again(void **state)
{
    (void)state;
    expect_another_try("{sharding: true}");
    expect_another_try("{hybrid_configs: {mp_degree: 2}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults__outputs_that_would_destroy),
        cmocka_unit_test(test_faults__a_folder_of_checkpoints_that_cannot_be_made_is_refused),
        cmocka_unit_test(test_faults__outputs_that_cannot_be_written),
        cmocka_unit_test(test_faults__a_checkpoint_of_another_job_is_reported),
        cmocka_unit_test(test_faults__two_runs_in_one_folder_are_reported),
        cmocka_unit_test(test_faults__a_last_checkpoint_that_cannot_be_written_fails_the_job),
        cmocka_unit_test(test_faults__a_save_that_fails_is_tried_again),
        cmocka_unit_test(test_faults__a_save_of_all_ranks_that_fails_is_tried_again),
    };
    return cmocka_run_group_tests_name("faults, files", tests, NULL, NULL);
}
