/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_RUN_PROGRAM_H
#define TESTS_INTEGRATION_RUN_PROGRAM_H

/*
 * `fleetjob` as a user runs it: starts the program, reads what it prints, and looks for processes
 * that it leaves behind. Each run has an environment variable of its own, which finds its processes
 * in /proc.
 */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/child_process.h"

#define PATIENCE_MS 600000.0 /* sanitizers on a busy machine */

extern char **environ;

static char program[4096]; /* build/…/bin/fleetjob */

/* ---- running --------------------------------------------------------------------------------- */

struct run {
    struct child_process process; /* its pid is 0 after its end */
    struct fleet_strbuf out, err;
    int exit_code;        /* 128 + signal if one ended it */
    char mark[64];        /* "TEST_RUN=…" in the environment of all its processes */
    char state_file[128]; /* "" = none */
};

static inline void start_program(struct run *run, const char *path, char *const *arguments)
{
    static int count;

    *run = (struct run){0};
    (void)snprintf(run->mark, sizeof(run->mark), "TEST_RUN=%d-%d", (int)getpid(), ++count);
    assert_int_equal(setenv("TEST_RUN", strchr(run->mark, '=') + 1, 1), 0); /* it is inherited */
    run->process = child_process_start(path, (const char *const *)arguments);
}

static inline void start(struct run *run, char *const *arguments)
{
    start_program(run, program, arguments);
}

/* Take what was printed, waiting at most `ms`. False at the end of its output. */
static inline bool listen_to(struct run *run, int ms)
{
    return child_process_read(&run->process, ms, &run->out, &run->err);
}

static inline void wait_for_end(struct run *run)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;

    while (listen_to(run, 1000)) {
        if (fleet_monotonic_ms() > give_up_ms) {
            (void)kill(run->process.pid, SIGKILL);
            fail_msg("it did not end in %.0f s; its output:\n%s\n%s", PATIENCE_MS / 1e3,
                     fleet_strbuf_text(&run->out), fleet_strbuf_text(&run->err));
        }
    }
    run->exit_code = child_process_wait(run->process.pid);
    run->process.pid = 0;
}

static inline void release(struct run *run)
{
    child_process_release(&run->process);
    fleet_strbuf_release(&run->out);
    fleet_strbuf_release(&run->err);
}

/* Run `fleetjob` with these words to its end. */
static inline void run_words(struct run *run, const char *first, ...)
{
    char *arguments[16] = {program};
    size_t count = 1;
    va_list args;

    va_start(args, first);
    for (const char *word = first; word; word = va_arg(args, const char *))
        arguments[count++] = (char *)word;
    va_end(args);
    start(run, arguments);
    wait_for_end(run);
}

static inline void expect_exit(const struct run *run, int code)
{
    if (run->exit_code != code)
        fail_msg("expected exit code %d, got %d; it said:\n%s\n%s", code, run->exit_code,
                 fleet_strbuf_text(&run->err), fleet_strbuf_text(&run->out));
}

static inline void expect_words(const struct fleet_strbuf *text, const char *words)
{
    if (!strstr(fleet_strbuf_text(text), words))
        fail_msg("expected \"%s\" in:\n%s", words, fleet_strbuf_text(text));
}

/* ---- what is left behind --------------------------------------------------------------------- */

static inline bool carries_mark(const char *pid, const char *mark)
{
    FLEET_AUTO_FREE char *text = NULL;
    char path[64];
    size_t size = 0, length = strlen(mark);

    (void)snprintf(path, sizeof(path), "/proc/%.20s/environ", pid);
    if (fleet_file_read(path, 1 << 20, &text, &size, NULL) < 0)
        return false;
    for (size_t i = 0; i + length <= size; i += strlen(text + i) + 1)
        if (strcmp(text + i, mark) == 0)
            return true;
    return false;
}

static inline int count_processes(const struct run *run)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    int count = 0;

    while (proc && (entry = readdir(proc)))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && atoi(entry->d_name) != getpid())
            count += carries_mark(entry->d_name, run->mark);
    if (proc)
        (void)closedir(proc);
    return count;
}

/* The kernel may need a moment to end what it has killed. */
static inline void expect_nothing_left(const struct run *run)
{
    double give_up_ms = fleet_monotonic_ms() + PATIENCE_MS;
    int count;

    while ((count = count_processes(run)) > 0 && fleet_monotonic_ms() < give_up_ms)
        (void)usleep(20000);
    if (count > 0)
        fail_msg("%d processes are left behind", count);
    if (run->state_file[0] && run->exit_code < 128)
        assert_int_not_equal(access(run->state_file, F_OK), 0);
}

#endif
