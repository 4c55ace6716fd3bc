/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Goal: the agent gets the same command line, environment, user and folder as the program that an
 * image starts, before that program has begun. Programs that do not hand over are left alone.
 */
#include <sys/prctl.h>

#include "tests/integration/entrypoint_fixture.h"
#include "tests/support/child_process.h"

/* ---- what hands over ------------------------------------------------------------------------- */

/* Of either C library, position-independent or not; not even their constructors have run. */
static void test_entrypoint__a_program_of_any_library_hands_over(void **state)
{
    static const char *const compilers[] = {"cc", "cc -no-pie -fno-pie", "cc -Wl,-z,now",
                                            "musl-gcc", "cc -pthread -lm -Wl,--no-as-needed"};
    int tried = 0;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(compilers); i++) {
        const char *path = compile(compilers[i], "dynamic");
        const char *arguments[] = {path, "--lr", "0.1", NULL};
        if (!path)
            continue; /* apt-get install musl-tools */
        tried++;
        expect_hand_over(arguments, arguments, no_variables);
    }
    assert_true(tried >= 4);
}

/* A script is its interpreter by then, with the script's path before the arguments. */
static void test_entrypoint__a_script_hands_over_as_its_interpreter(void **state)
{
    const char *path = path_in_folder("script");
    const char *arguments[] = {path, "one", "", "two", NULL};
    const char *shell[] = {"/bin/sh", path, "one", "", "two", NULL};
    const char *with_option[] = {"/bin/sh", "-eu", path, "one", "", "two", NULL};
    const char *found[] = {"/usr/bin/env", "python3", path, "one", "", "two", NULL};

    (void)state;
    write_file(path, "#!/bin/sh\necho ran\n", 0755);
    expect_hand_over(arguments, shell, no_variables);
    write_file(path, "#!/bin/sh -eu\necho ran\n", 0755);
    expect_hand_over(arguments, with_option, no_variables);
    write_file(path, "#!/usr/bin/env python3\nprint('ran')\n", 0755);
    expect_hand_over(arguments, found, no_variables);
}

/* As the kernel was given them: names without a folder, empty ones, bytes that are no text, and
 * a megabyte. */
static void test_entrypoint__the_command_line_arrives_byte_by_byte(void **state)
{
    const char *path = compile("cc", "dynamic");
    static char megabyte[11][100001];
    const char *odd[] = {path, "", "a b", "\n", "", "\xff\xfe\x01", "--", "-v", "ä=ö", "", NULL};
    const char *many[14] = {path, "first"};

    (void)state;
    assert_non_null(path);
    expect_hand_over(odd, odd, no_variables);
    for (int i = 0; i < 11; i++) {
        memset(megabyte[i], 'a' + i, sizeof(megabyte[i]) - 1);
        many[i + 2] = megabyte[i];
    }
    expect_hand_over(many, many, no_variables);
}

/* Also a name that occurs twice, an entry without "=", an empty value and a long one. */
static void test_entrypoint__the_environment_arrives_without_ours(void **state)
{
    static char longer[70000], own_preload[80];
    const char *arguments[] = {compile("cc", "dynamic"), NULL};
    const char *variables[] = {"PATH=/bin",
                               "EMPTY=",
                               "A=1",
                               "A=2",
                               "without",
                               longer,
                               "FLEET_ENTRYPOINT_AGENTS=other",
                               "LD_PRELOADED=other",
                               own_preload,
                               NULL};

    (void)state;
    memset(longer, 'x', sizeof(longer) - 1);
    longer[4] = '=';
    (void)snprintf(own_preload, sizeof(own_preload), "%s=/usr/lib/x.so", WELLKNOWN_ENV_PRELOAD);
    expect_hand_over(arguments, arguments, variables);
}

static void test_entrypoint__user_folder_and_signals_stay(void **state)
{
    const char *arguments[] = {compile("cc", "dynamic"), NULL};
    struct container c;
    sigset_t set, old;
    char here[4096];

    (void)state;
    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(chdir(folder), 0);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &set, &old);
    if (!start(&c, arguments, no_variables, self))
        skip();
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    assert_int_equal(chdir(here), 0);
    end(&c);
    assert_string_equal(told(&c, 'C', 0), folder);
    assert_string_equal(told(&c, 'I', 0), "process 1, user 0, group 0, blocked, descriptor");
    release(&c);
}

/* ---- what does not --------------------------------------------------------------------------- */

/* Children of another program have the variables of a static ENTRYPOINT; they are not the
 * container. */
static void test_entrypoint__only_the_first_process_hands_over(void **state)
{
    static const char *const children[] = {"/bin/echo child; exit 0", "/bin/echo child; exit 4",
                                           "(/bin/echo child); exit 0"};
    const char *path = "/bin/busybox";

    (void)state;
    if (access(path, X_OK) < 0)
        skip(); /* apt-get install busybox-static */
    for (size_t i = 0; i < FLEET_COUNT(children); i++) {
        const char *arguments[] = {path, "sh", "-c", children[i], NULL};
        struct container c;
        if (!start(&c, arguments, no_variables, self))
            skip();
        end(&c);
        assert_string_equal(fleet_strbuf_text(&c.out), "child\n");
        assert_int_equal(c.status, i == 1 ? 4 : 0);
        release(&c);
    }
}

