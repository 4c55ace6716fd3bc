/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_CONTROLLER_PROCESS_H
#define TESTS_SUPPORT_CONTROLLER_PROCESS_H

/* The built controller as a process that watches the namespace "team" of a fake API server. */

#include <sys/types.h>

#define CONTROLLER_PROCESS_OPTIONS_MAX 8

/*
 * Write the file `kubeconfig` for the server on `server_port`, and start the controller with it and
 * with `options` (NULL-terminated). It has no election, and dies with this process. Its log goes to
 * `log_fd`; -1: to our stderr. Aborts on failure.
 */
pid_t controller_process_start(const char *kubeconfig, int server_port, const char *const *options,
                               int log_fd);

/* Kill it and wait for its end. */
void controller_process_kill(pid_t pid);

#endif
