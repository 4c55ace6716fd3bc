/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_ENTRYPOINT_FIXTURE_H
#define TESTS_INTEGRATION_ENTRYPOINT_FIXTURE_H

/*
 * Real programs (of both C libraries, scripts, static ones) as process 1 of a process namespace, as
 * a container runtime starts them. The test program takes the place of the agent and records how it
 * was started. The tests need the right to make namespaces; without it they are skipped.
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
#include <sys/stat.h>
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
#include "tests/support/child_process.h"

#define PATIENCE_MS 120000.0 /* sanitizers on a busy machine */

static char folder[] = "/tmp/fleetjob-test-entrypoint-XXXXXX";
static char self[4096], preload[4300], agent[4200]; /* this program; of FLEET_BIN */

/* ---- in place of the agent ------------------------------------------------------------------- */

/* NUL-terminated: "A" and an argument, "E" and a variable, "C" the folder, "I" numbers. */
static inline int tell(int argc, char **argv)
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
static inline const char **with_ours(const char *const *variables, const char *with)
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
static inline bool start(struct container *c, const char *const *arguments,
                         const char *const *variables, const char *with)
{
    int out[2], told[2];

    *c = (struct container){0};
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    c->outer = child_process_fork();
    if (c->outer == 0) {
        pid_t first;
        if (unshare(CLONE_NEWPID | CLONE_NEWNS) < 0)
            _exit(119);
        first = fork();
        if (first == 0)
            become(arguments, with_ours(variables, with), out[1]);
        (void)!write(told[1], &first, sizeof(first));
        (void)close(out[1]);
        _exit(child_process_wait(first));
    }
    (void)close(out[1]);
    (void)close(told[1]);
    c->out_fd = out[0];
    if (read(told[0], &c->first, sizeof(c->first)) != sizeof(c->first)) {
        (void)child_process_wait(c->outer);
        (void)close(out[0]);
        (void)close(told[0]);
        return false;
    }
    (void)close(told[0]);
    return true;
}

/* One more piece of its output, false at its end. */
static inline bool hear(struct container *c)
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

static inline void wait_for_output(struct container *c, const char *words)
{
    while (!strstr(fleet_strbuf_text(&c->out), words))
        assert_true(hear(c));
}

static inline void end(struct container *c)
{
    while (hear(c)) {
    }
    c->status = child_process_wait(c->outer);
}

static inline void release(struct container *c)
{
    (void)close(c->out_fd);
    fleet_strbuf_release(&c->out);
}

static inline void stop(struct container *c)
{
    (void)kill(c->first, SIGKILL);
    end(c);
    release(c);
}

/* The string number `i` that begins with `kind`, NULL if there are not so many. */
static inline const char *told(const struct container *c, char kind, int i)
{
    for (size_t at = 0; at < c->out.length; at += strlen(c->out.text + at) + 1)
        if (c->out.text[at] == kind && i-- == 0)
            return c->out.text + at + 1;
    return NULL;
}

static inline void expect_all(const struct container *c, char kind, const char *const *expected)
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
static inline void expect_hand_over(const char *const *arguments, const char *const *expected,
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

static inline void write_file(const char *path, const char *text, mode_t mode)
{
    struct fleet_error err;

    assert_int_equal(fleet_file_write(path, text, strlen(text), &err), 0);
    assert_int_equal(chmod(path, mode), 0);
}

/* NULL if there is no such compiler here. */
static inline const char *compile(const char *compiler, const char *name)
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

static inline const char *path_in_folder(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* ---- what does not --------------------------------------------------------------------------- */

/* What enters a container later (a probe, `kubectl exec`) runs beside the agent. It waits for
 * its own children. */
static inline int enter(const struct container *c, const char *const *arguments,
                        const char *const *variables)
{
    char path[64];
    pid_t pid = child_process_fork();

    if (pid > 0)
        return child_process_wait(pid);
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
    _exit(child_process_wait(pid));
}

/* ---- how it is found out --------------------------------------------------------------------- */

static inline int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) && chmod(folder, 0755) == 0 ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

/* Is this process the test? Else it is in place of the agent, or there are no programs, and
 * *out_code is how it ends. */
static inline bool is_test(int argc, char **argv, int *out_code)
{
    const char *programs = getenv("FLEET_BIN");

    *out_code = 1;
    if (argc > 1 && strcmp(argv[1], "--") == 0) {
        *out_code = tell(argc, argv);
        return false;
    }
    if (!realpath("/proc/self/exe", self) || !realpath(programs ? programs : "build/bin", agent))
        return false;
    (void)snprintf(preload, sizeof(preload), "%s/" WELLKNOWN_PRELOAD_LIBRARY, agent);
    (void)strncat(agent, "/fleetjob-agent", sizeof(agent) - strlen(agent) - 1);
    return true;
}

#endif
