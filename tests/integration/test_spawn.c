/* SPDX-License-Identifier: Apache-2.0 */

/* fleet_spawn.h through libfleet.so: a world of forked processes, and one of them that fails. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "include/fleet/fleet_spawn.h"

static struct fleet_error err;

/* Exit code 0 if the sum over all ranks is right. */
static int sum(void *argument)
{
    int32_t value = fleet_rank(NULL) + *(const int *)argument;
    struct fleet_tensor tensor = {&value, FLEET_INT32, 0, {0}};
    const char *more = getenv("MORE");

    if (fleet_env_init(&err) < 0 || fleet_all_reduce(&tensor, FLEET_SUM, NULL, NULL, &err) < 0)
        return 2;
    fleet_env_release();
    return value == 3 + 3 * 10 && more && strcmp(more, "a=b") == 0 ? 0 : 1;
}

static void test_spawn__processes_are_a_world(void **state)
{
    const char *const env[] = {"MORE=a=b", NULL};
    const struct fleet_spawn_options options = {.processes = 3, .env = env};
    int argument = 10;

    (void)state;
    assert_int_equal(fleet_spawn(sum, &argument, &options, &err), 0);
    assert_false(fleet_is_initialized());
    assert_null(getenv("PADDLE_TRAINER_ID"));
}

/* Rank 1 fails as `argument` says; the others wait for ever. */
static int fail_one(void *argument)
{
    if (fleet_rank(NULL) != 1)
        for (;;)
            (void)pause();
    if (strcmp(argument, "signal") == 0)
        (void)raise(SIGKILL);
    return 7;
}

/* The same, but SIGTERM does not end the others. */
static int fail_one_among_deaf(void *argument)
{
    (void)signal(SIGTERM, SIG_IGN);
    return fail_one(argument);
}

static void test_spawn__a_failure_ends_the_others_and_is_named(void **state)
{
    const struct fleet_spawn_options options = {.processes = 3, .stop_timeout_ms = 200};
    char code[] = "code", by_signal[] = "signal";

    (void)state;
    assert_int_equal(fleet_spawn(fail_one, code, &options, &err), -ECHILD);
    assert_string_equal(err.text, "fleet_spawn: rank 1 ended with exit code 7");
    assert_int_equal(fleet_spawn(fail_one_among_deaf, by_signal, &options, &err), -ECHILD);
    assert_string_equal(err.text, "fleet_spawn: rank 1 was ended by signal 9 (Killed)");
}

static int wait_for_ever(void *argument)
{
    (void)argument;
    while (pause() != 0)
        continue;
    return 0;
}

static void test_spawn__join_has_a_time_limit(void **state)
{
    const struct fleet_spawn_options options = {.processes = 2};
    struct fleet_spawn *spawn;

    (void)state;
    assert_int_equal(fleet_spawn_start(wait_for_ever, NULL, &options, &spawn, &err), 0);
    assert_int_equal(fleet_spawn_join(spawn, 0, &err), 0);
    assert_int_equal(fleet_spawn_join(spawn, 20, &err), 0);
    fleet_spawn_free(spawn); /* ends them */
}

static void test_spawn__options_are_checked(void **state)
{
    const char *const wrong[] = {"A=b", "c", NULL};
    struct fleet_spawn_options options = {0};

    (void)state;
    assert_int_equal(fleet_spawn(sum, NULL, NULL, &err), -EINVAL);
    assert_int_equal(fleet_spawn(sum, NULL, &options, &err), -EINVAL);
    assert_non_null(strstr(err.text, "processes is 0, allowed: 1 to 256"));
    options = (struct fleet_spawn_options){.processes = 1, .env = wrong};
    assert_int_equal(fleet_spawn(sum, NULL, &options, &err), -EINVAL);
    assert_non_null(strstr(err.text, "env[1] is \"c\", needed: NAME=value"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spawn__processes_are_a_world),
        cmocka_unit_test(test_spawn__a_failure_ends_the_others_and_is_named),
        cmocka_unit_test(test_spawn__join_has_a_time_limit),
        cmocka_unit_test(test_spawn__options_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
