/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Goal: the closure arrives in another folder complete, with its modes, and replaces what was there
 * before. Method: a small closure in a temporary folder, installed and looked at.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/closure.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

#define BIG 300000 /* bytes: more than a pipe or a page takes at once */

static char folder[] = "/tmp/fleetjob-test-closure-XXXXXX", from[64], to[64];

static void write_file(const char *path, const void *data, size_t size, mode_t mode)
{
    struct fleet_error err = {0};

    if (fleet_file_write(path, data, size, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(chmod(path, mode), 0);
}

static char *in(const char *name)
{
    return fleet_file_join(folder, name);
}

static void put(const char *name, const char *text, mode_t mode)
{
    FLEET_AUTO_FREE char *path = in(name);

    write_file(path, text, strlen(text), mode);
}

static void expect(const char *name, const char *text, mode_t mode)
{
    FLEET_AUTO_FREE char *path = in(name), *found = NULL;
    struct fleet_error err = {0};
    struct stat stat_;
    size_t size;

    if (fleet_file_read(path, 1 << 20, &found, &size, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(found, text);
    assert_int_equal(stat(path, &stat_), 0);
    assert_int_equal(stat_.st_mode & 07777, mode);
}

static int setup(void **state)
{
    struct fleet_error err = {0};

    (void)state;
    (void)strcpy(strrchr(folder, '-') + 1, "XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(from, sizeof(from), "%s/from", folder);
    (void)snprintf(to, sizeof(to), "%s/to", folder);
    for (size_t i = 0; i < 2; i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(from, i ? "lib" : "bin");
        assert_int_equal(fleet_file_make_folder(path, &err), 0);
    }
    put("from/bin/agent", "program", 0755);
    put("from/lib/libc.so.6", "library", 0644);
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command); /* NOLINT */
}

static void test_closure__copies_both_folders_with_modes(void **state)
{
    struct fleet_error err = {0};
    FLEET_AUTO_FREE char *big = malloc(BIG), *path = in("from/lib/big"), *copy = in("to/lib/big"),
                         *found = NULL;
    size_t size;

    (void)state;
    assert_non_null(big);
    for (int i = 0; i < BIG; i++)
        big[i] = (char)(i * 7 / 3);
    write_file(path, big, BIG, 0644);
    if (closure_install(from, to, &err) < 0)
        fail_msg("%s", err.text);
    expect("to/bin/agent", "program", 0755);
    expect("to/lib/libc.so.6", "library", 0644);
    assert_int_equal(fleet_file_read(copy, 1 << 20, &found, &size, &err), 0);
    assert_int_equal(size, BIG);
    assert_memory_equal(found, big, BIG);
}

static void test_closure__mends_what_an_interrupted_run_left(void **state)
{
    struct fleet_error err = {0};

    (void)state;
    assert_int_equal(closure_install(from, to, &err), 0);
    put("to/bin/agent", "half", 0400);
    put("from/bin/agent", "newer", 0755);
    if (closure_install(from, to, &err) < 0)
        fail_msg("%s", err.text);
    expect("to/bin/agent", "newer", 0755);
}

static void test_closure__refuses_what_is_no_plain_file(void **state)
{
    struct fleet_error err = {0};
    FLEET_AUTO_FREE char *fifo = in("from/lib/pipe");

    (void)state;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(closure_install(from, to, &err), -EINVAL);
    assert_non_null(strstr(err.text, "/from/lib/pipe is no plain file"));
}

static void test_closure__names_what_is_missing(void **state)
{
    struct fleet_error err = {0};

    (void)state;
    assert_int_equal(closure_install("/nonexistent", to, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/lib"));
    assert_int_equal(closure_install(from, "/proc/nowhere", &err), -ENOENT);
    assert_non_null(strstr(err.text, "/proc/nowhere"));
}

static void test_closure__is_not_found_outside_of_a_bin_folder(void **state)
{
    struct fleet_error err = {0};
    char *found = NULL;

    (void)state;
    assert_int_equal(closure_folder(&found, &err), -ENOENT); /* this test is in tests/unit/ */
    assert_null(found);
    assert_non_null(strstr(err.text, "tests/unit is not the bin folder"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_closure__copies_both_folders_with_modes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_closure__mends_what_an_interrupted_run_left, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_closure__refuses_what_is_no_plain_file, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_closure__names_what_is_missing, setup, teardown),
        cmocka_unit_test(test_closure__is_not_found_outside_of_a_bin_folder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
