/* SPDX-License-Identifier: Apache-2.0 */

/*
 * TensorBoard's event files: the checksums of RFC 3720, files that a reader of its own reads back,
 * and folders that stay without a step twice through restarts, earlier checkpoints, torn files and
 * full disks.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/tensorboard/event_log.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "tests/support/event_reader.h"
#include "tests/support/job_run.h"

#define TAG(t, v) ((struct event_scalar){.tag = (t), .tag_size = strlen(t), .value = (v)})

static void append(struct event_log *log, int64_t step, double value)
{
    struct event_scalar scalars[] = {TAG("train/loss", value), TAG("train/gradNorm", -value)};
    struct fleet_error err;

    if (event_log_append(log, step, 1000.5 + (double)step, scalars, 2, &err) < 0)
        fail_msg("step %d: %s", (int)step, err.text);
}

static struct event_log *begin(const char *folder, const char *job, int64_t step)
{
    struct event_log *log = event_log_new(folder, job);
    struct fleet_error err;

    if (event_log_resume(log, step, &err) < 0)
        fail_msg("%s", err.text);
    return log;
}

/* The folder holds train/loss for steps 1 … count, each once, in order: step s the value of
 * values[s]. */
static void expect_steps(const char *folder, int count, const double *values)
{
    struct event_points points;
    bool ascending;

    event_points_read(folder, &points);
    if (points.problem[0])
        fail_msg("%s", points.problem);
    if (event_points_count(&points, "train/loss", &ascending) != (size_t)count || !ascending)
        fail_msg("%zu points of train/loss, ascending %d; expected %d",
                 event_points_count(&points, "train/loss", &ascending), ascending, count);
    for (int s = 1; s <= count; s++)
        if (event_points_at(&points, "train/loss", s) != values[s])
            fail_msg("step %d: %g, expected %g", s, event_points_at(&points, "train/loss", s),
                     values[s]);
    event_points_release(&points);
}

static char *first_file(const char *folder)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0};
    char line[512] = "";
    FILE *pipe;

    fleet_strbuf_appendf(&command, "ls %s | head -1", folder);
    pipe = popen(command.text, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(line, sizeof(line), pipe));
    (void)pclose(pipe);
    line[strcspn(line, "\n")] = '\0';
    return fleet_file_join(folder, line);
}

