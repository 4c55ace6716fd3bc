/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Goal: whatever program an image starts, the agent gets the very command line, environment, user
 * and folder that the program would have had, before the program has begun; and what does not hand
 * over is found out and ended. Method: real programs (of both C libraries, scripts, static ones) as
 * process 1 of a process namespace, as a container runtime starts them. In place of the agent there
 * is this test program, which writes down how it was started. Needs the right to make namespaces;
 * skipped without.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/entrypoint/check.h"
#include "agent/entrypoint/entrypoint.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

#define PATIENCE_MS 120000.0 /* sanitizers on a busy machine */

static char folder[] = "/tmp/fleetjob-test-entrypoint-XXXXXX";
static char self[4096], preload[4300], agent[4200]; /* this program; of FLEET_BIN */

/* ---- in place of the agent ------------------------------------------------------------------- */

/* NUL-terminated: "A" and an argument, "E" and a variable, "C" the folder, "I" numbers. */
static int tell(int argc, char **argv)
{
    char here[4096];
    sigset_t blocked;

    for (int i = 2; i < argc; i++)
        (void)printf("A%s%c", argv[i], 0);
    for (char **entry = environ; *entry; entry++)
        (void)printf("E%s%c", *entry, 0);
    (void)sigprocmask(SIG_BLOCK, NULL, &blocked);
    (void)printf("C%s%c", getcwd(here, sizeof(here)) ? here : "", 0);
    (void)printf("Iprocess %d, user %d, group %d, %s%s%c", (int)getpid(), (int)getuid(),
                 (int)getgid(), sigismember(&blocked, SIGUSR1) ? "blocked" : "open",
                 access("/proc/self/fd/9", F_OK) == 0 ? ", descriptor" : "", 0);
    if (getenv("STAY")) {
        (void)fflush(stdout);
        for (;;)
            (void)pause();
    }
    return 0;
}

/* ---- a container ----------------------------------------------------------------------------- */

struct container {
    pid_t outer, first; /* the parent of its process 1; process 1 as we see it */
    int out_fd;
    struct fleet_strbuf out;
    int status; /* of process 1 */
};

static const char *const no_variables[] = {NULL};

__attribute__((noreturn)) static void become(const char *const *arguments,
                                             const char *const *variables, int out_fd)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("proc", "/proc", "proc", 0, NULL) < 0)
        _exit(120);
    (void)dup2(out_fd, STDOUT_FILENO);
    (void)dup2(out_fd, STDERR_FILENO);
    (void)dup2(out_fd, 9);
    (void)execve(arguments[0], (char *const *)arguments, (char *const *)variables);
    _exit(121);
}

/* Their variables behind those that the pod of a container without a command has. */
static const char **with_ours(const char *const *variables, const char *with)
{
    static char marker[8192], library[8192];
    size_t count = 0;
    const char **all;

    while (variables[count])
        count++;
    all = calloc(count + 3, sizeof(*all));
    assert_non_null(all);
    (void)snprintf(marker, sizeof(marker), WELLKNOWN_ENV_AGENT "=%s", with);
    (void)snprintf(library, sizeof(library), "LD_PRELOAD=%s", preload);
    all[0] = marker;
    all[1] = library;
    memcpy(all + 2, variables, count * sizeof(*all));
    return all;
}

/* False: we may not make namespaces. */
static bool start(struct container *c, const char *const *arguments, const char *const *variables,
                  const char *with)
{
    int out[2], told[2];

    *c = (struct container){0};
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    c->outer = fork();
    if (c->outer == 0) {
        pid_t first;
        int status = 0;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWPID | CLONE_NEWNS) < 0)
            _exit(119);
        first = fork();
        if (first == 0)
            become(arguments, with_ours(variables, with), out[1]);
        (void)!write(told[1], &first, sizeof(first));
        (void)close(out[1]);
        (void)waitpid(first, &status, 0);
        _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    }
    (void)close(out[1]);
    (void)close(told[1]);
    c->out_fd = out[0];
    if (read(told[0], &c->first, sizeof(c->first)) != sizeof(c->first)) {
        (void)waitpid(c->outer, NULL, 0);
        (void)close(out[0]);
        (void)close(told[0]);
        return false;
    }
    (void)close(told[0]);
    return true;
}