/* As gosu and su-exec do: the process is the container's first one, also after it executed other
 * programs. */
static void test_entrypoint__what_a_static_program_executes_hands_over(void **state)
{
    const char *arguments[] = {"/bin/busybox", "sh", "-c", "exec /bin/echo '' a", NULL};
    const char *executed[] = {"/bin/echo", "", "a", NULL};
    struct container c;

    (void)state;
    if (access(arguments[0], X_OK) < 0 || !start(&c, arguments, no_variables, self))
        skip(); /* apt-get install busybox-static */
    end(&c);
    expect_all(&c, 'A', executed);
    release(&c);
}

/* While gosu still runs it looks like a static program for good, and is not judged before its
 * time. */
static void test_entrypoint__a_static_program_gets_time_to_execute_another(void **state)
{
    const char *script = "echo static; until [ -e \"$GO\" ]; do :; done; exec /bin/echo a";
    const char *arguments[] = {"/bin/busybox", "sh", "-c", script, NULL};
    const char *go = path_in_folder("go");
    char variable[200];
    const char *variables[] = {"STAY=1", variable, NULL};
    struct container c;

    (void)state;
    (void)snprintf(variable, sizeof(variable), "GO=%s", go);
    if (access(arguments[0], X_OK) < 0 || !start(&c, arguments, variables, self))
        skip(); /* apt-get install busybox-static */
    wait_for_output(&c, "static");
    assert_int_equal(entrypoint_look(c.first), ENTRYPOINT_STATIC);
    write_file(go, "", 0644);
    assert_int_equal(entrypoint_wait(c.first, PATIENCE_MS), ENTRYPOINT_AGENT);
    stop(&c);
}

/* Only root can see the program file of an agent that runs as another user. */
static void test_entrypoint__the_agent_of_another_user_is_recognised(void **state)
{
    const char *arguments[] = {compile("cc", "dynamic"), NULL};
    const char *stay[] = {"STAY=1", NULL};
    struct container c;
    pid_t pid;

    (void)state;
    if (!start(&c, arguments, stay, self))
        skip();
    while (!told(&c, 'I', 0))
        assert_true(hear(&c));
    pid = child_process_fork();
    if (pid == 0) {
        struct stat file;
        char path[64];
        (void)snprintf(path, sizeof(path), "/proc/%d/exe", (int)c.first);
        if (setgid(65532) < 0 || setuid(65532) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0 ||
            stat(path, &file) == 0)
            _exit(99);
        _exit((int)entrypoint_look(c.first));
    }
    assert_int_equal(child_process_wait(pid), ENTRYPOINT_AGENT);
    stop(&c);
}

static void test_entrypoint__what_enters_later_is_left_alone(void **state)
{
    const char *path = compile("cc", "dynamic");
    const char *arguments[] = {path, "run", NULL};
    const char *stay[] = {"STAY=1", NULL};
    struct container c;

    (void)state;
    if (!start(&c, arguments, stay, self))
        skip();
    while (!told(&c, 'I', 0))
        assert_true(hear(&c));
    assert_int_equal(enter(&c, arguments, no_variables), 3); /* it has run itself */
    stop(&c);
}

/* Without the agent the program does not run, so it never trains alone. */
static void test_entrypoint__without_the_agent_nothing_runs(void **state)
{
    const char *arguments[] = {compile("cc", "dynamic"), NULL};
    struct container c;

    (void)state;
    if (!start(&c, arguments, no_variables, "/no/such/agent"))
        skip();
    end(&c);
    assert_int_equal(c.status, ENTRYPOINT_EXIT_CODE);
    assert_string_equal(fleet_strbuf_text(&c.out),
                        "fleetjob-preload: cannot start the agent instead of the image's "
                        "ENTRYPOINT: /no/such/agent: error 2\n");
    release(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entrypoint__a_program_of_any_library_hands_over),
        cmocka_unit_test(test_entrypoint__a_script_hands_over_as_its_interpreter),
        cmocka_unit_test(test_entrypoint__the_command_line_arrives_byte_by_byte),
        cmocka_unit_test(test_entrypoint__the_environment_arrives_without_ours),
        cmocka_unit_test(test_entrypoint__user_folder_and_signals_stay),
        cmocka_unit_test(test_entrypoint__only_the_first_process_hands_over),
        cmocka_unit_test(test_entrypoint__what_a_static_program_executes_hands_over),
        cmocka_unit_test(test_entrypoint__a_static_program_gets_time_to_execute_another),
        cmocka_unit_test(test_entrypoint__the_agent_of_another_user_is_recognised),
        cmocka_unit_test(test_entrypoint__what_enters_later_is_left_alone),
        cmocka_unit_test(test_entrypoint__without_the_agent_nothing_runs),
    };
    int code;

    if (!is_test(argc, argv, &code))
        return code;
    return cmocka_run_group_tests_name("entrypoint", tests, make_folder, remove_folder);
}
