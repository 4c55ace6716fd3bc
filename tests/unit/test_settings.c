/* SPDX-License-Identifier: Apache-2.0 */

/* What an agent is told about the hub, by its environment and by files that change under it. */
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
    };

    return cmocka_run_group_tests_name("settings", tests, make_folder, remove_folder);
}