/* One more piece of its output, false at its end. */
static bool hear(struct container *c)
{
    struct pollfd fd = {.fd = c->out_fd, .events = POLLIN};
    char chunk[65536];
    ssize_t size;

    if (poll(&fd, 1, (int)PATIENCE_MS) != 1)
        fail_msg("it says nothing any more; so far: %s", fleet_strbuf_text(&c->out));
    size = read(c->out_fd, chunk, sizeof(chunk));
    if (size > 0)
        fleet_strbuf_append_bytes(&c->out, chunk, (size_t)size);
    return size > 0;
}

static void wait_for_output(struct container *c, const char *words)
{
    while (!strstr(fleet_strbuf_text(&c->out), words))
        assert_true(hear(c));
}

static void end(struct container *c)
{
    while (hear(c)) {
    }
    assert_int_equal(waitpid(c->outer, &c->status, 0), c->outer);
    c->status = WEXITSTATUS(c->status);
}

static void release(struct container *c)
{
    (void)close(c->out_fd);
    fleet_strbuf_release(&c->out);
}

static void stop(struct container *c)
{
    (void)kill(c->first, SIGKILL);
    end(c);
    release(c);
}

/* The string number `i` that begins with `kind`, NULL if there are not so many. */
static const char *told(const struct container *c, char kind, int i)
{
    for (size_t at = 0; at < c->out.length; at += strlen(c->out.text + at) + 1)
        if (c->out.text[at] == kind && i-- == 0)
            return c->out.text + at + 1;
    return NULL;
}

static void expect_all(const struct container *c, char kind, const char *const *expected)
{
    int count = 0;

    for (; expected[count]; count++) {
        const char *actual = told(c, kind, count);
        if (!actual || strcmp(actual, expected[count]) != 0)
            fail_msg("%c %d: expected \"%.200s\", got \"%.200s\"; all: %.300s", kind, count,
                     expected[count], actual ? actual : "(none)", fleet_strbuf_text(&c->out));
    }
    assert_null(told(c, kind, count));
}

/* The agent was started instead of `arguments`, with `expected` behind "--" and `variables` as
 * they were. */
static void expect_hand_over(const char *const *arguments, const char *const *expected,
                             const char *const *variables)
{
    struct container c;

    if (!start(&c, arguments, variables, self))
        skip();
    end(&c);
    if (c.status != 0)
        fail_msg("%s ended with %d: %s", arguments[0], c.status, fleet_strbuf_text(&c.out));
    expect_all(&c, 'A', expected);
    expect_all(&c, 'E', variables);
    release(&c);
}

/* ---- programs -------------------------------------------------------------------------------- */

/* Says that it runs, in a constructor already, and does what its first argument says. */
static const char source[] =
    "#include <fcntl.h>\n#include <signal.h>\n#include <string.h>\n#include <unistd.h>\n"
    "__attribute__((constructor)) static void early(void) { (void)!write(1, \"early \", 6); }\n"
    "int main(int argc, char **argv)\n{\n"
    "    (void)!write(1, \"main \", 5);\n"
    "    signal(SIGTERM, SIG_IGN);\n"
    "    while (argc > 1 && !strcmp(argv[1], \"stay\")) pause();\n"
    "    while (argc > 1 && !strcmp(argv[1], \"spin\")) getppid();\n"
    "    while (argc > 1 && !strcmp(argv[1], \"open\")) {\n"
    "        int fd = open(\"/dev/null\", O_RDONLY);\n"
    "        if (fd < 0) return 9;\n"
    "        close(fd);\n"
    "    }\n"
    "    return 3;\n}\n";

static void write_file(const char *path, const char *text, mode_t mode)
{
    struct fleet_error err;

    assert_int_equal(fleet_file_write(path, text, strlen(text), &err), 0);
    assert_int_equal(chmod(path, mode), 0);
}

