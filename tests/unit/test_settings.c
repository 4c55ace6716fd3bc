/* SPDX-License-Identifier: Apache-2.0 */

/* The settings of the hub in an agent: from its environment and from files that change while it
 * runs. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/settings.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

static char folder[] = "/tmp/test_settings_XXXXXX";
static const char *const files[] = {"hub", "ca.crt", "token"};
static const char *const names[] = {"FLEET_HUB_FILE", "FLEET_CA_FILE", "FLEET_TOKEN_FILE"};

static void say(int file, const char *text)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, files[file]);

    assert_int_equal(fleet_file_write(path, text, strlen(text), NULL), 0);
    assert_int_equal(setenv(names[file], path, 1), 0);
}

static void expect_hub(const char *host, int port, const char *ca, const char *token)
{
    struct settings_hub hub;
    struct fleet_error err;

    if (settings_read_hub(&hub, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(hub.host, host);
    assert_int_equal(hub.port, port);
    assert_string_equal(hub.ca_pem, ca);
    assert_string_equal(hub.token, token);
    assert_int_equal(hub.may_move, getenv("FLEET_HUB_FILE") != NULL);
    settings_release_hub(&hub);
}

static void expect_error(const char *words)
{
    struct settings_hub hub;
    struct fleet_error err;

    assert_true(settings_read_hub(&hub, &err) < 0);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" has no \"%s\"", err.text, words);
}

static void test_settings__the_hub_is_where_the_environment_says(void **state)
{
    (void)state;
    say(1, "PEM\n");
    say(2, "t0ken");
    assert_int_equal(unsetenv("FLEET_HUB_FILE"), 0);
    assert_int_equal(setenv("FLEET_HUB", "[fd00::9]:7443", 1), 0);
    expect_hub("fd00::9", 7443, "PEM", "t0ken");
    assert_int_equal(unsetenv("FLEET_HUB"), 0);
    expect_error("FLEET_HUB is not set");
}

static void test_settings__files_are_read_anew(void **state)
{
    (void)state;
    assert_int_equal(setenv("FLEET_HUB", "10.0.0.1:7443", 1), 0); /* as it was at the start */
    say(0, "10.0.0.2:7443");
    say(1, "PEM");
    say(2, "t0ken");
    expect_hub("10.0.0.2", 7443, "PEM", "t0ken");
    say(0, "10.0.0.3:7444\n");
    say(1, "another PEM");
    say(2, "another");
    expect_hub("10.0.0.3", 7444, "another PEM", "another");
    say(0, "nowhere");
    expect_error("FLEET_HUB_FILE is \"nowhere\", not host:port");
    assert_int_equal(setenv("FLEET_HUB_FILE", "/nowhere/hub", 1), 0);
    expect_error("read FLEET_HUB_FILE");
}

/* Settings of the pod `name`, as of the files and this file of variables. `index` NULL: not set. */
static int read_as(const char *name, const char *index, const char *lines, struct settings *out,
                   struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "environment");
    int rc;

    say(0, "10.0.0.2:7443");
    say(1, "PEM");
    say(2, "t0ken");
    assert_int_equal(setenv("FLEET_POD_NAME", name, 1), 0);
    assert_int_equal(setenv("FLEET_POD_UID", "7", 1), 0);
    assert_int_equal(index ? setenv("FLEET_INDEX", index, 1) : unsetenv("FLEET_INDEX"), 0);
    assert_int_equal(fleet_file_write(path, lines, strlen(lines), NULL), 0);
    assert_int_equal(setenv("FLEET_ENVIRONMENT_FILE", path, 1), 0);
    rc = settings_read(NULL, out, err);
    (void)unlink(path);
    assert_int_equal(unsetenv("FLEET_ENVIRONMENT_FILE"), 0);
    return rc;
}

static int read_with(const char *lines, struct settings *out, struct fleet_error *err)
{
    return read_as("7", "7", lines, out, err);
}

