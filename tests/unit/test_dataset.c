/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Samples of text by number, over files, folders and globs, and everything that can be wrong with
 * `data.path`, before and during a run.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/runtime/data/dataset.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/fleetjob-dataset-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command);
}

static const char *path_of(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void write_bytes(const char *name, const void *data, size_t size)
{
    int rc = fleet_file_write(path_of(name), data, size, NULL);

    assert_int_equal(rc, 0);
}

static void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

static int open_path(const char *path, enum training_tokenizer tokenizer, double validation,
                     int64_t context, struct dataset **out, struct fleet_error *err)
{
    struct training_data config = {
        .path = (char *)path, .tokenizer = tokenizer, .validation = validation};

    return dataset_open(&config, context, 1, out, err);
}

static struct dataset *open_well(const char *path, int64_t context)
{
    struct dataset *dataset = NULL;
    struct fleet_error err;

    if (open_path(path, TRAINING_TOKENIZER_BYTES, 0, context, &dataset, &err) != 0)
        fail_msg("%s", err.text);
    return dataset;
}

/* The dataset, read from the first sample to the last, as text. */
static void assert_text(const char *path, int64_t context, const char *expected)
{
    struct dataset *dataset = open_well(path, context);
    int32_t tokens[64], targets[64];
    char text[256];
    size_t used = 0;

    for (int64_t i = 0; i < dataset_count(dataset); i++) {
        assert_int_equal(dataset_read(dataset, i, 256, tokens, targets, NULL), 0);
        for (int64_t t = 0; t < context; t++) {
            text[used++] = (char)tokens[t];
            if (t > 0)
                assert_int_equal(tokens[t], targets[t - 1]);
        }
    }
    text[used++] = (char)targets[context - 1];
    text[used] = '\0';
    assert_string_equal(text, expected);
    dataset_free(dataset);
}

static void test_dataset__a_sample_is_context_tokens_and_the_next(void **state)
{
    struct dataset *dataset;
    int32_t tokens[4], targets[4];

    (void)state;
    write_text("a", "abcdefghijklm"); /* 13 tokens: 3 samples of 4, the last target is 'm' */
    dataset = open_well(path_of("a"), 4);
    assert_int_equal(dataset_count(dataset), 3);
    assert_int_equal(dataset_training_count(dataset), 3);
    assert_int_equal(dataset_validation_count(dataset), 0);
    assert_int_equal(dataset_tokens(dataset), 13);
    assert_int_equal(dataset_vocabulary(dataset), 256);
    assert_int_equal(dataset_read(dataset, 2, 0, tokens, targets, NULL), 0);
    assert_int_equal(tokens[0], 'i');
    assert_int_equal(tokens[3], 'l');
    assert_int_equal(targets[0], 'j');
    assert_int_equal(targets[3], 'm');
    dataset_free(dataset);
    write_text("b", "abcdefghijkl"); /* 12 tokens: the third sample lacks its last target */
    dataset = open_well(path_of("b"), 4);
    assert_int_equal(dataset_count(dataset), 2);
    dataset_free(dataset);
}

static void test_dataset__a_folder_is_its_files_in_order_and_none_twice(void **state)
{
    (void)state;
    write_text("b", "defg");
    write_text("a", "abc");
    write_text("Z", "Z");
    write_text("empty", "");
    write_text(".hidden", "no");
    assert_int_equal(mkdir(path_of("sub"), 0777), 0);
    write_text("sub/x", "no");
    assert_int_equal(symlink("a", path_of("link-within")), 0);
    assert_int_equal(symlink("sub/x", path_of("w")), 0);
    assert_text(folder, 3, "Zabcdefgno"); /* "w" leads elsewhere and is read */
}

static void test_dataset__a_glob_is_what_matches_in_order(void **state)
{
    (void)state;
    write_text("part-2.txt", "cd");
    write_text("part-10.txt", "ab");
    write_text("other", "no");
    assert_int_equal(mkdir(path_of("part-3.txt"), 0777), 0);
    assert_text(path_of("part-*.txt"), 1, "abcd");
    write_text("real[1]", "xyz"); /* a name that looks like a pattern */
    assert_text(path_of("real[1]"), 1, "xyz");
}

static void test_dataset__token_files_hold_ids(void **state)
{
    const uint16_t u16[] = {7, 50256, 3, 65535, 1};
    const uint32_t u32[] = {70000, 1, 2147483647, 3, 0x80000000u};
    struct dataset *dataset;
    struct fleet_error err;
    int32_t tokens[4], targets[4];

    (void)state;
    write_bytes("u16", u16, sizeof(u16));
    write_bytes("u32", u32, sizeof(u32));
    assert_int_equal(open_path(path_of("u16"), TRAINING_TOKENIZER_TOKENS_U16, 0, 4, &dataset, &err),
                     0);
    assert_int_equal(dataset_vocabulary(dataset), 65536);
    assert_int_equal(dataset_read(dataset, 0, 0, tokens, targets, &err), 0);
    assert_int_equal(tokens[1], 50256);
    assert_int_equal(targets[2], 65535);
    assert_int_equal(dataset_read(dataset, 0, 50257, tokens, targets, &err), -EINVAL);
    assert_non_null(
        strstr(err.text, "u16 at position 3: token 65535 is not below model.vocabulary 50257"));
    dataset_free(dataset);
    assert_int_equal(open_path(path_of("u32"), TRAINING_TOKENIZER_TOKENS_U32, 0, 2, &dataset, &err),
                     0);
    assert_int_equal(dataset_read(dataset, 0, 0, tokens, targets, &err), 0);
    assert_int_equal(targets[1], 2147483647);
    assert_int_equal(dataset_read(dataset, 1, 0, tokens, targets, &err), -EINVAL);
    dataset_free(dataset);
    write_bytes("odd", u16, 5);
    assert_int_equal(open_path(path_of("odd"), TRAINING_TOKENIZER_TOKENS_U16, 0, 1, &dataset, &err),
                     -EINVAL);
    assert_non_null(strstr(err.text, "5 bytes, not a multiple"));
}

static void test_dataset__a_share_is_held_out_from_the_end(void **state)
{
    struct dataset *dataset;
    struct fleet_error err;
    char text[1002];

    (void)state;
    memset(text, 'x', sizeof(text));
    write_bytes("a", text, 1001);
    assert_int_equal(open_path(path_of("a"), TRAINING_TOKENIZER_BYTES, 0.25, 10, &dataset, &err),
                     0);
    assert_int_equal(dataset_training_count(dataset), 75);
    assert_int_equal(dataset_validation_count(dataset), 25);
    dataset_free(dataset);
    assert_int_equal(open_path(path_of("a"), TRAINING_TOKENIZER_BYTES, 0.0001, 10, &dataset, &err),
                     0);
    assert_int_equal(dataset_validation_count(dataset), 1);
    dataset_free(dataset);
    write_bytes("a", text, 11);
    assert_int_equal(open_path(path_of("a"), TRAINING_TOKENIZER_BYTES, 0.5, 10, &dataset, &err),
                     -EINVAL);
    assert_non_null(strstr(err.text, "data.validation"));
}

static void assert_refused(const char *path, int64_t context, int expected, const char *reason)
{
    struct dataset *dataset;
    struct fleet_error err = {.text = ""};
    int rc = open_path(path, TRAINING_TOKENIZER_BYTES, 0, context, &dataset, &err);

    if (rc != expected || !strstr(err.text, reason) || !strstr(err.text, "data.path") ||
        !strstr(err.text, path))
        fail_msg("%s: expected %d \"%s\", got %d \"%s\"", path, expected, reason, rc, err.text);
}

static void test_dataset__what_cannot_be_read_is_named(void **state)
{
    char path[256];

    (void)state;
    assert_refused("/nowhere/train.txt", 4, -ENOENT, "No such file");
    assert_refused("/nowhere/*.txt", 4, -ENOENT, "no file matches");
    assert_refused("/dev/null", 4, -EINVAL, "not a regular file");
    assert_refused(folder, 4, -EINVAL, "no file with content");
    write_text("empty", "");
    assert_refused(path_of("empty"), 4, -EINVAL, "is empty");
    (void)snprintf(path, sizeof(path), "%s/emp*", folder);
    assert_refused(path, 4, -EINVAL, "no file with content");
    write_text("short", "abcd");
    {
        struct dataset *dataset;
        struct fleet_error err;
        assert_int_equal(
            open_path(path_of("short"), TRAINING_TOKENIZER_BYTES, 0, 0, &dataset, &err), -EINVAL);
        assert_non_null(strstr(err.text, "data.tokenizer: the tokenizer makes text"));
    }
    assert_refused(path_of("short"), 4, -EINVAL,
                   "holds 4 tokens, one sample of model.context 4 needs 5");
    assert_int_equal(mkdir(path_of("set"), 0755), 0);
    assert_int_equal(symlink("nowhere", path_of("set/link")), 0);
    assert_refused(path_of("set"), 2, -ENOENT, "No such file");
}

#define NOBODY 65534

/* For the rest of the test: root may read everything. */
static void become_nobody(void)
{
    assert_int_equal(chmod(folder, 0755), 0);
    if (geteuid() == 0 && seteuid(NOBODY) < 0)
        skip();
}

static void become_oneself(void)
{
    assert_int_equal(seteuid(getuid()), 0);
}

static void test_dataset__names_what_may_not_be_read(void **state)
{
    char pattern[256], hidden[256];

    (void)state;
    write_text("secret", "abcdefgh");
    assert_int_equal(mkdir(path_of("set"), 0755), 0);
    write_text("set/a", "abcdefgh");
    (void)snprintf(pattern, sizeof(pattern), "%s/set/*", folder);
    (void)snprintf(hidden, sizeof(hidden), "%s/set", folder);
    assert_int_equal(chmod(path_of("secret"), 0), 0);
    assert_int_equal(chmod(hidden, 0), 0);
    become_nobody();
    assert_refused(path_of("secret"), 2, -EACCES, "Permission denied");
    assert_refused(hidden, 2, -EACCES, "Permission denied");
    assert_refused(pattern, 2, -EACCES, "Permission denied");
    become_oneself();
    assert_int_equal(chmod(hidden, 0744), 0); /* names can be listed, files not opened */
    become_nobody();
    if (geteuid() != getuid())
        assert_refused(hidden, 2, -EACCES, "Permission denied");
    become_oneself();
    assert_int_equal(chmod(hidden, 0755), 0);
}

/* What happens to the file between opening and reading, and what must be said. */
static void check_change(void (*change)(void), int expected, const char *reason)
{
    struct dataset *dataset;
    struct fleet_error err = {.text = ""};
    int32_t tokens[4], targets[4];
    int rc;

    write_text("a", "abcdefghijklm");
    dataset = open_well(path_of("a"), 4);
    assert_int_equal(dataset_read(dataset, 0, 0, tokens, targets, &err), 0);
    change();
    rc = dataset_read(dataset, 0, 0, tokens, targets, &err);
    if (rc != expected || !strstr(err.text, reason) || !strstr(err.text, path_of("a")))
        fail_msg("expected %d \"%s\", got %d \"%s\"", expected, reason, rc, err.text);
    dataset_free(dataset);
}

static void append(void)
{
    FILE *file = fopen(path_of("a"), "a");

    assert_non_null(file);
    assert_int_equal(fputs("n", file) < 0 || fclose(file) != 0, 0);
}

static void overwrite(void)
{
    FILE *file = fopen(path_of("a"), "r+");

    usleep(20000); /* file times tick every few milliseconds */
    assert_non_null(file);
    assert_int_equal(fputs("A", file) < 0 || fclose(file) != 0, 0);
}

static void cut(void)
{
    assert_int_equal(truncate(path_of("a"), 3), 0);
}

static void replace(void)
{
    write_text("a", "abcdefghijklm");
}

static void delete (void)
{
    assert_int_equal(unlink(path_of("a")), 0);
}

/* Other bytes, but the size and the time of the last write are what they were. */
static void date_back(void)
{
    struct stat before, now;

    assert_int_equal(stat(path_of("a"), &before), 0);
    do { /* the clock of files ticks every few milliseconds */
        const struct timespec times[2] = {before.st_atim, before.st_mtim};
        FILE *file = fopen(path_of("a"), "r+");

        assert_non_null(file);
        assert_int_equal(fputs("ABC", file) < 0 || fclose(file) != 0, 0);
        assert_int_equal(utimensat(AT_FDCWD, path_of("a"), times, 0), 0);
        assert_int_equal(stat(path_of("a"), &now), 0);
    } while (now.st_ctim.tv_sec == before.st_ctim.tv_sec &&
             now.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
}

static void make_pipe(void)
{
    assert_int_equal(unlink(path_of("a")), 0);
    assert_int_equal(mkfifo(path_of("a"), 0644), 0);
}

static void test_dataset__changes_during_the_run_are_errors(void **state)
{
    (void)state;
    check_change(append, -ESTALE, "it had 13 bytes, now 14");
    check_change(cut, -ESTALE, "it had 13 bytes, now 3");
    check_change(overwrite, -ESTALE, "was written to");
    check_change(replace, -ESTALE, "was replaced");
    check_change(delete, -ENOENT, "No such file");
    check_change(date_back, -ESTALE, "dated back");
    check_change(make_pipe, -ESTALE, "was replaced");
}

/* Kubernetes sets the owner of files again when a volume is mounted once more; backups make
 * links. */
static void test_dataset__owner_mode_and_links_are_no_change(void **state)
{
    struct dataset *dataset;
    struct stat before, now;
    int32_t tokens[4], targets[4];
    char path[256];

    (void)state;
    write_text("a", "abcdefghijklm");
    (void)snprintf(path, sizeof(path), "%s", path_of("a"));
    dataset = open_well(path, 4);
    assert_int_equal(stat(path, &before), 0);
    do {
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(chmod(path, 0644), 0);
        assert_int_equal(stat(path, &now), 0);
    } while (now.st_ctim.tv_sec == before.st_ctim.tv_sec &&
             now.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
    assert_int_equal(dataset_read(dataset, 0, 0, tokens, targets, NULL), 0);
    assert_int_equal(link(path, path_of("b")), 0);
    assert_int_equal(dataset_read(dataset, 1, 0, tokens, targets, NULL), 0);
    assert_int_equal(tokens[0], 'e');
    date_back();
    assert_int_equal(dataset_read(dataset, 1, 0, tokens, targets, NULL), -ESTALE);
    dataset_free(dataset);
}

static void digest_of(const char *text, int64_t context, uint8_t out[FLEET_SHA256_SIZE])
{
    struct dataset *dataset;

    write_text("a", text);
    dataset = open_well(path_of("a"), context);
    dataset_digest(dataset, out);
    dataset_free(dataset);
}

static void test_dataset_digest__tells_other_data_apart(void **state)
{
    uint8_t one[FLEET_SHA256_SIZE], two[FLEET_SHA256_SIZE];

    (void)state;
    digest_of("abcdefghij", 4, one);
    digest_of("abcdefghij", 4, two);
    assert_memory_equal(one, two, sizeof(one));
    digest_of("abcdefghiX", 4, two);
    assert_memory_not_equal(one, two, sizeof(one));
    digest_of("abcdefghij", 5, two);
    assert_memory_not_equal(one, two, sizeof(one));
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_dataset__a_sample_is_context_tokens_and_the_next),
        IN_FOLDER(test_dataset__a_folder_is_its_files_in_order_and_none_twice),
        IN_FOLDER(test_dataset__a_glob_is_what_matches_in_order),
        IN_FOLDER(test_dataset__token_files_hold_ids),
        IN_FOLDER(test_dataset__a_share_is_held_out_from_the_end),
        IN_FOLDER(test_dataset__what_cannot_be_read_is_named),
        IN_FOLDER(test_dataset__changes_during_the_run_are_errors),
        IN_FOLDER(test_dataset__names_what_may_not_be_read),
        IN_FOLDER(test_dataset__owner_mode_and_links_are_no_change),
        IN_FOLDER(test_dataset_digest__tells_other_data_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
