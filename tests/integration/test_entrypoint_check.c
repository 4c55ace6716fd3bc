/* SPDX-License-Identifier: Apache-2.0 */

/* Goal: what does not hand over to the agent is found out, explained and ended. */
#include "tests/integration/entrypoint_fixture.h"
#include "tests/support/child_process.h"

/* ---- how it is found out --------------------------------------------------------------------- */

static void expect_explanation(enum entrypoint_state state, int pid, int arguments,
                               const char *expected)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    entrypoint_explain(state, pid, arguments, &text);
    assert_string_equal(text.text, expected);
}

#define REQUIRED "spec.worker.template.spec.containers[0].command: required for this image: its "

static void test_entrypoint__a_static_program_is_found_out(void **state)
{
    static const char *const compilers[] = {"cc -static", "cc -static-pie", "musl-gcc -static"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(compilers); i++) {
        const char *path = compile(compilers[i], "static");
        const char *arguments[] = {path, "stay", "\"", NULL};
        char expected[512];
        struct container c;
        if (!path)
            continue;
        if (!start(&c, arguments, no_variables, self))
            skip();
        wait_for_output(&c, "early main ");
        assert_int_equal(entrypoint_look(c.first), ENTRYPOINT_STATIC);
        assert_int_equal(entrypoint_wait(c.first, 1.0), ENTRYPOINT_STATIC);
        (void)snprintf(expected, sizeof(expected),
                       REQUIRED "ENTRYPOINT is a static program, which the agent cannot take the "
                                "place of; set command to what the image starts: [\"%s\", "
                                "\"stay\"]; args stay as they are",
                       path);
        expect_explanation(ENTRYPOINT_STATIC, c.first, 1, expected);
        stop(&c);
    }
}

static void test_entrypoint__a_long_command_line_is_cut_in_the_message(void **state)
{
    const char *path = compile("cc -static", "static");
    static char longer[3000];
    const char *arguments[] = {path, "stay", longer, "last", NULL};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct container c;

    (void)state;
    memset(longer, '\\', sizeof(longer) - 1);
    if (!start(&c, arguments, no_variables, self))
        skip();
    wait_for_output(&c, "main ");
    for (int i = ENTRYPOINT_STATIC; i <= ENTRYPOINT_IGNORES; i++) {
        fleet_strbuf_clear(&text);
        entrypoint_explain((enum entrypoint_state)i, c.first, 0, &text);
        assert_non_null(strstr(text.text, "\"stay\", …]"));
        assert_true(text.length < 480); /* the hub keeps 512 bytes of a reason */
    }
    stop(&c);
}

/* The agent is known by its file. The check waits for a program that has not become the agent yet,
 * and for one without our variables, which may be the container runtime. */
static void test_entrypoint__the_agent_is_recognised(void **state)
{
    const char *arguments[] = {compile("cc", "dynamic"), "stay", NULL};
    const char *stay[] = {"STAY=1", NULL};
    struct container c;
    pid_t pid;

    (void)state;
    if (!start(&c, arguments, stay, self))
        skip();
    assert_int_equal(entrypoint_wait(c.first, PATIENCE_MS), ENTRYPOINT_AGENT);
    stop(&c);
    assert_int_equal(entrypoint_look(c.first), ENTRYPOINT_GONE);
    pid = child_process_fork();
    if (pid == 0) {
        (void)execve(arguments[0], (char *const *)arguments, (char *const *)no_variables);
        _exit(121);
    }
    while (entrypoint_look(pid) == ENTRYPOINT_AGENT) { /* still this program */
    }
    assert_int_equal(entrypoint_look(pid), ENTRYPOINT_STARTING);
    (void)child_process_kill(pid);
    assert_int_equal(entrypoint_look(pid), ENTRYPOINT_GONE);
}

/* Of 32 bits: its loader says so and goes on. */
static void test_entrypoint__a_program_of_32_bits_is_found_out(void **state)
{
    static const unsigned char program[] = {
        0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 1, 0, 0, 0, 0x54, 0x80,
        4, 8, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x34, 0, 0x20, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0,
        0, 0, 0, 0, 0, 0, 0, 0x80, 4, 8, 0, 0x80, 4, 8, 0x60, 0, 0, 0, 0x60, 0, 0, 0, 5, 0, 0, 0, 0,
        0x10, 0, 0,
        /* loop: mov eax, 29 (pause); int 0x80; jmp loop */
        0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7, 0, 0, 0};
    const char *path = path_in_folder("narrow");
    const char *arguments[] = {path, NULL};
    FILE *file = fopen(path, "w");
    struct container c;
    enum entrypoint_state found;

    (void)state;
    assert_non_null(file);
    assert_int_equal(fwrite(program, 1, sizeof(program), file), sizeof(program));
    (void)fclose(file);
    assert_int_equal(chmod(path, 0755), 0);
    if (!start(&c, arguments, no_variables, self))
        skip();
    while ((found = entrypoint_look(c.first)) == ENTRYPOINT_STARTING ||
           found == ENTRYPOINT_AGENT) { /* not executed yet */
    }
    if (found == ENTRYPOINT_GONE) { /* the kernel runs none, or is not of this architecture */
        end(&c);
        release(&c);
        skip();
    }
    assert_int_equal(found, ENTRYPOINT_OTHER_MACHINE);
    stop(&c);
}

/* No process inside a process namespace can kill its process 1, not even by SIGKILL. The real hook
 * ends it all the same. */
static void test_entrypoint__the_hook_ends_what_it_found_out(void **state)
{
    static const char *const ways[] = {"spin", "open"};
    const char *hook[] = {agent, "--check-entrypoint", "0", NULL};
    const char *of_hook[] = {"ASAN_OPTIONS=verify_asan_link_order=0", NULL}; /* we preload */
    const char *path = compile("cc -static", "static");

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(ways); i++) {
        const char *arguments[] = {path, ways[i], NULL};
        struct container c;
        if (!start(&c, arguments, no_variables, agent))
            skip();
        wait_for_output(&c, "main ");
        (void)enter(&c, hook, of_hook); /* it may die with the namespace */
        end(&c);
        /* The limit of processor time may come before it opens a file again. */
        assert_true(c.status == 128 + SIGKILL || (i == 1 && c.status == 9));
        release(&c);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entrypoint__a_static_program_is_found_out),
        cmocka_unit_test(test_entrypoint__a_long_command_line_is_cut_in_the_message),
        cmocka_unit_test(test_entrypoint__the_agent_is_recognised),
        cmocka_unit_test(test_entrypoint__a_program_of_32_bits_is_found_out),
        cmocka_unit_test(test_entrypoint__the_hook_ends_what_it_found_out),
    };
    int code;

    if (!is_test(argc, argv, &code))
        return code;
    return cmocka_run_group_tests_name("entrypoint_check", tests, make_folder, remove_folder);
}
