/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/child.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"

pid_t child_process_fork(void)
{
    pid_t parent = getpid(), pid;

    (void)fflush(NULL); /* the child would write it, too */
    pid = fork();
    fleet_assert(pid >= 0);
    if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
        _exit(127);
    return pid;
}

int child_process_wait(pid_t pid)
{
    return fleet_child_exit_code(fleet_child_reap(pid));
}

int child_process_kill(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    return child_process_wait(pid);
}

struct child_process child_process_start(const char *path, const char *const *arguments)
{
    FLEET_AUTO_CLOSE int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out[2], err[2];
    struct child_process process;
    int rc;

    fleet_assert(null >= 0 && pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
    rc = fleet_child_start(
        &(struct fleet_child){
            .path = path,
            .arguments = (char *const *)arguments,
            .fds = {{null, STDIN_FILENO}, {out[1], STDOUT_FILENO}, {err[1], STDERR_FILENO}},
            .fd_count = 3,
            .dies_with_us = true},
        &process.pid);
    if (rc < 0)
        (void)fprintf(stderr, "cannot run %s: %s\n", path, strerror(-rc));
    fleet_assert(rc == 0);
    (void)close(out[1]);
    (void)close(err[1]);
    process.out_fd = out[0];
    process.err_fd = err[0];
    return process;
}

static void close_pipe(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void read_some(int *fd, struct fleet_strbuf *into)
{
    char chunk[65536];
    ssize_t size = read(*fd, chunk, sizeof(chunk));

    if (size > 0)
        fleet_strbuf_append_bytes(into, chunk, (size_t)size);
    else if (size == 0 || errno != EINTR)
        close_pipe(fd);
}

bool child_process_read(struct child_process *process, int ms, struct fleet_strbuf *out,
                        struct fleet_strbuf *err)
{
    struct pollfd fds[2] = {{.fd = process->out_fd, .events = POLLIN},
                            {.fd = process->err_fd, .events = POLLIN}};

    if (process->out_fd < 0 && process->err_fd < 0)
        return false;
    if (poll(fds, 2, ms) <= 0)
        return true;
    if (fds[0].revents)
        read_some(&process->out_fd, out);
    if (fds[1].revents)
        read_some(&process->err_fd, err);
    return true;
}

int child_process_finish(struct child_process *process, struct fleet_strbuf *out,
                         struct fleet_strbuf *err)
{
    pid_t pid = process->pid;

    while (child_process_read(process, -1, out, err))
        ;
    process->pid = 0;
    return child_process_wait(pid);
}

void child_process_release(struct child_process *process)
{
    close_pipe(&process->out_fd);
    close_pipe(&process->err_fd);
    if (process->pid > 0)
        (void)child_process_kill(process->pid);
    process->pid = 0;
}
