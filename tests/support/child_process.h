/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_CHILD_PROCESS_H
#define TESTS_SUPPORT_CHILD_PROCESS_H

/*
 * Child processes of a test: a copy of the test, or a program. A child is killed when the thread
 * that started it ends, so that a failed test leaves none behind. Every function aborts if the
 * system refuses.
 */

#include <stdbool.h>
#include <sys/types.h>

struct fleet_strbuf;

/* Exit code of child_process_wait() for a child that a signal ended: this plus the signal. */
#define CHILD_PROCESS_SIGNALED 128

/* fork(): 0 in the child, which must end by _exit(); its number in the test. */
pid_t child_process_fork(void);

/* Wait until it has ended, and forget it. Returns its exit code. */
int child_process_wait(pid_t pid);

/* Kill it by SIGKILL, wait and forget it. Returns its exit code. */
int child_process_kill(pid_t pid);

/* A program, with pipes for its standard output and error. Its standard input is empty. */
struct child_process {
    pid_t pid;
    int out_fd, err_fd; /* our ends; -1 = closed */
};

/* `path` is looked up in PATH if it has no slash; `arguments` is argv and ends with NULL. The
 * program leads a process group of its own. */
struct child_process child_process_start(const char *path, const char *const *arguments);

/* Append what the pipe holds now, waiting at most `ms` (-1: without a limit) for one of the two.
 * Closes a pipe at its end. False if both are closed. */
bool child_process_read(struct child_process *process, int ms, struct fleet_strbuf *out,
                        struct fleet_strbuf *err);

/* Read both pipes to their end, wait and forget it. Returns its exit code. */
int child_process_finish(struct child_process *process, struct fleet_strbuf *out,
                         struct fleet_strbuf *err);

/* Close what is open. A program that was not waited for is killed. */
void child_process_release(struct child_process *process);

#endif
