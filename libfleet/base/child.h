/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_CHILD_H
#define LIBFLEET_BASE_CHILD_H

/*
 * Child processes: fork, descriptors in their places, exec, reap.
 *
 *  (1) A child leads a process group, or a session, of its own: a signal to the group reaches
 *      all that it has started, and the terminal's signals do not reach it.
 *  (2) It inherits no descriptors but 0, 1, 2 and those that it is given, no blocked signals, and
 *      SIGPIPE ends it.
 *  (3) The caller learns that exec failed before fleet_child_start() returns.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* A descriptor that the child gets, under its own number or another one. */
struct fleet_child_fd {
    int fd; /* ours; -1 = none, the entry is skipped */
    int as; /* the child's number; FLEET_CHILD_SAME = the same. No other entry may have it */
};

#define FLEET_CHILD_SAME    (-1)
#define FLEET_CHILD_FDS_MAX 8

struct fleet_child {
    const char *path;                               /* looked up in our PATH if it has no slash */
    char *const *arguments;                         /* argv, NULL-terminated */
    char *const *environment;                       /* "NAME=value", NULL-terminated; NULL = ours */
    struct fleet_child_fd fds[FLEET_CHILD_FDS_MAX]; /* [fd_count]; 0, 1, 2: else ours */
    size_t fd_count;
    bool is_session;   /* it leads a session, not only a group */
    bool dies_with_us; /* SIGKILL when the thread that started it ends */
};

/* Start it; `child` is borrowed for the call. -errno if fork or exec fails; nothing runs then. */
int fleet_child_start(const struct fleet_child *child, pid_t *out_pid);

/* A child that has ended and is not reaped yet, an inherited orphan included; 0 = none. No other
 * process gets its number before fleet_child_reap(). */
pid_t fleet_child_ended(void);

/* Wait until this child has ended, and forget it: its wait status, 0 if there is no such child. */
int fleet_child_reap(pid_t pid);

/* The exit code that a wait status stands for: 128 + signal if a signal has ended it. */
int fleet_child_exit_code(int wait_status);

#endif
