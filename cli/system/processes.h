/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SYSTEM_PROCESSES_H
#define CLI_SYSTEM_PROCESSES_H

/*
 * Relations between the processes of this machine, read from /proc. A process that begins or ends
 * meanwhile may be missed, so callers must tolerate that or hold the process still.
 */

#include <stddef.h>
#include <sys/types.h>

/* Processes whose parent is `pid`, into out[capacity]; returns how many were put there. */
size_t processes_children(pid_t pid, pid_t *out, size_t capacity);

/* SIGKILL to all of a session but its leader, which should be a zombie: then no other process can
 * have its number. */
void processes_kill_session(pid_t leader);

#endif