static void test_event_log__checksums_of_rfc_3720(void **state)
{
    uint8_t bytes[32];

    (void)state;
    assert_int_equal(event_crc32c("123456789", 9), 0xe3069283);
    memset(bytes, 0, sizeof(bytes));
    assert_int_equal(event_crc32c(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof(bytes));
    assert_int_equal(event_crc32c(bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    assert_int_equal(event_crc32c(bytes, 32), 0x46dd794e);
    assert_int_equal(event_points_crc32c(bytes, 32), 0x46dd794e);
}

static void test_event_log__another_reader_reads_it(void **state)
{
    char *folder = job_run_folder();
    FLEET_AUTO_FREE char *below = fleet_file_join(folder, "a/b");
    struct event_log *log = begin(below, "gpt", 0);
    struct event_points points;
    bool ascending;

    (void)state;
    append(log, 1, 5.5);
    append(log, 2, NAN);
    append(log, 300, 0.1);
    event_log_free(log);
    event_points_read(below, &points);
    assert_string_equal(points.problem, "");
    assert_int_equal(points.files, 1);
    assert_int_equal(points.starts, 0);
    assert_int_equal(points.count, 6);
    assert_int_equal(event_points_count(&points, "train/gradNorm", &ascending), 3);
    assert_true(ascending);
    assert_true(event_points_at(&points, "train/loss", 1) == 5.5);
    assert_true(event_points_at(&points, "train/gradNorm", 300) == (double)-0.1f);
    assert_true(isnan(points.items[2].value));
    assert_true(points.items[4].wall_s == 1300.5);
    event_points_release(&points);
    job_run_remove(folder);
    free(folder);
}

static void test_event_log__goes_on_in_a_file_of_its_own(void **state)
{
    double values[] = {0, 1, 2, 3, 4, 5, 6};
    char *folder = job_run_folder();
    struct event_log *first = begin(folder, "gpt", 0), *second;
    struct event_points points;

    (void)state;
    for (int s = 1; s <= 3; s++)
        append(first, s, values[s]);
    second = begin(folder, "gpt", 3); /* the first process is dead */
    assert_int_equal(event_log_newest(second, "train/loss"), 3);
    assert_int_equal(event_log_newest(second, "validation/loss"), 0);
    for (int s = 2; s <= 5; s++) /* told of steps that are there */
        append(second, s, s < 4 ? -1.0 : values[s]);
    assert_int_equal(event_log_resume(second, 5, NULL), 0); /* still the writer: same file */
    append(second, 6, values[6]);
    expect_steps(folder, 6, values);
    event_points_read(folder, &points);
    assert_int_equal(points.files, 2);
    assert_int_equal(points.starts, 1);
    assert_int_equal(points.start_steps[0], 4);
    event_points_release(&points);
    event_log_free(first);
    event_log_free(second);
    job_run_remove(folder);
    free(folder);
}

static void test_event_log__an_earlier_step_cuts_back(void **state)
{
    double values[] = {0, 1, 2, 3, 40, 50, 60};
    char *folder = job_run_folder();
    struct event_log *log = begin(folder, "gpt", 0);

    (void)state;
    for (int s = 1; s <= 4; s++)
        append(log, s, s);
    event_log_free(log);
    log = begin(folder, "gpt", 4);
    for (int s = 5; s <= 9; s++)
        append(log, s, s);
    event_log_free(log);
    log = begin(folder, "gpt", 3); /* from the checkpoint of step 3: both files have more */
    assert_int_equal(event_log_newest(log, "train/loss"), 3);
    for (int s = 4; s <= 6; s++)
        append(log, s, values[s]);
    expect_steps(folder, 6, values);
    assert_int_equal(event_log_resume(log, 2, NULL), 0); /* the same process, too */
    expect_steps(folder, 2, values);
    append(log, 3, values[3]);
    expect_steps(folder, 3, values);
    event_log_free(log);
    log = begin(folder, "gpt", 0); /* from the beginning */
    append(log, 1, values[1]);
    expect_steps(folder, 1, values);
    event_log_free(log);
    job_run_remove(folder);
    free(folder);
}

static void test_event_log__leaves_other_files_alone(void **state)
{
    double values[] = {0, 7, 8};
    char *folder = job_run_folder();
    FLEET_AUTO_FREE char *foreign = fleet_file_join(folder, "events.out.tfevents.1.host");
    struct event_log *other = begin(folder, "job", 0), *log;
    char *text;
    size_t size;

    (void)state;
    append(other, 1, values[1]);
    append(other, 2, values[2]);
    event_log_free(other);
    assert_int_equal(fleet_file_write(foreign, "x", 1, NULL), 0);
    log = begin(folder, "gpt", 0); /* would cut everything of its own */
    event_log_free(log);
    log = begin(folder, "jo", 0);
    event_log_free(log);
    assert_int_equal(fleet_file_read(foreign, 10, &text, &size, NULL), 0);
    assert_int_equal(size, 1);
    free(text);
    assert_int_equal(unlink(foreign), 0);
    expect_steps(folder, 2, values);
    job_run_remove(folder);
    free(folder);
}

/* Cut the first file to every length: whole events before stay, the rest is written again. */
static void test_event_log__torn_anywhere(void **state)
{
    double values[] = {0, 1, 2, 3};
    char *folder = job_run_folder();
    struct event_log *log = begin(folder, "gpt", 0);
    FLEET_AUTO_FREE char *path = NULL;
    char *text;
    size_t size;

    (void)state;
    for (int s = 1; s <= 3; s++)
        append(log, s, values[s]);
    event_log_free(log);
    path = first_file(folder);
    assert_int_equal(fleet_file_read(path, 10000, &text, &size, NULL), 0);
    for (size_t length = 0; length < size; length++) {
        job_run_remove(folder);
        assert_int_equal(mkdir(folder, 0777), 0);
        assert_int_equal(fleet_file_write(path, text, length, NULL), 0);
        log = begin(folder, "gpt", 3);
        for (int s = 1; s <= 3; s++)
            append(log, s, values[s]);
        event_log_free(log);
        expect_steps(folder, 3, values);
    }
    free(text);
    job_run_remove(folder);
    free(folder);
}

static void test_event_log__a_damaged_event_ends_its_file(void **state)
{
    double values[] = {0, 1, 2, 30};
    char *folder = job_run_folder();
    struct event_log *log = begin(folder, "gpt", 0);
    FLEET_AUTO_FREE char *path = NULL;
    char *text;
    size_t size;

    (void)state;
    for (int s = 1; s <= 3; s++)
        append(log, s, s);
    event_log_free(log);
    path = first_file(folder);
    assert_int_equal(fleet_file_read(path, 10000, &text, &size, NULL), 0);
    text[size - 10] ^= 4;
    assert_int_equal(fleet_file_write(path, text, size, NULL), 0);
    free(text);
    log = begin(folder, "gpt", 3);
    for (int s = 1; s <= 3; s++)
        append(log, s, values[s]);
    event_log_free(log);
    expect_steps(folder, 3, values);
    job_run_remove(folder);
    free(folder);
}

/* A disk that fills up (here: the limit of a file's size) leaves whole events; later ones
 * follow. */
static void test_event_log__a_full_disk_leaves_whole_events(void **state)
{
    double values[] = {0, 1, 2, 3};
    struct rlimit limit, small;
    char *folder = job_run_folder();
    struct event_log *log = begin(folder, "gpt", 0);
    struct event_scalar scalar = TAG("train/loss", 2.0);
    FLEET_AUTO_FREE char *path = NULL;
    struct fleet_error err;
    struct stat about;

    (void)state;
    append(log, 1, values[1]);
    path = first_file(folder);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = (rlim_t)about.st_size + 10;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(event_log_append(log, 2, 0.0, &scalar, 1, &err), -ENOSPC);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_non_null(strstr(err.text, path));
    expect_steps(folder, 1, values);
    append(log, 2, values[2]);
    append(log, 3, values[3]);
    event_log_free(log);
    expect_steps(folder, 3, values);
    job_run_remove(folder);
    free(folder);
}

static void test_event_log__a_folder_that_cannot_be_made(void **state)
{
    struct event_log *log = event_log_new("/proc/none/here", "gpt");
    struct event_scalar scalar = TAG("train/loss", 2.0);
    struct fleet_error err;

    (void)state;
    assert_true(event_log_resume(log, 0, &err) < 0);
    assert_non_null(strstr(err.text, "/proc/none"));
    assert_true(event_log_append(log, 1, 0.0, &scalar, 1, &err) < 0);
    event_log_free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_event_log__checksums_of_rfc_3720),
        cmocka_unit_test(test_event_log__another_reader_reads_it),
        cmocka_unit_test(test_event_log__goes_on_in_a_file_of_its_own),
        cmocka_unit_test(test_event_log__an_earlier_step_cuts_back),
        cmocka_unit_test(test_event_log__leaves_other_files_alone),
        cmocka_unit_test(test_event_log__torn_anywhere),
        cmocka_unit_test(test_event_log__a_damaged_event_ends_its_file),
        cmocka_unit_test(test_event_log__a_full_disk_leaves_whole_events),
        cmocka_unit_test(test_event_log__a_folder_that_cannot_be_made),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