/* NULL if there is no such compiler here. */
static const char *compile(const char *compiler, const char *name)
{
    static char path[128];
    char from[128], command[512];

    (void)snprintf(from, sizeof(from), "%s/program.c", folder);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    write_file(from, source, 0644);
    (void)snprintf(command, sizeof(command), "command -v %.*s >/dev/null && %s -o %s %s",
                   (int)strcspn(compiler, " "), compiler, compiler, path, from);
    return system(command) == 0 ? path : NULL;
}

static const char *path_in_folder(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

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

/* As gosu and su-exec do: the process is the container's first one, whatever it executed before. */
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

/* The agent of another user shows its file to nobody but root. */
static void test_entrypoint__the_agent_of_another_user_is_recognised(void **state)
{
    const char *arguments[] = {compile("cc", "dynamic"), NULL};
    const char *stay[] = {"STAY=1", NULL};
    struct container c;
    pid_t pid;
    int status;

    (void)state;
    if (!start(&c, arguments, stay, self))
        skip();
    while (!told(&c, 'I', 0))
        assert_true(hear(&c));
    pid = fork();
    if (pid == 0) {
        struct stat file;
        char path[64];
        (void)snprintf(path, sizeof(path), "/proc/%d/exe", (int)c.first);
        if (setgid(65532) < 0 || setuid(65532) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0 ||
            stat(path, &file) == 0)
            _exit(99);
        _exit((int)entrypoint_look(c.first));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), ENTRYPOINT_AGENT);
    stop(&c);
}

/* What enters a container later (a probe, `kubectl exec`) runs beside the agent. It waits for
 * its own children. */
static int enter(const struct container *c, const char *const *arguments,
                 const char *const *variables)
{
    char path[64];
    pid_t pid = fork();
    int status;

    if (pid > 0) {
        assert_int_equal(waitpid(pid, &status, 0), pid);
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    for (int i = 0; i < 2; i++) {
        int fd;
        (void)snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)c->first, i ? "mnt" : "pid");
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || setns(fd, 0) < 0)
            _exit(119);
    }
    pid = fork();
    if (pid == 0) {
        (void)execve(arguments[0], (char *const *)arguments,
                     (char *const *)with_ours(variables, self));
        _exit(121);
    }
    (void)waitpid(pid, &status, 0);
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
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

/* Nobody trains alone because the agent is not there. */
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

/* The agent is known by its file; a program before it has become the agent, and one that has no
 * variable of ours, is waited for: it may be the container runtime. */
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
    pid = fork();
    if (pid == 0) {
        (void)execve(arguments[0], (char *const *)arguments, (char *const *)no_variables);
        _exit(121);
    }
    while (entrypoint_look(pid) == ENTRYPOINT_AGENT) { /* still this program */
    }
    assert_int_equal(entrypoint_look(pid), ENTRYPOINT_STARTING);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
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

/* Inside of its namespace nobody can kill process 1, not even by SIGKILL. The real hook ends it
 * all the same. */
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
        assert_int_equal(c.status, i == 0 ? 128 + SIGKILL : 9);
        release(&c);
    }
}

/* ---- */

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) && chmod(folder, 0755) == 0 ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
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
        cmocka_unit_test(test_entrypoint__a_static_program_is_found_out),
        cmocka_unit_test(test_entrypoint__a_long_command_line_is_cut_in_the_message),
        cmocka_unit_test(test_entrypoint__the_agent_is_recognised),
        cmocka_unit_test(test_entrypoint__a_program_of_32_bits_is_found_out),
        cmocka_unit_test(test_entrypoint__the_hook_ends_what_it_found_out),
    };
    const char *programs = getenv("FLEET_BIN");

    if (argc > 1 && strcmp(argv[1], "--") == 0)
        return tell(argc, argv);
    if (!realpath("/proc/self/exe", self))
        return 1;
    programs = programs ? programs : "build/bin";
    if (!realpath(programs, agent))
        return 1;
    (void)snprintf(preload, sizeof(preload), "%s/" WELLKNOWN_PRELOAD_LIBRARY, agent);
    (void)strncat(agent, "/fleetjob-agent", sizeof(agent) - strlen(agent) - 1);
    return cmocka_run_group_tests_name("entrypoint", tests, make_folder, remove_folder);
}
