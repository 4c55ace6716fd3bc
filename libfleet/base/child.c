/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The child reports the result of its exec through a close-on-exec pipe: end of file means success,
 * an errno means failure. Between fork and exec, the child only makes system calls.
 */
#include "libfleet/base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libfleet/base/assert.h"

/* A copy with a number above all numbers that the child will use; closed by exec. */
static int move_away(int fd, int least)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, least);
}

/* First move each descriptor that gets another number above all of those numbers. */
static bool place(const struct fleet_child *child, int *failed)
{
    int copies[FLEET_CHILD_FDS_MAX], above = STDERR_FILENO + 1;
    bool ok = true;

    for (size_t i = 0; i < child->fd_count; i++)
        above = child->fds[i].as >= above ? child->fds[i].as + 1 : above;
    *failed = move_away(*failed, above);
    for (size_t i = 0; i < child->fd_count; i++)
        copies[i] = child->fds[i].fd >= 0 && child->fds[i].as >= 0
                        ? move_away(child->fds[i].fd, above)
                        : -1;
    for (size_t i = 0; i < child->fd_count; i++) {
        const struct fleet_child_fd *fd = &child->fds[i];
        if (fd->fd >= 0)
            ok &= fd->as >= 0 ? dup2(copies[i], fd->as) >= 0 : fcntl(fd->fd, F_SETFD, 0) == 0;
    }
    return ok && *failed >= 0;
}

__attribute__((noreturn)) static void run_child(const struct fleet_child *child, pid_t parent,
                                                int failed)
{
    sigset_t none;
    int number;

    /* If the parent died before prctl, the signal never comes. */
    if (child->dies_with_us && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
        _exit(127);
    if (child->is_session)
        (void)setsid();
    else
        (void)setpgid(0, 0);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC); /* inherited ones, too */
    if (place(child, &failed))
        (void)execvpe(child->path, child->arguments,
                      child->environment ? child->environment : environ);
    number = errno;
    (void)!write(failed, &number, sizeof(number));
    _exit(127);
}

/* The errno that the child has sent; 0 = its exec has closed the pipe. */
static int read_errno(int fd)
{
    int number = 0;
    ssize_t size;

    do
        size = read(fd, &number, sizeof(number));
    while (size < 0 && errno == EINTR);
    return number;
}

int fleet_child_start(const struct fleet_child *child, pid_t *out_pid)
{
    pid_t parent = getpid(), pid;
    int failed[2], number;

    fleet_assert(child->fd_count <= FLEET_CHILD_FDS_MAX);
    if (pipe2(failed, O_CLOEXEC) < 0)
        return -errno;
    pid = fork();
    if (pid == 0)
        run_child(child, parent, failed[1]);
    number = pid < 0 ? errno : 0;
    if (pid > 0 && !child->is_session)
        (void)setpgid(pid, pid); /* the child also does it; either may be first */
    (void)close(failed[1]);
    if (pid > 0)
        number = read_errno(failed[0]);
    (void)close(failed[0]);
    if (pid > 0 && number)
        (void)fleet_child_reap(pid);
    if (number == 0)
        *out_pid = pid;
    return -number;
}

pid_t fleet_child_ended(void)
{
    siginfo_t info = {0};

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ? 0 : info.si_pid;
}

int fleet_child_reap(pid_t pid)
{
    int status = 0;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return status;
}

int fleet_child_exit_code(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}