static void test_settings__a_file_has_what_is_the_same_for_all_workers(void **state)
{
    struct settings settings;
    struct fleet_error err;

    (void)state;
    assert_int_equal(setenv("FLEET_PROCESSES", "3", 1), 0);
    if (read_with("FLEET_JOB_NAME=gpt\nFLEET_JOB_UID=u=1\n\nFLEET_PROCESSES=2\nFLEET_JOB_FILE=/j\n",
                  &settings, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(settings.job_name, "gpt");
    assert_string_equal(settings.job_uid, "u=1");
    assert_int_equal(settings.processes, 3);              /* what is set wins */
    assert_string_equal(getenv("FLEET_JOB_NAME"), "gpt"); /* trainers inherit it */
    settings_release(&settings);
    assert_int_equal(unsetenv("FLEET_PROCESSES"), 0);
}

static void test_settings__the_name_of_the_pod_has_index_and_attempt(void **state)
{
    static const char lines[] = "FLEET_JOB_NAME=gpt-2\nFLEET_JOB_UID=1\nFLEET_JOB_FILE=/j\n";
    static const struct {
        const char *name, *index;
        int expected_index, expected_attempt; /* -1: an error */
    } cases[] = {
        {"gpt-2-worker-31-4", NULL, 31, 4},
        {"gpt-2-worker-31-4", "7", 7, 4},
        {"other", "7", 7, 0},
        {"gpt-worker-31-4", NULL, -1, 0},
        {"gpt-2-worker-031-4", NULL, -1, 0},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        struct settings settings;
        struct fleet_error err;
        int rc;

        assert_int_equal(unsetenv("FLEET_JOB_NAME"), 0);
        assert_int_equal(unsetenv("FLEET_ATTEMPT"), 0);
        rc = read_as(cases[i].name, cases[i].index, lines, &settings, &err);
        if (cases[i].expected_index < 0) {
            assert_int_equal(rc, -EINVAL);
            assert_non_null(strstr(err.text, "FLEET_INDEX"));
            continue;
        }
        if (rc < 0)
            fail_msg("%s", err.text);
        assert_int_equal(settings.index, cases[i].expected_index);
        assert_int_equal(settings.attempt, cases[i].expected_attempt);
        if (!cases[i].index)
            assert_string_equal(getenv("FLEET_INDEX"), "31"); /* trainers inherit it */
        settings_release(&settings);
    }
    assert_int_equal(unsetenv("FLEET_ATTEMPT"), 0);
}

static void test_settings__a_line_of_the_file_is_a_variable_of_ours(void **state)
{
    static const char *const lines[] = {"FLEET_JOB_NAME", "PATH=/", "=x", " FLEET_INDEX=1"};
    struct settings settings;
    struct fleet_error err;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(lines); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, wanted = {0};
        fleet_strbuf_appendf(&text, "FLEET_JOB_UID=1\n%s\n", lines[i]);
        fleet_strbuf_appendf(
            &wanted, "FLEET_ENVIRONMENT_FILE: line 2 is \"%s\", not FLEET_NAME=value", lines[i]);
        assert_int_equal(read_with(text.text, &settings, &err), -EINVAL);
        assert_string_equal(err.text, wanted.text);
    }
    assert_int_equal(setenv("FLEET_ENVIRONMENT_FILE", "/nowhere/environment", 1), 0);
    assert_true(settings_read(NULL, &settings, &err) < 0);
    assert_non_null(strstr(err.text, "read FLEET_ENVIRONMENT_FILE"));
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(files); i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, files[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings__the_hub_is_where_the_environment_says),
        cmocka_unit_test(test_settings__files_are_read_anew),
        cmocka_unit_test(test_settings__a_file_has_what_is_the_same_for_all_workers),
        cmocka_unit_test(test_settings__the_name_of_the_pod_has_index_and_attempt),
        cmocka_unit_test(test_settings__a_line_of_the_file_is_a_variable_of_ours),
    };

    return cmocka_run_group_tests_name("settings", tests, make_folder, remove_folder);
}
